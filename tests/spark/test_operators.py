"""What an operator has set for Spark counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headgate.config import SparkSettings
from headgate.spark import operators, session


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an operator."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return tmp_path / operators.DEFAULTS


def test_the_file_is_read_as_spark_reads_it(told: Path) -> None:
    assert operators.defaults() == {}
    told.write_text("# a comment\nspark.a  1\nspark.b=2 3\n\n  spark.c : -Dx=y \n! another\n")
    assert operators.defaults() == {"spark.a": "1", "spark.b": "2 3", "spark.c": "-Dx=y"}


def test_memory_log_level_and_page_of_the_operator_count_more_than_our_preferences(told: Path) -> None:
    told.write_text("spark.driver.memory 6g\nspark.ui.enabled true\nspark.log.level INFO\n")
    kept = operators.respected(session._preferences(SparkSettings()))
    assert not {"spark.driver.memory", "spark.ui.enabled", "spark.log.level"} & set(kept)
    assert kept["spark.app.name"] == "headgate"


def test_a_setting_that_was_changed_counts_more_than_the_file(told: Path) -> None:
    told.write_text("spark.driver.memory 6g\n")
    assert (
        operators.respected(session._preferences(SparkSettings(driver_memory_mb=3000)))["spark.driver.memory"]
        == "3000m"
    )


def test_java_options_of_the_operator_are_added_to_ours(told: Path, tmp_path: Path) -> None:
    told.write_text("spark.driver.extraJavaOptions -Dmine=1\n")
    found = session._configuration(tmp_path / "home", SparkSettings(), embedded=False)["spark.driver.extraJavaOptions"]
    assert "log4j2.configurationFile" in found and found.endswith(" -Dmine=1")


def test_executors_elsewhere_have_the_python_of_the_operator(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert operators.python() == sys.executable
    told.write_text("spark.pyspark.python /opt/python\n")
    assert operators.python() == "/opt/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3.11")
    assert operators.python() == "/usr/bin/python3.11"
