"""Rows of each source that a job's epochs have processed, kept so that a restart counts on; a damaged record is rebuilt."""

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
"""Lines of an offset log of Spark's before those of the sources: version and metadata."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Rows of each source that were processed before and after an epoch."""

    epoch: int
    before: Mapping[str, float]
    after: Mapping[str, float]


def save(place: Path, progress: Progress) -> None:
    """Replace the record of the epoch before."""
    files.replace(place / FILE, msgspec.json.encode(progress), durable=False)


def load(place: Path) -> Mapping[str, float] | None:
    """What earlier runs had processed, without an epoch that will be run again; None if the record is damaged."""
    try:
        saved = msgspec.json.decode((place / FILE).read_bytes(), type=Progress)
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return saved.after if saved.epoch in _committed(place) else saved.before


def committed_offsets(place: Path, sources: tuple[str, ...]) -> dict[str, Any]:
    """Where each source was after the last epoch that Spark has committed, as its log says; empty if it does not."""
    committed = _committed(place)
    if not committed:
        return {}
    try:
        lines = (place / "checkpoint" / "offsets" / str(max(committed))).read_text().splitlines()[_HEADER_LINES:]
        return dict(zip(sources, map(json.loads, lines), strict=True))
    except (OSError, ValueError):
        return {}


def _committed(place: Path) -> set[int]:
    commits = place / "checkpoint" / "commits"
    return {int(path.name) for path in commits.glob("[0-9]*") if path.name.isdecimal()}
