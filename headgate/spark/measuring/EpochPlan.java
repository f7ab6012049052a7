import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.MonotonicallyIncreasingID;
import org.apache.spark.sql.catalyst.expressions.Nondeterministic;
import org.apache.spark.sql.catalyst.expressions.SparkPartitionID;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.CollectMetricsExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.util.AccumulatorV2;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.runtime.AbstractPartialFunction;

/**
 * The rows of one operator as Spark's physical plan, carried out once per epoch: on the rows of the epoch, and read for its meters.
 *
 * To analyze, optimize and plan the same operators takes most of the core time of an epoch with few rows. A plan that depends on
 * nothing but the rows of the epoch is made once; each epoch has a copy of it, in which the scan reads the epoch's own rows.
 *
 * Spark's own compiler for generated code (Janino) compiles this file in the driver; carrying.py uses it, in the thread of the job's
 * query. Janino has no lambdas and does not infer type arguments.
 */
public final class EpochPlan {

    /** What Python calls first: to call a constructor of a class that was compiled here takes many calls. */
    public static final class Maker {

        /** The plan of these rows, which were built on the rows of an epoch; the text of a node that is a meter has this pattern. */
        public EpochPlan make(Dataset frame, Dataset batch, String meter) {
            return new EpochPlan(frame, batch, Pattern.compile(meter));
        }

        /** Number of the partitions of an epoch's rows. */
        public int partitions(Dataset batch) {
            return rowsOf(batch).getNumPartitions();
        }
    }

    private static final String ROWS_OUT = "numOutputRows";
    private static final String ROWS_FROM_PYTHON = "pythonNumRowsReceived";
    private final Dataset frame;
    private final Pattern meter;
    private final RDD input;
    private final SparkPlan made;
    private SparkPlan carried;

    private EpochPlan(Dataset frame, Dataset batch, Pattern meter) {
        this.frame = frame;
        this.meter = meter;
        this.input = rowsOf(batch);
        this.made = frame.queryExecution().executedPlan();
    }

    /** Whether the plan depends on nothing but the rows of its epoch: not on a table, the clock, or numbers drawn at random. */
    public boolean isLasting() {
        return isLasting(frame.queryExecution().analyzed()) && isCopied(made);
    }

    /** The same rows of another epoch. */
    public Dataset carry(Dataset batch) {
        carried = copy(made, input, rowsOf(batch));
        LogicalRDD rows = new LogicalRDD(
            carried.output(), carried.execute(), carried.outputPartitioning(), carried.outputOrdering(), false, Option.empty(),
            frame.sparkSession(), Option.empty(), Option.empty(), false);
        return Dataset.ofRows(frame.sparkSession(), rows);
    }

    /**
     * What the copy for these rows has counted, as JSON: rows by meter, and what was observed by operator. The scan of the epoch's own
     * rows is the meter -1.
     */
    public String counted(Dataset batch) {
        StringBuilder meters = new StringBuilder();
        StringBuilder observed = new StringBuilder();
        List nodes = new ArrayList();
        addAll(carried, nodes, new IdentityHashMap());
        for (int at = 0; at < nodes.size(); at++) {
            SparkPlan node = (SparkPlan) nodes.get(at);
            String number = meterOf(node, rowsOf(batch));
            if (number != null) {
                String metric = node instanceof MapInArrowExec ? ROWS_FROM_PYTHON : ROWS_OUT;
                Object rows = ((AccumulatorV2) node.metrics().apply(metric)).value();
                meters.append(meters.length() == 0 ? "" : ",").append("[" + number + "," + rows + "]");
            }
            if (node instanceof CollectMetricsExec) {
                CollectMetricsExec one = (CollectMetricsExec) node;
                observed.append(observed.length() == 0 ? "" : ",").append('"').append(one.name()).append("\":");
                appendRow(observed, one.collectedMetrics());
            }
        }
        return "{\"meters\":[" + meters + "],\"observed\":{" + observed + "}}";
    }

    // -- whether a plan lasts

    private static boolean isLasting(LogicalPlan plan) {
        if (plan.containsPattern(TreePattern.CURRENT_LIKE()) || plan.containsPattern(TreePattern.PLAN_EXPRESSION())) {
            return false;
        }
        if (plan.children().isEmpty() && !isConstant(plan)) {
            return false;
        }
        for (Iterator all = plan.expressions().iterator(); all.hasNext();) {
            if (!isLasting((Expression) all.next())) {
                return false;
            }
        }
        for (Iterator all = plan.children().iterator(); all.hasNext();) {
            if (!isLasting((LogicalPlan) all.next())) {
                return false;
            }
        }
        return true;
    }

    private static boolean isConstant(LogicalPlan leaf) {
        return leaf instanceof LogicalRDD || leaf instanceof LocalRelation || leaf instanceof Range || leaf instanceof OneRowRelation;
    }

    private static boolean isLasting(Expression expression) {
        boolean drawn = expression instanceof Nondeterministic;
        if (drawn && !(expression instanceof SparkPartitionID) && !(expression instanceof MonotonicallyIncreasingID)) {
            return false;
        }
        for (Iterator all = expression.children().iterator(); all.hasNext();) {
            if (!isLasting((Expression) all.next())) {
                return false;
            }
        }
        return true;
    }

    /** Whether a copy reads the epoch's own rows everywhere; what is kept, and exchanges that are used twice, stay as they are. */
    private boolean isCopied(SparkPlan plan) {
        if (plan instanceof ReusedExchangeExec || !plan.subqueries().isEmpty()) {
            return false;
        }
        if (plan instanceof InMemoryTableScanExec) {
            return !reads(((InMemoryTableScanExec) plan).relation().cachedPlan());
        }
        for (Iterator all = plan.children().iterator(); all.hasNext();) {
            if (!isCopied((SparkPlan) all.next())) {
                return false;
            }
        }
        return true;
    }

    private boolean reads(SparkPlan plan) {
        List nodes = new ArrayList();
        addAll(plan, nodes, new IdentityHashMap());
        for (int at = 0; at < nodes.size(); at++) {
            if (nodes.get(at) instanceof RDDScanExec && ((RDDScanExec) nodes.get(at)).rdd() == input) {
                return true;
            }
        }
        return false;
    }

    private static SparkPlan copy(SparkPlan plan, final RDD from, final RDD to) {
        return (SparkPlan) plan.transformUp(new AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) {
                return node instanceof RDDScanExec && ((RDDScanExec) node).rdd() == from && from != to;
            }

            public Object applyOrElse(Object node, Function1 otherwise) {
                if (!isDefinedAt(node)) {
                    return otherwise.apply(node);
                }
                RDDScanExec scan = (RDDScanExec) node;
                return new RDDScanExec(
                    scan.output(), to, scan.name(), scan.outputPartitioning(), scan.outputOrdering(), scan.stream());
            }
        });
    }

    // -- what a plan has counted

    /** The nodes of a plan, with those of what it keeps and of exchanges that it uses twice; each once. */
    private static void addAll(SparkPlan plan, List nodes, IdentityHashMap known) {
        if (known.put(plan, plan) != null) {
            return;
        }
        nodes.add(plan);
        if (plan instanceof InMemoryTableScanExec) {
            addAll(((InMemoryTableScanExec) plan).relation().cachedPlan(), nodes, known);
        }
        if (plan instanceof ReusedExchangeExec) {
            addAll(((ReusedExchangeExec) plan).child(), nodes, known);
        }
        for (Iterator all = plan.children().iterator(); all.hasNext();) {
            addAll((SparkPlan) all.next(), nodes, known);
        }
    }

    private String meterOf(SparkPlan node, RDD batch) {
        if (node instanceof RDDScanExec) {
            return ((RDDScanExec) node).rdd() == batch ? "-1" : null;
        }
        if (!(node instanceof FilterExec || node instanceof MapInArrowExec)) {
            return null;
        }
        Matcher found = meter.matcher(node.simpleString(Integer.MAX_VALUE));
        return found.find() ? found.group(1) : null;
    }

    private static void appendRow(StringBuilder text, Row row) {
        text.append('[');
        for (int at = 0; at < row.length(); at++) {
            text.append(at == 0 ? "" : ",");
            append(text, row.get(at));
        }
        text.append(']');
    }

    private static void append(StringBuilder text, Object value) {
        if (value instanceof scala.collection.Seq) {
            text.append('[');
            String comma = "";
            for (Iterator all = ((scala.collection.Seq) value).iterator(); all.hasNext(); comma = ",") {
                text.append(comma);
                append(text, all.next());
            }
            text.append(']');
        } else {
            text.append(value);
        }
    }

    private static RDD rowsOf(Dataset batch) {
        return ((LogicalRDD) batch.logicalPlan()).rdd();
    }
}
