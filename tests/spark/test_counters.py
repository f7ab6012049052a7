"""What a job's counters say of single lanes. No Spark runs here."""

from __future__ import annotations

import pytest

from headgate.core.model import Action, ActionKind, Cause, Graph, JobAllocation, Operator
from headgate.spark.counters import Counters, Done, start_of
from headgate.spark.engine import _beyond

GRAPH = Graph.of(Operator("in"), Operator("work", ("in",)))


@pytest.fixture
def counters() -> Counters:
    return start_of(GRAPH, JobAllocation({"work": 3}, 0.0), 1, {})


def work(counters: Counters):
    return counters.reading(10.0, {"in": None}).operators["work"]


def test_nothing_is_known_of_lanes_before_their_tasks_were_looked_at(counters: Counters) -> None:
    assert (work(counters).lane_rows, work(counters).hosts) == (None, None)


def test_rows_of_lanes_add_up_and_the_last_host_counts(counters: Counters) -> None:
    for host in ("first", "second"):
        counters.add_rows(1, {"work": {0: 10.0, 1: 20.0, 2: 5.0}})
        counters.ran_on(1, {"work": {0: host, 1: "other", 2: "other"}})
    assert work(counters).lane_rows == (20.0, 40.0, 10.0)
    assert work(counters).hosts == ("second", "other", "other")


def test_hosts_are_not_known_as_long_as_one_is_missing(counters: Counters) -> None:
    counters.ran_on(1, {"work": {0: "here"}})
    assert work(counters).hosts is None


def test_lanes_of_another_allocation_do_not_count(counters: Counters) -> None:
    counters.add_rows(1, {"work": {0: 10.0}})
    counters.add_rows(2, {"work": {0: 99.0}})
    assert work(counters).lane_rows == (10.0, 0.0, 0.0)
    counters.started(1.0, 0.0)
    counters.finished(2.0, {}, (), Done(2, "tag", {}, 0), {"work": 2})
    assert work(counters).lane_rows is None


@pytest.mark.parametrize(
    ("allocation", "sentence"),
    [
        (JobAllocation({"work": 3}, 0.0), ""),
        (JobAllocation({"work": 3}, 0.0, avoided=("host-1",)), "cannot be moved off a host"),
        (JobAllocation({"work": 3}, 0.0, slices={"work": (0, 1, 2)}), "no operator has slices"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(allocation: JobAllocation, sentence: str) -> None:
    refusal = _beyond(Action(ActionKind.RECONFIGURE, "job", {"job": allocation}, Cause("a test")))
    assert sentence in refusal and bool(refusal) == bool(sentence)
