"""A service under random faults: processes are killed and frozen, the disk is full, Redis is away, and each row must count exactly once.

The benchmark runs `headgate run --hosts local:3` in processes of its own, fed from a real Redis. Faults come in bursts from a printed seed;
after each burst, the benchmark measures how long the output takes to catch up with the input.
"""

from __future__ import annotations

import random
import secrets
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.bench import Figure, Result
from headgate.bench.chaos.faults import Fault, Injected, Scene, drawn
from headgate.bench.chaos.feeder import Feeder
from headgate.bench.chaos.oracle import OutputFaults, verdict
from headgate.bench.chaos.service import JOB, SupervisedService
from headgate.bench.chaos.store import Disk, RedisServer
from headgate.bench.workload import ending_cleanly
from headgate.config import FAST
from headgate.errors import EngineError
from headgate.sim.reports.bars import Bar

RATE_ROWS_S = 50.0
FAULTS_PER_MINUTE = 6.0
GAP_S = (0.3, 4.0)
"""Shortest and longest seconds between two faults of a burst."""
LONGEST_BURST = 5
FIRST_S = 300.0
"""Seconds within which the first rows must be put out."""
PATIENCE_S, PATIENCE_STARTS = 120.0, 2.0
"""If output is not current after this time, or after this multiple of the first start's time, an operator has to step in."""
LONGEST = 2.0
"""Faults are injected for at most this multiple of the requested time, because a slow machine needs longer for the same number."""
DRAIN_S = 300.0
NEWER_S = 1.0
"""Output is current when the rows that arrive within these seconds after the last fault are put out; earlier output does not count."""
LOOK_S = 1.0
STALE_ROUNDS = 3
MEDIAN_S = 20.0


@dataclass(slots=True)
class ChaosCourse:
    """The events and measurements of one run."""

    faults: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    """Seconds from the end of each burst to current output, or to the intervention of an operator."""
    rescues: int = 0
    """The number of times that an operator had to resume the job or kill the service."""
    looks: int = 0
    stale: int = 0
    """The number of looks at which the status showed an intent as met on stale readings."""
    drained: bool = False
    ended: bool = False
    left: int = 0


def measure(minutes: float = 10.0, seed: int | None = None) -> Result:
    """Inject faults for `minutes`, and compare all output with all input."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    place = Path(tempfile.mkdtemp(prefix="headgate-chaos-"))
    _tell(f"seed {seed}; logs in {place}, which goes if all is well")
    course = ChaosCourse()
    with ending_cleanly():
        found = _ran(place, course, minutes, seed)
    result = Result(tuple(_figures(course, found, seed)), tuple(_bars(course, found, minutes)))
    if all(bar.holds for bar in result.bars):
        shutil.rmtree(place, ignore_errors=True)
    return result


def _ran(place: Path, course: ChaosCourse, minutes: float, seed: int) -> OutputFaults:
    with ExitStack() as stack:
        disk = Disk(place / "disk")
        stack.callback(disk.close)
        redis = RedisServer(place / "redis")
        stack.callback(redis.close)
        redis.start()
        out = disk.path / "out"
        service = SupervisedService(disk.path / "home", redis.url, out, place / "service.log")
        stack.callback(_keep_logs, disk.path / "home", place)
        stack.callback(service.close)
        feeder = Feeder(redis.url, seed, RATE_ROWS_S)
        scene = Scene(service, redis, disk, random.Random(seed))
        if disk.refusal:
            _tell(f"the disk is never full: {disk.refusal}")
        with _watched(service, course):
            feeder.start()
            try:
                _break(scene, feeder, course, minutes, drawn(seed))
            finally:
                feeder.stop()
            course.drained = _within(DRAIN_S, scene, feeder.fed.rows) is not None
        course.ended = service.stop()
        course.left = _left(service)
        return verdict(redis.client, out, feeder.fed)


def _break(scene: Scene, feeder: Feeder, course: ChaosCourse, minutes: float, faults: Iterator[Fault]) -> None:
    """Inject bursts of faults until the time is over and there were enough faults; bursts get longer if there are too few faults."""
    scene.service.keep_running()
    started_s = _current(scene, feeder, FIRST_S)
    if started_s is None:
        raise EngineError(f"the service put out nothing within {FIRST_S:g} s; something else keeps this machine busy")
    _tell(f"first output after {started_s:.1f} s")
    patience_s = max(PATIENCE_S, PATIENCE_STARTS * started_s)
    begun_s, enough = time.monotonic(), FAULTS_PER_MINUTE * minutes
    while (passed_s := time.monotonic() - begun_s) < minutes * 60 * (1 if course.faults >= enough else LONGEST):
        behind = min(enough, passed_s / 60 * FAULTS_PER_MINUTE) - course.faults
        size = min(LONGEST_BURST, scene.random.choice((1, 1, 2)) + max(0, round(behind)))
        _burst(scene, course, faults, size)
        recovered_s = _current(scene, feeder, patience_s)
        course.recoveries_s.append(patience_s if recovered_s is None else recovered_s)
        if recovered_s is not None:
            _tell(f"current after {recovered_s:.1f} s")
        elif not _rescued(scene, feeder, course):
            _tell("the job does not come back; the end of the service's log says more")
            return


def _burst(scene: Scene, course: ChaosCourse, faults: Iterator[Fault], size: int) -> None:
    """Inject `size` faults in quick succession; return when all lasting faults are over."""
    lasting: list[tuple[float, Injected]] = []
    injected = 0
    while injected < size:
        fault = next(faults)(scene)
        if fault is not None:
            _tell(fault.what)
            course.faults += 1
            lasting.append((time.monotonic() + fault.lasts_s, fault))
        injected += 1
        _sleep(scene, scene.between(GAP_S))
        lasting = [one for one in lasting if not _over(one)]
    while lasting:
        _sleep(scene, 0.2)
        lasting = [one for one in lasting if not _over(one)]


def _over(lasting: tuple[float, Injected]) -> bool:
    until_s, fault = lasting
    return time.monotonic() >= until_s and fault.end()


def _sleep(scene: Scene, for_s: float) -> None:
    """Sleep, and restart the service if the service has ended, as systemd would."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        if scene.service.keep_running() and scene.service.starts > 1:
            _tell("the service had ended; started again")
        time.sleep(0.1)


def _current(scene: Scene, feeder: Feeder, within_s: float) -> float | None:
    """Return the seconds until the output has all rows that arrive within `NEWER_S` from now; None if that takes too long."""
    return _within(within_s, scene, feeder.fed.rows + round(NEWER_S * feeder.rate_rows_s))


def _within(limit_s: float, scene: Scene, rows: int) -> float | None:
    """Return the seconds until `rows` rows are put out; None if that takes too long."""
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < limit_s:
        found = scene.redis.rows("out")
        if found is not None and found >= rows:
            return time.monotonic() - begun_s
        _sleep(scene, 0.1)
    return None


def _rescued(scene: Scene, feeder: Feeder, course: ChaosCourse) -> bool:
    """Step in as an operator would: the benchmark has failed, but continues to find other faults."""
    course.rescues += 1
    job = ((scene.service.status() or {}).get("jobs") or {}).get(JOB) or {}
    _tell(f"not current in time: {job.get('state', 'no answer')}; {job.get('reason', '')}")
    if job.get("state") in ("failed", "paused") and scene.service.change("POST", "/resume"):
        _tell("resumed")
    else:
        scene.service.kill()
        _tell("killed, to be started again")
    return _current(scene, feeder, FIRST_S) is not None


@contextmanager
def _watched(service: SupervisedService, course: ChaosCourse) -> Iterator[None]:
    """Look at the status once a second, and record the processes of the service."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            service.processes()
            status = service.status()
            if status is not None:
                course.looks += 1
                course.stale += _shown_on_old_readings(status)

    watcher = threading.Thread(target=look, name="watcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _shown_on_old_readings(status: Mapping[str, Any]) -> bool:
    job = (status.get("jobs") or {}).get(JOB)
    if not job or not job.get("met"):
        return False
    at_s = status.get("at_s")
    age_s: float | None = job.get("age_s", None if at_s is None else time.time() - at_s)
    return age_s is None or age_s > STALE_ROUNDS * FAST["round_s"]


def _left(service: SupervisedService) -> int:
    """Return the number of processes that still run 15 seconds after the service has ended."""
    deadline_s = time.monotonic() + 15
    while (left := service.left()) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    for process in left:
        _tell(f"left: {process}")
    return len(left)


def _keep_logs(home: Path, place: Path) -> None:
    """Copy logs from the disk, which is unmounted, to a place that stays."""
    for path in home.glob("spark.*"):
        shutil.copy(path, place)
    if (home / "hosts").exists():
        shutil.copytree(home / "hosts", place / "hosts", dirs_exist_ok=True)


def _figures(course: ChaosCourse, found: OutputFaults, seed: int) -> Iterator[Figure]:
    yield Figure("seed", seed, "")
    yield Figure("faults", course.faults, "faults")
    yield Figure("rows put out", found.rows, "rows")
    if course.recoveries_s:
        yield Figure("time to current output, median", statistics.median(course.recoveries_s), "s")
        yield Figure("time to current output, longest", max(course.recoveries_s), "s")
    yield Figure("looks at the status", course.looks, "looks")


def _bars(course: ChaosCourse, found: OutputFaults, minutes: float) -> Iterator[Bar]:
    yield Bar("faults", course.faults, ">=", FAULTS_PER_MINUTE * minutes)
    yield Bar("rows lost", found.lost, "<=", 0)
    yield Bar("rows doubled", found.doubled, "<=", 0)
    yield Bar("sequence errors", found.sequence_errors, "<=", 0)
    yield Bar("keys with wrong totals in files", found.wrong_totals, "<=", 0)
    median_s = statistics.median(course.recoveries_s) if course.recoveries_s else None
    yield Bar("time to current output, median", median_s, "<=", MEDIAN_S)
    yield Bar("times that somebody had to step in", course.rescues, "<=", 0)
    yield Bar("times shown as met on old readings", course.stale, "<=", 0)
    yield Bar("ended when asked", float(course.ended), ">=", 1)
    yield Bar("processes left", course.left, "<=", 0)


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
