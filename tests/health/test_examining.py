"""A job over time: waiting, judging by the policy's own measure, the action log, the blacklist and what is tried next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import Settings
from headgate.health.examining import Examination, History, examine
from headgate.health.policies import HealthPolicy, Provision, Throughput
from headgate.health.records import Alert, Diagnosis, DiagnosisKind, LogEntry, ObservedJob, Symptom, blacklisted, purged
from tests.core.builders import LAW
from tests.health.observed_jobs import Lanes, observed, one_hot, one_slow, too_few

SETTINGS = Settings()
HEALTHY = Lanes((100.0,) * 8, (0.93,) * 8, (0.0,) * 8, (0.0,) * 8)
HOUR_S = 3600.0


@dataclasses.dataclass
class Case:
    """A job that a policy looks after."""

    policy: HealthPolicy = dataclasses.field(default_factory=Provision)
    settings: Settings = SETTINGS
    at_s: float = 1000.0
    history: History = dataclasses.field(default_factory=History)

    def see(self, lanes: Lanes, seconds: float = 900.0) -> Examination:
        """Twenty minutes later, after it has been like this for so long."""
        self.at_s += 1200
        job = observed(lanes, self.settings, seconds, self.at_s)
        found = examine(self.history, self.policy, job)
        log = self.history.log if found.judged is None else (*self.history.log, found.judged)
        self.history = History(purged(log, self.at_s, self.settings), found.tried)
        return found


def resolver(found: Examination) -> str:
    assert found.remedy is not None
    return found.remedy.resolver


# -- waiting


def test_nothing_is_said_on_too_little_data() -> None:
    found = Case().see(too_few(), seconds=110)
    assert found.remedy is None and not found.diagnoses
    assert "less than 2 min" in found.cause


def test_trouble_is_met_before_the_window_is_full() -> None:
    assert resolver(Case().see(too_few(), seconds=120)) == "scale up"


def test_healthy_job_is_left_alone() -> None:
    found = Case().see(HEALTHY)
    assert (found.cause, found.remedy, found.diagnoses) == ("healthy", None, ())


# -- judging


def test_action_helped_if_that_operator_holds_back_less() -> None:
    case = Case()
    case.see(too_few(held=0.4))
    judged = case.see(too_few(held=0.1)).judged
    assert judged is not None and judged.useful is True
    assert (judged.before["held"], judged.after["held"]) == pytest.approx((0.4, 0.1))


def test_action_was_useless_if_it_holds_back_as_much() -> None:
    case = Case()
    case.see(too_few(held=0.4))
    judged = case.see(too_few(held=0.4)).judged
    assert judged is not None and judged.useful is False


def test_action_is_not_blamed_for_input_that_grew_meanwhile() -> None:
    case = Case()
    case.see(too_few(held=0.4))
    judged = case.see(too_few(held=0.7)).judged
    assert judged is not None and judged.useful is None


def test_action_helped_if_that_operator_can_take_more_though_queues_have_only_just_filled_up() -> None:
    case = Case()
    assert resolver(case.see(one_slow(8, 0.5, held=0.05))) == "move lanes"
    judged = case.see(dataclasses.replace(too_few(8, held=0.3), rows=(200.0,) * 8)).judged
    assert judged is not None and judged.useful is True
    assert judged.before["sustains"] == pytest.approx(800) and judged.after["sustains"] == pytest.approx(1600)


def test_fewer_lanes_were_useful_only_if_nothing_is_held_back_then() -> None:
    idle = Lanes((100.0,) * 8, (0.3,) * 8, (0.0,) * 8, (0.0,) * 8)
    for after, useful in ((HEALTHY, True), (too_few(), False)):
        case = Case()
        assert resolver(case.see(idle)) == "scale down"
        judged = case.see(after).judged
        assert judged is not None and judged.useful is useful


def test_more_source_lanes_helped_if_more_comes_or_would_were_it_not_held_back() -> None:
    case = Case(Throughput(10_000.0))
    assert resolver(case.see(HEALTHY)) == "scale up source"
    judged = case.see(too_few(held=0.5)).judged
    assert judged is not None and (judged.diagnosis, judged.useful) == (DiagnosisKind.TOO_LITTLE_INPUT, True)


class OnlyTotals(Provision):
    """A policy with a measure of its own."""

    def helped(self, entry: LogEntry, after: Mapping[str, float], observed: ObservedJob) -> bool | None:
        return after["emitted"] > entry.before["emitted"]


def test_policy_judges_by_its_own_measure() -> None:
    case = Case(OnlyTotals())
    case.see(too_few(held=0.4))
    judged = case.see(too_few(held=0.1)).judged
    assert judged is not None and judged.useful is False


# -- the blacklist


def test_useless_remedy_gives_way_to_the_remaining_ones_in_turn() -> None:
    case = Case()
    hot = one_hot(4, 3.0)
    tried = [resolver(case.see(hot)) for _ in range(2)]
    assert tried == ["re-assign slices", "scale up"], "another host does not change who gets which rows"
    assert case.see(hot).remedy is None
    assert "no remaining remedy" in case.see(hot).cause


def test_useful_remedy_is_used_again() -> None:
    case = Case()
    tried = [resolver(case.see(too_few(held=held))) for held in (0.8, 0.5, 0.3, 0.1)]
    assert tried == ["scale up"] * 4


def test_blacklist_goes_by_the_ratio_of_useless_tries() -> None:
    diagnosis = Diagnosis(DiagnosisKind.SKEW, "work", "")
    log = tuple(
        LogEntry(0.0, "job", "provision", DiagnosisKind.SKEW, "work", "re-assign slices", useful=u)
        for u in (True, True, False)
    )
    assert not blacklisted(log, "job", diagnosis, "re-assign slices", SETTINGS)
    worse = (*log, *(dataclasses.replace(log[-1], useful=False) for _ in range(2)))
    assert blacklisted(worse, "job", diagnosis, "re-assign slices", SETTINGS)
    lenient = dataclasses.replace(SETTINGS, blacklist_ratio=0.7)
    assert not blacklisted(worse, "job", diagnosis, "re-assign slices", lenient)


def test_what_failed_for_one_operator_diagnosis_or_job_is_not_held_against_another() -> None:
    log = (LogEntry(0.0, "job", "provision", DiagnosisKind.SKEW, "work", "scale up", useful=False),)
    assert blacklisted(log, "job", Diagnosis(DiagnosisKind.SKEW, "work", ""), "scale up", SETTINGS)
    assert not blacklisted(log, "job", Diagnosis(DiagnosisKind.SKEW, "other", ""), "scale up", SETTINGS)
    assert not blacklisted(log, "job", Diagnosis(DiagnosisKind.TOO_FEW_LANES, "work", ""), "scale up", SETTINGS)
    assert not blacklisted(log, "another", Diagnosis(DiagnosisKind.SKEW, "work", ""), "scale up", SETTINGS)


def test_without_diagnosed_remedies_there_are_only_lanes() -> None:
    case = Case(settings=Settings(remedies="lanes"))
    assert resolver(case.see(one_slow())) == "scale up"


# -- the action log


def entries(times_h: Sequence[float]) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(at * HOUR_S, "job", "provision", DiagnosisKind.SKEW, "work", "scale up") for at in times_h)


@LAW
@given(st.lists(st.floats(0, 500), max_size=30), st.integers(1, 20), st.floats(1, 400))
def test_log_keeps_the_newest_entries_and_none_that_is_too_old(times_h: list[float], most: int, hours: float) -> None:
    log = entries(sorted(times_h))
    kept = purged(log, 500 * HOUR_S, Settings(log_entries=most, log_keep_h=hours))
    assert len(kept) <= most
    assert all(500 * HOUR_S - entry.at_s <= hours * HOUR_S for entry in kept)
    assert kept == log[len(log) - len(kept) :]
    if len(kept) < min(most, len(log)):
        assert 500 * HOUR_S - log[len(log) - len(kept) - 1].at_s > hours * HOUR_S


def test_blacklisted_remedy_has_another_chance_when_its_entries_are_gone() -> None:
    case = Case(settings=Settings(log_keep_h=1.0))
    assert resolver(case.see(one_slow())) == "move lanes"
    assert resolver(case.see(one_slow())) == "scale up"
    case.at_s += 2 * HOUR_S
    assert resolver(case.see(one_slow())) in ("re-assign slices", "move lanes")


# -- policies that only look on


class Watch(HealthPolicy):
    """Tells a person about input that is held back."""

    name = "watch"
    detectors = Provision.detectors
    diagnosers = Provision.diagnosers
    resolvers = Provision.resolvers

    def alerts(self, symptoms: Sequence[Symptom], diagnoses: Sequence[Diagnosis], observed: ObservedJob) -> list[Alert]:
        return [Alert(diagnosis.text, diagnosis.operator) for diagnosis in diagnoses]


def test_policy_that_is_not_invasive_raises_alerts_and_changes_nothing() -> None:
    case = Case(Watch())
    found = case.see(too_few())
    assert found.remedy is None
    assert found.tried is None
    assert [alert.text for alert in found.alerts] == [found.diagnoses[0].text]


def test_spare_lanes_are_given_back_and_the_log_says_why() -> None:
    case = Case()
    case.see(Lanes((100.0,) * 8, (0.3,) * 8, (0.0,) * 8, (0.0,) * 8))
    case.see(HEALTHY)
    assert [(entry.diagnosis, entry.resolver, entry.useful) for entry in case.history.log] == [
        (DiagnosisKind.SPARE_LANES, "scale down", True)
    ]
