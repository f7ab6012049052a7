"""Spark's JVM, reached through the private parts of PySpark: the only module that touches them.

Everything that PySpark does not promise is here: a new version of PySpark changes this module or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# -- handles: objects of the JVM behind those of PySpark -------------------------------------------------------------------------


def packages(spark: SparkSession) -> Any:
    """The classes of the JVM, by package."""
    found = spark.sparkContext._jvm
    assert found is not None
    return found


def context(spark: SparkSession) -> Any:
    """Return the SparkContext of the JVM."""
    found: Any = spark.sparkContext._jsc
    return found.sc()


def session(spark: SparkSession) -> Any:
    """Return the SparkSession of the JVM."""
    return spark._jsparkSession


def dataset(rows: DataFrame) -> Any:
    """Return the Dataset of the JVM behind a DataFrame."""
    return rows._jdf


def dataframe(found: Any, spark: SparkSession) -> DataFrame:
    """Return a PySpark DataFrame for a Dataset of the JVM."""
    from pyspark.sql.classic.dataframe import DataFrame as Rows

    return Rows(found, spark)


def expression(column: Column) -> Any:
    """Return the JVM's expression of a column."""
    return column._jc


def default_file_system(spark: SparkSession) -> str:
    """The URI that Hadoop puts before a path without a scheme."""
    found = session(spark).sessionState().newHadoopConf().get("fs.defaultFS")
    return str(found or "file:///")


def spark_runs() -> bool:
    """Whether this process has a Spark context."""
    return SparkContext._active_spark_context is not None


def drop_descriptions(spark: SparkSession) -> None:
    """Make Spark keep no descriptions of executions, which only Spark's UI shows: each epoch has several executions."""
    listener = session(spark).sharedState().statusStore().listener()
    if listener.isDefined():
        context(spark).removeSparkListener(listener.get())


# -- queries ---------------------------------------------------------------------------------------------------------------------


class _EachBatch:
    """The callback that Spark calls for each epoch; PySpark's own makes another session each time, in a dozen calls."""

    def __init__(self, spark: SparkSession, run: Callable[[DataFrame, int], None]) -> None:
        self._spark = spark
        self._run = run
        self._session: SparkSession | None = None
        """The session of the query; None before the first epoch."""

    def call(self, rows: Any, number: int) -> None:
        if self._session is None:
            self._session = type(self._spark)(self._spark.sparkContext, rows.sparkSession())
        self._run(dataframe(rows, self._session), number)

    class Java:
        """The Java interface that Py4J implements with this object."""

        implements = ("org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",)


def for_each_batch(stream: DataFrame, run: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """A writer of a stream that calls a function for each epoch."""
    spark, writer = stream.sparkSession, stream.writeStream
    helper = getattr(packages(spark), "org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper")
    helper.callForeachBatch(writer._jwrite, _EachBatch(spark, run))
    return writer


def foreach_partition(writer: Any) -> Callable[[int, Iterable[Any]], Iterable[Any]]:
    """The function that PySpark runs on each partition for `DataStreamWriter.foreach(writer)`."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    function: Any = DataStreamWriter._construct_foreach_function(writer)
    return cast("Callable[[int, Iterable[Any]], Iterable[Any]]", function)


# -- plans -----------------------------------------------------------------------------------------------------------------------


def input_plan(batch: DataFrame) -> Any:
    """The logical plan of an epoch's input, which Spark hands over as an RDD."""
    return dataset(batch).logicalPlan()


def compute(rows: DataFrame) -> None:
    """Have Spark compute every row and keep none, without a plan of a write."""
    dataset(rows).queryExecution().toRdd().count()


def analyzed_plan(rows: DataFrame) -> str:
    """The analyzed plan of a DataFrame, one node per line."""
    return str(dataset(rows).queryExecution().analyzed().toString())


def streaming_leaves(rows: DataFrame) -> list[Any]:
    """The streams that a DataFrame reads, as nodes of its analyzed plan, in Spark's order."""
    leaves = dataset(rows).queryExecution().analyzed().collectLeaves()
    found = (leaves.apply(number) for number in range(leaves.size()))
    return [leaf for leaf in found if leaf.isStreaming()]


def file_source_options(leaf: Any) -> dict[str, str] | None:
    """The options of a stream of files, for a leaf of `streaming_leaves`; None for another stream."""
    if leaf.getClass().getSimpleName() != "StreamingRelation" or not leaf.sourceName().startswith("FileSource["):
        return None
    options, entries = {}, leaf.dataSource().options().iterator()
    while entries.hasNext():
        entry = entries.next()
        options[entry._1()] = entry._2()
    return options


def partitions(rows: DataFrame) -> int:
    """The number of partitions of a DataFrame, as Spark planned it."""
    return int(dataset(rows).queryExecution().executedPlan().outputPartitioning().numPartitions())


def option_of(leaf: Any, name: str) -> str | None:
    """An option of a stream that a plan reads; None if the stream has no such option."""
    if leaf.getClass().getSimpleName() != "StreamingRelationV2":
        return None
    found = leaf.extraOptions().get(name)
    return None if found is None else str(found)


def trigger_interval_s(spark: SparkSession, interval: str) -> float:
    """Return the interval in seconds of a processing-time trigger, parsed by Spark."""
    triggers = getattr(packages(spark), "org.apache.spark.sql.streaming.Trigger")
    return float(triggers.ProcessingTime(interval).intervalMs() / 1000)


# -- classes that Spark compiles ---------------------------------------------------------------------------------------------------

_COMPILED: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""Compiled classes by gateway and name: a gateway finds classes by name, so that each name may have only one class in a JVM."""


def instance_of(spark: SparkSession, source: Path, name: str) -> Any:
    """A new object of a class of this Java file, compiled by the compiler with which Spark compiles its own generated code."""
    java, known = packages(spark), _COMPILED.setdefault(gateway(), {})
    if name not in known:
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(source.read_text(encoding="utf-8"))
        known[name] = compiler.getClassLoader().loadClass(name)
    types, values = (gateway().new_array(kind, 0) for kind in (java.java.lang.Class, java.java.lang.Object))
    return known[name].getDeclaredConstructor(types).newInstance(values)


# -- the gateway to the JVM ------------------------------------------------------------------------------------------------------


def launch(arguments: SparkConf) -> Any:
    """Start a JVM with these arguments and return the gateway to it."""
    return launch_gateway(arguments)  # type: ignore[no-untyped-call]  # PySpark's


def use(gateway: Any) -> None:
    """Make PySpark's next session use this gateway."""
    SparkContext._ensure_initialized(gateway=gateway)


def gateway() -> Any:
    """The gateway that PySpark uses; None if there is none."""
    return SparkContext._gateway


def forget_gateway() -> None:
    """Make PySpark's next session start another JVM."""
    SparkContext._gateway = SparkContext._jvm = None


def forget_session(spark: SparkSession) -> None:
    """Make PySpark forget a session after its JVM was lost, without a call into the JVM."""
    spark.sparkContext._jsc = None
    spark.sparkContext.stop()
    type(spark)._instantiatedSession = type(spark)._activeSession = None


def connection_of_thread() -> Any:
    """The connection on which this thread calls the JVM."""
    return gateway()._gateway_client.get_thread_connection()


def another_gateway(answer_s: float) -> JavaGateway:
    """Open a second gateway to the same JVM, with a time limit for each answer."""
    used = gateway().gateway_parameters
    return JavaGateway(
        gateway_parameters=GatewayParameters(
            address=used.address,
            port=used.port,
            auth_token=used.auth_token,
            ssl_context=used.ssl_context,
            read_timeout=answer_s,
        )
    )


def start_callback_server(gateway: Any) -> None:
    """Start the server for calls from Java to Python, which asks callers for the secret of the gateway.

    PySpark would start one that asks for none. Java's side is told the secret after the start, because it forgets the secret
    whenever the address of the server changes (`PythonClient.copyWith`).
    """
    secret = gateway.gateway_parameters.auth_token
    gateway.callback_server_parameters.auth_token = secret
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark's
    client = gateway.java_gateway_server.getCallbackClient()
    token = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    token.setAccessible(True)
    token.set(client, secret)


def silence_accumulator_server() -> None:
    """Keep PySpark from printing a stack trace for each connection that breaks."""
    active = SparkContext._active_spark_context
    server: Any = active._accumulatorServer if active is not None else None
    if server is not None:
        server.handle_error = lambda request, address: None


def close_gateway(found: Any) -> None:
    """Close the remains of a gateway after its JVM was lost."""
    with suppress(Exception):  # its connections are broken
        found.shutdown_callback_server()
        found.close()


# -- executors -------------------------------------------------------------------------------------------------------------------


class Executors:
    """Spark's allocation client, which requests executors from any cluster manager and releases them."""

    def __init__(self, active: SparkContext) -> None:
        found: Any = active._jsc
        self._java: Any = active._jvm
        self._context = found.sc()
        self._client = self._context.schedulerBackend()

    def alive(self) -> dict[str, str]:
        """Host of each executor that runs tasks, by its id, in the order of their ids; without executors that are leaving."""
        told = self._context.statusStore().executorList(True)
        found = [told.apply(number) for number in range(told.size())]
        running = {one.id(): one.hostPort().rsplit(":", 1)[0] for one in found if one.totalCores() > 0}
        return {name: running[name] for name in sorted(running, key=_by_number) if self._client.isExecutorActive(name)}

    def remaining(self) -> frozenset[str]:
        """Return the ids of all executors that have not ended, including those that are leaving."""
        ids = self._client.getExecutorIds()
        return frozenset(ids.apply(number) for number in range(ids.size()))

    def request(self, total: int) -> bool:
        """Request `total` executors in all; False if the cluster manager does not take the request."""
        nothing = getattr(getattr(self._java.scala.collection.immutable, "Map$"), "MODULE$").empty()
        return bool(self._context.requestTotalExecutors(total, 0, nothing))

    def decommission(self, executor: str, why: str) -> None:
        """Let an executor finish its tasks, move its stored blocks and end; the requested total stays."""
        info = self._java.org.apache.spark.scheduler.ExecutorDecommissionInfo(why, self._java.scala.Option.empty())
        self._client.decommissionExecutor(executor, info, False, False)

    def kill(self, executor: str) -> None:
        """End an executor with its tasks; the total asked for stays."""
        ids = self._java.java.util.List.of(executor)
        some = self._java.scala.jdk.javaapi.CollectionConverters.asScala(ids).toSeq()
        self._client.killExecutors(some, False, False, True)


def _by_number(executor: str) -> tuple[int, str]:
    return (int(executor), "") if executor.isdecimal() else (0, executor)


def executors() -> Executors | None:
    """The allocation client of the application that runs in this process; None if none runs."""
    active = SparkContext._active_spark_context
    return None if active is None else Executors(active)
