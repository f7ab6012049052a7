"""Packages that only some sources and sinks need: one sentence for a missing package, and one for each error that a package raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from headgate.errors import GraphError
from headgate.spark.connections.failing import failure

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg", "kafka": "confluent_kafka", "postgres": "psycopg"}
"""The module of each extra of `pyproject.toml`."""
DRAWING = re.compile(r"\x1b\[\d*m|↳")
"""Colours and arrows with which some packages draw their errors."""


def require(extra: str, what: str) -> None:
    """Refuse a source or sink if its package is not installed."""
    if find_spec(PACKAGES[extra]) is None:
        raise GraphError(
            f'{what} needs the package {PACKAGES[extra]}, which is not installed; run: pip install "headgate[{extra}]"'
        )


@contextmanager
def using(what: str, errors: tuple[type[Exception], ...], operator: str = "") -> Iterator[None]:
    """Turn an error of a package into one sentence that names the table; with `operator`, the sentence begins with the operator."""
    try:
        yield
    except errors as error:
        reason = " ".join(DRAWING.sub("", str(error)).split()).rstrip(".")
        raise failure(f"{what} could not be used: {type(error).__name__}: {reason}", operator) from error
