"""A job that cannot be read, or that comes and goes, takes only itself out of the round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.model import Job, JobAllocation, JobReading, Snapshot
from headgate.journal import MemoryJournal
from headgate.scheduler.policies import policy_named
from tests.core.builders import PLAIN, Cluster, Response

Changed = Callable[[int, JobReading | None], JobReading | None]


def late(name: str, has: JobAllocation) -> Response:
    return Response(2.0 / has.lanes["work"], min(1.0, 0.9 / has.lanes["work"]))


class Flawed(Cluster):
    """A cluster in which something happens to the readings of the culprit, by round; ABSENT: the job is not there at all."""

    def __init__(self, jobs, changed: Changed) -> None:
        super().__init__(jobs, late)
        self.changed, self.number = changed, 0

    def observe(self) -> Snapshot:
        self.number += 1
        snapshot = super().observe()
        reading = self.changed(self.number, snapshot.jobs["culprit"])
        if reading is ABSENT:
            kept = {name: has for name, has in snapshot.allocation.items() if name != "culprit"}
            return dataclasses.replace(snapshot, jobs={"innocent": snapshot.jobs["innocent"]}, allocation=kept)
        return dataclasses.replace(snapshot, jobs={**snapshot.jobs, "culprit": reading})


ABSENT = JobReading(-1, {}, {}, None, None)


class Stage:
    """Two jobs that miss their intents, and a controller."""

    def __init__(self, changed: Changed) -> None:
        jobs = (
            Job("innocent", PLAIN, Intent(latency="1s", worth=10)),
            Job("culprit", PLAIN, Intent(latency="1s", worth=5)),
        )
        self.cluster, self.alerts = Flawed(jobs, changed), []  # type: ignore[var-annotated]
        self.controller = Controller(
            self.cluster,
            policy_named("headgate", Settings()),
            MemoryJournal(),
            Settings(),
            alert=lambda at_s, alert: self.alerts.append(alert.sentence),
        )
        self.rules: list[str] = []

    def run(self, rounds: int) -> Stage:
        for _ in range(rounds):
            self.cluster.sleep_until(self.cluster.now_s() + 10)
            self.rules.append(self.controller.round()[1].rule)
        return self

    def helped(self) -> set[str | None]:
        return {action.job for action in self.cluster.applied}


def never(number: int, reading: JobReading | None) -> None:
    return None


def once(number: int, reading: JobReading | None) -> JobReading | None:
    return None if number == 5 else reading


def test_others_are_helped_though_a_job_can_never_be_read() -> None:
    stage = Stage(never).run(60)
    assert stage.helped() == {"innocent"}
    assert not {"no data", "after outage"} & set(stage.rules)
    assert stage.alerts == ["culprit: not judged and keeps its lanes: its metrics could not be read"]


def test_reading_that_is_lost_once_delays_only_its_own_job() -> None:
    stage = Stage(once).run(20)
    assert stage.helped() == {"innocent"}
    stage.run(60)
    assert stage.helped() == {"innocent", "culprit"}


def test_job_that_comes_back_again_and_again_delays_no_other() -> None:
    stage = Stage(lambda number, reading: ABSENT if number % 4 == 0 else reading).run(60)
    assert "innocent" in stage.helped()
    assert stage.rules.count("new workload") <= 2


def test_nothing_is_decided_while_no_job_at_all_can_be_read() -> None:
    stage = Stage(once)
    read = stage.cluster.observe
    stage.run(4)
    stage.cluster.observe = lambda: dataclasses.replace(read(), jobs={"innocent": None, "culprit": None})  # type: ignore[method-assign]
    stage.run(3)
    stage.cluster.observe = read  # type: ignore[method-assign]
    stage.run(10)
    assert stage.rules[4:7] == ["no data"] * 3
    assert set(stage.rules[7:]) == {"after outage"}
