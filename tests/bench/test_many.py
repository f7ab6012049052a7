"""The benchmark of many jobs: the cluster file that it runs, and what it makes of what it saw. No service runs here."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from headgate.bench.many import SHORT, STEPPED_JOBS, Sample, Taken, cluster_file, result, taken
from headgate.jobfile import read
from headgate.spark.jobs.loading import load

TAKEN = Taken(4000.0, 120, 600, 3000, 50.0)


def samples(**last: object) -> list[Sample]:
    """A run in which all jobs run after 60 s and meet their intents after 90 s."""
    found = [
        Sample(
            at_s,
            SHORT.jobs if at_s >= 60 else 10,
            SHORT.jobs if at_s >= 90 else 5,
            0.97,
            at_s / 10,
            at_s / 50,
            replace(TAKEN, core_s=at_s),
        )
        for at_s in (float(second) for second in range(20, 230, 5))
    ]
    return [*found[:-8], *(replace(one, **last) for one in found[-8:])]  # type: ignore[arg-type]


def held(found: list[Sample]) -> dict[str, bool]:
    return {bar.name: bar.holds for bar in result(SHORT, found).bars}


def test_bars_of_a_good_run_hold() -> None:
    assert set(held(samples()).values()) == {True}
    figures = {figure.name: figure.value for figure in result(SHORT, samples()).figures}
    assert figures["until all 50 jobs run"] == 60.0
    assert figures["until all meet their intents"] == 90.0
    assert figures["cores in use after the load step"] == pytest.approx(1.0)
    assert figures["longest round after the load step"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("last", "bar"),
    [
        ({"satisfaction": 0.5}, "satisfaction from the load step on"),
        ({"taken": replace(TAKEN, memory_mb=9000.0)}, "memory of all processes, MB"),
        ({"taken": replace(TAKEN, threads=800)}, "threads at the end, times those at the load step"),
        ({"taken": replace(TAKEN, files=4000)}, "files at the end, times those at the load step"),
    ],
)
def test_what_goes_wrong_after_the_load_step_breaks_a_bar(last: dict[str, object], bar: str) -> None:
    assert not held(samples(**last))[bar]


def test_jobs_that_never_all_run_or_meet_their_intents_break_their_bars() -> None:
    never = [replace(one, running=49, met=49) for one in samples()]
    broken = {name for name, holds in held(never).items() if not holds}
    assert broken == {"seconds until all 50 jobs run", "seconds until all meet their intents"}


def test_cluster_file_has_the_jobs_and_the_load_step_of_some_of_them(tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    path.write_text(cluster_file(SHORT, tmp_path))
    jobs = read(path).jobs
    assert len(jobs) == SHORT.jobs
    topologies = [load(jobs[number]) for number in (0, STEPPED_JOBS)]
    rates = [
        [topology.nodes["lines"].function.load.rate_rows_s(at_s) for at_s in (0.0, SHORT.step_s + 1)]
        for topology in topologies
    ]
    assert rates == [[20.0, 100.0], [20.0, 20.0]]
    assert [topology.intent.latency_s for topology in topologies] == [10.0, 10.0]
    assert topologies[0].intent.worth > topologies[1].intent.worth


def test_what_a_process_takes_is_measured_with_its_descendants() -> None:
    found = taken(psutil.Process(os.getpid()))
    assert found.memory_mb > 10
    assert found.processes >= 1
    assert found.threads >= 1
    assert found.files >= 3


def test_run_that_ends_before_the_load_step_breaks_a_bar() -> None:
    cut_short = [one for one in samples() if one.at_s < SHORT.step_s]
    assert not held(cut_short)["seconds watched after the load step"]
