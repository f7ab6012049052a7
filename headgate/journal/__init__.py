"""The durable record of the control loop: what was seen, what was decided, what was done, and what came of it.

An action is written as intended before it is carried out, together with the state of the scheduler. A controller that
was killed at any moment therefore finds, by `restore()`, a whole round, and at most an action whose outcome it does not
know, which it may apply again.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from numbers import Integral, Real
from pathlib import Path
from threading import RLock
from typing import Any, Self

import msgspec

from headgate.core.model import Action, Outcome, Snapshot
from headgate.errors import JournalDamagedError, JournalError
from headgate.journal.summary import (
    Origins,
    Placed,
    folded,
    is_over,
    is_wanted,
    origins_with,
    restored_from,
    spread,
    with_jobs,
)
from headgate.ports import Effect, JobRecord, RecordedAction, Restored, RoundRecord

WINDOW_SNAPSHOTS = 32
"""Snapshots kept for a restart: more than a window of measurements and the wait after an action together."""

NO_ROUND = 0
"""The round of an action about a host: rounds are numbered from 1."""


def _unknown_action(action_id: int) -> JournalError:
    return JournalError(f"the journal holds no action {action_id}")


def _writable(action: Action) -> Action:
    """JSON has no infinity: a fact that is not finite is kept as text, so that the action can be read back."""
    facts = {name: _fact(value) for name, value in action.cause.facts.items()}
    return dataclasses.replace(action, cause=dataclasses.replace(action.cause, facts=facts))


def _fact(value: float | str) -> float | str:
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


# -- in memory ---------------------------------------------------------------------------------------------------------


class MemoryJournal:
    """A journal that lives as long as its process: for simulations and tests. It keeps what it is given, not a copy.

    >>> MemoryJournal().restore() is None
    True
    """

    def __init__(self, window: int = WINDOW_SNAPSHOTS) -> None:
        self._rounds: list[RoundRecord] = []
        self._snapshots: deque[Snapshot] = deque(maxlen=window)
        self._actions: dict[int, Placed] = {}
        self._origins: Origins = {}
        self._about: dict[str, str] = {}
        self._last: tuple[float, bytes] | None = None
        self._numbers, self._ids = count(1), count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(
        self, summary: RoundRecord, snapshot: Snapshot, state: bytes, action: Action | None = None
    ) -> int | None:
        """Write a round, all or nothing, before its action is carried out; returns the id of the action."""
        number = next(self._numbers)
        self._rounds.append(summary)
        self._snapshots.append(snapshot)
        self._origins = origins_with(self._origins, number, snapshot)
        self._last = (summary.at_s, state)
        return None if action is None else self._add_action(number, summary.at_s, action)

    def intend(self, at_s: float, action: Action) -> int:
        """Write an action about a host, which belongs to no round, before it is carried out; returns its id."""
        return self._add_action(NO_ROUND, at_s, action)

    def _add_action(self, number: int, at_s: float, action: Action) -> int:
        action_id = next(self._ids)
        self._actions[action_id] = Placed(number, RecordedAction(action_id, at_s, _writable(action)))
        return action_id

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        """Write what became of an action; the last word counts."""
        self._replace(action_id, outcome=outcome)

    def effect(self, action_id: int, effect: Effect) -> None:
        """Write how an action was judged; the last word counts."""
        self._replace(action_id, effect=effect)

    def _replace(self, action_id: int, **change: Any) -> None:
        if action_id not in self._actions:
            raise _unknown_action(action_id)
        placed = self._actions[action_id]
        self._actions[action_id] = Placed(placed.round, dataclasses.replace(placed.recorded, **change))

    def restore(self) -> Restored | None:
        """Where the last controller stopped; None if there was none."""
        if self._last is None:
            return None
        return restored_from(*self._last, tuple(self._snapshots), self._origins, list(self._actions.values()))

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Actions in order: all, or those that touch a job; `since_s` is included."""
        return [one.recorded for one in self._actions.values() if is_wanted(one.recorded, job, since_s)]

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Rounds in order: all, or those in which a job ran, with that job alone; `since_s` is included."""
        for summary in self._rounds:
            if since_s is not None and summary.at_s < since_s:
                continue
            if job is None:
                yield summary
            elif job in summary.jobs:
                yield dataclasses.replace(summary, jobs={job: summary.jobs[job]})

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """At most so many rounds, evenly spread over those since this time and with the newest; with these jobs alone, if given."""
        rounds = [summary for summary in self._rounds if summary.at_s >= since_s]
        chosen = spread(0, len(rounds) - 1, most) if rounds else ()
        return [with_jobs(rounds[number], jobs) for number in chosen]

    def purge(self, before_s: float, actions_before_s: float = -math.inf) -> int:
        """Delete rounds before this time, and actions before that one whose outcome is known; returns how many rounds went."""
        gone = {number: one for number, one in self._actions.items() if is_over(one, actions_before_s)}
        self._origins = folded(self._origins, gone.values())
        self._actions = {number: one for number, one in self._actions.items() if number not in gone}
        # Time never steps back: mostly there is nothing to copy.
        if not self._rounds or self._rounds[0].at_s >= before_s:
            return 0
        before = len(self._rounds)
        self._rounds = [summary for summary in self._rounds if summary.at_s >= before_s]
        return before - len(self._rounds)

    def set_about(self, key: str, value: str) -> None:
        """Note something about the whole run, such as its scenario or its seed."""
        self._about[key] = value

    def about(self) -> dict[str, str]:
        """Everything noted so."""
        return dict(self._about)

    def close(self) -> None:
        """Nothing to give back."""


# -- in a file ---------------------------------------------------------------------------------------------------------

SCHEMA_VERSION = 2
"""2: actions may be about hosts. A journal of version 1 is read as it is, and goes on as version 2."""
APPLICATION_ID = 0x48644774
"""Marks the file as a journal among SQLite files: "HdGt"."""
SIDE_FILES = ("-wal", "-shm")
"""What SQLite writes beside its file."""
BUSY_S = 10.0
"""How long to wait for another process that holds the file."""
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


@dataclass(frozen=True, slots=True)
class _RoundFrame:
    """A round whose jobs are not decoded yet: a reader of one job need not pay for all the others."""

    at_s: float
    phase: str
    score: float
    max_score: float
    jobs: dict[str, msgspec.Raw]
    decision: str
    advice: tuple[str, ...]


class SqliteJournal:
    """A journal in one SQLite file; other processes may read it, also while it is written.

    >>> SqliteJournal("/nowhere/journal.db")
    Traceback (most recent call last):
    headgate.errors.JournalError: /nowhere/journal.db: the journal cannot be opened: No such file or directory
    """

    def __init__(self, path: Path | str, *, window: int = WINDOW_SNAPSHOTS, read_only: bool = False) -> None:
        self.path = Path(path)
        self._window = window
        self._lock = RLock()
        with self._told("opened"):
            self._connection = _connect(self.path, read_only)
        try:
            with self._told("opened"):
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
        """Give back the file."""
        with self._told("closed"):
            self._connection.close()

    # -- writing

    def record(
        self, summary: RoundRecord, snapshot: Snapshot, state: bytes, action: Action | None = None
    ) -> int | None:
        """Write a round, all or nothing, before its action is carried out; returns the id of the action."""
        with self._transaction() as connection:
            number = self._add_round(connection, summary, snapshot)
            origins = origins_with(self._origins, number, snapshot)
            connection.execute(_SET_LATEST, (summary.at_s, state, _text(origins)))
            action_id = None if action is None else _add_action(connection, number, summary.at_s, action)
        self._origins = origins
        return action_id

    def intend(self, at_s: float, action: Action) -> int:
        """Write an action about a host, which belongs to no round, before it is carried out; returns its id."""
        with self._transaction() as connection:
            return _add_action(connection, NO_ROUND, at_s, action)

    def _add_round(self, connection: sqlite3.Connection, summary: RoundRecord, snapshot: Snapshot) -> int:
        row = (summary.at_s, _text(summary))
        number = connection.execute("INSERT INTO rounds (at_s, summary) VALUES (?, ?)", row).lastrowid
        assert number is not None
        connection.execute("INSERT INTO snapshots VALUES (?, ?)", (number, _packed(snapshot)))
        connection.execute("DELETE FROM snapshots WHERE round <= ?", (number - self._window,))
        return number

    def outcome(self, action_id: int, outcome: Outcome) -> None:
        """Write what became of an action; the last word counts."""
        self._update("UPDATE actions SET outcome = ? WHERE id = ?", action_id, outcome)

    def effect(self, action_id: int, effect: Effect) -> None:
        """Write how an action was judged; the last word counts."""
        self._update("UPDATE actions SET effect = ? WHERE id = ?", action_id, effect)

    def _update(self, statement: str, action_id: int, value: Outcome | Effect) -> None:
        with self._transaction() as connection:
            if connection.execute(statement, (_text(value), action_id)).rowcount == 0:
                raise _unknown_action(action_id)

    def purge(self, before_s: float, actions_before_s: float = -math.inf) -> int:
        """Delete rounds before this time, and actions before that one whose outcome is known; returns how many rounds went."""
        with self._transaction() as connection:
            gone = [_placed_action(*row) for row in self._rows(_OLD_ACTIONS, actions_before_s)]
            origins = folded(self._origins, gone) if gone else self._origins
            if gone:
                connection.execute("UPDATE latest SET origins = ?", (_text(origins),))
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
        """Where the last controller stopped; None if there was none."""
        # One transaction, because another process may write between two statements.
        with self._told("read"), self._lock, self._connection:
            self._connection.execute("BEGIN")
            last = self._connection.execute("SELECT at_s, state FROM latest").fetchone()
            if last is None:
                return None
            return restored_from(last[0], last[1], self._snapshots(), self._read_origins(), self._placed())

    def _snapshots(self) -> tuple[Snapshot, ...]:
        rows = self._rows("SELECT snapshot FROM snapshots ORDER BY round")
        return tuple(msgspec.msgpack.decode(row[0], type=Snapshot) for row in rows[-self._window :])

    def _placed(self, since_s: float = -math.inf) -> list[Placed]:
        return [_placed_action(*row) for row in self._rows(_ACTIONS, since_s)]

    def _read_origins(self) -> Origins:
        rows = self._rows("SELECT origins FROM latest")
        return msgspec.json.decode(rows[0][0], type=Origins) if rows else {}

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Actions in order: all, or those that touch a job; `since_s` is included."""
        with self._told("read"):
            placed = self._placed(-math.inf if since_s is None else since_s)
            return [one.recorded for one in placed if is_wanted(one.recorded, job, since_s)]

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Rounds in order: all, or those in which a job ran, with that job alone; `since_s` is included."""
        with self._told("read"):
            earliest_s = -math.inf if since_s is None else since_s
            start = self._rows(_SINCE, earliest_s)[0][0]
            while start is not None:
                page = self._rows(_PAGE, start, earliest_s, PAGE_ROUNDS)
                named = (_round(summary, None if job is None else (job,)) for _, summary in page)
                yield from (one for one in named if job is None or job in one.jobs)
                start = page[-1][0] + 1 if page else None

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """At most so many rounds, evenly spread over those since this time and with the newest; with these jobs alone, if given."""
        with self._told("read"):
            first, last = self._rows(_SINCE, since_s)[0]
            chosen = spread(first, last, most) if first is not None else ()
            found = (self._rows("SELECT summary FROM rounds WHERE number = ?", number) for number in chosen)
            return [_round(rows[0][0], jobs) for rows in found if rows]

    def check(self) -> None:
        """Read all that a restart needs; what is wrong with it is a `JournalDamagedError`."""
        with self._told("read"):
            found = self._rows("PRAGMA quick_check(1)")[0][0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        self.restore()
        self.about()

    def about(self) -> dict[str, str]:
        """Everything noted so."""
        with self._told("read"):
            return dict(self._rows("SELECT key, value FROM about"))

    # -- the file

    def _rows(self, statement: str, *values: float) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._told("written"), self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """Whatever goes wrong with the file is told in one sentence that names it."""
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
        # Readers never wait for the writer, nor the writer for them.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL would survive kill -9, but not a power cut that an engine on other hosts outlives; one round every few
        # seconds can pay for its flush to disk.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._create()

    def _check_identity(self) -> int:
        """The version of the journal, 0 for an empty file; a file of another program is left as it is."""
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
            # Asked again inside the transaction: another process may have been faster.
            version = self._pragma("user_version")
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
            elif version < SCHEMA_VERSION:
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _add_action(connection: sqlite3.Connection, number: int, at_s: float, action: Action) -> int:
    added = connection.execute(_ADD_ACTION, (number, at_s, _text(_writable(action)))).lastrowid
    assert added is not None
    return added


def _is_damage(error: Exception) -> bool:
    """Whether the content is at fault, not the disk, the rights or another process."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        # Text that is not UTF-8 comes without a code; a table or column that is missing comes as SQLITE_ERROR.
        return code is None or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return isinstance(error, msgspec.MsgspecError | UnicodeError)


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        # SQLite would create it readable for all users; its side files take over the mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    elif not path.exists():
        raise JournalError(f"{path}: there is no journal")
    mode = "ro" if read_only else "rw"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


# -- values as text ----------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Numbers of numpy and mappings other than dict, which msgspec does not take as they are."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise NotImplementedError


_JSON = msgspec.json.Encoder(enc_hook=_plain)
_PACK = msgspec.msgpack.Encoder(enc_hook=_plain)


def _text(value: Any) -> str:
    """JSON, for whoever opens the file with the sqlite3 shell."""
    return _JSON.encode(value).decode()


def _packed(snapshot: Snapshot) -> bytes:
    """MessagePack, because a reading may be infinite or not a number and must come back as it was."""
    return _PACK.encode(snapshot)


def _placed_action(
    action_id: int, number: int, at_s: float, action: str, outcome: str | None, effect: str | None
) -> Placed:
    recorded = RecordedAction(
        id=action_id,
        at_s=at_s,
        action=msgspec.json.decode(action, type=Action),
        outcome=None if outcome is None else msgspec.json.decode(outcome, type=Outcome),
        effect=None if effect is None else msgspec.json.decode(effect, type=Effect),
    )
    return Placed(number, recorded)


def _round(summary: str, jobs: Collection[str] | None) -> RoundRecord:
    """The round, with these jobs alone if any are given."""
    if jobs is None:
        return msgspec.json.decode(summary, type=RoundRecord)
    frame = msgspec.json.decode(summary, type=_RoundFrame)
    named = {name: msgspec.json.decode(frame.jobs[name], type=JobRecord) for name in jobs if name in frame.jobs}
    return RoundRecord(frame.at_s, frame.phase, frame.score, frame.max_score, named, frame.decision, frame.advice)
