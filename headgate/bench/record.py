"""Runs all benchmarks one after another, each in its own process, writes the results to a dated file, and compares two files."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from headgate import files
from headgate.bench import ALONE_MIN, PLANNED_MIN, bench
from headgate.core.quantities import show_seconds
from headgate.sim.reports.report import bar_summary

PLACE = Path("out/bench")
SHORTER: Mapping[str, Mapping[str, Any]] = {"chaos": {"minutes": 2.0}}
"""Options of benchmarks that take longer than five minutes by themselves."""
LIMIT_S = 600.0
"""A benchmark that still runs after this many seconds is ended and counts as failed; the full form has no limit."""
END_S = 120.0
"""Seconds for a benchmark to end its processes after SIGTERM; then all its processes are killed."""
KILL_S = 10.0
TAG = "HEADGATE_BENCH"
"""Environment variable by which all processes of a benchmark are found, also those with sessions of their own."""
Record = dict[str, Any]
"""The results of all benchmarks with the time and the machine, as written to a file."""


def measured(name: str, full: bool) -> Record:
    """Return the result of one benchmark as an object."""
    found = bench(name, full=full, **({} if full else SHORTER.get(name, {})))
    figures, bars = [asdict(figure) for figure in found.figures], [bar_summary(bar) for bar in found.bars]
    return {"bench": name, "figures": figures, "bars": bars, "notes": list(found.notes)}


def all_measured(full: bool, names: Sequence[str] = tuple(PLANNED_MIN)) -> Iterator[Record]:
    """Yield the result of each benchmark; a failed benchmark yields its error, and the other benchmarks run."""
    for name in names:
        begun_s = time.monotonic()
        planned_s = None if full else round(60 * {**PLANNED_MIN, **ALONE_MIN}.get(name, 0.0), 1)
        print(
            f"bench: {name}{'' if planned_s is None else f', {show_seconds(planned_s)} planned'}",
            file=sys.stderr,
            flush=True,
        )
        found = _apart(name, full)
        yield {**found, "planned_s": planned_s, "took_s": round(time.monotonic() - begun_s, 1)}


def _apart(name: str, full: bool) -> Record:
    """Run a benchmark in its own process, and kill every process that the benchmark leaves."""
    tag = uuid.uuid4().hex
    process = subprocess.Popen(
        _command(name, full), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, TAG: tag}
    )
    try:
        said, complained = process.communicate(timeout=None if full else LIMIT_S)
    except subprocess.TimeoutExpired:
        return _failed(name, f"it did not end within {show_seconds(LIMIT_S)}")
    finally:
        _end(process, tag)
    if process.returncode == 0:
        return dict(json.loads(said.splitlines()[-1]))
    return _failed(name, (complained.strip().splitlines() or ["it said nothing"])[-1])


def _command(name: str, full: bool) -> list[str]:
    return [sys.executable, "-m", "headgate.bench.record", name, *(["full"] if full else [])]


def _failed(name: str, reason: str) -> Record:
    return {"bench": name, "figures": [], "bars": [], "notes": [f"The benchmark failed: {reason}"], "failed": True}


def _end(process: subprocess.Popen[str], tag: str) -> None:
    """Ask a benchmark that still runs to end what it started, then kill what is left."""
    if process.poll() is None:
        process.terminate()
        _await_end(process, END_S)
    left = _tagged(tag)
    for one in left:
        with suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(left, timeout=KILL_S)
    _await_end(process, KILL_S)


def _await_end(process: subprocess.Popen[str], within_s: float) -> None:
    """Wait until a benchmark ends, and read its output meanwhile so that its writes do not block."""
    with suppress(subprocess.TimeoutExpired, ValueError):  # its output was read to the end already
        process.communicate(timeout=within_s)


def _tagged(tag: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _environment(process).get(TAG) == tag]


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """Return the environment of a process; empty if the process has ended or belongs to another user."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def recorded(results: Sequence[Record], full: bool, begun: datetime) -> Record:
    """Return the results together with the time and the machine."""
    return {"at": begun.isoformat(timespec="seconds"), "full": full, "machine": machine(), "benchmarks": list(results)}


def all_hold(record: Record) -> bool:
    """Whether every benchmark ended, and all bars hold."""
    return all(not one.get("failed") and all(bar["holds"] for bar in one["bars"]) for one in record["benchmarks"])


# -- the machine -----------------------------------------------------------------------------------------------------------------


def machine() -> Record:
    """Return what figures depend on: the machine, the versions and the commit."""
    return {
        "cores": os.cpu_count(),
        "memory_mb": psutil.virtual_memory().total >> 20,
        "system": platform.platform(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "java": _said("java", "-version"),
        "spark": version("pyspark"),
        "commit": _said("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
    }


def _said(*command: str) -> str | None:
    """Return the first line of a command's output; None if the command fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = (done.stdout or done.stderr).splitlines()
    return said[0] if said and done.returncode == 0 else None


# -- files -----------------------------------------------------------------------------------------------------------------------


def write(record: Record, place: Path = PLACE) -> Path:
    """Write results to a file named after the time at which they began; return the path."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{datetime.fromisoformat(record['at']):%Y-%m-%d-%H%M}.json"
    files.replace(path, json.dumps(record, indent=1, allow_nan=False).encode(), durable=False)
    return path


def newest(full: bool, place: Path = PLACE) -> Record | None:
    """Return the newest results of the same form; other files are skipped."""
    for path in sorted(place.glob("*.json"), reverse=True):
        try:
            record = json.loads(path.read_text())
            if record["full"] == full and isinstance(record["benchmarks"], list):
                return dict(record)
        except (ValueError, KeyError, TypeError):
            continue
    return None


# -- compared --------------------------------------------------------------------------------------------------------------------

COLUMNS = ("benchmark", "measured", "bar", "before", "now", "change", "holds")


def compared(now: Record, before: Record | None) -> list[tuple[Any, ...]]:
    """Return a row of `COLUMNS` per bar: the last value, the value now, and the change as a share."""
    was = {key: bar["value"] for key, bar in _bars(before)} if before is not None else {}
    return [
        (name, title, f"{bar['op']} {bar['bar']:g}", was.get((name, title)), bar["value"],
         _change(was.get((name, title)), bar["value"]), bar["holds"])
        for (name, title), bar in _bars(now)
    ]  # fmt: skip


def _bars(record: Record) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for one in record["benchmarks"]:
        for bar in one["bars"]:
            yield (one["bench"], bar["name"]), bar


def _change(before: float | None, now: float | None) -> float | None:
    return now / before - 1 if before and now is not None else None


def main(name: str, *form: str) -> None:
    """Run a benchmark in this process; on SIGTERM, the benchmark first ends its processes, because hosts would outlive it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(json.dumps(measured(name, full="full" in form), allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
