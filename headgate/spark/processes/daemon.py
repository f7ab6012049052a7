"""The process that Spark's Python workers are forked from; it has imported everything that a lane needs.

A worker that has to import Arrow and its friends by itself takes more than half a core second to start, and a job that gets
sixteen lanes starts sixteen of them; forked from here it takes a hundredth of that, and each task costs less, too.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from pyspark import daemon

NEEDED = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.worker",
    "headgate.spark.keyed.lanes",
    "headgate.spark.epochs.lanes",
    "headgate.spark.sources",
    "headgate.spark.sinks",
)
LANES = "pyspark.worker"
"""Spark's module of lanes; Spark also starts daemons for other purposes, such as planning a read, which need no imports in advance."""

if __name__ == "__main__":
    if sys.argv[1:2] == [LANES]:
        for module in NEEDED:
            import_module(module)
        gc.freeze()  # a worker collects garbage after every task; imported modules are never garbage
    daemon.manager()
