"""The Spark session: its configuration, its log, and its end."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark import SparkConf
from pyspark.sql import SparkSession

from headgate import files
from headgate.config import SparkSettings
from headgate.core.model import MOST_SHARE
from headgate.errors import EngineError
from headgate.spark import jvm, operators, security
from headgate.spark.hosts.tasks import HEARTBEAT, PYTHON_MEMORY
from headgate.spark.logs import Logs
from headgate.spark.processes import nursery
from headgate.spark.reasons import reason_of

POOLS_PER_SHARE = 10
"""Pools of each share above 1; more jobs of the same share than this divide them."""
LOG = "spark.log"
OUTPUT = "spark.out"
"""What the JVM and the lanes print."""
CONCURRENT_CLEAN_UP = "-XX:+ExplicitGCInvokesConcurrent"
"""Spark's clean-up collects garbage beside the epochs; without this, they would all wait for it."""
ARCHIVE = Path(sys.prefix) / "share" / "headgate" / f"spark-{pyspark.__version__}.jsa"
"""Spark's classes, as `classes` wrote them for the packages of this Python."""


def start(
    home: Path, settings: SparkSettings, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on the embedded Spark, or on the cluster that `master` names."""
    security.java()  # a sentence now instead of stack traces later
    if jvm.spark_runs():
        raise EngineError("this process has a Spark session already; stop it first")
    # PySpark logs each analysis error and each failed epoch with all stack traces; the reason of a job says it in a sentence.
    for name in ("DataFrameQueryContextLogger", "py4j.clientserver"):
        logging.getLogger(name).disabled = True
    home.mkdir(parents=True, exist_ok=True)
    configuration = {
        **operators.respected(_preferences(settings)),
        "spark.master": master or f"local[{settings.slots}]",
        **_configuration(home.resolve(), settings, master is None),
        **(extra or {}),
    }
    local = configuration.get(DRIVER_HOST) == ON_THIS_MACHINE[DRIVER_HOST]
    os.environ["PYSPARK_DRIVER_PYTHON"] = nursery.launcher(home.resolve()) if local else sys.executable
    # On other machines there is no launcher of ours, and Python may be elsewhere.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] if local else operators.python()
    try:
        with _stderr_into(home / OUTPUT), _interrupts_kept():
            _launch(configuration)
            unset = _unless_set(_fallbacks(settings))
            spark = SparkSession.builder.config(map={**unset, **configuration}).getOrCreate()
            if configuration["spark.ui.enabled"] == "false":
                jvm.drop_descriptions(spark)
            return spark
    except Exception as error:
        raise EngineError(f"Spark did not start: {reason_of(error)}") from error


def class_path() -> str:
    """Where Spark's own scripts have Java look for classes; an archive holds only for the same path."""
    spark = Path(pyspark.__file__).parent
    (first,) = (spark / "jars").glob("slf4j-api-*.jar")
    return f"{spark}/conf:{first}:{spark}/jars/*"


def shared_classes() -> tuple[str, ...]:
    """Has a JVM of this machine take Spark's classes from the archive, if there is one; Java says nothing if it does not fit."""
    return (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds*=off") if ARCHIVE.exists() else ()


def _launch(configuration: Mapping[str, str]) -> None:
    """Start the JVM. PySpark would give it everything as arguments, secrets included; these come later, by the gateway."""
    arguments = SparkConf(loadDefaults=False).setAll(list(security.public(configuration).items()))
    gateway = jvm.launch(arguments)
    security.guard_callbacks(gateway)
    jvm.use(gateway)


def _fallbacks(settings: SparkSettings) -> dict[str, str]:
    """For every kind of master, unless the operator says otherwise.

    State of Spark's own has as many partitions, for ever; 200 by default, each of which costs a task per epoch.
    """
    heartbeat = f"{round(settings.heartbeat_s * 1000)}ms"
    return {PARTITIONS: str(settings.slots), HEARTBEAT: heartbeat, PYTHON_MEMORY: "true"}


def _unless_set(wanted: Mapping[str, str]) -> dict[str, str]:
    """Those that spark-defaults.conf, which the JVM has read by now, does not set."""
    given = SparkConf()
    return {name: value for name, value in wanted.items() if not given.contains(name)}


def is_on_this_machine(spark: SparkSession) -> bool:
    """Whether only workers of this machine can reach the driver."""
    return spark.sparkContext.getConf().get(DRIVER_HOST) == ON_THIS_MACHINE[DRIVER_HOST]


def rotate_output(home: Path, settings: SparkSettings) -> None:
    """Set aside what the JVM and the lanes have printed, if it is too much."""
    _logs(settings).rotate(home / OUTPUT)


def _logs(settings: SparkSettings) -> Logs:
    return Logs(settings.log_mb, settings.log_files)


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """The JVM inherits standard error and writes to it for as long as it lives: to a file, not into the live table."""
    before, file = os.dup(2), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(file)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """PySpark has Ctrl-C cancel all its jobs at once; epochs in flight are to finish, so it does what it did before."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def stop(spark: SparkSession, exit_s: float) -> None:
    """Stop the session and its JVM, which has `exit_s` to end: nothing is left behind, and another session may be started."""
    gateway = jvm.gateway()
    spark.stop()
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        process.stdin.close()
        try:
            process.wait(exit_s)
        except subprocess.TimeoutExpired:  # with gigabytes of RocksDB's it may take long to clear up after itself
            process.kill()
            process.wait()
    jvm.forget_gateway()


def pool_of(job: str, share: int, number: int) -> str:
    """The FAIR pool of a job: its own pool with weight 1, or a shared pool for a larger weight."""
    return job if share == 1 else f"headgate-share-{share}-{number % POOLS_PER_SHARE}"


PARTITIONS = "spark.sql.shuffle.partitions"
ANY_SIZE = 2**31 - 1
"""Of batches in bytes: Spark does not look at it then."""


@contextmanager
def shuffling(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Exchanges inside the user's functions have as many partitions as the widest operator, while this lasts.

    The query itself must not see it: Spark ties its own state to the number the query was started with.
    """
    before = str(spark.conf.get(PARTITIONS))
    spark.conf.set(PARTITIONS, str(partitions))
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, before)


def _preferences(settings: SparkSettings) -> dict[str, str]:
    """What Headgate would like, unless the operator says otherwise: these are needed before the JVM has read spark-defaults.conf."""
    return {
        "spark.app.name": "headgate",
        operators.MEMORY: f"{settings.driver_memory_mb}m",
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _configuration(home: Path, settings: SparkSettings, embedded: bool) -> dict[str, str]:
    """Adaptive plans merge partitions, so they would merge lanes."""
    logging_to = f"-Dlog4j2.configurationFile={shlex.quote((home / 'log4j2.properties').as_uri())}"
    files.replace(home / "log4j2.properties", _logs(settings).log4j(home / LOG).encode())
    files.replace(home / "pools.xml", _pools().encode())
    return {
        **({**ON_THIS_MACHINE, **security.ENCRYPTED} if embedded else {}),
        JAVA_OPTIONS: (
            f"{shlex.join(shared_classes())} {CONCURRENT_CLEAN_UP} {logging_to}"
            f" {operators.defaults().get(JAVA_OPTIONS, '')}".rstrip()
        ),
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (home / "pools.xml").as_uri(),
        "spark.sql.streaming.pollingDelay": f"{round(settings.poll_s * 1000)}ms",
        "spark.locality.wait.node": f"{round(settings.place_wait_s * 1000)}ms",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(settings.largest_batch_mb << 20 or ANY_SIZE),
        **security.PRIVATE_FILES,
        **_ALWAYS,
        **_limits(settings),
    }


def _limits(settings: SparkSettings) -> dict[str, str]:
    """What Spark keeps for hundreds of queries: its own defaults are for few queries, or for days."""
    return {
        "spark.sql.streaming.numRecentProgressUpdates": str(settings.kept_epochs),
        "spark.sql.streaming.minBatchesToRetain": str(settings.kept_batches),
        "spark.scheduler.listenerbus.eventqueue.capacity": str(settings.listener_events),
        "spark.sql.ui.retainedExecutions": str(settings.retained_executions),
        "spark.sql.codegen.cache.maxEntries": str(settings.kept_classes),
        "spark.sql.streaming.ui.enabled": "false",
        "spark.ui.retainedJobs": str(settings.retained_stages),
        "spark.ui.retainedStages": str(settings.retained_stages),
        "spark.ui.retainedTasks": str(settings.retained_tasks),
        "spark.ui.retainedDeadExecutors": "10",
        "spark.cleaner.periodicGC.interval": f"{round(settings.clean_up_s)}s",
    }


JAVA_OPTIONS = "spark.driver.extraJavaOptions"
DRIVER_HOST = "spark.driver.host"
ON_THIS_MACHINE = {
    DRIVER_HOST: "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # By default, Spark starts a process for each file of a checkpoint to ask the operating system about links.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For a driver whose workers and files are all on this machine."""
_ALWAYS = {
    "spark.python.daemon.module": "headgate.spark.processes.daemon",
    # An operator that lets nothing pass must not keep Spark from reading, and counting, what comes in.
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.PruneFilters,"
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
    ),
    # Spark describes each execution for its UI, which rarely runs; this is the shortest description.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.adaptive.enabled": "false",
    # The routing table and the rows of keyed operators have the same partitions; side by side, they keep them.
    "spark.sql.unionOutputPartitioning": "true",
    # Otherwise the lanes of an exchange would all crowd where a source with few lanes has written its rows.
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


def _pools() -> str:
    pools = (
        f'  <pool name="headgate-share-{share}-{number}">'
        f"<schedulingMode>FAIR</schedulingMode><weight>{share}</weight><minShare>0</minShare></pool>\n"
        for share in range(2, MOST_SHARE + 1)
        for number in range(POOLS_PER_SHARE)
    )
    return f'<?xml version="1.0"?>\n<allocations>\n{"".join(pools)}</allocations>\n'
