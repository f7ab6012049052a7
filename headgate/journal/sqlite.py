"""The journal in a SQLite file: written by one process, read by any number."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Self

import msgspec

from headgate.core.model import Action, Outcome, Snapshot
from headgate.errors import JournalDamagedError, JournalError
from headgate.journal.encoding import json_text, pack, round_action, round_from, writable
from headgate.journal.summary import (
    NO_ROUND,
    WINDOW_SNAPSHOTS,
    Origins,
    RoundAction,
    fold,
    is_wanted,
    origins_with,
    restored_from,
    spread,
    unknown_action,
)
from headgate.ports import Effect, RecordedAction, Restored, RoundRecord

SCHEMA_VERSION = 3
"""Version of the format. 2: actions may be about hosts. 3: advice is a list of alerts, not of sentences. Older journals are read without
conversion, and continue as version 3.
"""
APPLICATION_ID = 0x48644774
"""Marks the file as a journal among SQLite files: "HdGt"."""
SIDE_FILES = ("-wal", "-shm")
"""Endings of the files that SQLite writes beside its database."""
BUSY_S = 10.0
"""Time limit, in seconds, for a lock that another process holds."""
CACHE_KB = 32_768
"""Most memory, in KiB, of the pages that SQLite caches."""
CHECKPOINT_PAGES = 4096
"""Number of pages in the write-ahead log at which SQLite moves all pages to the journal: 16 MB, a few rounds of 1,000 jobs."""
PAGE_ROUNDS = 500
"""Rounds read at a time, so that a long journal is never in memory as a whole."""

_SCHEMA = f"""
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rounds (number INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, summary TEXT NOT NULL);
CREATE INDEX rounds_by_time ON rounds (at_s);
CREATE TABLE snapshots (round INTEGER PRIMARY KEY, snapshot BLOB NOT NULL);
CREATE TABLE latest (only INTEGER PRIMARY KEY CHECK (only = 1), at_s REAL NOT NULL, state BLOB NOT NULL,
                     origins TEXT NOT NULL);
CREATE TABLE actions (id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER NOT NULL, at_s REAL NOT NULL,
                      action TEXT NOT NULL, outcome TEXT, effect TEXT);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_SET_LATEST = "INSERT OR REPLACE INTO latest (only, at_s, state, origins) VALUES (1, ?, ?, ?)"
_ADD_ACTION = "INSERT INTO actions (round, at_s, action) VALUES (?, ?, ?)"
_ACTIONS = "SELECT id, round, at_s, action, outcome, effect FROM actions WHERE at_s >= ? ORDER BY id"
_OLD_ACTIONS = (
    "SELECT id, round, at_s, action, outcome, effect FROM actions WHERE at_s < ? AND outcome IS NOT NULL ORDER BY id"
)
_SINCE = "SELECT min(number), max(number) FROM rounds WHERE at_s >= ?"
_PAGE = "SELECT number, summary FROM rounds WHERE number >= ? AND at_s >= ? ORDER BY number LIMIT ?"


class SqliteJournal:
    """A journal in one SQLite file, which other processes may read while one process writes.

    >>> SqliteJournal("/nowhere/journal.db")
    Traceback (most recent call last):
    headgate.errors.JournalError: /nowhere/journal.db: the journal cannot be opened: No such file or directory
    """

    def __init__(self, path: Path | str, *, window: int = WINDOW_SNAPSHOTS, read_only: bool = False) -> None:
        self.path = Path(path)
        self._window = window
        self._lock = RLock()
        with self._with_path("opened"):
            self._connection = _connect(self.path, read_only)
        try:
            with self._with_path("opened"):
                self._prepare(read_only)
                self._origins = self._read_origins()
        except JournalError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._with_path("closed"):
            self._connection.close()

    # -- writing

    def record(
        self, summary: RoundRecord, snapshot: Snapshot, state: bytes, action: Action | None = None
    ) -> int | None:
        """Write a round, all or nothing, before its action is carried out; return the id of the action."""
        with self._transaction() as connection:
            number = self._add_round(connection, summary, snapshot)
            origins = origins_with(self._origins, number, snapshot)
            connection.execute(_SET_LATEST, (summary.at_s, state, json_text(origins)))
            action_id = None if action is None else _add_action(connection, number, summary.at_s, action)
        self._origins = origins
        return action_id

    def intend(self, at_s: float, action: Action) -> int:
        """Write an action of the landlord, which belongs to no round, before the action is carried out; return its id."""
        with self._transaction() as connection:
            return _add_action(connection, NO_ROUND, at_s, action)

    def _add_round(self, connection: sqlite3.Connection, summary: RoundRecord, snapshot: Snapshot) -> int:
        row = (summary.at_s, json_text(summary))
        number = connection.execute("INSERT INTO rounds (at_s, summary) VALUES (?, ?)", row).lastrowid
        assert number is not None
        connection.execute("INSERT INTO snapshots VALUES (?, ?)", (number, pack(snapshot)))
        connection.execute("DELETE FROM snapshots WHERE round <= ?", (number - self._window,))
        return number

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        """Write the outcome of an action; the last outcome counts."""
        self._update("UPDATE actions SET outcome = ? WHERE id = ?", action_id, outcome)

    def effect(self, action_id: int, effect: Effect) -> None:
        """Write the effect of an action; the last effect counts."""
        self._update("UPDATE actions SET effect = ? WHERE id = ?", action_id, effect)

    def _update(self, statement: str, action_id: int, value: Outcome | Effect) -> None:
        with self._transaction() as connection:
            if connection.execute(statement, (json_text(value), action_id)).rowcount == 0:
                raise unknown_action(action_id)

    def purge(self, before_s: float, actions_before_s: float = -math.inf) -> int:
        """Delete rounds before `before_s`, and actions with an outcome before `actions_before_s`; return the number of deleted rounds."""
        with self._transaction() as connection:
            gone = [round_action(*row) for row in self._rows(_OLD_ACTIONS, actions_before_s)]
            origins = fold(self._origins, gone) if gone else self._origins
            if gone:
                connection.execute("UPDATE latest SET origins = ?", (json_text(origins),))
                connection.execute("DELETE FROM actions WHERE at_s < ? AND outcome IS NOT NULL", (actions_before_s,))
            rounds = connection.execute("DELETE FROM rounds WHERE at_s < ?", (before_s,)).rowcount
        self._origins = origins
        return rounds

    def set_about(self, key: str, value: str) -> None:
        """Note something about the whole run, such as its scenario or its seed."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, value))

    # -- reading

    def restore(self) -> Restored | None:
        """The state of the last controller; None in an empty journal."""
        # One transaction, because another process may write between two statements.
        with self._with_path("read"), self._lock, self._connection:
            self._connection.execute("BEGIN")
            last = self._connection.execute("SELECT at_s, state FROM latest").fetchone()
            if last is None:
                return None
            return restored_from(last[0], last[1], self._snapshots(), self._read_origins(), self._round_actions())

    def _snapshots(self) -> tuple[Snapshot, ...]:
        rows = self._rows("SELECT snapshot FROM snapshots ORDER BY round")
        return tuple(msgspec.msgpack.decode(row[0], type=Snapshot) for row in rows[-self._window :])

    def _round_actions(self, since_s: float = -math.inf) -> list[RoundAction]:
        return [round_action(*row) for row in self._rows(_ACTIONS, since_s)]

    def _read_origins(self) -> Origins:
        rows = self._rows("SELECT origins FROM latest")
        return msgspec.json.decode(rows[0][0], type=Origins) if rows else {}

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Actions in order, from `since_s` on: all actions, or the actions that touch a job or host."""
        with self._with_path("read"):
            placed = self._round_actions(-math.inf if since_s is None else since_s)
            return [one.recorded for one in placed if is_wanted(one.recorded, job, since_s)]

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Rounds in order, from `since_s` on: all rounds, or the rounds of one job, without the other jobs."""
        with self._with_path("read"):
            earliest_s = -math.inf if since_s is None else since_s
            start = self._rows(_SINCE, earliest_s)[0][0]
            while start is not None:
                page = self._rows(_PAGE, start, earliest_s, PAGE_ROUNDS)
                named = (round_from(summary, None if job is None else (job,)) for _, summary in page)
                yield from (one for one in named if job is None or job in one.jobs)
                start = page[-1][0] + 1 if page else None

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """At most `most` rounds, evenly spread over all rounds since `since_s`, the newest included; with only `jobs`, if given."""
        with self._with_path("read"):
            first, last = self._rows(_SINCE, since_s)[0]
            chosen = spread(first, last, most) if first is not None else ()
            found = (self._rows("SELECT summary FROM rounds WHERE number = ?", number) for number in chosen)
            return [round_from(rows[0][0], jobs) for rows in found if rows]

    def check(self) -> None:
        """Read everything that a restart needs; raise a `JournalDamagedError` if the content is damaged."""
        with self._with_path("read"):
            found = self._rows("PRAGMA quick_check(1)")[0][0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        self.restore()
        self.about()

    def about(self) -> dict[str, str]:
        """All notes about the whole run."""
        with self._with_path("read"):
            return dict(self._rows("SELECT key, value FROM about"))

    # -- the file

    def _rows(self, statement: str, *values: float) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._with_path("written"), self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextmanager
    def _with_path(self, verb: str) -> Iterator[None]:
        """Turn an error of the file into one sentence that names the file."""
        try:
            yield
        except (OSError, sqlite3.Error, msgspec.MsgspecError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            kind = JournalDamagedError if _is_damage(error) else JournalError
            raise kind(f"{self.path}: the journal cannot be {verb}: {reason}") from error

    def _prepare(self, read_only: bool) -> None:
        identity = self._check_identity()
        if read_only and identity == 0:
            raise JournalError(f"{self.path} is not a journal yet: it is empty")
        if read_only:
            return
        # With a write-ahead log, readers and the writer never wait for each other.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL would survive kill -9, but not a power cut, which an engine on other hosts survives. A flush to disk is cheap
        # with one round every few seconds.
        self._connection.execute("PRAGMA synchronous = FULL")
        # A round of 1,000 jobs has 3 MB: if its pages did not fit into the cache, SQLite would write some pages twice.
        self._connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._create()

    def _check_identity(self) -> int:
        """The version of the journal, 0 for an empty file; raise an error for a file of another program or of a newer Headgate."""
        identity, version = self._pragma("application_id"), self._pragma("user_version")
        tables = self._rows("SELECT count(*) FROM sqlite_master")[0][0]
        if identity != APPLICATION_ID and (tables or version or identity):
            raise JournalError(f"{self.path} is a database, but not a journal of Headgate")
        if version > SCHEMA_VERSION:
            known = f"journal version {version}, this one reads up to {SCHEMA_VERSION}"
            raise JournalError(f"{self.path} was written by a newer Headgate ({known})")
        return version

    def _pragma(self, name: str) -> int:
        return int(self._rows(f"PRAGMA {name}")[0][0])

    def _create(self) -> None:
        with self._transaction() as connection:
            # Read again inside the transaction: another process may have created the tables meanwhile.
            version = self._pragma("user_version")
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
            elif version < SCHEMA_VERSION:
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _add_action(connection: sqlite3.Connection, number: int, at_s: float, action: Action) -> int:
    added = connection.execute(_ADD_ACTION, (number, at_s, json_text(writable(action)))).lastrowid
    assert added is not None
    return added


def _is_damage(error: Exception) -> bool:
    """Whether the content is damaged, as opposed to a problem of the disk, of permissions or of another process."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        # An error about text that is not UTF-8 has no code; a missing table or column yields SQLITE_ERROR.
        return code is None or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return isinstance(error, msgspec.MsgspecError | UnicodeError)


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        # SQLite would create the file readable for all users; the side files get the mode of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    elif not path.exists():
        raise JournalError(f"{path}: there is no journal")
    mode = "ro" if read_only else "rw"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
