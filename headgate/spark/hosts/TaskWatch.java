import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.executor.ExecutorMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;

/**
 * Which tasks run and wait, when each executor was last heard of, and its memory: a listener of Spark's scheduler.
 *
 * Spark's own compiler for generated code (Janino) compiles this file in the driver; tasks.py reads it. Spark's listener thread
 * calls the methods `on...`, any thread may call `told`; the monitor of the object guards all fields. Janino has no lambdas and
 * does not infer type arguments.
 */
public final class TaskWatch extends SparkListener {

    private static final int HEARTBEATS = 8;

    private static final class Stage {
        String tags = "";
        int tasks;
        int succeeded;
        int running;

        /** Tasks that are ready and have no slot. */
        int waiting() {
            return Math.max(0, tasks - succeeded - running);
        }
    }

    private static final class Executor {
        long heardNanos;
        int running;
        double runningSeconds;
        /** Heap in use at the last heartbeats that came after a collection of garbage. The least of them holds the least garbage. */
        final long[] heaps = new long[HEARTBEATS];
        int measured;
        long collections;
        long pythonBytes;

        void measure(ExecutorMetrics metrics) {
            long now = metrics.getMetricValue("MinorGCCount") + metrics.getMetricValue("MajorGCCount");
            if (now > collections) {
                heaps[measured++ % HEARTBEATS] = metrics.getMetricValue("JVMHeapMemory");
                collections = now;
            }
            pythonBytes = metrics.getMetricValue("ProcessTreePythonRSSMemory");
        }

        long leastHeap() {
            long least = measured == 0 ? 0 : heaps[0];
            for (int each = 1; each < Math.min(measured, HEARTBEATS); each++) {
                least = Math.min(least, heaps[each]);
            }
            return least;
        }
    }

    /** The Spark jobs that run with the same tags, and the executors that their tasks were started on. */
    private static final class Work {
        int jobs;
        final HashSet executors = new HashSet();
    }

    private final HashMap stages = new HashMap();
    private final HashMap executors = new HashMap();
    private final HashMap works = new HashMap();
    private final HashMap tagsOfJobs = new HashMap();
    private final HashMap executorOfTasks = new HashMap();
    private final long begunNanos = System.nanoTime();
    private long countedNanos = begunNanos;
    private int waiting;
    private double waitingSeconds;

    public synchronized void onExecutorAdded(SparkListenerExecutorAdded event) {
        executor(event.executorId()).heardNanos = System.nanoTime();
    }

    public synchronized void onExecutorRemoved(SparkListenerExecutorRemoved event) {
        count();
        executors.remove(event.executorId());
    }

    public synchronized void onExecutorMetricsUpdate(SparkListenerExecutorMetricsUpdate heartbeat) {
        Executor heard = executor(heartbeat.execId());
        heard.heardNanos = System.nanoTime();
        scala.collection.Iterator stages = heartbeat.executorUpdates().valuesIterator();
        if (stages.hasNext()) { // one entry per stage with tasks on the executor, all with the same figures
            heard.measure((ExecutorMetrics) stages.next());
        }
    }

    public synchronized void onJobStart(SparkListenerJobStart event) {
        String tags = tagsOf(event.properties());
        tagsOfJobs.put(Integer.valueOf(event.jobId()), tags);
        Work work = (Work) works.get(tags);
        if (work == null) {
            work = new Work();
            works.put(tags, work);
        }
        work.jobs++;
    }

    public synchronized void onJobEnd(SparkListenerJobEnd event) {
        Object tags = tagsOfJobs.remove(Integer.valueOf(event.jobId()));
        Work work = (Work) works.get(tags);
        if (work != null && --work.jobs <= 0) {
            works.remove(tags);
        }
    }

    public synchronized void onStageSubmitted(SparkListenerStageSubmitted event) {
        count();
        Stage stage = new Stage();
        stage.tags = tagsOf(event.properties());
        stage.tasks = event.stageInfo().numTasks();
        stages.put(key(event.stageInfo().stageId(), event.stageInfo().attemptNumber()), stage);
        waiting += stage.waiting();
    }

    public synchronized void onStageCompleted(SparkListenerStageCompleted event) {
        count();
        Object stage = stages.remove(key(event.stageInfo().stageId(), event.stageInfo().attemptNumber()));
        waiting -= stage == null ? 0 : ((Stage) stage).waiting();
    }

    public synchronized void onTaskStart(SparkListenerTaskStart event) {
        count();
        String name = event.taskInfo().executorId();
        executor(name).running++;
        executorOfTasks.put(Long.valueOf(event.taskInfo().taskId()), name);
        Stage stage = (Stage) stages.get(key(event.stageId(), event.stageAttemptId()));
        if (stage != null) {
            waiting -= stage.waiting();
            stage.running++;
            waiting += stage.waiting();
            Work work = (Work) works.get(stage.tags);
            if (work != null) {
                work.executors.add(name);
            }
        }
    }

    public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
        count();
        Object name = executorOfTasks.remove(Long.valueOf(event.taskInfo().taskId()));
        Executor executor = (Executor) executors.get(name);
        if (executor != null && executor.running > 0) {
            executor.running--;
        }
        Stage stage = (Stage) stages.get(key(event.stageId(), event.stageAttemptId()));
        if (stage != null && name != null) {
            waiting -= stage.waiting();
            stage.running--;
            stage.succeeded += event.taskInfo().successful() ? 1 : 0;
            waiting += stage.waiting();
        }
    }

    /** Everything as JSON, in one call: the gateway takes as long for a number. */
    public synchronized String told() {
        count();
        StringBuilder text = new StringBuilder("{\"at_s\":").append(seconds(countedNanos - begunNanos));
        text.append(",\"waiting\":").append(waiting).append(",\"waiting_s\":").append(waitingSeconds);
        text.append(",\"executors\":{");
        String comma = "";
        for (Iterator all = executors.entrySet().iterator(); all.hasNext(); comma = ",") {
            Map.Entry entry = (Map.Entry) all.next();
            Executor one = (Executor) entry.getValue();
            text.append(comma).append('"').append(entry.getKey()).append("\":{\"running\":").append(one.running);
            text.append(",\"running_s\":").append(one.runningSeconds);
            text.append(",\"silent_s\":").append(seconds(countedNanos - one.heardNanos));
            text.append(",\"heap_bytes\":").append(one.leastHeap()).append(",\"python_bytes\":").append(one.pythonBytes).append('}');
        }
        text.append("},\"works\":[");
        comma = "";
        for (Iterator all = works.entrySet().iterator(); all.hasNext(); comma = ",") {
            Map.Entry entry = (Map.Entry) all.next();
            text.append(comma).append("{\"tags\":\"").append(entry.getKey()).append("\",\"executors\":\"");
            text.append(String.join(",", ((Work) entry.getValue()).executors)).append("\"}");
        }
        return text.append("]}").toString();
    }

    /** Adds up what has run and waited since the last event. */
    private void count() {
        long now = System.nanoTime();
        double passed = seconds(now - countedNanos);
        for (Iterator all = executors.values().iterator(); all.hasNext();) {
            Executor one = (Executor) all.next();
            one.runningSeconds += one.running * passed;
        }
        waitingSeconds += waiting * passed;
        countedNanos = now;
    }

    private Executor executor(String name) {
        Executor found = (Executor) executors.get(name);
        if (found == null) {
            found = new Executor();
            found.heardNanos = System.nanoTime();
            executors.put(name, found);
        }
        return found;
    }

    private static String tagsOf(java.util.Properties properties) {
        String tags = properties == null ? null : properties.getProperty("spark.job.tags");
        return tags == null ? "" : tags.replace('"', ' ').replace('\\', ' ');
    }

    private static String key(int stage, int attempt) {
        return stage + "." + attempt;
    }

    private static double seconds(long nanos) {
        return nanos / 1e9;
    }
}
