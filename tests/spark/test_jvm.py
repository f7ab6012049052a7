"""One module reaches into PySpark, and one reads the text of plans."""

from __future__ import annotations

import re
from pathlib import Path

import headgate
from headgate.spark import jvm

PRIVATE = re.compile(
    r"\._j(vm|sc|df|c|write|sparkSession)\b|SparkContext\._|\._(gateway_client|instantiatedSession|construct_foreach_function)\b"
    r"|queryExecution\(|logicalPlan\(|getSimpleName\(|(from|import) py4j"
)
COUNTS_CALLS = "bench/epochs.py"
"""The benchmark that counts calls to the JVM."""
PLANS = re.compile(r"analyzed_plan\(")


def users_of(pattern: re.Pattern[str]) -> set[str]:
    folder = Path(headgate.__file__).parent
    return {str(path.relative_to(folder)) for path in folder.rglob("*.py") if pattern.search(path.read_text())}


def test_only_the_jvm_module_uses_private_parts_of_pyspark() -> None:
    assert users_of(PRIVATE) - {COUNTS_CALLS} == {"spark/jvm.py"}


def test_only_one_module_reads_the_text_of_plans() -> None:
    assert users_of(PLANS) == {"spark/jvm.py", "spark/plans.py"}


def test_function_of_foreach_gets_every_row_of_a_partition() -> None:
    seen: list[int] = []
    assert list(jvm.foreach_partition(seen.append)(0, iter([1, 2]))) == []
    assert seen == [1, 2]
