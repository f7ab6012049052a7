"""Weighted fairness among tenants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.fairness import TOTAL_PART, fair_score, most_fair_score, weighted_satisfactions


def job(tenant: str, utility: float | None, worth: float = 10.0, weight: float = 1.0) -> Any:
    """All that fairness reads of the view of a job."""
    return SimpleNamespace(job=SimpleNamespace(tenant=tenant, weight=weight), utility=utility, worth=worth)


def test_satisfaction_of_a_tenant_is_of_its_jobs_together():
    found = weighted_satisfactions([job("a", 10), job("a", 0, worth=30), job("b", 5)])
    assert found == {"a": 0.25, "b": 0.5}


def test_tenant_with_twice_the_weight_comes_first_at_the_same_satisfaction():
    found = weighted_satisfactions([job("a", 5, weight=2.0), job("b", 5)])
    assert found["a"] == found["b"] / 2


def test_lowest_tenant_outweighs_the_total():
    rich_first = [job("a", 100, worth=100), job("b", 0)]
    fair = [job("a", 50, worth=100), job("b", 5)]
    assert fair_score(fair) > fair_score(rich_first)


def test_total_decides_between_equally_fair_allocations():
    assert fair_score([job("a", 5), job("b", 9)]) > fair_score([job("a", 5), job("b", 6)])


def test_score_is_highest_when_all_intents_are_met():
    jobs = [job("a", 10, weight=2.0), job("b", 10)]
    assert fair_score(jobs) == pytest.approx(most_fair_score(jobs))
    assert most_fair_score([]) == 1.0 + TOTAL_PART


def test_job_that_is_not_judged_does_not_count_against_its_tenant():
    assert weighted_satisfactions([job("a", None), job("a", 10)]) == {"a": 1.0}
