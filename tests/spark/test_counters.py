"""What a job's counters say of single lanes. No Spark runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.core.model import Graph, JobAllocation, Operator
from headgate.spark.engine import _refusal
from headgate.spark.measuring.counters import Counters, FinishedEpoch, start_of

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
        counters.set_hosts(1, {"work": {0: host, 1: "other", 2: "other"}})
    assert work(counters).lane_rows == (20.0, 40.0, 10.0)
    assert work(counters).hosts == ("second", "other", "other")


def test_hosts_are_not_known_as_long_as_one_is_missing(counters: Counters) -> None:
    counters.set_hosts(1, {"work": {0: "here"}})
    assert work(counters).hosts is None


def test_lanes_of_another_allocation_do_not_count(counters: Counters) -> None:
    counters.add_rows(1, {"work": {0: 10.0}})
    counters.add_rows(2, {"work": {0: 99.0}})
    assert work(counters).lane_rows == (10.0, 0.0, 0.0)
    counters.begin_epoch(1.0, 0.0)
    counters.end_epoch(2.0, {}, (), FinishedEpoch(2, "tag", {}, 0), {"work": 2})
    assert work(counters).lane_rows is None


HAS = JobAllocation({"work": 3}, 0.0)
KNOWN = {"work": ((5.0, 5.0, 1.0), (0, 1, 2))}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (HAS, ""),
        (replace(HAS, avoided=("host-1",)), ""),
        (replace(HAS, avoided=("host-1", "host-2")), "no host besides host-1, host-2 that its lanes could run on"),
        (replace(HAS, slices={"work": (0, 1, 1)}), ""),
        (replace(HAS, slices={"work": (0, 1)}), 'operator "work" has 3 slices, not 2'),
        (replace(HAS, slices={"work": (0, 1, 3)}), "on lanes that it does not have"),
        (replace(HAS, slices={"other": (0, 1, 2)}), 'operator "other" has no slices that could be re-assigned'),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(wanted: JobAllocation, sentence: str) -> None:
    refusal = _refusal(HAS, wanted, KNOWN, {"host-1", "host-2"})
    assert sentence in refusal and bool(refusal) == bool(sentence)


def test_hosts_that_are_avoided_already_hold_up_no_other_change() -> None:
    has = replace(HAS, avoided=("host-1",))
    assert _refusal(has, replace(has, lanes={"work": 4}), {}, {"host-1"}) == ""


def test_slices_are_told_with_their_rows_and_lanes(counters: Counters) -> None:
    told = counters.reading(1.0, {"in": 0.0}, KNOWN).operators["work"]
    assert (told.slice_rows, told.slice_lanes) == KNOWN["work"]


def test_backlog_is_unknown_if_a_source_cannot_tell_what_arrived(counters: Counters) -> None:
    assert counters.reading(0.0, {"in": 12.0}).backlog == 12.0
    assert counters.reading(0.0, {"in": None}).backlog is None
