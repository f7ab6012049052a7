"""Builds a keyed operator from a node of a topology and the columns of the node's input: types of keys, measures and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.errors import EngineError
from headgate.spark.keyed.lanes import LABEL
from headgate.state.aggregate import SLICE, Aggregate
from headgate.state.operators import KeyedOperator
from headgate.topology import Keyed, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

WHOLE = ("byte", "short", "integer", "long")
NUMBERS = (*WHOLE, "float", "double", "decimal")
KEYS = (*WHOLE, "float", "double", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")


def operator_for(node: Node, rows: DataFrame) -> KeyedOperator:
    """The keyed operator of a node, for input rows with these columns."""
    from headgate.spark.epochs.plan import arrow_schema

    assert node.keyed is not None
    types = {one.name: one.dataType for one in rows.schema.fields}
    _check_columns(node.keyed, types)
    if isinstance(node.function, Aggregate):
        processor = _typed(node.function, types)
    else:
        processor = replace(node.function, output=arrow_schema(str(node.schema)))
    key = {name: _arrow(types[name]) for name in node.keyed.key}
    return KeyedOperator(node.name, key, processor, node.keyed.version)


def _check_columns(keyed: Keyed, types: Mapping[str, DataType]) -> None:
    for name in keyed.key:
        _check_kind("key column", name, types, KEYS)
    if keyed.time is not None:
        _check_kind("time column", keyed.time, types, ("timestamp", "timestamp_ntz"))
    for name in (SLICE, LABEL):
        if name in types:
            raise EngineError(f'its input has a column "{name}", which it needs itself; rename yours')


def _check_kind(what: str, name: str, types: Mapping[str, DataType], allowed: Sequence[str]) -> None:
    if name not in types:
        raise EngineError(f'its {what} is "{name}", but its input has {", ".join(types)} only')
    kind = types[name].typeName()
    if kind.partition("(")[0] not in allowed:
        raise EngineError(f'its {what} "{name}" is of type {kind}; it may be {", ".join(allowed)}')


def _typed(aggregate: Aggregate, types: Mapping[str, DataType]) -> Aggregate:
    """The aggregation with its integer columns marked as whole; refuses columns that are not numbers."""
    columns = {measure.column: measure.kind for measure in aggregate.measures if measure.column}
    for name, kind in columns.items():
        if kind != "count" or name not in types:
            _check_kind("column", name, types, NUMBERS)
    whole = {name for name in columns if types[name].typeName() in WHOLE}
    return Aggregate(aggregate.measures, aggregate.whole | whole)


def _arrow(kind: DataType) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, timezone="UTC")
