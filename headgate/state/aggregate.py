"""Associative aggregations (count, sum, min, max, mean), in numpy.

    Aggregate.of({"orders": "count", "total": "sum(amount)", "mean": "mean(amount)"})

Each row is lifted to one value per state field, the values of a key are reduced, and the result is merged with the state. All three steps
take rows and partial results alike, so that part of the work may be done before rows reach their lane. As in SQL, nulls are ignored, and a
measure of nothing but nulls is null, except that a count is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.quantities import choice
from headgate.errors import InputError, StateSchemaError
from headgate.state.groups import RowGroups

Fields = Mapping[str, npt.NDArray[Any]]

ROWS = ":count"
KINDS = ("count", "sum", "min", "max", "mean")
SLICE = "_slice"
"""Column with the slice of each row."""
_MERGE: Mapping[str, np.ufunc] = {"count": np.add, "sum": np.add, "min": np.fmin, "max": np.maximum}
_WRITTEN = re.compile(r"(\w+)(?:\(\s*([\w.]*|\*)\s*\))?")


@dataclass(frozen=True, slots=True)
class Measure:
    """One output column: the aggregation `kind` of the input column `column`."""

    name: str
    kind: str
    column: str = ""

    @staticmethod
    def read(name: str, text: str) -> Measure:
        """Parse a text such as `sum(amount)`.

        >>> Measure.read("total", "sum(amount)")
        Measure(name='total', kind='sum', column='amount')
        """
        found = _WRITTEN.fullmatch(text.strip())
        if found is None:
            raise InputError(f'"{name}": "{text}" is not an aggregation; write for example count or sum(amount)')
        kind, column = choice(found[1], "aggregation", KINDS), (found[2] or "").replace("*", "")
        if not column and kind != "count":
            raise InputError(f'"{name}": {kind} of what? Write {kind}(column)')
        return Measure(name, kind, column)


@dataclass(frozen=True)
class Aggregate:
    """Measures over the rows of each key; emits the keys that changed, with their values after the epoch."""

    measures: tuple[Measure, ...]
    whole: frozenset[str] = frozenset()
    """Columns that hold whole numbers; the others are read as float64."""

    @staticmethod
    def of(measures: Mapping[str, str], whole: Iterable[str] = ()) -> Aggregate:
        """Create an aggregation from one text per output column."""
        return Aggregate(tuple(Measure.read(name, text) for name, text in measures.items()), frozenset(whole))

    # -- state ---------------------------------------------------------------------------------------------------------

    def fields(self) -> dict[str, str]:
        """State fields and their types: `:count` of rows, and per column `column:count`, `column:sum` and so on, as needed."""
        found = {ROWS: "int64"}
        for measure in self.measures:
            if measure.column:
                found[f"{measure.column}:count"] = "int64"
            if measure.kind != "count":
                kind = "sum" if measure.kind == "mean" else measure.kind
                found[f"{measure.column}:{kind}"] = "int64" if measure.column in self.whole else "float64"
        return found

    def lift(self, batch: pa.RecordBatch) -> Fields:
        """Lift each row to one value per state field."""
        return {name: self._lifted(batch, name) for name in self.fields()}

    def _lifted(self, batch: pa.RecordBatch, field: str) -> npt.NDArray[Any]:
        if field in batch.schema.names:  # a partial result, lifted before the exchange
            return np.asarray(batch.column(field).to_numpy(zero_copy_only=False))
        if field == ROWS:
            return np.ones(batch.num_rows, np.int64)
        name, _, kind = field.rpartition(":")
        if kind == "count":
            return np.asarray(_existing(batch, name).is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
        column = _existing(batch, name).cast(pa.int64() if name in self.whole else pa.float64())
        filled = column.fill_null(pa.scalar(identity(kind, str(column.type)), column.type))
        return np.asarray(filled.to_numpy(zero_copy_only=False))

    def reduced(self, lifted: Fields, groups: RowGroups) -> dict[str, npt.NDArray[Any]]:
        """Reduce the lifted rows to one value per key and state field."""
        if not len(groups.order):
            return {name: values[:0] for name, values in lifted.items()}
        return {name: merge(name).reduceat(values[groups.order], groups.starts) for name, values in lifted.items()}

    def merged(self, old: Fields, present: npt.NDArray[np.bool_], fresh: Fields) -> dict[str, npt.NDArray[Any]]:
        """Merge the new values of each key into its state."""
        found = {}
        for name, kind in self.fields().items():
            before = np.where(present, old[name], identity(name.rpartition(":")[2], kind))
            with np.errstate(over="ignore"):
                found[name] = merge(name)(before, fresh[name])
        return found

    # -- output --------------------------------------------------------------------------------------------------------

    def output_fields(self) -> list[pa.Field]:
        """The output columns after the key columns."""
        return [pa.field(measure.name, self._type(measure)) for measure in self.measures]

    def _type(self, measure: Measure) -> pa.DataType:
        whole = measure.kind == "count" or (measure.kind != "mean" and measure.column in self.whole)
        return pa.int64() if whole else pa.float64()

    def output(self, state: Fields) -> list[pa.Array]:
        """The values of the measures for each key."""
        return [self._measured(measure, state) for measure in self.measures]

    def _measured(self, measure: Measure, state: Fields) -> pa.Array:
        if measure.kind == "count":
            return pa.array(state[f"{measure.column}:count" if measure.column else ROWS])
        seen = state[f"{measure.column}:count"]
        if measure.kind != "mean":
            return pa.array(state[f"{measure.column}:{measure.kind}"], mask=seen == 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return pa.array(state[f"{measure.column}:sum"] / seen, mask=seen == 0)


def _existing(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise StateSchemaError(f'its input has no column "{name}", only {", ".join(batch.schema.names)}')
    return batch.column(name)


def merge(field: str) -> np.ufunc:
    """The function that merges two values of a state field."""
    return _MERGE.get(field.rpartition(":")[2], np.add)


def identity(kind: str, type_: str) -> Any:
    """The identity of the merge of a state field: the value that changes nothing."""
    if kind not in ("min", "max"):
        return 0
    if type_ == "int64":
        bounds = np.iinfo(np.int64)
        return bounds.max if kind == "min" else bounds.min
    return np.nan if kind == "min" else -np.inf  # NaN is the largest number, as in Spark
