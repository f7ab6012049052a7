"""Juice: known answers of Henge (SoCC '18), section 6 and of its technical report, section 5, and the laws behind them."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.metrics import job_juice
from headgate.core.model import Graph, Operator
from headgate.core.windows import Sample, Span
from tests.core.builders import LAW, Counts, chain, span_of_counts

K = 1000.0
PASS = chain("in", "out")


def fork_and_merge() -> Counts:
    graph = Graph.of(
        Operator("spout"), Operator("A", ("spout",)), Operator("B", ("A",)), Operator("C", ("A",)), Operator("D", ("B", "C"))
    )  # fmt: skip
    return Counts(
        graph,
        sources={"spout": (10 * K, 10 * K)},
        edges={
            ("spout", "A"): (10 * K, 10 * K),
            ("A", "B"): (8 * K, 8 * K),
            ("A", "C"): (8 * K, 6 * K),
            ("B", "D"): (8 * K, 8 * K),
            ("C", "D"): (6 * K, 6 * K),
        },
    )


def split_merge_and_duplicate() -> Counts:
    graph = Graph.of(
        Operator("spout 1"),
        Operator("spout 2"),
        Operator("A", ("spout 1",)),
        Operator("B", ("A", "E")),
        Operator("C", ("B",)),
        Operator("D", ("spout 2",)),
        Operator("E", ("D",)),
        Operator("F", ("E",)),
    )
    return Counts(
        graph,
        sources={"spout 1": (10 * K, 10 * K), "spout 2": (10 * K, 10 * K)},
        edges={
            ("spout 1", "A"): (10 * K, 5 * K),
            ("A", "B"): (5 * K, 5 * K),
            ("spout 2", "D"): (10 * K, 10 * K),
            ("D", "E"): (20 * K, 10 * K),
            ("E", "B"): (10 * K, 10 * K),
            ("E", "F"): (10 * K, 8 * K),
            ("B", "C"): (30 * K, 30 * K),
        },
    )


def juice(counts: Counts, before: Counts | None = None) -> float:
    found = job_juice(counts.graph, span_of_counts(counts, before))
    assert found is not None
    return found


# -- the papers' examples


def test_fork_with_one_congested_branch_has_the_papers_juice() -> None:
    assert juice(fork_and_merge()) == pytest.approx(0.875)


def test_split_merge_and_duplication_have_the_papers_juice() -> None:
    assert juice(split_merge_and_duplicate()) == pytest.approx(0.475)


def test_branches_that_end_in_sinks_add_up_to_the_juice_of_the_job() -> None:
    graph = Graph.of(
        Operator("spout"), Operator("A", ("spout",)), Operator("B", ("A",)), Operator("C", ("A",))
    )  # fmt: skip
    edges = {("spout", "A"): (10 * K, 10 * K), ("A", "B"): (8 * K, 8 * K), ("A", "C"): (8 * K, 6 * K)}
    counts = Counts(graph, {"spout": (10 * K, 10 * K)}, edges)
    assert juice(counts) == pytest.approx(0.875)


# -- sources


def test_rows_that_wait_in_front_of_a_source_lower_its_juice() -> None:
    counts = Counts(chain("in"), sources={"in": (1000, 600)})
    assert juice(counts) == pytest.approx(0.6)


def test_job_without_input_has_full_juice() -> None:
    counts = Counts(PASS, sources={"in": (0, 0)}, edges={("in", "out"): (0, 0)})
    assert juice(counts) == 1


def test_rows_that_wait_for_less_than_two_epochs_are_not_late() -> None:
    counts = Counts(chain("in"), sources={"in": (6000, 5100)})
    span = span_of_counts(counts, in_epochs_s=10, epochs=12)
    assert job_juice(counts.graph, span) == 1


def test_rows_that_wait_for_more_than_two_epochs_are_late() -> None:
    counts = Counts(chain("in"), sources={"in": (6000, 4400)})
    assert job_juice(counts.graph, _in_mid_life(counts, epochs=12)) == pytest.approx(1 - 600 / 6000)


def _in_mid_life(counts: Counts, epochs: int) -> Span:
    """The span of these counts in a job that has finished a hundred epochs before."""
    span = span_of_counts(counts, in_epochs_s=10, epochs=epochs)
    first, last = (
        dataclasses.replace(one, reading=dataclasses.replace(one.reading, epochs=(one.reading.epochs or 0) + 100))
        for one in (span.first, span.last)
    )
    return Span(first, last, span.latency)


def test_rows_that_come_late_from_the_start_of_a_job_all_count() -> None:
    counts = Counts(chain("in"), sources={"in": (6000, 4400)})
    span = span_of_counts(counts, in_epochs_s=10, epochs=12)
    assert job_juice(counts.graph, span) == pytest.approx(4400 / 6000)


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_job_that_hardly_finishes_an_epoch_does_not_excuse_itself(epochs: int) -> None:
    counts = Counts(chain("in"), sources={"in": (6000, 0)})
    span = span_of_counts(counts, in_epochs_s=60, epochs=epochs)
    found = job_juice(counts.graph, span)
    assert found is not None and found <= 0.5


# -- sinks and filters


@LAW
@given(share=st.floats(0.2, 0.8), period_s=st.floats(1, 5), from_s=st.floats(100, 200), seconds=st.floats(20, 60))
def test_juice_of_a_job_in_epochs_does_not_depend_on_when_it_is_looked_at(
    share: float, period_s: float, from_s: float, seconds: float
) -> None:
    graph = chain("in")

    def seen(at_s: float) -> Sample:
        """Rows come evenly, and every epoch does that share of them."""
        epochs = math.floor(at_s / period_s)
        reading = Counts(graph, sources={"in": (10 * at_s, 10 * share * epochs * period_s)}).reading(epochs=epochs)
        return Sample(at_s, dataclasses.replace(reading, epoch_age_s=at_s - epochs * period_s))

    found = job_juice(graph, Span(seen(from_s), seen(from_s + seconds), None))
    assert found == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("epoch_s", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("judged_s", [8.0, 12.0, 16.0, 24.0])
def test_job_that_falls_behind_from_its_start_has_the_same_juice_at_once(epoch_s: float, judged_s: float) -> None:
    graph, rows_s, share, window_s = chain("in"), 1300.0, 0.25, 12.0

    def seen(at_s: float) -> Sample:
        """Every epoch reads a quarter of the rows that come while it runs; the first begins after a second."""
        epochs = math.floor(max(0.0, at_s - 1.0) / epoch_s)
        counts = Counts(graph, sources={"in": (rows_s * at_s, epochs * epoch_s * rows_s * share)})
        age_s = at_s - 1.0 - epochs * epoch_s
        return Sample(at_s, dataclasses.replace(counts.reading(epochs=epochs), epoch_age_s=age_s))

    span = Span(seen(max(2.0, judged_s - window_s)), seen(judged_s), None)
    assert job_juice(graph, span) == pytest.approx(share, abs=0.05)


def test_parent_that_sends_nothing_passes_its_juice_on() -> None:
    graph = Graph.of(
        Operator("in"), Operator("filter", ("in",)), Operator("left", ("filter",)), Operator("right", ("filter",))
    )
    edges = {("in", "filter"): (900.0, 300.0), ("filter", "left"): (0.0, 0.0), ("filter", "right"): (0.0, 0.0)}
    counts = Counts(graph, {"in": (900, 900)}, edges)
    assert juice(counts) == pytest.approx(1 / 3)


def weighted(left: float, right: float) -> float:
    graph = Graph.of(Operator("in"), Operator("left", ("in",), left), Operator("right", ("in",), right))
    edges = {("in", "left"): (1000.0, 1000.0), ("in", "right"): (1000.0, 500.0)}
    return juice(Counts(graph, {"in": (2000, 2000)}, edges))


def test_sinks_count_alike_unless_told_otherwise() -> None:
    assert weighted(1, 1) == weighted(7, 7) == pytest.approx(0.75)


def test_weight_of_a_sink_that_keeps_up_raises_juice() -> None:
    assert weighted(3, 1) == pytest.approx(0.875)


def test_weight_of_a_sink_that_falls_behind_lowers_juice() -> None:
    assert weighted(1, 3) == pytest.approx(0.625)


@LAW
@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(1.01, 10))
def test_more_weight_moves_juice_towards_its_sink(left: float, right: float, factor: float) -> None:
    assert weighted(left, right * factor) < weighted(left, right) < weighted(left * factor, right)


# -- laws on graphs of all kinds

rows = st.just(0) | st.integers(1, 10**6)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    operators: list[Operator] = []
    for number in range(draw(st.integers(1, 7))):
        parents = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        weight = draw(st.sampled_from((1.0, 0.2, 5.0)))
        operators.append(Operator(f"o{number}", tuple(f"o{parent}" for parent in sorted(parents)), weight))
    return Graph.of(*operators)


@st.composite
def counted(draw: st.DrawFn, least: int = 0, most: int = 10**6) -> Counts:
    graph = draw(graphs())

    def pair() -> tuple[float, float]:
        there = draw(st.integers(least, most) | st.just(least))
        return float(there), float(draw(st.integers(0, there)))

    sources = {source: pair() for source in graph.sources}
    edges = {(parent, child): pair() for parent, below in graph.children.items() for child in below}
    return Counts(graph, sources, edges)


@LAW
@given(counted())
def test_juice_lies_between_0_and_1(counts: Counts) -> None:
    assert 0 <= juice(counts) <= 1


@LAW
@given(counted(), st.floats(1e-3, 1e3))
def test_juice_does_not_depend_on_the_rate(counts: Counts, factor: float) -> None:
    assert juice(counts.scaled(factor)) == pytest.approx(juice(counts), rel=1e-6, abs=1e-9)


@LAW
@given(counted())
def test_juice_is_1_when_nothing_waits(counts: Counts) -> None:
    assert juice(counts.with_nothing_waiting()) == pytest.approx(1)


@LAW
@given(counted(least=1, most=5).filter(lambda counts: bool(counts.edges)), st.data())
def test_juice_falls_when_one_edge_falls_behind(counts: Counts, data: st.DataObject) -> None:
    quiet = counts.with_nothing_waiting()
    edge = data.draw(st.sampled_from(sorted(quiet.edges)))
    assert juice(quiet.processing(edge, quiet.edges[edge][0] / 2)) < 1 - 1e-9


@LAW
@given(counted(least=1).filter(lambda counts: bool(counts.edges)), st.data())
def test_juice_never_rises_when_an_edge_processes_less(counts: Counts, data: st.DataObject) -> None:
    edge = data.draw(st.sampled_from(sorted(counts.edges)))
    fewer = counts.processing(edge, counts.edges[edge][1] * data.draw(st.floats(0, 1)))
    assert juice(fewer) <= juice(counts) + 1e-9


@LAW
@given(counted(), st.data())
def test_draining_an_old_backlog_never_lifts_juice_above_1(now: Counts, data: st.DataObject) -> None:
    old = {key: float(data.draw(rows)) for key in (*now.sources, *now.edges)}
    before = dataclasses.replace(
        now.scaled(0),
        sources={source: (old[source], 0.0) for source in now.sources},
        edges={edge: (old[edge], 0.0) for edge in now.edges},
    )
    after = dataclasses.replace(
        now,
        sources={s: (old[s] + arrived, old[s] + done) for s, (arrived, done) in now.sources.items()},
        edges={e: (old[e] + sent, old[e] + done) for e, (sent, done) in now.edges.items()},
    )
    assert 0 <= juice(after, before) <= 1


def test_job_that_keeps_up_while_it_drains_a_backlog_has_full_juice() -> None:
    before = Counts(PASS, {"in": (5000, 1000)}, {("in", "out"): (1000, 400)})
    after = Counts(PASS, {"in": (6000, 6000)}, {("in", "out"): (6000, 6000)})
    assert juice(after, before) == 1
