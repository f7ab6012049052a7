"""Where things run on a cluster: which hosts there are, rows that begin on a given host, and on which host this lane is."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headgate.spark.metering import TaskRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def embedded(spark: SparkSession) -> bool:
    """Whether all lanes run in the driver's own JVM."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def slots(spark: SparkSession) -> dict[str, float]:
    """The slots of each host that can run lanes now."""
    found: dict[str, float] = {}
    for host, cores, _ in TaskRecords(spark).hosts():
        found[host] = found.get(host, 0.0) + cores
    return found


def located(spark: SparkSession, rows: Sequence[tuple[str, Sequence[Any]]], schema: str) -> DataFrame:
    """One partition per row, which Spark computes on the row's host if it can: a wish, not a promise."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    context = spark.sparkContext
    jvm: Any = context._jvm
    pairs = jvm.java.util.ArrayList()
    for host, values in rows:
        fields = context._gateway.new_array(jvm.java.lang.Object, len(values))  # type: ignore[union-attr]
        for index, value in enumerate(values):
            fields[index] = value
        pairs.add(jvm.scala.Tuple2(jvm.org.apache.spark.sql.RowFactory.create(fields), jvm.PythonUtils.toSeq([host])))
    kind = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    placed = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), kind).toJavaRDD()
    columns = spark._jsparkSession.parseDataType(StructType.fromDDL(schema).json())
    return DataFrame(spark._jsparkSession.createDataFrame(placed, columns), spark)


@lru_cache
def here(hosts: Collection[str]) -> str:
    """The one of these hosts that this process runs on, by Spark's name for it; the machine's own name if it is none of them."""
    names = (os.environ.get("SPARK_LOCAL_IP"), os.environ.get("SPARK_LOCAL_HOSTNAME"), *_own_names())
    return next((name for name in names if name and name in hosts), socket.gethostname())


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname()
    try:
        return name, socket.getfqdn(), socket.gethostbyname(name)
    except OSError:
        return (name,)
