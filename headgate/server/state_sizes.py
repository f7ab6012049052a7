"""How many bytes the checkpoints of keyed state take on disk, counted a little at a time so that no question waits for long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from headgate.errors import StateDamagedError
from headgate.state.checkpoint import SNAPSHOTS
from headgate.state.durable import durable_of
from headgate.state.inspect import KEYED, checkpoint_of

SPEND_S = 0.03
"""Seconds that a request spends on counting; the next request counts the remaining jobs."""


class StateSizes:
    """Sizes of keyed state by job, counted again after `keep_s`. Any thread may ask; two threads at once only count twice."""

    def __init__(self, jobs: Path, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs, self._keep_s, self._clock = jobs, keep_s, clock
        self._measured: dict[str, tuple[float, int | None]] = {}
        """Time and result of the last count of each job; the dict is replaced as a whole."""

    def of(self, names: Iterable[str], spend_s: float = SPEND_S) -> dict[str, int]:
        """Return the sizes of these jobs in bytes; a job without keyed state, or not counted yet, is left out."""
        begun_s, wanted, measured = self._clock(), dict.fromkeys(names), dict(self._measured)
        for name in sorted(wanted, key=lambda name: measured.get(name, (-math.inf, None))[0]):
            now_s = self._clock()
            if now_s - begun_s >= spend_s:
                break
            if name not in measured or now_s - measured[name][0] >= self._keep_s:
                measured[name] = (now_s, _bytes(self._jobs / name))
        self._measured = {
            name: found for name, found in measured.items() if name in wanted or begun_s - found[0] < self._keep_s
        }
        return {name: size for name in wanted if (size := measured.get(name, (0.0, None))[1]) is not None}


def slice_bytes(job: Path) -> dict[str, dict[int, int]]:
    """Return the bytes of the newest snapshot by operator and slice; empty if the state is not on this disk."""
    found = {path.name: _snapshots(_folder(job, path.name) / SNAPSHOTS) for path in (job / KEYED).glob("*")}
    return {name: sizes for name, sizes in found.items() if sizes}


def _snapshots(folder: Path) -> dict[int, int]:
    sizes = {}
    for path in folder.glob("*"):
        newest = max(path.glob("*.state"), default=None)
        with suppress(OSError, ValueError):  # clean-up may delete a snapshot at any time
            if newest is not None:
                sizes[int(path.name)] = newest.stat().st_size
    return sizes


def _bytes(job: Path) -> int | None:
    """Return the bytes of all operators of a job; None without keyed state. Files deleted during the count are left out."""
    folders = [folder for path in (job / KEYED).glob("*") if (folder := _folder(job, path.name)).is_dir()]
    return sum(map(_size, folders)) if folders else None


def _folder(job: Path, operator: str) -> Path:
    """Return the checkpoint folder of an operator on this disk; for state in an object store, a folder that does not exist."""
    with suppress(StateDamagedError):
        durable = durable_of(job)
        if "://" not in durable:
            return checkpoint_of(Path(durable), operator)
    return checkpoint_of(job, operator)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
