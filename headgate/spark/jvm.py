"""Spark's JVM, reached through the private parts of PySpark: the only module that touches them.

Everything that PySpark does not promise is here: a new version of PySpark changes this module or none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import Column, DataFrame, SparkSession

# -- handles: objects of the JVM behind those of PySpark -------------------------------------------------------------------------


def packages(spark: SparkSession) -> Any:
    """The classes of the JVM, by package."""
    found = spark.sparkContext._jvm
    assert found is not None
    return found


def context(spark: SparkSession) -> Any:
    """Spark's own context."""
    found: Any = spark.sparkContext._jsc
    return found.sc()


def session(spark: SparkSession) -> Any:
    """Spark's own session."""
    return spark._jsparkSession


def dataset(rows: DataFrame) -> Any:
    """Spark's own DataFrame."""
    return rows._jdf


def dataframe(found: Any, spark: SparkSession) -> DataFrame:
    """A DataFrame of PySpark for one of the JVM."""
    from pyspark.sql.classic.dataframe import DataFrame as Rows

    return Rows(found, spark)


def expression(column: Column) -> Any:
    """Spark's own column."""
    return column._jc


def spark_runs() -> bool:
    """Whether this process has a Spark context."""
    return SparkContext._active_spark_context is not None


# -- plans -----------------------------------------------------------------------------------------------------------------------


def input_plan(batch: DataFrame) -> Any:
    """The logical plan of an epoch's input, which Spark hands over as an RDD."""
    return dataset(batch).logicalPlan()


def partitions_of(batch: DataFrame) -> int:
    """Partitions of an epoch's input."""
    return int(input_plan(batch).rdd().getNumPartitions())


def analyzed_plan(rows: DataFrame) -> str:
    """The analyzed plan of a DataFrame, one node per line."""
    return str(dataset(rows).queryExecution().analyzed().toString())


def streaming_leaves(rows: DataFrame) -> list[Any]:
    """The streams that a DataFrame reads, as nodes of its analyzed plan, in Spark's order."""
    leaves = dataset(rows).queryExecution().analyzed().collectLeaves()
    found = (leaves.apply(number) for number in range(leaves.size()))
    return [leaf for leaf in found if leaf.isStreaming()]


def trigger_interval_s(spark: SparkSession, interval: str) -> float:
    """The interval of a processing-time trigger, parsed by Spark."""
    triggers = getattr(packages(spark), "org.apache.spark.sql.streaming.Trigger")
    return float(triggers.ProcessingTime(interval).intervalMs() / 1000)


# -- the gateway to the JVM ------------------------------------------------------------------------------------------------------


def launch(arguments: SparkConf) -> Any:
    """Start a JVM with these arguments; returns the gateway to it."""
    return launch_gateway(arguments)  # type: ignore[no-untyped-call]  # PySpark's


def use(gateway: Any) -> None:
    """Have the next session of PySpark use this gateway."""
    SparkContext._ensure_initialized(gateway=gateway)


def gateway() -> Any:
    """The gateway that PySpark uses; None if there is none."""
    return SparkContext._gateway


def forget_gateway() -> None:
    """Have the next session of PySpark start another JVM."""
    SparkContext._gateway = SparkContext._jvm = None


def forget_session(spark: SparkSession) -> None:
    """Have PySpark forget a session whose JVM is gone, without a call into it."""
    spark.sparkContext._jsc = None
    spark.sparkContext.stop()
    type(spark)._instantiatedSession = type(spark)._activeSession = None


def connection_of_thread() -> Any:
    """The connection on which this thread calls the JVM."""
    return gateway()._gateway_client.get_thread_connection()


def another_gateway(answer_s: float) -> JavaGateway:
    """A second gateway to the same JVM, whose answers may take only so long."""
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
    """Close what is left of a gateway whose JVM is gone."""
    with suppress(Exception):  # its connections are broken
        found.shutdown_callback_server()
        found.close()
