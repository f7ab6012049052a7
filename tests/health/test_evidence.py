"""A diagnosis needs an effect, enough data and lasting evidence; a backlog that stands is a symptom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from headgate.config import Settings
from headgate.core.model import JobReading
from headgate.core.windows import Sample
from headgate.health.demand import Evening, evening
from headgate.health.policies import Late, Provision, Throughput
from headgate.health.records import LogEntry, ObservedJob
from tests.health.observed_jobs import Lanes, looked_at, observed, one_hot

BUSY_EPOCHS = Lanes((100.0,) * 4, (0.9,) * 4, None, None, None, epochs_s=0.99)
"""Four lanes that keep up, busy nearly all the time, in epochs of a second."""


def kinds(one: ObservedJob, policy: Provision | None = None) -> list[str]:
    return [diagnosis.kind for diagnosis in looked_at(one, policy)[2]]


def symptoms(one: ObservedJob, policy: Provision | None = None) -> set[str]:
    return {symptom.kind for symptom in looked_at(one, policy)[1]}


def changed(one: ObservedJob, change: Callable[[float, JobReading], JobReading]) -> ObservedJob:
    """The same job with other readings; each is changed by its time."""
    samples = tuple(Sample(s.at_s, change(s.at_s, s.reading)) for s in one.samples)
    return dataclasses.replace(one, samples=samples, view=dataclasses.replace(one.view, samples=samples))


# -- a standing backlog ----------------------------------------------------------------------------------------------------------


def behind(rows: float, seconds: float = 300.0) -> ObservedJob:
    """The job keeps up, with so many rows that have waited for long."""

    def more(at_s: float, reading: JobReading) -> JobReading:
        return dataclasses.replace(reading, arrived={"in": reading.arrived["in"] + rows}, backlog=rows)

    return changed(observed(BUSY_EPOCHS, seconds=seconds), more)


def test_rows_that_stand_for_longer_than_the_limit_ask_for_lanes() -> None:
    assert kinds(behind(60_000)) == ["too few lanes"]
    assert "rows wait for 150 s" in looked_at(behind(60_000))[2][0].text
    assert kinds(behind(20_000)) == []  # 50 s


def test_backlog_is_no_symptom_where_a_throughput_is_asked_for() -> None:
    assert "standing backlog" not in symptoms(behind(60_000), Throughput(1000.0))


def test_almost_nothing_waits_only_if_rows_do_not_wait() -> None:
    assert "nothing waits" in symptoms(behind(0))
    assert "nothing waits" not in symptoms(behind(4_000))


def test_lanes_helped_against_a_backlog_if_rows_wait_less() -> None:
    one, before = (
        behind(60_000),
        {"held": 0.0, "held by operator": 0.0, "emitted": 400.0, "sustains": 0.0, "wait": 150.0},
    )
    entry = LogEntry(0.0, "job", "provision", "too few lanes", "work", "scale up", before)
    assert Provision().helped(entry, {**before, "wait": 20.0}, one) is True
    assert Provision().helped(entry, {**before, "wait": 149.0}, one) is False


# -- lanes that differ -----------------------------------------------------------------------------------------------------------


def test_few_keys_are_no_skew() -> None:
    two_keys = Lanes(
        (0.0, 200.0, 200.0), (0.0, 0.6, 0.6), None, None, None, arrived=500.0, epochs_s=0.9, source_busy=0.1, slices=(200.0, 200.0),
        slice_lanes=(1, 2), places={"work": (1, 2)},
    )  # fmt: skip
    one = observed(two_keys)
    assert evening(one, "work") is Evening.NOTHING
    assert kinds(one) == []


def test_slices_that_only_more_lanes_can_spread_are_too_few_lanes() -> None:
    five = Lanes(
        (200.0, 200.0, 100.0), (0.9, 0.9, 0.45), None, None, None, arrived=700.0, epochs_s=0.95, slices=(100.0,) * 5,
        places={"work": (0, 1, 0, 1, 2)},
    )  # fmt: skip
    one = observed(five)
    assert evening(one, "work") is Evening.LANES
    assert kinds(one) == ["too few lanes"]


def test_skew_that_other_lanes_for_slices_mend_is_skew() -> None:
    assert evening(observed(one_hot()), "work") is not Evening.NOTHING
    assert kinds(observed(one_hot(times=3.0))) == ["skew"]


def falling_behind(lanes: Lanes, slow_s: Callable[[float], float], seconds: float = 60.0) -> ObservedJob:
    """Lane 0 is busier than the others by a factor that depends on the seconds since the window began."""
    one = observed(lanes, seconds=seconds, misses=True)
    began_s = one.samples[0].at_s
    total = {began_s: 0.0}

    def slower(at_s: float, reading: JobReading) -> JobReading:
        previous = max(total)
        total[at_s] = total[previous] + (at_s - previous) * lanes.busy[0] * slow_s(at_s - began_s)
        work = reading.operators["work"]
        busy = (total[at_s], *work.busy_s[1:])
        return dataclasses.replace(
            reading, operators={**reading.operators, "work": dataclasses.replace(work, busy_s=busy)}
        )

    return changed(one, slower)


SLOWED = Lanes((100.0,) * 4, (0.2,) * 4, None, None, None, arrived=500.0, epochs_s=0.9, source_busy=0.1)


def test_host_that_stays_slow_is_slow() -> None:
    assert kinds(falling_behind(SLOWED, lambda at_s: 3.0), Late()) == ["slow host"]


@pytest.mark.parametrize(
    "slow_s",
    [
        pytest.param(lambda at_s: max(1.0, 5.0 - at_s / 10), id="a cold JVM becomes faster"),
        pytest.param(lambda at_s: 4.0 if at_s > 40 else 1.0, id="it has only just begun"),
    ],
)
def test_host_that_is_slow_for_a_moment_gets_no_diagnosis_yet(slow_s: Callable[[float], float]) -> None:
    one = falling_behind(SLOWED, slow_s)
    assert kinds(one, Late()) == []
    assert "lanes unclear" in symptoms(one, Late())


def test_lanes_that_cost_no_time_are_alike() -> None:
    fixed = dataclasses.replace(SLOWED, busy=(0.01,) * 4)
    assert kinds(falling_behind(fixed, lambda at_s: 3.0), Late()) == ["too few lanes"]


def test_lanes_are_compared_after_enough_epochs() -> None:
    one = falling_behind(SLOWED, lambda at_s: 3.0)
    few = changed(one, lambda at_s, reading: dataclasses.replace(reading, epochs=0 if at_s < 1000 else 2))
    assert kinds(one, Late()) == ["slow host"]
    assert kinds(few, Late()) == []


def test_lanes_are_compared_on_a_full_window_if_epochs_are_too_long_for_more() -> None:
    one = falling_behind(SLOWED, lambda at_s: 3.0, seconds=Settings().health_window_s)
    few = changed(one, lambda at_s, reading: dataclasses.replace(reading, epochs=0 if at_s < 1000 else 2))
    assert kinds(few, Late()) == ["slow host"]


def test_few_rows_differ_by_chance() -> None:
    def thin(rows: tuple[float, ...]) -> ObservedJob:
        lanes = Lanes(rows, tuple(row / 10 for row in rows), None, None, None, arrived=9 * sum(rows), epochs_s=0.9)
        return observed(lanes, Settings(), seconds=60.0, misses=True)

    assert "rates uneven" not in symptoms(thin((0.3, 0.2, 0.2, 0.2)))
    assert "rates uneven" in symptoms(thin((9.0, 6.0, 6.0, 6.0)))
