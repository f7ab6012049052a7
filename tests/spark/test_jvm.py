"""One module reaches into PySpark."""

from __future__ import annotations

import re
from pathlib import Path

import headgate.spark

PRIVATE = re.compile(
    r"\._j(vm|sc|df|c|sparkSession)\b|SparkContext\._|\._(gateway_client|instantiatedSession)\b|(from|import) py4j"
)


def test_only_the_jvm_module_uses_private_parts_of_pyspark() -> None:
    folder = Path(headgate.spark.__file__).parent
    users = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert users == {"jvm.py"}
