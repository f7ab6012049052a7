"""Capacity and congestion (Henge (SoCC '18), sections 5.1 and 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.metrics import capacities, cluster_congested
from headgate.core.model import HostReading
from headgate.core.windows import Span, epoch_s
from tests.core.builders import LAW, Counts, chain, span_of_counts

GRAPH = chain("in", "parse", "rank")


def span(
    busy_s: Mapping[str, tuple[float, ...]],
    seconds: float = 60.0,
    in_epochs_s: float | None = None,
    epochs: int | None = None,
) -> Span:
    counts = Counts(GRAPH, {"in": (1, 1)}, {("in", "parse"): (1, 1), ("parse", "rank"): (1, 1)}, busy_s)
    return span_of_counts(counts, seconds=seconds, in_epochs_s=in_epochs_s, epochs=epochs)


# -- operators


def test_capacity_is_the_time_spent_on_rows_over_the_window() -> None:
    executed, latency_s = 12_000, 0.002
    busy_s = (executed * latency_s,)
    assert capacities(GRAPH, span({"in": (0.0,), "parse": busy_s, "rank": (0.0,)}))["parse"] == pytest.approx(0.4)


def test_capacity_of_an_operator_is_that_of_its_busiest_lane() -> None:
    busy = {"in": (6.0,), "parse": (6.0, 48.0, 12.0), "rank": (30.0, 30.0)}
    assert capacities(GRAPH, span(busy)) == pytest.approx({"in": 0.1, "parse": 0.8, "rank": 0.5})


def test_capacity_is_at_most_1() -> None:
    assert capacities(GRAPH, span({"in": (61.0,), "parse": (60.0,), "rank": (0.0,)}))["in"] == 1


def test_stages_that_follow_one_another_share_the_time_spent_in_epochs() -> None:
    busy = {"in": (2.0,), "parse": (5.0, 20.0), "rank": (10.0, 8.0)}
    staged = capacities(GRAPH, span(busy, in_epochs_s=45.0, epochs=9))
    assert staged == pytest.approx({"in": 0.075, "parse": 0.75, "rank": 0.375})


def test_capacity_is_0_when_no_epoch_did_anything() -> None:
    busy = {"in": (0.0,), "parse": (0.0,), "rank": (0.0,)}
    assert capacities(GRAPH, span(busy, in_epochs_s=3.0, epochs=9)) == {"in": 0, "parse": 0, "rank": 0}


@LAW
@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0, 1))
@example(1.0, 3.0, 2.0, 5e-324)
def test_slowest_stage_is_busy_for_all_of_the_time_in_epochs(first: float, second: float, third: float, share: float):
    busy = {"in": (first,), "parse": (second,), "rank": (third,)}
    staged = capacities(GRAPH, span(busy, in_epochs_s=share * 60, epochs=6))
    assert max(staged.values()) == pytest.approx(share)
    by_busy_time = sorted(busy, key=lambda name: busy[name])
    assert all(staged[one] <= staged[busier] for one, busier in pairwise(by_busy_time))


def test_epoch_takes_the_mean_of_the_time_spent_in_epochs() -> None:
    assert epoch_s(span({}, in_epochs_s=12.0, epochs=24)) == pytest.approx(0.5)


@pytest.mark.parametrize(("in_epochs_s", "epochs"), [(None, None), (4.0, 0)])
def test_epoch_is_not_known_without_one(in_epochs_s: float | None, epochs: int | None) -> None:
    assert epoch_s(span({}, in_epochs_s=in_epochs_s, epochs=epochs)) is None


# -- hosts and the cluster


@pytest.mark.parametrize(("load", "congested"), [(7.9, False), (8.0, False), (8.1, True), (None, None)])
def test_host_is_congested_when_more_wants_to_run_than_it_has_cores(load: float | None, congested: bool | None) -> None:
    assert HostReading("host", 8, load).congested is congested


def hosts(*loads: float | None) -> tuple[HostReading, ...]:
    return tuple(HostReading(f"host-{number}", 8, load) for number, load in enumerate(loads))


@pytest.mark.parametrize(
    ("loads", "congested"),
    [
        ((9, 9, 1), True),
        ((9, 1, 1), False),
        ((9, 1), False),
        ((9,), True),
        ((9, None, None), True),
        ((9, 1, None), False),
        ((None, None), None),
        ((), None),
    ],
)
def test_cluster_is_congested_when_the_majority_of_its_known_hosts_is(
    loads: tuple[float | None, ...], congested: bool | None
) -> None:
    assert cluster_congested(hosts(*loads)) is congested
