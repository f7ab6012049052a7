"""Keyed operators: key columns, and a processor with state, of one of three kinds.

| processor | called | state |
|---|---|---|
| `Aggregate` | never; numpy computes the aggregation | counts, sums, extremes, means |
| `Batches` | once per lane and epoch, with all rows sorted by key | fields of fixed width, as arrays |
| `Events` | for every row, `on_event(key, event, state, emit)` | anything of the state library |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.state.aggregate import Aggregate
from headgate.state.library import KeyState, Kind
from headgate.state.schema import StateSchema

Arrays = Mapping[str, npt.NDArray[Any]]
Emit = Callable[[Mapping[str, Any]], None]
NOTHING = pa.schema([])


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The input of a batch processor: rows sorted by key, distinct keys, and the state of each key."""

    rows: pa.RecordBatch
    starts: npt.NDArray[np.int64]
    """Index of the first row of each key."""
    keys: pa.RecordBatch
    """One row per key."""
    state: Arrays
    """One array per state field, one value per key; 0 where the key is new."""
    present: npt.NDArray[np.bool_]
    """Whether each key has state already."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a batch processor."""

    state: Arrays
    """The new value of every field for every key."""
    output: pa.RecordBatch | None = None
    gone: npt.NDArray[np.bool_] | None = None
    """Keys whose state is deleted."""


@dataclass(frozen=True, slots=True)
class Batches:
    """A function over all rows of a lane at once, with state fields of fixed width (`int64` or `float64`)."""

    state: Mapping[str, str]
    on_batch: Callable[[KeyedRows], Changed]
    output: pa.Schema = NOTHING
    """The output columns; in a topology, the schema of the operator replaces them."""


@dataclass(frozen=True, slots=True)
class Events:
    """A function per row, and optionally one per timer, with state fields of the library's kinds."""

    state: Mapping[str, Kind]
    on_event: Callable[[Any, Mapping[str, Any], KeyState, Emit], None]
    output: pa.Schema = NOTHING
    """The output columns; in a topology, the schema of the operator replaces them."""
    on_timer: Callable[[Any, int, KeyState, Emit], None] | None = None


Processor = Aggregate | Batches | Events


@dataclass(frozen=True)
class KeyedOperator:
    """An operator with state by key.

    >>> from headgate.state.aggregate import Aggregate
    >>> visits = KeyedOperator("visits", {"user": pa.int64()}, Aggregate.of({"visits": "count"}))
    >>> visits.output_schema.names
    ['user', 'visits']
    """

    name: str
    key: Mapping[str, pa.DataType]
    processor: Processor
    version: int = 1
    """Version of the state; raise the version when the meaning of a field changes but not its type."""

    @cached_property
    def schema(self) -> StateSchema:
        """The schema of the operator's state."""
        return StateSchema(self.name, self.key, self._fields(), self.version)

    def _fields(self) -> Mapping[str, str]:
        if isinstance(self.processor, Aggregate):
            return self.processor.fields()
        if isinstance(self.processor, Events):
            return {name: kind.kind for name, kind in self.processor.state.items()}
        return self.processor.state

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The output columns of the operator."""
        if isinstance(self.processor, Aggregate):
            return pa.schema(
                [*(pa.field(name, kind) for name, kind in self.key.items()), *self.processor.output_fields()]
            )
        return self.processor.output
