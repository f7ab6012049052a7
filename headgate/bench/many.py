"""Many jobs on one cluster: copies of `examples/wordcount.py` in one cluster file, run by `headgate run` on embedded Spark with 2 slots.

Five of the jobs get a multiple of their load after a while. Measured from outside are the time until all jobs run and meet their
intents, the memory, threads and files of all processes of the service, and the growth of these numbers.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from headgate.bench import Figure, Result
from headgate.bench.workload import home
from headgate.errors import HeadgateError, InputError
from headgate.ports import JobPhase
from headgate.server.client import Client
from headgate.server.home import Home
from headgate.server.status import Status
from headgate.sim.reports.bars import Bar

EXAMPLE = Path(__file__).parents[2] / "examples" / "wordcount.py"
STEPPED_JOB = Path(__file__).with_name("many_job.py")
SLOTS = 2
RATE_ROWS_S, STEPPED_ROWS_S, STEPPED_JOBS = 20.0, 100.0, 5
SAMPLE_S = 5.0
STOP_S = 90.0
MOST_MB, LEAST_SATISFACTION, MOST_ROUND_S, MOST_GROWTH = 8192.0, 0.95, 0.5, 1.1


@dataclass(frozen=True, slots=True)
class ManyForm:
    """The number of jobs, and the seconds of each part."""

    jobs: int
    latency: str
    running_within_s: float
    met_within_s: float
    step_s: float
    """Seconds from the start of the jobs with a load step to that step."""
    measured_s: float
    """Seconds from the load step to the end."""


SHORT = ManyForm(50, "10s", 120.0, 240.0, 140.0, 65.0)
FULL = ManyForm(100, "30s", 480.0, 480.0, 500.0, 600.0)


def cluster_file(form: ManyForm, place: Path) -> str:
    """Return the cluster file; jobs with a load step have more worth, so that these jobs start first."""
    return "\n".join(_entry(form, number, place) for number in range(form.jobs))


def _entry(form: ManyForm, number: int, place: Path) -> str:
    is_stepped = number < STEPPED_JOBS
    given = {"rate": RATE_ROWS_S, "out": str(place / f"out-{number}")}
    if is_stepped:
        given |= {"example": str(EXAMPLE), "step_s": form.step_s, "stepped": STEPPED_ROWS_S}
    parameters = ", ".join(f"{name} = {_toml(value)}" for name, value in given.items())
    return (
        f'[[job]]\nname = "wordcount-{number}"\nfile = "{STEPPED_JOB if is_stepped else EXAMPLE}"\n'
        f'intent = {{ latency = "{form.latency}", worth = {20 if is_stepped else 10} }}\nparameters = {{ {parameters} }}\n'
    )


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


# -- what is seen from outside ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """The resources that all processes of the service use together."""

    memory_mb: float
    """Megabytes as PSS, so that memory shared by processes counts once."""
    processes: int
    threads: int
    files: int
    core_s: float
    """Core seconds since the start of each process that still runs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The status of the service at one moment."""

    at_s: float
    """Seconds since the start of the service."""
    running: int
    met: int
    satisfaction: float | None
    rounds: float
    rounds_s: float
    """Seconds that all rounds so far took together."""
    taken: Taken


def taken(root: psutil.Process) -> Taken:
    """Return the resources of a process and its descendants; processes that end meanwhile count as 0."""
    found = [one for process in (root, *root.children(recursive=True)) if (one := _taken_by(process)) is not None]
    return Taken(
        sum(one.memory_mb for one in found),
        len(found),
        sum(one.threads for one in found),
        sum(one.files for one in found),
        sum(one.core_s for one in found),
    )


def _taken_by(process: psutil.Process) -> Taken | None:
    try:
        rolled = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        cpu = process.cpu_times()
        return Taken(_pss_mb(rolled), 1, process.num_threads(), process.num_fds(), cpu.user + cpu.system)
    except (OSError, psutil.Error):
        return None


def _pss_mb(rolled: str) -> float:
    return sum(float(line.split()[1]) for line in rolled.splitlines() if line.startswith("Pss:")) / 1024


def sample(client: Client, process: psutil.Process, at_s: float) -> Sample | None:
    """Return a sample of the service; None while the service does not answer."""
    try:
        status, rounds = client.status(), _rounds(client.metrics())
    except (HeadgateError, OSError):
        return None
    running = sum(job.state == JobPhase.RUNNING.value for job in status.jobs.values())
    return Sample(at_s, running, _met(status), status.satisfaction, *rounds, taken(process))


def _met(status: Status) -> int:
    return sum(job.met is True for job in status.jobs.values())


def _rounds(metrics: str) -> tuple[float, float]:
    found = dict(
        line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("headgate_round_duration_seconds_")
    )
    return tuple(float(found[f"headgate_round_duration_seconds_{name}"]) for name in ("count", "sum"))  # type: ignore[return-value]


@contextmanager
def _service(place: Path, file: Path) -> Iterator[psutil.Process]:
    """Run `headgate run` in its own session; end all its processes afterwards."""
    command = [sys.executable, "-m", "headgate.cli", "run", str(file), "--home", str(place), "--slots", str(SLOTS)]
    with (place / "log.txt").open("wb") as log:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=place
        )
    process = psutil.Process(started.pid)
    try:
        yield process
    finally:
        children = process.children(recursive=True) if process.is_running() else []
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(STOP_S)
        for one in (process, *children):
            with suppress(psutil.Error):
                one.kill()
        started.wait()


def watch(form: ManyForm, told: Callable[[Sample], None] = lambda _: None) -> list[Sample]:
    """Run the jobs, and sample the service at an interval until the measured time after the load step is over."""
    if not EXAMPLE.is_file():
        raise InputError(f"this benchmark runs {EXAMPLE}, which is not there; run it in a checkout of Headgate")
    samples: list[Sample] = []
    with home() as place:
        file = place / "many.toml"
        file.write_text(cluster_file(form, place))
        with _service(place, file) as process:
            client, begun_s = Client(Home(place)), time.monotonic()
            answered_s = begun_s
            while not _is_over(samples, form) and process.is_running():
                time.sleep(SAMPLE_S)
                found = sample(client, process, time.monotonic() - begun_s)
                if found is not None:
                    samples.append(found)
                    told(found)
                    answered_s = time.monotonic()
                elif time.monotonic() - answered_s > form.running_within_s:
                    break
    return samples


def _is_over(samples: Sequence[Sample], form: ManyForm) -> bool:
    """Whether the measured time is over, and all jobs have met their intents or the time limit for that has passed."""
    if not samples or samples[-1].at_s < samples[0].at_s + form.step_s + form.measured_s:
        return False
    return any(one.met == form.jobs for one in samples) or samples[-1].at_s > form.met_within_s


# -- the result ------------------------------------------------------------------------------------------------------------------


def measure(full: bool = False) -> Result:
    """Measure times, memory, threads, processes and files, and their change by the load step."""
    form = FULL if full else SHORT
    samples = watch(form, _tell(form))
    if len(samples) < 2:
        raise InputError(
            "the service did not answer; run the benchmark on a machine with 8 GB of free memory and two cores"
        )
    return result(form, samples)


def _tell(form: ManyForm) -> Callable[[Sample], None]:
    def tell(found: Sample) -> None:
        used = found.taken
        print(
            f"bench: {found.at_s:.0f} s: {found.running} of {form.jobs} run, {found.met} meet their intents,"
            f" {used.memory_mb:,.0f} MB, {used.processes} processes, {used.threads} threads, load {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )

    return tell


def result(form: ManyForm, samples: Sequence[Sample]) -> Result:
    """Return the figures and bars of a run; an event that did not happen has no time, and its bar fails."""
    running_s = _first_s(samples, lambda one: one.running == form.jobs)
    met_s = _first_s(samples, lambda one: one.met == form.jobs)
    most_mb = max(one.taken.memory_mb for one in samples)
    after = [one for one in samples if one.at_s >= samples[0].at_s + form.step_s] or list(samples[-1:])
    satisfaction = statistics.fmean(one.satisfaction or 0.0 for one in after)
    round_s = _longest_round_s(after)
    first, last = samples[0].taken, after[-1].taken
    growths = {name: _growth(after, name) for name in ("processes", "threads", "files", "memory_mb")}
    watched_s = samples[-1].at_s - samples[0].at_s - form.step_s
    figures = (
        Figure(f"until all {form.jobs} jobs run", running_s if running_s is not None else float("nan"), "s"),
        Figure("until all meet their intents", met_s if met_s is not None else float("nan"), "s"),
        Figure("memory of all processes, at most", most_mb, "MB"),
        Figure("memory per job", (last.memory_mb - first.memory_mb) / form.jobs, "MB"),
        Figure("processes per job", (last.processes - first.processes) / form.jobs, ""),
        Figure("threads per job", (last.threads - first.threads) / form.jobs, ""),
        Figure("files per job", (last.files - first.files) / form.jobs, ""),
        Figure("cores in use after the load step", _cores(after), "cores"),
        Figure("longest round after the load step", round_s, "s"),
    )
    bars = (
        Bar(f"seconds until all {form.jobs} jobs run", running_s, "<=", form.running_within_s),
        Bar("seconds until all meet their intents", met_s, "<=", form.met_within_s),
        Bar("memory of all processes, MB", most_mb, "<=", MOST_MB),
        Bar("seconds watched after the load step", watched_s, ">=", form.measured_s),
        Bar("satisfaction from the load step on", satisfaction, ">=", LEAST_SATISFACTION),
        Bar("longest round after the load step, s", round_s, "<=", MOST_ROUND_S),
        *(
            Bar(f"{name.removesuffix('_mb')} at the end, times those at the load step", value, "<=", MOST_GROWTH)
            for name, value in growths.items()
        ),
    )
    return Result(figures, bars)


def _first_s(samples: Sequence[Sample], holds: Callable[[Sample], bool]) -> float | None:
    return next((one.at_s for one in samples if holds(one)), None)


def _longest_round_s(samples: Sequence[Sample]) -> float:
    """Return the longest round; several rounds between two samples count with their mean."""
    spans = [(two.rounds - one.rounds, two.rounds_s - one.rounds_s) for one, two in pairwise(samples)]
    return max((seconds / rounds for rounds, seconds in spans if rounds), default=0.0)


def _growth(samples: Sequence[Sample], name: str) -> float:
    """Return the median of the last third as a multiple of that of the first third, because task processes come and go."""
    values = [float(getattr(one.taken, name)) for one in samples]
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) / statistics.median(values[:third])


def _cores(samples: Sequence[Sample]) -> float:
    """Return the cores in use; the time of processes that have ended is missing."""
    seconds = samples[-1].at_s - samples[0].at_s
    return max(0.0, samples[-1].taken.core_s - samples[0].taken.core_s) / seconds if seconds else 0.0
