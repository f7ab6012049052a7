"""The schema of an operator's state, explicit and versioned, and the codec of its keys and values.

Keys of fixed width (numbers, dates, timestamps, booleans) become words of 64 bits, with a tag that marks nulls; all other keys become
bytes. State fields of fixed width (int64, float64) become words; state fields of the library become rows of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headgate.errors import StateSchemaError
from headgate.state.hashing import Words, integer_words

WORD = 8
LIVE = np.uint64(3)
"""Lowest bits in the tag of a key with state; the bits above mark nulls."""
_NULLS_FROM = 2
_FIXED = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp, pa.types.is_floating)
_FIELD_TYPES = {"int64": np.int64, "float64": np.float64}
LIBRARY = ("value", "map", "list", "count window", "time window", "top-k")
"""Kinds of state fields that vary in length; the state library writes them as rows of bytes."""


@dataclass(frozen=True)
class StateSchema:
    """Key columns with their Arrow types, state fields (all `int64` or `float64`, or all kinds of the library), and a version.

    >>> StateSchema("visits", {"user": pa.int64()}, {"count": "int64"}).fixed_keys
    True
    """

    operator: str
    key: Mapping[str, pa.DataType]
    fields: Mapping[str, str]
    version: int = 1

    def __post_init__(self) -> None:
        if not self.key:
            raise StateSchemaError(f'operator "{self.operator}" has no key columns; it needs at least one')
        allowed = LIBRARY if self.library else tuple(_FIELD_TYPES)
        for name, kind in self.fields.items():
            if kind not in allowed:
                raise StateSchemaError(
                    f'operator "{self.operator}": state field "{name}" is {kind!r}; beside the others it may be'
                    f" {', '.join(allowed)}"
                )

    @property
    def library(self) -> bool:
        """Whether the state is of the library's kinds."""
        return any(kind in LIBRARY for kind in self.fields.values())

    @cached_property
    def fixed_keys(self) -> bool:
        """Whether every key fits into words."""
        return all(any(fits(kind) for fits in _FIXED) for kind in self.key.values())

    @property
    def key_words(self) -> int:
        """Words of a key of fixed width, its tag included."""
        return 1 + len(self.key)

    @property
    def tabular(self) -> bool:
        """Whether both keys and values have fixed width, so that a slice is a table."""
        return self.fixed_keys and bool(self.fields) and not self.library

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The key columns as an Arrow schema."""
        return pa.schema(list(self.key.items()))

    @cached_property
    def key_type(self) -> pa.DataType:
        """Arrow type of encoded keys."""
        return pa.binary(WORD * self.key_words) if self.tabular else pa.binary()

    @cached_property
    def value_type(self) -> pa.DataType:
        """Arrow type of encoded values."""
        return pa.binary(WORD * len(self.fields)) if self.tabular else pa.binary()

    # -- versions ------------------------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """The description of the schema that is written beside the state."""
        key = [[name, str(kind)] for name, kind in self.key.items()]
        return {
            "operator": self.operator,
            "version": self.version,
            "key": key,
            "fields": [list(field) for field in self.fields.items()],
        }

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the schema: state with another fingerprint cannot be read."""
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(self.described()))

    def refuse_unless_same(self, written: Mapping[str, Any]) -> None:
        """Raise an error, in one sentence, if the state was written with another schema."""
        mine = self.described()
        for what, meaning in (("key", "key columns"), ("fields", "state fields"), ("version", "version")):
            if written[what] != mine[what]:
                raise StateSchemaError(
                    f'the state of operator "{self.operator}" was written with {meaning} {_shown(written[what])}, and the'
                    f" operator now declares {_shown(mine[what])}; restore the old declaration, or give the operator"
                    " a new name so that it starts without state"
                )

    # -- keys ----------------------------------------------------------------------------------------------------------

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of a batch, in the declared types."""
        return [self._key_column(batch, name, kind) for name, kind in self.key.items()]

    def _key_column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        index = batch.schema.get_field_index(name)
        if index < 0:
            raise StateSchemaError(
                f'operator "{self.operator}": its input has no key column "{name}", only {", ".join(batch.schema.names)}'
            )
        column = batch.column(index)
        try:
            return column if column.type == kind else column.cast(kind)
        except pa.ArrowException as error:
            raise StateSchemaError(
                f'operator "{self.operator}": key column "{name}" is declared as {kind} but arrives as {column.type}: {error}'
            ) from None

    def key_as_words(self, columns: Sequence[pa.Array]) -> Words:
        """One row of words per key: the tag, then one word per column."""
        words = np.empty((len(columns[0]), self.key_words), np.uint64)
        words[:, 0] = LIVE
        for index, column in enumerate(columns, 1):
            words[:, index] = _column_words(column)
            if column.null_count:
                null = np.asarray(column.is_null().to_numpy(zero_copy_only=False)).astype(np.uint64)
                words[:, 0] |= null << np.uint64(_NULLS_FROM + index - 1)
        return words

    def key_as_bytes(self, columns: Sequence[pa.Array]) -> pa.Array:
        """One byte string per key; keys of a single text column need no loop."""
        if len(columns) == 1 and _is_text(columns[0].type):
            whole = pc.binary_join_element_wise(
                pa.scalar(b"=", pa.binary()), columns[0].cast(pa.binary()), pa.scalar(b"", pa.binary())
            )
            return whole.fill_null(b"0")
        encode = msgspec.msgpack.Encoder().encode
        rows = zip(*(_plain(column).to_pylist() for column in columns), strict=True)
        return pa.array([b"*" + encode(row) for row in rows], pa.binary())

    def keys_from_words(self, words: Words) -> pa.RecordBatch:
        """Decode words to the key columns."""
        arrays = []
        for index, kind in enumerate(self.key.values(), 1):
            null = (words[:, 0] >> np.uint64(_NULLS_FROM + index - 1)) & np.uint64(1) == 1
            arrays.append(_words_column(np.ascontiguousarray(words[:, index]), null, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.key_schema)

    def keys_from_bytes(self, keys: Sequence[bytes]) -> pa.RecordBatch:
        """Decode bytes to the key columns."""
        columns = list(zip(*(self._decoded(key) for key in keys), strict=True)) or [()] * len(self.key)
        arrays = [_unplain(values, kind) for values, kind in zip(columns, self.key.values(), strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.key_schema)

    def _decoded(self, key: bytes) -> Sequence[Any]:
        if key[:1] == b"*":
            return list(msgspec.msgpack.decode(key[1:]))
        if key[:1] == b"0":
            return [None]
        kind = next(iter(self.key.values()))
        return [key[1:] if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else key[1:].decode()]

    # -- values --------------------------------------------------------------------------------------------------------

    def field_types(self) -> dict[str, Any]:
        """numpy type of each state field."""
        return {name: _FIELD_TYPES[kind] for name, kind in self.fields.items()}

    def fields_from_words(self, words: Words) -> dict[str, npt.NDArray[Any]]:
        """One array per state field."""
        return {
            name: np.ascontiguousarray(words[:, index]).view(kind)
            for index, (name, kind) in enumerate(self.field_types().items())
        }

    def fields_as_words(self, fields: Mapping[str, npt.NDArray[Any]]) -> Words:
        """State fields as rows of words."""
        length = len(next(iter(fields.values())))
        words = np.empty((length, len(self.fields)), np.uint64)
        for index, (name, kind) in enumerate(self.field_types().items()):
            words[:, index] = np.ascontiguousarray(fields[name], dtype=kind).view(np.uint64)
        return words


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{name} {kind}" for name, kind in value) or "none"
    return str(value)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _column_words(column: pa.Array) -> Words:
    if pa.types.is_floating(column.type):
        values = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 counts as 0.0
        values[np.isnan(values)] = np.nan
        return np.ascontiguousarray(values).view(np.uint64)
    if pa.types.is_uint64(column.type):
        return np.ascontiguousarray(column.fill_null(0).to_numpy(zero_copy_only=False))
    return integer_words(column)[0].view(np.uint64)


def _words_column(words: Words, null: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    mask = null if null.any() else None
    if pa.types.is_floating(kind):
        return pa.array(words.view(np.float64), mask=mask).cast(kind)
    if pa.types.is_uint64(kind):
        return pa.array(words, mask=mask)
    whole = pa.array(words.view(np.int64), mask=mask)
    return whole.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else whole.cast(kind)


def _plain(column: pa.Array) -> pa.Array:
    """Timestamps and dates as numbers, which every codec knows."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date64(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _unplain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.array(values, kind)
