"""Rows that a function puts out as dicts, checked against the columns that its operator declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from headgate.core.quantities import did_you_mean


class MisfitError(ValueError):
    """A row does not fit the schema; the text is a clause that begins with "it"."""


def as_batch(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows as a batch; refuses a row with a missing or undeclared column."""
    names = frozenset(schema.names)
    try:
        odd = next((row for row in rows if row.keys() != names), None)
        if odd is None:
            return pa.RecordBatch.from_pylist(rows, schema)
    except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
        stray = next((row for row in rows if not isinstance(row, Mapping)), None)
        if stray is not None:
            raise MisfitError(f"it put out {stray!r:.100}; a row must be a dict") from None
        raise MisfitError(f"it put out a row that does not fit its schema: {error}") from None
    raise MisfitError(_misfit(odd, names))


def _misfit(row: Mapping[str, Any], names: frozenset[str]) -> str:
    missing, extra = sorted(names - row.keys()), sorted(map(str, row.keys() - names))
    if extra:
        hint = did_you_mean(extra[0], missing or names)
        return f"it put out {undeclared(extra)}; leave it out, or add it to the schema.{hint}"
    return (
        f'it put out a row without the column "{missing[0]}", which its schema declares;'
        " give every row all columns, None where there is no value"
    )


def undeclared(names: Iterable[str]) -> str:
    """Columns that are not in the schema, as a clause."""
    return " and ".join(f'the column "{name}"' for name in names) + ", which its schema does not declare"
