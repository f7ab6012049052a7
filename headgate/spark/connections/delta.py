"""Location of a Delta table on a local disk or in an object store, and the options to open it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from headgate import files
from headgate.errors import GraphError
from headgate.spark.connections.extras import require, using
from headgate.spark.connections.patience import PATIENCE
from headgate.spark.connections.redis import shown
from headgate.spark.connections.secrets import all_revealed, check_options

if TYPE_CHECKING:
    # Imported where it is used: it takes 0.2 s, and its threads must not be there before a process is forked.
    from deltalake import DeltaTable

LOCAL = "file://"
LIMITS = ("timeout", "connect_timeout", "retry_timeout")
"""Options of the object store that limit the time of a request, of a connection and of all attempts of a request."""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Location of a Delta table, which may not exist yet."""

    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @staticmethod
    def of(uri: str, storage: Mapping[str, str], answer_s: float = PATIENCE.table_s) -> TableLocation:
        """Return a location with revealed secrets, a time limit for the object store, and an absolute path if the table is on a disk."""
        path = uri.removeprefix(LOCAL)
        if "://" in path:
            limits = dict.fromkeys(LIMITS, f"{round(answer_s * 1000)}ms")
            return TableLocation(uri, tuple((limits | all_revealed(storage, f'Delta table "{shown(uri)}"')).items()))
        return TableLocation(os.path.abspath(path))

    @property
    def name(self) -> str:
        """The location in messages."""
        return f'Delta table "{shown(self.uri) if "://" in self.uri else self.uri}"'

    @property
    def local(self) -> Path | None:
        """The folder of the table on a disk of this machine; None if the table is in an object store."""
        return None if "://" in self.uri else Path(self.uri)

    def exists(self) -> bool:
        """Whether a table exists at this location."""
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(self.uri, dict(self.options))

    def table(self, version: int | None = None) -> DeltaTable:
        """Open the newest version of the table, or the given version."""
        from deltalake import DeltaTable

        return DeltaTable(self.uri, version, storage_options=dict(self.options))

    def files(self) -> Any:
        """Return the folder of the table as a file system of Arrow."""
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.options)))

    def make_durable(self, name: str) -> None:
        """Force a file and its name to a local disk; an object store is durable already."""
        if self.local is not None:
            files.sync(self.local / name)
            files.sync((self.local / name).parent)

    @contextmanager
    def using(self, operator: str = "") -> Iterator[None]:
        """Turn errors of the library in this block into one sentence."""
        from deltalake.exceptions import DeltaError

        with using(self.name, (DeltaError, OSError), operator):
            yield


def check(uri: str, storage: Mapping[str, str]) -> None:
    """Refuse an address that cannot be a Delta table, before any job starts."""
    if not isinstance(uri, str | os.PathLike) or not os.fspath(uri):
        raise GraphError(f'a Delta table is at {uri!r}; name a path or an address, such as "s3://bucket/orders"')
    what = f'Delta table "{shown(os.fspath(uri))}"'
    check_options(storage, what)
    require("delta", what)
