"""A round that has no time to read the tasks of all jobs reads those of the jobs that have waited longest. No Spark runs here."""

from __future__ import annotations

from headgate.spark.measuring.busy import BusyTurns


class Clock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def read_in_a_round(turns: BusyTurns, clock: Clock, jobs: list[str], cost_s: float) -> list[str]:
    read = []
    for job in turns.begin(jobs):
        if turns.take(job):
            read.append(job)
            clock.at_s += cost_s
    clock.at_s += 10.0
    return read


def test_every_job_gets_its_turn_though_no_round_has_time_for_all() -> None:
    clock = Clock()
    turns, jobs = BusyTurns(0.3, clock), [f"job-{number}" for number in range(10)]
    rounds = [read_in_a_round(turns, clock, jobs, 0.125) for _ in range(4)]
    assert [len(read) for read in rounds] == [3, 3, 3, 3]
    assert {job for read in rounds for job in read} == set(jobs)


def test_round_with_time_for_all_reads_all_and_jobs_that_left_are_forgotten() -> None:
    clock = Clock()
    turns = BusyTurns(0.3, clock)
    assert read_in_a_round(turns, clock, ["a", "b"], 0.01) == ["a", "b"]
    assert read_in_a_round(turns, clock, ["b", "c"], 0.01) == ["c", "b"]
