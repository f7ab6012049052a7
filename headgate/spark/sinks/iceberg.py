"""Iceberg tables as a sink, exactly once: the snapshot of an epoch names the job's life, the sink and the epoch.

Lanes write Parquet files with the table's own input and output; the driver adds them to the table in one snapshot. The transaction
that adds the snapshot also sets a property of the table to the newest start and epoch of the writer: a snapshot can expire, a property
of the table cannot. A start announces itself by an empty snapshot, so that the commit of an older start fails: the commit requires
that the table still has the snapshot that the sink looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import EngineError, GraphError
from headgate.spark.connections.extras import require, using
from headgate.spark.connections.secrets import all_revealed, check_options
from headgate.spark.sinks.staged import Claim, Receipt, cast, fitting, write_rows
from headgate.state.faults import reach

if TYPE_CHECKING:
    # Imported where it is used: it takes more than a second.
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

COMMITS = 20
"""Most attempts of a commit while other writers are faster."""
WRITER, START, EPOCH = "headgate.writer", "headgate.start", "headgate.epoch"
"""Properties of snapshots; the first property, followed by the writer's name, is also a property of the table."""
NEVER = -1
"""Epoch of a writer that has written none."""
RETRIES = "commit.retry.num-retries"


@dataclass(frozen=True, slots=True)
class Iceberg:
    """A sink that appends every row of an epoch to an Iceberg table."""

    catalog: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    reads_once: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.catalog, str) or not self.catalog:
            raise GraphError(f'the catalog of an Iceberg sink is {self.catalog!r}; name it, such as "prod"')
        if not isinstance(self.table, str) or "." not in self.table:
            raise GraphError(f'an Iceberg sink writes to {self.table!r}; name a namespace and a table, "shop.orders"')
        check_options(self.properties, f'catalog "{self.catalog}"')
        require("iceberg", f'Iceberg table "{self.table}"')

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        write_rows(self, rows, epoch)

    @property
    def name(self) -> str:
        """The table in messages."""
        return f'Iceberg table "{self.table}" of catalog "{self.catalog}"'

    def begin(self, claim: Claim, columns: pa.Schema) -> IcebergStage | None:
        """Create the table if there is none, and fence older starts."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        with self.using():
            table = self._open_or_create(claim, columns)
            self._refuse_partitions(table)
            self.commit_on_top(claim, partial(_announce, claim), self.is_unknown)
            table = self.load(claim)
            if not self.is_new(table, claim):
                return None
            target = fitting(columns, schema_to_pyarrow(table.schema()), self.name)
            return IcebergStage(self, claim, target, table.io, table.location(), dict(table.properties))

    def commit_on_top(self, claim: Claim, act: Callable[[Table], None], is_due: Callable[[Table, Claim], bool]) -> None:
        """Let `act` commit to the newest version of the table if a commit is due, again if another writer was faster."""
        from pyiceberg.exceptions import CommitFailedException

        faster: Exception | None = None
        for _ in range(COMMITS):
            table = self.load(claim)
            if not is_due(table, claim):
                return
            table.metadata.properties[RETRIES] = "0"  # of this copy: the library's own retry would not check the epoch
            try:
                act(table)
                return
            except CommitFailedException as error:
                faster = error
        raise EngineError(f"{self.name}: other writers were faster {COMMITS} times; the job tries again") from faster

    def load(self, claim: Claim) -> Table:
        """Load the newest version of the table."""
        return self._catalog(claim).load_table(self.table)

    def using(self, operator: str = "") -> AbstractContextManager[None]:
        """Turn errors of the library in this block into one sentence."""
        from pyiceberg import exceptions
        from sqlalchemy.exc import SQLAlchemyError

        kinds = tuple(
            kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
        )
        return using(self.name, (*kinds, SQLAlchemyError, OSError, ValueError), operator)

    def _catalog(self, claim: Claim) -> Catalog:
        from headgate.spark.connections.iceberg import open_catalog

        properties = all_revealed(self.properties, f'catalog "{self.catalog}"')
        return open_catalog(self.catalog, properties, claim.writing.patience.table_s)

    def _open_or_create(self, claim: Claim, columns: pa.Schema) -> Table:
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._catalog(claim)
        try:
            return catalog.load_table(self.table)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
            return catalog.create_table_if_not_exists(self.table, columns)

    def _refuse_partitions(self, table: Table) -> None:
        if not table.spec().is_unpartitioned():
            raise EngineError(f"{self.name} has partitions, which the sink does not write; give it a table without")

    def is_new(self, table: Table, claim: Claim) -> bool:
        """Whether the table lacks the epoch; raises for an older start."""
        return claim.is_new(*_last_commit(table, claim), self.name)

    def is_unknown(self, table: Table, claim: Claim) -> bool:
        """Whether the table lacks the number of the start; raises for an older start."""
        self.is_new(table, claim)
        return _last_commit(table, claim)[0] < claim.start


def iceberg(catalog: str, table: str, properties: Mapping[str, str] | None = None) -> Iceberg:
    """Appends rows to a table of an Iceberg catalog, which pyiceberg's configuration or these properties describe.

    A secret among the properties is best written as `env:NAME` or `file:PATH`. The table is created with the first epoch if there is
    none.

    >>> iceberg("prod", "shop.orders", {"type": "rest", "uri": "http://catalog:8181", "token": "env:CATALOG_TOKEN"})
    Iceberg(catalog='prod', table='shop.orders')
    """
    return Iceberg(catalog, table, dict(properties or {}))


def _announce(claim: Claim, table: Table) -> None:
    """Commit the number of this start, after which no older start can commit."""
    _add(table, claim, [], _last_commit(table, claim)[1])


def _last_commit(table: Table, claim: Claim) -> tuple[int, int]:
    """The newest start and epoch of the writer."""
    start, _, epoch = table.properties.get(f"{WRITER}.{claim.writer}", f"0:{NEVER}").partition(":")
    return int(start), int(epoch)


def _add(table: Table, claim: Claim, files: list[str], epoch: int) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({f"{WRITER}.{claim.writer}": f"{claim.start}:{epoch}"})
        about = {WRITER: claim.writer, START: str(claim.start), EPOCH: str(epoch)}
        transaction.add_files(files, about, check_duplicate_files=False)


@dataclass(frozen=True, slots=True)
class IcebergStage:
    """Parquet files that no snapshot names yet."""

    sink: Iceberg
    claim: Claim
    target: pa.Schema
    io: Any
    location: str
    properties: Mapping[str, str]

    def put(self, batches: Iterator[pa.RecordBatch], lane: int) -> Receipt:
        from pyiceberg.table.locations import load_location_provider

        places = load_location_provider(self.location, dict(self.properties))
        path = places.new_data_location(f"part-{lane:05d}-{uuid4().hex}.parquet")
        rows = 0
        with (
            self.sink.using(self.claim.writing.sink),
            self.io.new_output(path).create() as stream,
            pq.ParquetWriter(stream, self.target) as writer,
        ):
            for batch in batches:
                rows += batch.num_rows
                writer.write_batch(cast(batch, self.target))
        return Receipt(path, rows, lane)

    def commit(self, receipts: Sequence[Receipt]) -> None:
        files = [receipt.name for receipt in receipts]
        with self.sink.using():
            self.sink.commit_on_top(self.claim, partial(self._add, files), self.sink.is_new)

    def _add(self, files: list[str], table: Table) -> None:
        reach("sink: committing")
        _add(table, self.claim, files, self.claim.epoch)
