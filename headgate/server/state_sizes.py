"""How many bytes the checkpoints of keyed state take on disk, counted a little at a time so that no scrape waits for a large directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from headgate.state.inspect import checkpoint_of

SPEND_S = 0.03
"""After this time, a scrape leaves the jobs that are still to be counted to the next one."""


class StateSizes:
    """Sizes by job, each counted again once it is older than `keep_s`. Owner: the caller; two at once only count twice."""

    def __init__(self, jobs: Path, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs, self._keep_s, self._clock = jobs, keep_s, clock
        self._known: dict[str, tuple[float, int | None]] = {}
        """When each job was counted, and what was found."""

    def of(self, names: Iterable[str]) -> dict[str, int]:
        """What is known of these jobs; a job without keyed state, or that was not counted yet, is left out."""
        begun_s, wanted = self._clock(), dict.fromkeys(names)
        known = {name: found for name, found in self._known.items() if name in wanted}
        for name in sorted(wanted, key=lambda name: known.get(name, (-self._keep_s, None))[0]):
            now_s = self._clock()
            if now_s - begun_s >= SPEND_S:
                break
            if name not in known or now_s - known[name][0] >= self._keep_s:
                known[name] = (now_s, _bytes(self._jobs / name))
        self._known = known
        return {name: size for name, (_, size) in known.items() if size is not None}


def _bytes(job: Path) -> int | None:
    """Of all operators; None without keyed state. Files that are deleted meanwhile do not count."""
    operators = [path.name for path in (job / "keyed").glob("*") if checkpoint_of(job, path.name).is_dir()]
    return sum(_size(checkpoint_of(job, name)) for name in operators) if operators else None


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
