"""Rows of each source that a job has processed, kept across restarts; a damaged record is rebuilt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headgate import files

FILE = "progress.json"
_HEADER_LINES = 2
"""Header lines of Spark's offset log before the lines of the sources: version and metadata."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Rows of each source that were processed before and after an epoch."""

    epoch: int
    before: Mapping[str, float]
    after: Mapping[str, float]


def save(place: Path, progress: Progress) -> None:
    """Save the progress in place of the previous epoch's."""
    files.replace(place / FILE, msgspec.json.encode(progress), durable=False)


def load(place: Path) -> Mapping[str, float] | None:
    """Rows that earlier starts have processed, without an epoch that will run again; None if the record is damaged."""
    try:
        saved = msgspec.json.decode((place / FILE).read_bytes(), type=Progress)
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return saved.after if saved.epoch in _committed(place) else saved.before


def committed_offsets(place: Path, sources: tuple[str, ...]) -> dict[str, Any]:
    """The offset of each source after the last epoch that Spark has committed; empty if Spark's log does not have it."""
    committed = _committed(place)
    if not committed:
        return {}
    try:
        lines = (place / "checkpoint" / "offsets" / str(max(committed))).read_text().splitlines()[_HEADER_LINES:]
        return dict(zip(sources, map(json.loads, lines), strict=True))
    except (OSError, ValueError):
        return {}


def rebuild(place: Path, sources: tuple[str, ...], arrived: Mapping[str, float]) -> dict[str, float]:
    """Rows processed so far, for a damaged record.

    A source whose offset is `{"rows": number}` says it exactly; for another source, all rows that have arrived count as processed.
    """
    offsets = committed_offsets(place, sources)
    return {name: _rows_of(offsets.get(name), arrived.get(name, 0.0)) for name in sources}


def _rows_of(offset: Any, otherwise: float) -> float:
    match offset:
        case {"rows": int(rows)}:
            return float(rows)
    return otherwise


def _committed(place: Path) -> set[int]:
    commits = place / "checkpoint" / "commits"
    return {int(path.name) for path in commits.glob("[0-9]*") if path.name.isdecimal()}
