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
"""Pools for each share above 1; more jobs of the same share than this use pools together."""
LOG = "spark.log"
OUTPUT = "spark.out"
"""File with the output of the JVM and the lanes."""
CONCURRENT_CLEAN_UP = "-XX:+ExplicitGCInvokesConcurrent"
"""Lets Spark's clean-up collect garbage concurrently; otherwise all epochs would wait for the collection."""
ARCHIVE = Path(sys.prefix) / "share" / "headgate" / f"spark-{pyspark.__version__}.jsa"
"""Archive of Spark's classes, which `headgate.spark.classes` wrote for the packages of this Python."""


def start(
    home: Path, settings: SparkSettings, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session on the embedded Spark, or on the cluster `master`."""
    security.java()  # a sentence now instead of stack traces later
    if jvm.spark_runs():
        raise EngineError("this process has a Spark session already; stop it first")
    # PySpark logs all stack traces of each analysis error and failed epoch; the reason of a job says the same in a sentence.
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
    # Other machines have no launcher of Headgate, and may have Python elsewhere.
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
    """Return the class path of Spark's own scripts; an archive is valid only for the same class path."""
    spark = Path(pyspark.__file__).parent
    (first,) = (spark / "jars").glob("slf4j-api-*.jar")
    return f"{spark}/conf:{first}:{spark}/jars/*"


def shared_classes() -> tuple[str, ...]:
    """Return Java options for the archive of Spark's classes, if there is one; Java silently ignores an archive that does not fit."""
    return (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds*=off") if ARCHIVE.exists() else ()


def _launch(configuration: Mapping[str, str]) -> None:
    """Start the JVM without secrets in its arguments; the gateway passes them later. PySpark would pass all settings as arguments."""
    arguments = SparkConf(loadDefaults=False).setAll(list(security.public(configuration).items()))
    gateway = jvm.launch(arguments)
    security.guard_callbacks(gateway)
    jvm.use(gateway)


def _fallbacks(settings: SparkSettings) -> dict[str, str]:
    """Return settings for every kind of master, unless the operator says otherwise.

    Spark's own state keeps this number of partitions forever. Spark's default is 200, and each partition costs a task per epoch.
    """
    heartbeat = f"{round(settings.heartbeat_s * 1000)}ms"
    return {PARTITIONS: str(settings.slots), HEARTBEAT: heartbeat, PYTHON_MEMORY: "true"}


def _unless_set(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that spark-defaults.conf does not set; the JVM must have read this file."""
    given = SparkConf()
    return {name: value for name, value in wanted.items() if not given.contains(name)}


def is_on_this_machine(spark: SparkSession) -> bool:
    """Whether only workers of this machine can reach the driver."""
    return spark.sparkContext.getConf().get(DRIVER_HOST) == ON_THIS_MACHINE[DRIVER_HOST]


def rotate_output(home: Path, settings: SparkSettings) -> None:
    """Rotate the file with the output of the JVM and the lanes if it is too large."""
    _logs(settings).rotate(home / OUTPUT)


def _logs(settings: SparkSettings) -> Logs:
    return Logs(settings.log_mb, settings.log_files)


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Redirect standard error to a file in this block: a JVM that starts in it then never writes into the live table."""
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
    """Keep the handler of Ctrl-C: PySpark's own would cancel all its jobs, but epochs in flight must finish."""
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
"""Limit of batches in bytes with which Spark ignores their size."""


@contextmanager
def shuffling(spark: SparkSession, partitions: int) -> Iterator[None]:
    """Give exchanges inside the user's functions as many partitions as the widest operator has, during this block.

    The query itself must not use this number: Spark binds its own state to the number with which the query was started.
    """
    before = str(spark.conf.get(PARTITIONS))
    spark.conf.set(PARTITIONS, str(partitions))
    try:
        yield
    finally:
        spark.conf.set(PARTITIONS, before)


def _preferences(settings: SparkSettings) -> dict[str, str]:
    """Preferences of Headgate that the operator may override, and that must be set before the JVM reads spark-defaults.conf."""
    return {
        "spark.app.name": "headgate",
        operators.MEMORY: f"{settings.driver_memory_mb}m",
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _configuration(home: Path, settings: SparkSettings, embedded: bool) -> dict[str, str]:
    """Return the settings of the session. Adaptive plans are off, because they would merge partitions and so lanes."""
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
    """Return limits of what Spark keeps, for hundreds of queries: Spark's defaults are for few queries, or for days."""
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
"""Settings of a driver with all workers and files on this machine."""
_ALWAYS = {
    "spark.python.daemon.module": "headgate.spark.processes.daemon",
    # An operator that drops all rows must not keep Spark from reading and counting the input.
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.PruneFilters,"
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
    ),
    # Spark describes each execution for its UI, which rarely runs; this is the shortest description.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.adaptive.enabled": "false",
    # The routing table and the rows of keyed operators have equal partitions; a union of both keeps them.
    "spark.sql.unionOutputPartitioning": "true",
    # Otherwise all lanes of an exchange would run on the hosts where a source with few lanes has written its rows.
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
