"""A cluster of machines that breaks: one is cut off for 40 s, one killed, one added, one slowed, under five jobs with state.

A real `headgate run --master` on a Spark standalone cluster whose machines are namespaces of this one. The checkpoint location is an
S3 bucket, each machine keeps its slices on its own disk, and only the driver sees the home. Afterwards the output of every job is
compared with its input.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import psutil
import pyarrow.parquet as pq

from headgate.bench import Figure, Result
from headgate.bench.cluster_job import KEYS, OPERATOR
from headgate.bench.machines import SparkMachines, spark_machines
from headgate.bench.namespaces import refusal
from headgate.bench.tables.servers import Bucket, s3_server
from headgate.errors import EngineError, HeadgateError, InputError
from headgate.server.client import Client
from headgate.server.home import Home
from headgate.server.status import Status
from headgate.sim.reports.bars import Bar
from headgate.state.inspect import KEYED, OPENS
from headgate.state.location import Location

MACHINES = 3
CUT_S = 40.0
SLOW_CORES = 0.15
"""Cores of the slowed machine, for all its processes together."""
EXCUSED_S = 20.0
"""Seconds after the beginning and the end of each fault in which utility may be lower."""
JOBS: Mapping[str, Mapping[str, object]] = {
    "visits": {"worth": 30.0, "rate": 150.0},
    "orders": {"worth": 20.0},
    "clicks": {"worth": 10.0},
    "ranks": {"worth": 10.0, "rate": 60.0, "events": True},
    "carts": {"worth": 5.0, "rate": 40.0, "events": True},
}
DEFAULT_RATE = 100.0
DELAY_S = 30.0
"""The most seconds by which the output may be older than the input when the benchmark ends."""
CHECKPOINT = "checkpoint"
SETTINGS = ("driver_memory_mb=640", "heartbeat_s=2")
START_S, SETTLE_S, STOP_S, USED_S, LOOK_S = 300.0, 60.0, 90.0, 60.0, 1.0
NEEDED_UTILITY = 0.95


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """The lengths of the parts of the benchmark, in seconds."""

    steady_s: float
    after_cut_s: float
    after_kill_s: float
    after_add_s: float
    slow_s: float
    """Seconds after the slowing, in which lanes have to leave the slowed machine."""


SHORT = ClusterForm(steady_s=10.0, after_cut_s=28.0, after_kill_s=25.0, after_add_s=5.0, slow_s=70.0)
FULL = ClusterForm(steady_s=60.0, after_cut_s=100.0, after_kill_s=100.0, after_add_s=80.0, slow_s=200.0)


@dataclass(frozen=True, slots=True)
class Look:
    """The status of the service at one moment."""

    at_s: float
    utility: float | None
    """Utility as a share of the worth of all jobs; None while no job is judged."""
    hosts: Mapping[str, frozenset[str]]
    """Hosts of the lanes of each job with state; only jobs for which the service knows the hosts."""
    running: int
    """The number of jobs that have finished an epoch."""


@dataclass(frozen=True, slots=True)
class OutputFaults:
    """The number of rows of the output of a job, and the numbers of its faults."""

    rows: int
    wrong_keys: int
    doubled: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The number of durable files in each place, and of machines with slices."""

    in_bucket: int
    """Files of the checkpoint location."""
    in_home: int
    """The number of files of keyed state in the home; 0 because the checkpoint location is elsewhere."""
    machines: int
    """Machines with slices on a disk of their own."""


@dataclass(slots=True)
class ClusterCourse:
    """The events and measurements of one run."""

    looks: list[Look] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    actions: dict[tuple[float, str | None, str], str] = field(default_factory=dict)
    cut_s: tuple[float, float] = (0.0, 0.0)
    used_s: float | None = None
    """Seconds from the start of the new machine until lanes ran there."""
    left_s: float | None = None
    """Seconds from the slowing until no lane ran on the slow machine; None if a lane stayed."""
    ended: bool = False
    kept: Kept | None = None
    due_rows: Mapping[str, float] = field(default_factory=dict)
    """The number of rows of each job that are old enough that the output must have them whatever the faults."""
    outputs: dict[str, OutputFaults] = field(default_factory=dict)

    def fault(self, what: str) -> float:
        """Record the begin or the end of a fault."""
        self.faults.append((time.time(), what))
        print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)
        return self.faults[-1][0]

    def calm(self) -> list[float]:
        """Return the utility of each look outside the time after a fault; 0 if no job is judged although no machine is cut off."""
        return [
            look.utility or 0.0
            for look in self.looks
            if not any(0 <= look.at_s - at_s < EXCUSED_S for at_s, _ in self.faults)
            and not (look.utility is None and self.cut_s[0] <= look.at_s <= self.cut_s[1])
        ]

    def during_cut(self) -> list[str]:
        """Return the actions between the begin and the end of the cut."""
        return [what for (at_s, _, _), what in self.actions.items() if self.cut_s[0] <= at_s <= self.cut_s[1]]


# -- the service ---------------------------------------------------------------------------------------------------------------


class ClusterService:
    """`headgate run --master` as a process."""

    def __init__(self, place: Path, out: Path, machines: SparkMachines, bucket: Bucket) -> None:
        home = place / "home"
        self._client = Client(Home(home))
        (place / "conf").mkdir()
        credentials = {f"spark.executorEnv.{name}": value for name, value in bucket.environment.items()}
        application = machines.application() | credentials
        defaults = "".join(f"{key} {value}\n" for key, value in application.items())
        (place / "conf/spark-defaults.conf").write_text(defaults)
        (place / "jobs.toml").write_text("".join(cluster_tables(out)))
        settings = (*SETTINGS, f"checkpoint={bucket.location(CHECKPOINT)}")
        command = [
            sys.executable, "-m", "headgate.cli", "run", str(place / "jobs.toml"), "--home", str(home), "--fast",
            "--master", machines.master_url, *(part for one in settings for part in ("--set", one)),
        ]  # fmt: skip
        with (place / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, "SPARK_CONF_DIR": str(place / "conf")},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def status(self) -> Status | None:
        """Return the status; None if the service does not answer."""
        if self._process.poll() is not None:
            raise EngineError(f"the service ended with {self._process.returncode}; its log says why")
        try:
            return self._client.status()
        except HeadgateError:
            return None

    def hosts(self, job: str) -> frozenset[str] | None:
        """Return the hosts of the lanes of the operator with state; None if the service does not know the hosts."""
        try:
            detail = json.loads(self._client.detail(job))
        except HeadgateError:
            return None
        lanes = [lane for one in detail["operators"] if one["name"] == OPERATOR for lane in one["per_lane"]]
        return frozenset(lane["host"] for lane in lanes if lane["host"]) or None

    def stop(self) -> bool:
        """Ask the service to end; return whether the service ended in time."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill every process of the service."""
        if self._process.poll() is not None:
            return
        everyone = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for process in everyone:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(everyone, timeout=10)


def cluster_tables(out: Path) -> Iterator[str]:
    """Return the text of the cluster file: one table per job."""
    file = Path(__file__).with_name("cluster_job.py")
    for name, parameters in JOBS.items():
        given = {"name": name, "out": str(out / name), **parameters}
        inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
        yield f'[[job]]\nfile = "{file}"\nname = "{name}"\nparameters = {{{inline}}}\n'


# -- the course ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks at the service once a second."""

    service: ClusterService
    course: ClusterCourse

    def wait(self, for_s: float) -> None:
        """Look once a second for `for_s` seconds."""
        self.until(lambda look: False, for_s)

    def until(self, holds: Callable[[Look], bool], within_s: float) -> Look | None:
        """Return the first look that fulfils a condition; None if no look does in time."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            look = self._look()
            if look is not None and holds(look):
                return look
            time.sleep(min(LOOK_S, max(0.0, deadline_s - time.monotonic())))
        return None

    def _look(self) -> Look | None:
        status = self.service.status()
        if status is None:
            return None
        for one in status.actions:
            self.course.actions[(one.at_s, one.job, one.what)] = f"{one.kind} {one.job or ''}: {one.what}: {one.cause}"
        found = {job: self.service.hosts(job) for job in status.jobs}
        hosts = {job: where for job, where in found.items() if where is not None}
        running = sum(bool(one.epochs) for one in status.jobs.values())
        look = Look(time.time(), status.satisfaction, hosts, running)
        self.course.looks.append(look)
        return look


def measure(full: bool = False) -> Result:
    """Break the cluster in four ways, and compare all output with all input."""
    reason = refusal()
    if reason is not None:
        raise InputError(f"`headgate bench cluster` cannot run here: {reason}")
    course, place = ClusterCourse(), Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    print(f"logs are in {place}, which goes if all bars hold", file=sys.stderr)
    out = place / "out"
    out.mkdir()
    with (
        spark_machines(place / "machines", MACHINES, [out]) as machines,
        s3_server(machines.machines.gateway) as bucket,
    ):
        os.environ |= bucket.environment  # Arrow takes credentials from there
        service = ClusterService(place, out, machines, bucket)
        try:
            _break(machines, Watch(service, course), FULL if full else SHORT)
            course.kept = _kept(place, machines, bucket)
            course.ended = service.stop()
        finally:
            service.close()
    course.outputs = {name: output_faults(out / name) for name in JOBS}
    result = Result(tuple(_figures(course)), tuple(bars_of(course)), tuple(_notes(course)))
    if all(bar.holds for bar in result.bars):
        shutil.rmtree(place, ignore_errors=True)
    return result


def _break(machines: SparkMachines, watch: Watch, form: ClusterForm) -> None:
    course, (cut, killed, slowed) = watch.course, ("m2", "m3", "m1")
    if watch.until(lambda look: look.running == len(JOBS), START_S) is None:
        raise EngineError(f"some job put out nothing within {START_S:g} s; something else keeps this machine busy")
    watch.until(lambda look: (look.utility or 0.0) >= NEEDED_UTILITY, SETTLE_S)
    course.looks.clear()
    steady_s = time.time()
    watch.wait(form.steady_s)
    began_s = course.fault(f"{cut} is cut off")
    machines.machines.cut(cut)
    watch.wait(CUT_S)
    machines.machines.mend(cut)
    course.cut_s = (began_s, course.fault(f"{cut} is back"))
    watch.wait(form.after_cut_s)
    course.fault(f"{killed} is killed")
    machines.machines.kill(killed)
    watch.wait(form.after_kill_s)
    added_s = course.fault("a machine is added")
    new = machines.address(machines.add())
    used = watch.until(lambda look: any(new in hosts for hosts in look.hosts.values()), USED_S)
    course.used_s = used.at_s - added_s if used is not None else None
    watch.wait(form.after_add_s)
    slow_s, slow = course.fault(f"{slowed} is slowed"), machines.address(slowed)
    machines.machines.slow(slowed, SLOW_CORES)
    left = watch.until(
        lambda look: len(look.hosts) == len(JOBS) and not any(slow in hosts for hosts in look.hosts.values()),
        form.slow_s,
    )
    course.left_s = left.at_s - slow_s if left is not None else None
    watch.wait(max(EXCUSED_S, form.slow_s - (time.time() - slow_s)))
    machines.machines.slow(slowed, None)
    sure_s = time.time() - steady_s - DELAY_S
    course.due_rows = {name: float(str(job.get("rate", DEFAULT_RATE))) * sure_s for name, job in JOBS.items()}


def _kept(place: Path, machines: SparkMachines, bucket: Bucket) -> Kept:
    """Count files and slices in the bucket, the home and on the disks of the machines."""
    in_bucket = len(Location.of(bucket.location(CHECKPOINT)).names(""))
    noted = (place / "home").glob(f"jobs/*/{KEYED}/**/*")
    in_home = sum(path.is_file() and path.name != OPENS for path in noted)
    names = (f"m{number}" for number in range(1, MACHINES + 1))
    stores = [machines.machines.place(name).glob("tmp/local/headgate-*/**/*") for name in names]
    return Kept(in_bucket, in_home, sum(any(path.is_file() for path in found) for found in stores))


def output_faults(out: Path) -> OutputFaults:
    """Compare the output of a job with its input: rows are numbered, and keys alternate."""
    table = pq.read_table(out, columns=["key", "n", "total"])
    counted = list(zip(*(table[name].to_pylist() for name in ("key", "n", "total")), strict=True))
    last: dict[int, tuple[int, int]] = {}
    for key, n, total in counted:
        last[key] = max(last.get(key, (0, 0)), (n, total))
    rows = sum(n for n, _ in last.values())
    wanted = {key: range(key, rows, KEYS) for key in range(min(rows, KEYS))}
    wrong = sum(last.get(key) != (len(numbers), sum(numbers)) for key, numbers in wanted.items())
    return OutputFaults(
        rows, wrong + len(last.keys() - wanted.keys()), len(counted) - len({one[:2] for one in counted})
    )


# -- the result ----------------------------------------------------------------------------------------------------------------


def bars_of(course: ClusterCourse) -> Iterator[Bar]:
    """Yield the bars; a figure that could not be measured fails its bar."""
    calm, faults = course.calm(), course.outputs.values()
    yield Bar("jobs with output", sum(one.rows > 0 for one in faults), ">=", len(JOBS))
    yield Bar("keys with wrong totals", sum(one.wrong_keys for one in faults), "<=", 0)
    yield Bar("rows put out twice", sum(one.doubled for one in faults), "<=", 0)
    yield Bar("jobs whose output lacks rows that were due", _short(course), "<=", 0)
    yield Bar("actions during the cut", len(course.during_cut()), "<=", 0)
    yield Bar("the new machine is used after, s", course.used_s, "<=", USED_S)
    yield Bar("jobs with lanes on the slow machine in the end", _stayed(course), "<=", 0)
    outside = f"utility, mean outside {EXCUSED_S:g} s after each fault"
    yield Bar(outside, fmean(calm) if calm else None, ">=", NEEDED_UTILITY)
    yield Bar("ended when asked", float(course.ended), ">=", 1)
    kept = course.kept or Kept(0, -1, 0)
    yield Bar("files of the checkpoint on S3", kept.in_bucket, ">=", 1)
    yield Bar("files of keyed state in the home", kept.in_home, "==", 0)
    yield Bar("machines with slices on their own disk", kept.machines, "==", MACHINES)


def _short(course: ClusterCourse) -> float | None:
    if course.due_rows.keys() != JOBS.keys():
        return None
    return float(sum(course.outputs[name].rows < rows for name, rows in course.due_rows.items()))


def _stayed(course: ClusterCourse) -> float | None:
    return None if course.left_s is None else 0.0


def _figures(course: ClusterCourse) -> Iterator[Figure]:
    calm = course.calm()
    yield Figure("rows counted", sum(one.rows for one in course.outputs.values()), "rows")
    yield Figure("looks at the status", len(course.looks), "looks")
    if calm:
        yield Figure("utility outside faults, lowest", min(calm), "")
        yield Figure("looks outside faults with utility below 0.95", sum(one < NEEDED_UTILITY for one in calm), "looks")
    if course.left_s is not None:
        yield Figure("lanes left the slow machine after", course.left_s, "s")
    yield Figure("actions", len(course.actions), "actions")


def _notes(course: ClusterCourse) -> Sequence[str]:
    return [f"during the cut: {what}" for what in course.during_cut()]
