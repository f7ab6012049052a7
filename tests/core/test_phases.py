"""Epochs that are due at about the same time start apart."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.phases import fair_gap_s, spread_start_s
from tests.examples import examples

OTHERS = st.lists(st.floats(0, 20), max_size=30)
SLACK_S, GAP_S = 1.0, 0.3


def gap_s(at_s: float, others: list[float]) -> float:
    return min(abs(at_s - other) for other in others)


@given(OTHERS, st.floats(5, 15))
@examples(100)
def test_epoch_starts_within_its_slack_never_late_and_no_nearer_to_another_than_when_due_or_its_gap(
    others: list[float], due_s: float
) -> None:
    start_s = spread_start_s(due_s, SLACK_S, GAP_S, others)
    assert due_s - SLACK_S <= start_s <= due_s
    if others:
        assert gap_s(start_s, others) >= min(GAP_S, gap_s(due_s, others)) - 1e-9


def test_epochs_that_are_due_at_once_drift_apart_until_each_has_its_gap() -> None:
    pace_s, jobs = 10.0, 8
    wanted_s = fair_gap_s([pace_s] * jobs)
    due = dict.fromkeys(range(jobs), pace_s)
    for _ in range(20):
        for job in sorted(due, key=lambda one: due[one]):
            others = [at_s for other, at_s in due.items() if other != job]
            due[job] = pace_s + spread_start_s(due[job], SLACK_S, wanted_s, others)
    starts = sorted(due.values())
    assert min(after - before for before, after in pairwise(starts)) >= wanted_s - 1e-9


def test_epoch_without_company_starts_when_it_is_due() -> None:
    assert spread_start_s(10.0, SLACK_S, GAP_S, [7.0, 14.0]) == 10.0
    assert spread_start_s(10.0, 0.0, GAP_S, [10.0]) == 10.0
