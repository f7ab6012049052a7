"""From readings to remedies: sensors, detectors, diagnosers, resolvers (Dhalion, section 5)."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.model import JobAllocation
from headgate.errors import IntentError
from headgate.explain.actions import action_lines
from headgate.explain.lines import JobRounds
from headgate.health.policies import Late, Provision, Throughput, built_in
from headgate.health.records import (
    NAMED,
    Alert,
    Diagnosis,
    DiagnosisKind,
    MeasurementKind,
    Remedy,
    Symptom,
    SymptomKind,
    cause_of,
)
from headgate.health.resolving import MoveLanes, ReassignSlices, ScaleDown, ScaleSource, ScaleUp
from headgate.ports import RecordedAction
from headgate.state.placement.routing import lane_loads
from tests.core.builders import LAW
from tests.health.observed_jobs import Lanes, looked_at, observed, one_hot, one_slow, too_few

COUNTS = st.integers(2, 64)


def diagnosed(lanes: Lanes, **given: object) -> list[Diagnosis]:
    return looked_at(observed(lanes, **given))[2]  # type: ignore[arg-type]


# -- sensors


def test_every_lane_is_measured_by_rows_time_per_row_waiting_and_holding_back() -> None:
    measured, _, _ = looked_at(observed(one_slow(4, 0.5)))
    assert measured.values(MeasurementKind.ROWS, "work") == pytest.approx((100,) * 4)
    assert measured.values(MeasurementKind.COST, "work") == pytest.approx((0.005, 0.005, 0.005, 0.01))
    assert measured.values(MeasurementKind.PENDING, "work") == pytest.approx((0, 0, 0, 5000))
    assert measured.values(MeasurementKind.HELD, "work") == pytest.approx((0, 0, 0, 0.2))
    assert measured.one(MeasurementKind.HELD) == pytest.approx(0.2)


def test_rows_that_a_lane_works_off_from_its_queue_do_not_count_as_given() -> None:
    job = observed(Lanes((10.0, 50.0), (0.1, 0.5), (0.0, 0.0)))
    first = job.samples[0].reading.operators["work"]
    before = dataclasses.replace(first, queued=(0.0, 40.0 * 900))
    reading = dataclasses.replace(
        job.samples[0].reading, operators={**job.samples[0].reading.operators, "work": before}
    )
    draining = dataclasses.replace(
        job, samples=(dataclasses.replace(job.samples[0], reading=reading), *job.samples[1:])
    )
    measured, _, _ = looked_at(draining)
    assert measured.values(MeasurementKind.ROWS, "work") == pytest.approx((10, 10))


def test_without_queues_a_lane_with_more_to_do_shows_by_its_time() -> None:
    job = dataclasses.replace(one_slow(4, 0.5), queued=None, held=None, job_held=None, epochs_s=0.9, arrived=500.0)
    measured, symptoms, _ = looked_at(observed(job))
    assert measured.values(MeasurementKind.PENDING, "work") == pytest.approx((0.5, 0.5, 0.5, 1.0))
    assert [symptom.lanes for symptom in symptoms if symptom.kind == SymptomKind.UNEVEN_PENDING] == [(3,)]


def test_without_backpressure_input_that_is_late_counts_as_held_back() -> None:
    job = dataclasses.replace(
        too_few(4), queued=None, held=None, job_held=None, epochs_s=1.0, arrived=500.0, source_busy=0.1
    )
    measured, symptoms, _ = looked_at(observed(job))
    assert measured.one(MeasurementKind.HELD) == pytest.approx(0.2, abs=0.01)
    assert [(s.kind, s.operator) for s in symptoms if s.kind == SymptomKind.HELD_BACK] == [
        (SymptomKind.HELD_BACK, "work")
    ]


# -- diagnosers (table 1)


@LAW
@given(COUNTS, st.floats(0.05, 0.9))
def test_lanes_alike_that_hold_back_are_too_few(lanes: int, held: float) -> None:
    assert [(d.kind, d.operator, d.lanes) for d in diagnosed(too_few(lanes, held))] == [
        (DiagnosisKind.TOO_FEW_LANES, "work", ())
    ]


@LAW
@given(COUNTS, st.floats(0.25, 0.9), st.floats(0.05, 0.9))
def test_lane_that_takes_longer_for_a_row_is_slow(lanes: int, slower: float, held: float) -> None:
    assert [(d.kind, d.lanes) for d in diagnosed(one_slow(lanes, slower, held))] == [
        (DiagnosisKind.SLOW_LANES, (lanes - 1,))
    ]


@LAW
@given(COUNTS, st.floats(1.3, 10), st.floats(0.05, 0.9))
def test_lane_that_gets_more_rows_has_the_hot_keys(lanes: int, times: float, held: float) -> None:
    assert [(d.kind, d.lanes) for d in diagnosed(one_hot(lanes, times, held))] == [(DiagnosisKind.SKEW, (lanes - 1,))]


@LAW
@given(st.sampled_from([too_few, one_slow, one_hot]), COUNTS)
def test_exactly_one_cause_is_found(trouble: object, lanes: int) -> None:
    assert len(diagnosed(trouble(lanes))) == 1  # type: ignore[operator]


@LAW
@given(COUNTS)
def test_slowest_of_an_overloaded_crowd_is_not_called_slow_for_its_long_queue(lanes: int) -> None:
    crowd = dataclasses.replace(
        too_few(lanes), busy=(*(0.97,) * (lanes - 1), 1.0), queued=(*(0.0,) * (lanes - 1), 9000.0),
        held=(*(0.0,) * (lanes - 1), 0.2),
    )  # fmt: skip
    assert [d.kind for d in diagnosed(crowd)] == [DiagnosisKind.TOO_FEW_LANES]


def test_hot_lane_is_not_outshone_by_cold_ones_whose_few_rows_are_dear() -> None:
    """A task has fixed costs, so that a lane with hardly any rows takes long for each of them."""
    hot = Lanes(
        (20.0, 20.0, 400.0), (0.1, 0.1, 1.0), None, None, None, arrived=600.0, epochs_s=1.0, source_busy=0.1,
    )  # fmt: skip
    assert [(d.kind, d.lanes) for d in diagnosed(hot)] == [(DiagnosisKind.SKEW, (2,))]


@pytest.mark.parametrize("lanes", [2, 3, 8])
def test_rows_that_make_a_lane_no_busier_are_no_skew(lanes: int) -> None:
    """In short epochs nearly all time is fixed cost: twice as many of a few rows do not matter."""
    rows, busy = (*(10.0,) * (lanes - 1), 20.0), (*(0.7,) * (lanes - 1), 0.72)
    few = Lanes(rows, busy, None, None, None, arrived=20.0 * lanes, epochs_s=1.0, source_busy=0.1)
    assert DiagnosisKind.SKEW not in [found.kind for found in diagnosed(few)]


@LAW
@given(COUNTS, st.floats(0.94, 0.95))
def test_job_that_is_busy_but_holds_nothing_back_is_healthy(lanes: int, busy: float) -> None:
    assert diagnosed(Lanes((100.0,) * lanes, (busy,) * lanes, (0.0,) * lanes, (0.0,) * lanes)) == []


def test_skew_that_costs_nothing_is_left_alone() -> None:
    assert diagnosed(Lanes((100.0, 50.0), (0.9, 0.45), (0.0, 0.0))) == []


def test_idle_lanes_are_spare() -> None:
    found = diagnosed(Lanes((100.0,) * 10, (0.5,) * 10, (0.0,) * 10, (0.0,) * 10))
    assert [(d.kind, d.operator) for d in found] == [(DiagnosisKind.SPARE_LANES, "work")]


def test_lanes_are_spare_only_if_they_were_for_the_whole_window() -> None:
    idle = Lanes((100.0,) * 10, (0.5,) * 10, (0.0,) * 10, (0.0,) * 10)
    assert diagnosed(idle, seconds=800.0) == []


def test_lanes_are_not_spare_while_something_waits_for_them() -> None:
    assert diagnosed(Lanes((100.0,) * 10, (0.5,) * 10, (900.0,) * 10, (0.0,) * 10)) == []


def test_lanes_are_spare_in_epochs_though_these_follow_one_another_without_a_break() -> None:
    idle = Lanes((100.0,) * 8, (0.05,) * 8, None, None, None, epochs_s=1.0, source_busy=0.05)
    (found,) = diagnosed(idle)
    assert (found.kind, found.operator) == (DiagnosisKind.SPARE_LANES, "work")
    assert remedied(ScaleDown(), idle).allocation.lanes == {"in": 1, "work": 7}


def test_missed_intent_is_explained_though_nothing_is_held_back() -> None:
    slow = dataclasses.replace(one_slow(4, 0.5), held=None, job_held=None, epochs_s=0.5, queued=None, source_busy=0.1)
    (found,) = looked_at(observed(slow, misses=True), Late())[2]
    assert (found.kind, found.lanes) == (DiagnosisKind.SLOW_LANES, (3,))
    assert "host-4" in found.text


def test_too_little_input_is_found_only_while_nothing_is_held_back() -> None:
    policy = Throughput(1000.0)
    calm = Lanes((100.0,) * 4, (0.5,) * 4, (0.0,) * 4, (0.0,) * 4)
    assert [d.kind for d in looked_at(observed(calm), policy)[2]] == [DiagnosisKind.TOO_LITTLE_INPUT]
    assert [d.kind for d in looked_at(observed(too_few(4)), policy)[2]] == [DiagnosisKind.TOO_FEW_LANES]
    assert looked_at(observed(calm), Throughput(300.0))[2] == []


# -- resolvers


def resolved(resolver: object, lanes: Lanes, settings: Settings | None = None) -> Remedy | Alert | None:
    job = observed(lanes, settings)
    measured, _, found = looked_at(job)
    diagnosis = found[0] if found else Diagnosis(DiagnosisKind.TOO_LITTLE_INPUT, "in", "")
    return resolver.resolve(diagnosis, measured, job)  # type: ignore[attr-defined,no-any-return]


def remedied(resolver: object, lanes: Lanes, settings: Settings | None = None) -> Remedy:
    answer = resolved(resolver, lanes, settings)
    assert isinstance(answer, Remedy)
    return answer


def test_a_fifth_of_the_time_held_back_means_a_quarter_more_lanes() -> None:
    """Dhalion, section 5.1: 20 % suspended, 80 % normal."""
    exact = Settings(scale_up_headroom=0.0)
    assert remedied(ScaleUp(), too_few(8, 0.2), exact).allocation.lanes == {"in": 1, "work": 10}


def test_scaling_up_gives_at_least_one_lane_and_never_more_than_allowed() -> None:
    assert remedied(ScaleUp(), too_few(8, 0.021)).allocation.lanes["work"] == 9
    capped = dataclasses.replace(too_few(8, 0.9), max_lanes=12)
    assert remedied(ScaleUp(), capped).allocation.lanes["work"] == 12
    assert resolved(ScaleUp(), dataclasses.replace(too_few(8, 0.9), max_lanes=8)) is None


def test_backlog_outside_is_worked_off_as_well() -> None:
    waiting = dataclasses.replace(too_few(8, 0.2), arrived=1000.0)
    assert remedied(ScaleUp(), waiting).allocation.lanes["work"] > 10


def test_scaling_down_takes_a_limited_share_at_once() -> None:
    idle = Lanes((100.0,) * 10, (0.1,) * 10, (0.0,) * 10, (0.0,) * 10)
    remedy = remedied(ScaleDown(), idle)
    assert remedy.allocation.lanes["work"] == 8
    assert remedy.frees


def test_scaling_down_leaves_what_the_input_needs() -> None:
    idle = Lanes((100.0,) * 10, (0.84,) * 10, (0.0,) * 10, (0.0,) * 10)
    assert remedied(ScaleDown(), idle).allocation.lanes["work"] == 9


def test_lanes_leave_the_host_on_which_they_are_slow() -> None:
    remedy = remedied(MoveLanes(), one_slow(4, 0.5))
    assert remedy.allocation.avoided == ("host-4",)
    assert remedy.allocation.lanes == {"in": 1, "work": 4}


def test_job_never_runs_out_of_hosts_however_often_it_moves() -> None:
    moved = dataclasses.replace(one_slow(4, 0.5), avoided=("host-1", "host-2"))
    assert remedied(MoveLanes(), moved).allocation.avoided == ("host-2", "host-4")


def test_lanes_that_are_slow_everywhere_cannot_be_moved() -> None:
    everywhere = dataclasses.replace(one_slow(2, 0.5), hosts=("elsewhere", "elsewhere"))
    assert resolved(MoveLanes(), everywhere) is None


def test_lanes_of_one_host_are_no_evidence_of_a_slow_host() -> None:
    slow = one_slow(4, 0.5)
    kinds = [one.kind for one in looked_at(observed(slow))[2]]
    together = [one.kind for one in looked_at(observed(dataclasses.replace(slow, hosts=("embedded",) * 4)))[2]]
    assert (kinds, together) == ([DiagnosisKind.SLOW_LANES], [DiagnosisKind.TOO_FEW_LANES])


def test_slices_move_from_the_hot_lane_to_the_others() -> None:
    hot = Lanes(
        (100.0, 100.0, 100.0, 300.0), (0.3, 0.3, 0.3, 1.0), (0.0, 0.0, 0.0, 9000.0), (0.0, 0.0, 0.0, 0.3), 0.3,
        slices=(50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 100.0, 100.0, 100.0), places={"work": (0, 0, 1, 1, 2, 2, 3, 3, 3)},
    )  # fmt: skip
    places = remedied(ReassignSlices(), hot).allocation.slices["work"]
    assert max(lane_loads(hot.slices or (), places, 4)) == pytest.approx(150)


def test_slices_that_the_engine_has_spread_itself_move_from_where_they_are() -> None:
    hot = Lanes(
        (100.0, 300.0), (0.3, 1.0), None, None, None, epochs_s=1.0, arrived=500.0, source_busy=0.1,
        slices=(50.0, 50.0, 150.0, 150.0), slice_lanes=(0, 0, 1, 1),
    )  # fmt: skip
    assert remedied(ReassignSlices(), hot).what.startswith("2 of work's 4 slices to other lanes")


def test_one_key_that_fills_a_lane_alone_is_told_to_a_person() -> None:
    hot = Lanes(
        (10.0, 10.0, 100.0), (0.1, 0.1, 1.0), (0.0, 0.0, 9000.0), (0.0, 0.0, 0.3), 0.3,
        slices=(10.0, 10.0, 100.0), places={"work": (0, 1, 2)},
    )  # fmt: skip
    answer = resolved(ReassignSlices(), hot)
    assert isinstance(answer, Alert)
    assert "no number of lanes helps" in answer.text


def test_operator_without_slices_has_none_to_move() -> None:
    assert resolved(ReassignSlices(), dataclasses.replace(one_hot(), slices=None, places={})) is None


def source_at(rows: float, lanes: int = 2, busy: float = 1.0, most: int | None = None) -> Lanes:
    return Lanes((rows / 2,) * 2, (0.94,) * 2, (0.0,) * 2, source_lanes=lanes, source_busy=busy, max_source_lanes=most)


def test_source_gets_lanes_by_target_over_actual_at_most_four_times_as_many() -> None:
    exact = Settings(source_headroom=0.0)
    assert remedied(ScaleSource(500.0), source_at(200.0), exact).allocation.lanes["in"] == 5
    assert remedied(ScaleSource(50_000.0), source_at(200.0), exact).allocation.lanes["in"] == 8


def test_source_never_gets_more_lanes_than_partitions_and_then_says_so() -> None:
    assert remedied(ScaleSource(50_000.0), source_at(200.0, most=3)).allocation.lanes["in"] == 3
    answer = resolved(ScaleSource(50_000.0), source_at(200.0, lanes=3, most=3))
    assert isinstance(answer, Alert) and "reached their lane limit" in answer.text


def test_source_that_waits_for_rows_gets_no_lanes_but_an_alert() -> None:
    answer = resolved(ScaleSource(500.0), source_at(200.0, busy=0.1))
    assert isinstance(answer, Alert) and "not enough input" in answer.text


def limited(limit: int | None) -> Lanes:
    """Epochs of a second each, 200 of 1,000 rows that arrive in it are read, and lanes have time to spare."""
    return Lanes(
        (100.0, 100.0), (0.1, 0.1), None, None, None, source_busy=0.1, arrived=1000.0, epochs_s=0.2, read_limit=limit
    )


def test_source_that_reads_up_to_its_limit_gets_a_higher_one_at_most_four_times_as_high() -> None:
    exact = Settings(source_headroom=0.0)
    remedy = remedied(ScaleSource(500.0), limited(200), exact)
    assert (remedy.allocation.read_limit, remedy.what) == (500, "read limit 200 → 500 rows")
    assert remedy.allocation.lanes == {"in": 1, "work": 2}
    assert remedied(ScaleSource(50_000.0), limited(200), exact).allocation.read_limit == 800


def test_read_limit_holds_back_the_input_and_no_lane_does() -> None:
    assert [d.kind for d in diagnosed(limited(200))] == []
    assert [d.kind for d in diagnosed(limited(1_000_000))] == [DiagnosisKind.TOO_FEW_LANES]
    diagnoses = looked_at(observed(limited(200)), Throughput(500.0))[2]
    assert [diagnosis.kind for diagnosis in diagnoses] == [DiagnosisKind.TOO_LITTLE_INPUT]


# -- chains of causes


def test_action_carries_its_diagnosis_its_symptoms_and_their_measurements() -> None:
    job = observed(one_slow(4, 0.5))
    measured, _, (diagnosis,) = looked_at(job)
    answer = MoveLanes().resolve(diagnosis, measured, job)
    assert isinstance(answer, Remedy)
    action = answer.action("job")
    assert action.remedy == "move lanes"
    assert action.cause == cause_of(diagnosis)
    assert action.cause.facts["diagnosis"] == DiagnosisKind.SLOW_LANES
    symptoms = action.cause.because
    assert [cause.facts["symptom"] for cause in symptoms] == ["input held back", "lanes unlike", "pending uneven"]
    assert any("lane 3" in cause.facts for cause in symptoms[1].because)
    assert [NAMED in cause.facts for cause in symptoms] == [cause.text in diagnosis.text for cause in symptoms]


def test_story_tells_the_symptoms_that_the_diagnosis_does_not_name() -> None:
    symptoms = (Symptom("late", "work", 2.0, "it is late"), Symptom("uneven", "work", 3.0, "rows are uneven"))
    diagnosis = Diagnosis(DiagnosisKind.SKEW, "work", "it is late, because of skew", symptoms)
    action = Remedy("move", diagnosis, JobAllocation({"work": 2}), "").action("job")
    lines = action_lines(JobRounds("job", ()), [RecordedAction(1, 10.0, action)])
    assert [line.text for line in lines if line.facts["what"] == "symptom"] == ["rows are uneven"]


# -- by name


def test_policies_are_known_by_name() -> None:
    assert isinstance(built_in("provision"), Provision)
    throughput = built_in("throughput:4_000_000/min")
    assert isinstance(throughput, Throughput)
    assert throughput.target_rows_s == pytest.approx(66_666.67)
    assert built_in("mine") is None


@pytest.mark.parametrize(
    "text", ["throughput", "throughput:", "throughput:many", "throughput:5/day", "throughput:-1/s"]
)
def test_target_that_is_no_rate_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(IntentError, match=r"policy is .*4000000/min"):
        Intent(policy=text)


def test_intent_that_only_names_a_policy_is_shown_by_it() -> None:
    intent = Intent(policy="provision")
    assert intent.describe() == "provision"
    assert intent.met(latency_s=None, juice=1.0)
    assert intent.fingerprint() != Intent(juice=0.95).fingerprint()
