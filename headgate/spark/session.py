"""The Spark session: what Headgate needs of it, where its log goes, and how it ends."""

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

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headgate.config import SparkSettings
from headgate.errors import EngineError
from headgate.spark.reasons import reason_of

MOST_SHARE = 10
"""Highest share a job can have."""
POOLS_PER_SHARE = 10
"""Pools of each share above 1; more jobs of the same share than this divide them."""
EXIT_S = 30.0
"""For so long a JVM may take to end by itself."""
LOG = "spark.log"
OUTPUT = "spark.out"
"""What the JVM and the lanes print."""

_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex{{20}}
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


def start(
    home: Path, settings: SparkSettings, master: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on the embedded Spark, or on the cluster that `master` names."""
    if SparkContext._active_spark_context is not None:
        raise EngineError("this process has a Spark session already; stop it first")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # PySpark logs every analysis error as one line of JSON with all stack traces; ours say it in a sentence.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    home.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName("headgate").master(master or f"local[{settings.slots}]")
    for key, value in {**_configuration(home.resolve(), settings, master is None), **(extra or {})}.items():
        builder = builder.config(key, value)
    try:
        with _stderr_into(home / OUTPUT), _interrupts_kept():
            return builder.getOrCreate()
    except Exception as error:
        raise EngineError(f"Spark did not start: {reason_of(error)}") from error


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


def stop(spark: SparkSession) -> None:
    """Stop the session and its JVM: nothing is left behind, and another session may be started."""
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        process.stdin.close()
        try:
            process.wait(EXIT_S)
        except subprocess.TimeoutExpired:  # with gigabytes of RocksDB's it may take long to clear up after itself
            process.kill()
            process.wait()
    SparkContext._gateway = SparkContext._jvm = None


def pool_of(job: str, share: int, number: int) -> str:
    """The pool for a job: one of its own, made on the fly with weight 1, or one of those made for larger shares."""
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


def _configuration(home: Path, settings: SparkSettings, embedded: bool) -> dict[str, str]:
    """Adaptive plans merge partitions, so they would merge lanes."""
    quiet = f"-Dlog4j2.configurationFile={shlex.quote((home / 'log4j2.properties').as_uri())}"
    (home / "log4j2.properties").write_text(_LOG4J.format(log=home / LOG))
    (home / "pools.xml").write_text(_pools())
    return {
        **(ON_THIS_MACHINE if embedded else {}),
        # State of Spark's own has as many partitions, for ever; 200 by default, each of which costs a task per epoch.
        **({"spark.sql.shuffle.partitions": str(settings.slots)} if embedded else {}),
        "spark.driver.memory": f"{settings.driver_memory_mb}m",
        "spark.driver.extraJavaOptions": quiet,
        "spark.log.level": "WARN",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (home / "pools.xml").as_uri(),
        "spark.sql.streaming.pollingDelay": f"{round(settings.poll_s * 1000)}ms",
        "spark.locality.wait.node": f"{round(settings.place_wait_s * 1000)}ms",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(settings.largest_batch_mb << 20 or ANY_SIZE),
        **_ALWAYS,
    }


ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default asks the operating system about links, by a process of its own for each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For a driver whose workers and files are all on this machine."""
_ALWAYS = {
    "spark.python.daemon.module": "headgate.spark.daemon",
    # An operator that lets nothing pass must not keep Spark from reading, and counting, what comes in.
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.PruneFilters,"
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    # The routing table and the rows of keyed operators have the same partitions; side by side, they keep them.
    "spark.sql.unionOutputPartitioning": "true",
    # Otherwise the lanes of an exchange would all crowd where a source with few lanes has written its rows.
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "3",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "20000",
}


def _pools() -> str:
    pools = (
        f'  <pool name="headgate-share-{share}-{number}">'
        f"<schedulingMode>FAIR</schedulingMode><weight>{share}</weight><minShare>0</minShare></pool>\n"
        for share in range(2, MOST_SHARE + 1)
        for number in range(POOLS_PER_SHARE)
    )
    return f'<?xml version="1.0"?>\n<allocations>\n{"".join(pools)}</allocations>\n'
