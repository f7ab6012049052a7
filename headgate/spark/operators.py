"""Settings that the operator of the machine has made for Spark: spark-defaults.conf, and the Python of executors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from headgate.config import SparkSettings

DEFAULTS, PYTHON, MEMORY = "spark-defaults.conf", "spark.pyspark.python", "spark.driver.memory"
_LINE = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*?)\s*$")


def defaults() -> dict[str, str]:
    """Return the settings of spark-defaults.conf, found as by Spark's own scripts; empty if there is no such file."""
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME') or Path(pyspark.__file__).parent}/conf"
    try:
        lines = (Path(folder) / DEFAULTS).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {found[1]: found[2] for line in lines if (found := _LINE.match(line)) is not None}


def respected(preferences: Mapping[str, str]) -> dict[str, str]:
    """Return Headgate's preferences that spark-defaults.conf does not set, and a changed memory setting, which overrides the file."""
    told = defaults()
    changed = preferences.get(MEMORY) != f"{SparkSettings().driver_memory_mb}m"
    return {name: value for name, value in preferences.items() if name not in told or (name == MEMORY and changed)}


def python() -> str:
    """Return the Python of executors on other machines: PYSPARK_PYTHON, else the one in spark-defaults.conf, else the current one."""
    return os.environ.get("PYSPARK_PYTHON") or defaults().get(PYTHON) or sys.executable
