"""The audit log: who changed what, when, and through which interface; in `changes.jsonl` of the home."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate import files
from headgate.errors import InputError

FILE = "changes.jsonl"
LONGEST = 500
"""Most characters of the text of a submit, and of the changes in a complaint."""
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a person changed."""

    at_s: float
    who: str
    via: str
    """`dashboard`, `command line` for requests with a token, or `files` for what `headgate run` was given."""
    job: str
    """Empty for a change of tenants and tokens."""
    what: str
    """What was done, as the request had it: `pause`, `share 3`."""
    address: str = ""
    """Where the request came from."""
    tenant: str = ""
    """Owner of the token that made the change; empty for the operator of the service."""


class Changes:
    """The last changes of each tenant, oldest first. Owner: its lock; readers keep the tuple that they took."""

    def __init__(self, home: Path, keep: int, complain: Callable[[str], None] = LOG.error) -> None:
        self._path, self._keep, self._complain = home / FILE, keep, complain
        self._lock = threading.Lock()
        self._kept = _newest(_read(self._path), keep)

    def all(self, job: str | None = None) -> tuple[Change, ...]:
        """All changes, or those of one job."""
        return self._kept if job is None else tuple(change for change in self._kept if change.job == job)

    def seen_by(self, tenant: str | None, since_s: Mapping[str, float] | None) -> tuple[Change, ...]:
        """Return all changes or, for a tenant, changes that it made, and changes of its jobs since it owns them."""
        if tenant is None or since_s is None:
            return self._kept
        return tuple(
            one for one in self._kept if one.tenant == tenant or one.at_s >= since_s.get(one.job, float("inf"))
        )

    def add(self, *changes: Change) -> None:
        """Add changes to the log; if the file cannot be written, complain and keep the changes in memory."""
        with self._lock:
            self._kept = _newest((*self._kept, *changes), self._keep)
            try:
                files.replace(self._path, *map(_line, self._kept))
            except OSError as error:
                trouble = f"{self._path}: cannot be written: {error.strerror or error}"
            else:
                return
        done = "; ".join(f"{one.who}: {f'{one.job}: ' if one.job else ''}{one.what}" for one in changes)
        self._complain(f"{trouble}; make room, or the audit log loses this when the service ends: {done[:LONGEST]}")


def _newest(changes: Sequence[Change], keep: int) -> tuple[Change, ...]:
    """Return the newest `keep` changes of each tenant and of the operator: no tenant can push out the changes of others."""
    found, kept = Counter[str](), []
    for change in reversed(changes):
        found[change.tenant] += 1
        if found[change.tenant] <= keep:
            kept.append(change)
    return tuple(reversed(kept))


def _line(change: Change) -> bytes:
    return msgspec.json.encode(change) + b"\n"


def _read(path: Path) -> list[Change]:
    """Read the changes of a file; leave out damaged lines, such as a line cut off by a crash."""
    found = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:  # the next change would replace the file, and with it all that it holds
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=Change))
    return found


def submitted(table: Mapping[str, Any]) -> str:
    """Describe a submit in a few words: its file and what the request changes; parameters, which may be secret, by name only."""
    given = {name: value for name, value in table.items() if value not in (None, {}) and name != "name"}
    if isinstance(given.get("parameters"), dict):
        given["parameters"] = ", ".join(given["parameters"])
    return f"submit {described(given)}"[:LONGEST]


def described(table: Any) -> str:
    """Describe a change in a few words for the audit log: `intent latency 1s, worth 50; share 3`."""
    if not isinstance(table, dict):
        return "change"
    return "; ".join(_described(str(name), value) for name, value in table.items())


def _described(name: str, value: Any) -> str:
    inner = (
        ", ".join(f"{key} {_plain(one)}" for key, one in value.items()) if isinstance(value, dict) else _plain(value)
    )
    return f"{name.replace('_', ' ')} {inner}"


def _plain(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
