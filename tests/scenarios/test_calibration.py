"""The simulator calibrated from a journal: a scenario with known costs is run, and its costs are found again."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import Settings
from headgate.config.settings import settings_from
from headgate.core.intents import Custom, Intent, Linear, Lognormal, Piecewise, Shape
from headgate.core.model import HostReading, Snapshot
from headgate.errors import JournalDamagedError
from headgate.journal import MemoryJournal
from headgate.journal.definitions import (
    JOBS_KEY,
    SETTINGS_KEY,
    JobDefinition,
    definitions_in,
    definitions_text,
    intent_in,
    intent_table,
    settings_in,
    settings_text,
)
from headgate.loads import Sine, Steady
from headgate.sim.calibrate import Calibrated, JobMeasurements, calibrate, slope
from headgate.sim.run import engine_for, run
from headgate.sim.spec import EpochCosts, HostSpec, JobSpec, OperatorSpec, Scenario
from headgate.sim.whatif import Question, WhatIfChanges, answer_question, predict, with_changes
from tests.examples import examples

HOSTS = (HostSpec("host-1", 8, 16, 32), HostSpec("host-2", 8, 16, 32))
MEASURED_S = 320.0


def job(
    name: str = "clicks", row_s: float = 4e-4, waits: float = 0.5, lanes: int = 3, rate: float = 900.0,
    fixed_s: float = 0.2,
) -> JobSpec:  # fmt: skip
    """Rows are parsed by a fused operator, which passes a part of them on to a look-up."""
    operators = (
        OperatorSpec("events", cost_s=0.1 * row_s * (1 - waits), wait_s=0.1 * row_s * waits, lanes=2),
        OperatorSpec("parse", ("events",), selectivity=0.7, lanes=0),
        OperatorSpec("look-up", ("parse",), cost_s=row_s * (1 - waits), wait_s=row_s * waits, lanes=lanes),
    )
    load = Sine(rate, 0.2 * rate, 60.0)
    intent = Intent(latency="1s", worth=10)
    return JobSpec(name, operators, intent, {"events": load}, "shop", 0.8, epoch_costs=EpochCosts(fixed_s))


def scenario(*jobs: JobSpec) -> Scenario:
    return Scenario("known", "", "", "epochs", MEASURED_S, 0.0, HOSTS, jobs or (job(),))


def journal_of(known: Scenario, policy: str = "static") -> MemoryJournal:
    journal = MemoryJournal()
    run(known, policy, 5, journal)
    return journal


def found_in(journal: MemoryJournal) -> Calibrated:
    restored, about = journal.restore(), journal.about()
    assert restored is not None
    definitions = definitions_in(about)
    intents = {name: intent_in(one, name)[0] for name, one in definitions.items()}
    return calibrate(JobMeasurements(restored.snapshots, intents, definitions, settings_in(about)))


# -- costs -------------------------------------------------------------------------------------------------------------


@examples(8)
@given(
    row_s=st.floats(1e-4, 8e-4),
    waits=st.floats(0.0, 0.9),
    lanes=st.integers(1, 6),
    rate=st.floats(200, 1500),
    fixed_s=st.floats(0.05, 0.5),
)
def test_known_costs_are_found_again_in_the_journal(
    row_s: float, waits: float, lanes: int, rate: float, fixed_s: float
) -> None:
    known = job("clicks", row_s, waits, lanes, rate, fixed_s)
    found = found_in(journal_of(scenario(known))).scenario.jobs[0]
    operators = {one.name: one for one in found.operators}
    look_up = operators["look-up"]
    assert look_up.cost_s + look_up.wait_s == pytest.approx(row_s, rel=0.06)
    # The noise of the cores that epochs take besides their rows cannot be told apart from the cores that rows take.
    assert look_up.cost_s == pytest.approx(row_s * (1 - waits), abs=0.1 * row_s + 0.015 / rate)
    assert [one.lanes for one in found.operators] == [2, 0, lanes]
    assert [one.inputs for one in found.operators] == [(), ("events",), ("parse",)]
    assert operators["parse"].selectivity == pytest.approx(0.7, rel=0.01)
    assert found.loads["events"].rate_rows_s(0.0) == pytest.approx(rate, rel=0.1)
    duration_s = fixed_s + rate * 0.8 * row_s * (0.05 + 0.7 / lanes)
    assert found.epoch_costs is not None
    assert found.epoch_costs.fixed_s == pytest.approx(fixed_s, abs=0.06 * duration_s)
    assert (found.pace_s, found.tenant, found.intent) == (0.8, "shop", known.intent)


def test_costs_of_several_jobs_are_told_apart() -> None:
    jobs = job("cheap", 1e-4, fixed_s=0.1), job("dear", 8e-4, fixed_s=0.4)
    found = {one.name: one for one in found_in(journal_of(scenario(*jobs))).scenario.jobs}
    costs = {name: one.operators[2].cost_s + one.operators[2].wait_s for name, one in found.items()}
    assert costs == {"cheap": pytest.approx(1e-4, rel=0.06), "dear": pytest.approx(8e-4, rel=0.06)}
    fixed = {name: one.epoch_costs.fixed_s for name, one in found.items() if one.epoch_costs is not None}
    assert fixed == {"cheap": pytest.approx(0.1, rel=0.1), "dear": pytest.approx(0.4, rel=0.1)}


@examples(4)
@given(factor=st.sampled_from((0.5, 2.0, 3.0)), row_s=st.floats(2e-4, 6e-4), waits=st.floats(0.2, 0.9))
def test_calibrated_model_predicts_what_the_known_scenario_does(factor: float, row_s: float, waits: float) -> None:
    known = scenario(job("clicks", row_s, waits))
    changes = WhatIfChanges({"clicks": factor})
    answer = answer_question(journal_of(known), Question(changes, hold=True, after_s=MEASURED_S))
    true = predict(with_changes(known, changes), "static")
    assert answer.then.satisfaction == pytest.approx(true.satisfaction, abs=0.05)
    assert answer.then.jobs["clicks"].latency_s == pytest.approx(true.jobs["clicks"].latency_s, rel=0.15)


def test_core_load_of_others_is_kept_apart_from_that_of_the_jobs() -> None:
    journal = journal_of(scenario())
    restored = journal.restore()
    assert restored is not None
    load = sum(host.load or 0.0 for host in restored.snapshots[-1].hosts)
    snapshots = tuple(_with_others(snapshot, 3.0) for snapshot in restored.snapshots)
    found = calibrate(
        JobMeasurements(snapshots, {"clicks": Intent(latency="1s")}, definitions_in(journal.about()), Settings())
    )
    assert sum(event.value for event in found.scenario.events) == pytest.approx(3.0, rel=0.05)
    assert {event.kind for event in found.scenario.events} == {"cpu-load"}
    assert load > 0


def _with_others(snapshot: Snapshot, cores: float) -> Snapshot:
    hosts = tuple(
        dataclasses.replace(host, load=(host.load or 0.0) + cores / len(snapshot.hosts), used=host.load)
        for host in snapshot.hosts
    )
    return dataclasses.replace(snapshot, hosts=hosts)


def test_cost_of_a_row_is_told_apart_from_a_jvm_that_becomes_faster() -> None:
    """While tasks become faster, epochs become more and smaller: small tasks come with a small fixed part, which is no cost of rows."""
    row_s, points = 1.2e-3, list[tuple[float, float, float]]()
    for at in range(14):
        rows, tasks, fixed_s = 900 * (1 + 0.3 * math.sin(at * math.pi / 3)), 8.0 + at, 0.08 - 0.005 * at
        points.append((rows, row_s * rows + fixed_s * tasks, tasks))
    assert slope(points) == pytest.approx(row_s, rel=0.1)


def test_cost_of_a_row_is_found_in_a_load_that_only_rises() -> None:
    points = [(rows, 1.2e-3 * rows + 0.05 * 8, 8.0) for rows in range(400, 1400, 100)]
    assert slope(points) == pytest.approx(1.2e-3, rel=0.1)


def test_wait_for_slots_is_no_fixed_part_of_an_epoch() -> None:
    jobs = [dataclasses.replace(job(f"job-{n}", 1e-3, 1.0, rate=600.0), pace_s=0.0) for n in range(8)]
    few = dataclasses.replace(scenario(*jobs), hosts=(HostSpec("host-1", 8, 16, 4),))
    for found in found_in(journal_of(few)).scenario.jobs:
        assert found.epoch_costs is not None and found.epoch_costs.fixed_s == pytest.approx(0.2, rel=0.1)


def test_reading_of_an_earlier_version_has_no_slots_and_none_are_made_up() -> None:
    old = msgspec.msgpack.encode({"name": "host-1", "cores": 4.0, "load": 1.0})
    host = msgspec.msgpack.decode(old, type=HostReading)
    assert (host.slots, host.used) == (None, None)


# -- definitions -------------------------------------------------------------------------------------------------------

SHAPES = st.one_of(
    st.sampled_from(("knee", "step", "linear", "lognormal")),
    st.floats(1.1, 9).map(Linear),
    st.floats(0.1, 3).map(Lognormal),
    st.just(Piecewise([("1s", 1.0), ("3s", 0.5)])),
)


@given(
    latency=st.floats(0.01, 100), worth=st.floats(0.1, 1e4), shape=SHAPES,
    percentile=st.one_of(st.none(), st.floats(1, 100)),
)  # fmt: skip
def test_intent_in_the_journal_is_the_same_intent(
    latency: float, worth: float, shape: str | Shape, percentile: float | None
) -> None:
    intent = Intent(latency=latency, worth=worth, percentile=percentile, shape={"latency": shape})
    assert intent_in(JobDefinition(intent_table(intent)), "clicks") == (intent, "")


def test_function_of_the_user_is_replaced_by_the_knee_and_a_note_says_so() -> None:
    intent = Intent(latency="2s", worth=5, shape=Custom(_half_at_all_times))
    found, note = intent_in(JobDefinition(intent_table(intent)), "clicks")
    assert found == Intent(latency="2s", worth=5)
    assert note == "clicks: its utility function is not loaded; utility falls as with the knee"


def _half_at_all_times(value_s: float) -> float:
    return 0.5


def test_journal_has_the_definitions_of_the_jobs_of_its_newest_round() -> None:
    journal = journal_of(scenario(job("one"), job("two")))
    known = definitions_in(journal.about())
    assert known["one"] == JobDefinition({"latency": 1.0, "worth": 10.0}, "shop")
    assert set(known) == {"one", "two"}


def test_journal_has_the_settings_that_differ_from_their_defaults() -> None:
    settings = settings_from({"round_s": 5, "sizing": "paper"})
    assert settings_text(settings) == '{"round_s":5.0,"sizing":"paper"}'
    assert settings_in({SETTINGS_KEY: settings_text(settings)}) == settings
    assert settings_in({}) == Settings()


def test_journal_of_an_earlier_version_has_settings_by_their_old_names() -> None:
    assert settings_in({SETTINGS_KEY: '{"brink": 0.8}'}) == Settings(close_to_miss=0.8)


@pytest.mark.parametrize("read", [definitions_in, settings_in])
def test_damaged_definitions_are_told_in_a_sentence(read: object) -> None:
    with pytest.raises(JournalDamagedError, match="in the journal cannot be read"):
        read({JOBS_KEY: "[", SETTINGS_KEY: "["})  # type: ignore[operator]


def test_definitions_are_written_again_only_when_they_change() -> None:
    written: list[str] = []

    class Noting(MemoryJournal):
        def set_about(self, key: str, value: str) -> None:
            written.append(key)
            super().set_about(key, value)

    run(dataclasses.replace(scenario(), duration_s=100.0), "static", 5, Noting())
    assert written == [SETTINGS_KEY, JOBS_KEY]
    assert definitions_in({JOBS_KEY: definitions_text({})}) == {}


# -- the epoch model ---------------------------------------------------------------------------------------------------


def test_fused_operator_has_no_lanes_and_costs_no_task() -> None:
    engine = engine_for(scenario(), 5)
    engine.sleep_until(60.0)
    snapshot = engine.observe()
    reading = snapshot.jobs["clicks"]
    assert reading is not None
    assert snapshot.allocation["clicks"].lanes == {"events": 2, "look-up": 3}
    assert reading.operators["parse"].busy_s == ()
    assert reading.operators["parse"].processed["events"] > 0
    assert reading.operators["look-up"].processed["parse"] == pytest.approx(
        0.7 * reading.operators["parse"].processed["events"]
    )


def test_tasks_of_other_jobs_take_the_slots_of_a_job() -> None:
    """Look-ups want no cores: without slots that are short, jobs would not notice each other."""
    waiting = [dataclasses.replace(job(f"job-{n}", 1e-3, 1.0, rate=600.0), pace_s=0.0) for n in range(10)]
    few, short = (HostSpec("host-1", 8, 16, 4),), 100.0
    alone = predict(dataclasses.replace(scenario(waiting[0]), hosts=few, duration_s=short), "static")
    crowded = predict(dataclasses.replace(scenario(*waiting), hosts=few, duration_s=short), "static")
    roomy = predict(dataclasses.replace(scenario(*waiting), duration_s=short), "static")
    latency = [one.jobs["job-0"].latency_s or 0.0 for one in (alone, roomy, crowded)]
    assert latency[1] == pytest.approx(latency[0], rel=0.1)
    assert latency[2] > 1.2 * latency[0]


def test_steady_load_is_taken_for_what_it_is() -> None:
    known = dataclasses.replace(job(), loads={"events": Steady(500.0)})
    found = found_in(journal_of(scenario(known))).scenario.jobs[0]
    assert found.loads["events"].rate_rows_s(0.0) == pytest.approx(500.0, rel=0.1)
