"""Decodes values of messages into columns, from JSON or Avro, in the lane that reads them; a value that does not fit its column is null."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from headgate.errors import EngineError, GraphError
from headgate.spark.connections.secrets import revealed
from headgate.spark.sources.redis import parsed

WIRE = struct.Struct(">bI")
"""Prefix that clients of a schema registry write before a value: a zero byte and the number of the schema."""
REGISTRY_S = 10.0
"""Time limit in seconds for an answer of the schema registry; each process asks for a schema once."""

AWAY, REFUSED = (408, 429), (401, 403)
"""HTTP statuses of a registry that is temporarily unavailable, in addition to all from 500 on, and of a refused login."""
_LOGIN = 'name user:password with registry_login="env:NAME" or "file:PATH"'


class Format(StrEnum):
    """Encoding of the values of messages."""

    JSON = "json"
    AVRO = "avro"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decodes values into columns."""

    format: Format
    avro: str = ""
    """The schema that values were written with, as JSON; empty: each value names its schema in the registry."""
    registry: str = ""
    """Address of the schema registry."""
    login: str = field(default="", repr=False)
    """Reference to `user:password` of the registry: `env:NAME` or `file:PATH`."""

    def columns(self, values: Sequence[bytes | None], fields: Sequence[pa.Field]) -> list[pa.Array]:
        """Decode values into one array for each field."""
        if self.format is Format.AVRO:
            return _columns([self._avro(value) for value in values], fields)
        return json_columns(values, pa.schema(fields))

    def _avro(self, value: bytes | None) -> Any:
        if value is None:
            return None
        from fastavro import schemaless_reader

        try:
            return schemaless_reader(*self._opened(value), None)
        except (ValueError, IndexError, EOFError, struct.error, UnicodeDecodeError):
            return None

    def _opened(self, value: bytes) -> tuple[io.BytesIO, Any]:
        if self.avro:
            return io.BytesIO(value), parsed_avro(self.avro)
        zero, number = WIRE.unpack_from(value)
        if zero != 0:
            raise ValueError("not written with a schema registry")
        return io.BytesIO(value[WIRE.size :]), parsed_avro(registered(self.registry, number, self.login))


# -- JSON


def json_columns(values: Sequence[bytes | None], schema: pa.Schema) -> list[pa.Array]:
    """Decode JSON objects into columns: all values are parsed together; after an error, each half is parsed again to find the faulty value.

    >>> [column.to_pylist() for column in json_columns([b'{"id": 7}', b"seven", None], pa.schema([("id", pa.int64())]))]
    [[7, None, None]]
    """
    if not values:
        return [pa.nulls(0, one.type) for one in schema]
    try:
        return _parsed(values, schema)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return _columns([_object(values[0])], list(schema))
    half = len(values) // 2
    halves = json_columns(values[:half], schema), json_columns(values[half:], schema)
    return [pa.concat_arrays(both) for both in zip(*halves, strict=True)]


def _parsed(values: Sequence[bytes | None], schema: pa.Schema) -> list[pa.Array]:
    text = b"\n".join([value or b"{}" for value in values])
    if text.count(b"\n") != len(values) - 1:  # a line end within a value: between its parts, as strings have none
        text = b"\n".join([(value or b"{}").replace(b"\n", b" ") for value in values])
    read = pa.schema([(one.name, _written(one.type)) for one in schema])
    options = pa.json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
    blocks = pa.json.ReadOptions(use_threads=False, block_size=max(1, len(text) + 1))
    table = pa.json.read_json(pa.BufferReader(text), read_options=blocks, parse_options=options)
    if table.num_rows != len(values):
        raise pa.ArrowInvalid("a value is more or less than one object")
    arrays = (table.column(one.name).combine_chunks() for one in schema)
    return [_as(array, one.type) for array, one in zip(arrays, schema, strict=True)]


def _written(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type with which JSON is parsed: a string, unless the type is nested, a number or a truth value."""
    nested = pa.types.is_nested(kind)
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if nested or plain else pa.string()


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    return array if array.type == kind else parsed(array.cast(pa.binary()), kind)


def _object(value: bytes | None) -> Any:
    try:
        return None if value is None else msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None


# -- values one by one


def _columns(rows: Sequence[Any], fields: Sequence[pa.Field]) -> list[pa.Array]:
    known = [row if isinstance(row, dict) else {} for row in rows]
    return [_column([row.get(one.name) for row in known], one.type) for one in fields]


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        return pa.concat_arrays([_value(value, kind) for value in values])


def _value(value: Any, kind: pa.DataType) -> pa.Array:
    attempts: tuple[Callable[[], pa.Array], ...] = (
        lambda: pa.array([value], kind),
        lambda: parsed(pa.array([_text(value)], pa.binary()), kind),
    )
    for attempt in attempts:
        try:
            return attempt()
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError):
            continue
    return pa.nulls(1, kind)


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


# -- schemas of Avro


@cache
def parsed_avro(schema: str) -> Any:
    """Parse a schema for fastavro."""
    from fastavro import parse_schema

    return parse_schema(json.loads(schema))


@cache
def registered(registry: str, number: int, login: str) -> str:
    """The schema of this number, from the schema registry."""
    import httpx

    user, _, password = revealed(login, "the login of the schema registry").partition(":") if login else ("", "", "")
    try:
        answer = httpx.get(
            f"{registry.rstrip('/')}/schemas/ids/{number}",
            auth=(user, password) if login else None,
            timeout=REGISTRY_S,
        )
        if answer.is_server_error or answer.status_code in AWAY:
            raise EngineError(f"the schema registry {registry} is away: ConnectionError: HTTP {answer.status_code}")
        if answer.status_code in REFUSED:
            raise EngineError(f"the schema registry {registry} refused the login: HTTP {answer.status_code}; {_LOGIN}")
        answer.raise_for_status()
        return str(answer.json()["schema"])
    except httpx.TransportError as error:
        raise EngineError(f"the schema registry {registry} cannot be reached: ConnectionError: {error}") from None
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"the schema registry {registry} has no schema {number}: {error}") from None


def checked_avro(schema: object) -> str:
    """Return a schema of Avro values, given as a mapping or as JSON; refuse an invalid schema."""
    try:
        import fastavro
        from fastavro.schema import SchemaParseException
    except ImportError:
        raise GraphError("Avro needs the package fastavro; run: pip install 'headgate[kafka]'") from None
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        fastavro.parse_schema(json.loads(text))
    except (ValueError, SchemaParseException) as error:
        raise GraphError(f"avro_schema cannot be read: {error}; give it a schema of Avro as JSON") from None
    return text
