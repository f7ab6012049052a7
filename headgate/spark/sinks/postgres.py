"""PostgreSQL tables as a sink, exactly once: a table of epochs is written in the transaction that writes the rows.

Lanes copy their rows into an unlogged table beside the target, each lane in one transaction. The driver then moves the rows of the
lanes that succeeded into the target, by insert or upsert, and records the epoch, in one transaction. If PostgreSQL crashes in
between, the unlogged table is empty, and the epoch is tried again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import csv

from headgate.errors import EngineError, GraphError
from headgate.spark.connections.extras import require
from headgate.spark.connections.redis import shown
from headgate.spark.connections.secrets import ENVIRONMENT, FILE, revealed
from headgate.spark.sinks.redis import raw_of, texts
from headgate.spark.sinks.staged import Claim, Receipt, check_key, key_of, write_rows
from headgate.state.faults import reach

if TYPE_CHECKING:
    # Imported where it is used, as most jobs do without it.
    from psycopg import Connection
    from psycopg.sql import Composed, Identifier
    from pyspark.sql import DataFrame

EPOCHS = "headgate_epochs"
"""The table of the newest start and epoch of each writer."""
TASK, POSITION = "_headgate_task", "_headgate_row"
"""Additional columns of staged rows: the task, and the position within it."""
SCHEMES = ("postgresql://", "postgres://", ENVIRONMENT, FILE)


@dataclass(frozen=True, slots=True)
class Postgres:
    """A sink that inserts every row of an epoch into a table of PostgreSQL, or updates the row with the same key."""

    url: str = field(repr=False)
    table: str = ""
    key: tuple[str, ...] = ()
    reads_once: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(SCHEMES):
            raise GraphError("the url of a PostgreSQL sink does not start with postgresql://, env: or file:")
        if not isinstance(self.table, str) or not self.table:
            raise GraphError(f'a PostgreSQL sink writes to {self.table!r}; name a table, such as "shop.orders"')
        require("postgres", f'PostgreSQL table "{self.table}"')

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        write_rows(self, rows, epoch, texts)

    def begin(self, claim: Claim, columns: pa.Schema) -> PostgresStage | None:
        """Create the table if there is none, and fence older starts."""
        url = revealed(self.url, f'the url of PostgreSQL table "{self.table}"')
        target = Target(url, self.table, self.key, claim.writing.patience.table_s)
        check_key(self.key, columns, target.name)
        with target.connected() as connection:
            if _types(connection, EPOCHS) is None:
                _lock(connection, f"create {EPOCHS}")
                connection.execute(_sql(CREATE_EPOCHS, epochs=EPOCHS))
            is_new = claim.is_new(*_last_commit(connection, claim), target.name)
            connection.execute(_sql(CLAIM, epochs=EPOCHS), [claim.writer, claim.start])
            if not is_new:
                return None
            stage = PostgresStage(target, claim, tuple(columns.names), _staging(claim))
            stage.prepare(connection, columns)
        return stage


def postgres(url: str, table: str, key: str | Sequence[str] | None = None) -> Postgres:
    """Inserts rows into a table of PostgreSQL, or with `key` updates the row of the same key.

    `url` is `postgresql://user@host/database`, or names where it is kept: `env:NAME` or `file:PATH`. The table is created with the
    first epoch if there is none. With `key`, the last row of a key in an epoch stays; rows of a key follow each other only within a
    lane. An existing table needs a unique index on the key.

    >>> postgres("env:SHOP_DATABASE", "shop.orders", key="id")
    Postgres(table='shop.orders', key=('id',))
    """
    return Postgres(url, table, key_of(key))


# -- connections


@dataclass(frozen=True, slots=True)
class Target:
    """The table of PostgreSQL that a sink writes."""

    url: str = field(repr=False)
    table: str
    key: tuple[str, ...]
    answer_s: float

    @property
    def name(self) -> str:
        """The table as shown in messages."""
        return f'table "{self.table}" of PostgreSQL at {shown(self.url)}'

    @property
    def identifier(self) -> Identifier:
        from psycopg.sql import Identifier

        return Identifier(*self.table.split("."))

    def declaration(self, columns: pa.Schema) -> Composed:
        """Return the statement that creates the table with these columns."""
        from psycopg.sql import SQL

        declared = [_sql(f"{{name}} {type_of(column.type)}", name=column.name) for column in columns]
        if self.key:
            declared.append(_sql("PRIMARY KEY ({key})", key=_list(self.key)))
        return _sql("CREATE TABLE IF NOT EXISTS {table} ({all})", table=self.identifier, all=SQL(", ").join(declared))

    def connected(self, operator: str = "") -> AbstractContextManager[Connection]:
        """Open a connection for one transaction; `operator` is given by a lane."""
        from headgate.spark.connections.postgres import connected

        return connected(self.url, self.name, self.answer_s, operator)


def _lock(connection: Connection, what: str) -> None:
    """Lock a name until the end of the transaction: two simultaneous `CREATE TABLE IF NOT EXISTS` would fail."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [what])


def _last_commit(connection: Connection, claim: Claim) -> tuple[int, int]:
    """The newest start and epoch of the writer, locked until the end of the transaction."""
    found = connection.execute(_sql(KNOWN, epochs=EPOCHS), [claim.writer]).fetchone()
    return (0, -1) if found is None else (int(found[0]), int(found[1]))


CREATE_EPOCHS = (
    "CREATE TABLE IF NOT EXISTS {epochs} (writer text PRIMARY KEY, start bigint NOT NULL, epoch bigint NOT NULL)"
)
KNOWN = "SELECT start, epoch FROM {epochs} WHERE writer = %s FOR UPDATE"
CLAIM = "INSERT INTO {epochs} VALUES (%s, %s, -1) ON CONFLICT (writer) DO UPDATE SET start = excluded.start"
WRITTEN = "UPDATE {epochs} SET epoch = %s WHERE writer = %s"


def _sql(text: str, **names: Any) -> Composed:
    from psycopg.sql import SQL, Identifier

    parts = {name: Identifier(part) if isinstance(part, str) else part for name, part in names.items()}
    return SQL(text).format(**parts)


def _list(names: Sequence[str], each: str = "{name}") -> Composed:
    from psycopg.sql import SQL

    return SQL(", ").join(_sql(each, name=name) for name in names)


def _staging(claim: Claim) -> str:
    return f"headgate_staged_{sha256(claim.writer.encode()).hexdigest()[:16]}"


# -- an attempt


@dataclass(frozen=True, slots=True)
class PostgresStage:
    """Rows in a staging table beside the target, marked with the task that copied them."""

    target: Target
    claim: Claim
    columns: tuple[str, ...]
    staging: str

    def prepare(self, connection: Connection, columns: pa.Schema) -> None:
        """Create the target if there is none, and a staging table with the same types beside it."""
        if _types(connection, self.target.table) is None:
            _lock(connection, f"create {self.target.table}")
            connection.execute(self.target.declaration(columns))
        wanted = self._wanted(_types(connection, self.target.table) or {})
        if _types(connection, self.staging) != wanted:
            connection.execute("SET LOCAL lock_timeout = '10s'")  # a lane of an earlier attempt may still copy into it
            connection.execute(_sql("DROP TABLE IF EXISTS {staging}", staging=self.staging))
            connection.execute(_sql(STAGING, **self._names()))

    def _wanted(self, target: dict[str, str]) -> dict[str, str]:
        unknown = [name for name in self.columns if name not in target]
        if unknown:
            raise GraphError(
                f'{self.target.name} has no column "{unknown[0]}" (it has {", ".join(target)}); add it, or leave it out'
            )
        return {name: target[name] for name in self.columns} | {TASK: "text", POSITION: "bigint"}

    def _names(self) -> dict[str, Any]:
        return {"staging": self.staging, "target": self.target.identifier, "columns": _list(self.columns)} | OWN

    def put(self, batches: Iterator[pa.RecordBatch], lane: int) -> Receipt:
        """Copy the rows of one lane in one transaction, so that a failed lane leaves no rows."""
        task, rows = uuid4().hex, 0
        with (
            self.target.connected(self.claim.writing.sink) as connection,
            connection.cursor() as cursor,
            cursor.copy(_sql(COPY, **self._names())) as copy,
        ):
            for batch in batches:
                copy.write(as_csv(batch, task, rows))
                rows += batch.num_rows
        return Receipt(task, rows, lane)

    def commit(self, receipts: Sequence[Receipt]) -> None:
        tasks = [receipt.name for receipt in receipts]
        with self.target.connected() as connection:
            if not self.claim.is_new(*_last_commit(connection, self.claim), self.target.name):
                return
            (there,) = connection.execute(_sql(COUNT, **self._names()), [tasks]).fetchone() or (0,)
            if there != sum(receipt.rows for receipt in receipts):
                raise EngineError(
                    f"the rows of epoch {self.claim.epoch} for {self.target.name} are gone, as after a crash of PostgreSQL;"
                    " the job tries again"
                )
            connection.execute(self._move(), {"tasks": tasks})
            connection.execute(_sql(WRITTEN, epochs=EPOCHS), [self.claim.epoch, self.claim.writer])
            connection.execute(_sql("DELETE FROM {staging}", staging=self.staging))
            reach("sink: committing")

    def _move(self) -> Composed:
        if not self.target.key:
            return _sql(INSERT, **self._names())
        others = [name for name in self.columns if name not in self.target.key]
        act = _sql("UPDATE SET {all}", all=_list(others, "{name} = excluded.{name}")) if others else _sql("NOTHING")
        return _sql(UPSERT, key=_list(self.target.key), act=act, **self._names())


OWN = {"task": TASK, "position": POSITION}
STAGING = (
    "CREATE UNLOGGED TABLE {staging} AS SELECT {columns}, ''::text AS {task}, 0::bigint AS {position}"
    " FROM {target} WITH NO DATA"
)
COPY = "COPY {staging} ({columns}, {task}, {position}) FROM STDIN (FORMAT csv)"
COUNT = "SELECT count(*) FROM {staging} WHERE {task} = ANY(%s)"
INSERT = "INSERT INTO {target} ({columns}) SELECT {columns} FROM {staging} WHERE {task} = ANY(%(tasks)s)"
UPSERT = (
    "INSERT INTO {target} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {staging} WHERE {task} = ANY(%(tasks)s)"
    " ORDER BY {key}, array_position(%(tasks)s::text[], {task}) DESC, {position} DESC ON CONFLICT ({key}) DO {act}"
)


def _types(connection: Connection, table: str) -> dict[str, str] | None:
    """Return the type of each column; None if there is no such table."""
    found = connection.execute(TYPES, [".".join(f'"{part}"' for part in table.split("."))]).fetchall()
    return {str(name): str(type_) for name, type_ in found} or None


TYPES = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
    " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


# -- values


def as_csv(batch: pa.RecordBatch, task: str, first: int) -> bytes:
    """Return rows as CSV for PostgreSQL's COPY: null is an empty field, every other value is quoted.

    >>> as_csv(pa.RecordBatch.from_pydict({"id": [7, None], "name": ["", "a, b"]}), "t", 0).decode().splitlines()
    ['"7","","t","0"', ',"a, b","t","1"']
    """
    own = [pa.repeat(task, batch.num_rows), pa.array(range(first, first + batch.num_rows)).cast(pa.string())]
    texts = [*map(_text, batch.columns), *own]
    table = pa.Table.from_arrays(texts, [str(number) for number in range(len(texts))])
    stream = io.BytesIO()
    csv.write_csv(table, stream, csv.WriteOptions(include_header=False))
    return stream.getvalue()


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
    return raw_of(column).cast(pa.string())


_NAMES = {
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.bool_(): "boolean",
    pa.binary(): "bytea",
    pa.date32(): "date",
}


def type_of(column: pa.DataType) -> str:
    """The type of PostgreSQL that a column of a new table gets.

    >>> type_of(pa.int64()), type_of(pa.timestamp("us", "UTC")), type_of(pa.list_(pa.string()))
    ('bigint', 'timestamp with time zone', 'jsonb')
    """
    if column in _NAMES:
        return _NAMES[column]
    if pa.types.is_timestamp(column):
        return "timestamp with time zone" if column.tz is not None else "timestamp"
    if pa.types.is_decimal(column):
        return f"numeric({column.precision},{column.scale})"
    return "jsonb" if pa.types.is_nested(column) else "text"
