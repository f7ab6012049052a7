"""How many lanes a job should get: eq. 4 of Henge (SoCC '18), and true rates as in DS2 (OSDI '18)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import Settings
from headgate.config.settings import settings_from
from headgate.core.intents import Intent
from headgate.core.metrics import JobView, view_of
from headgate.core.model import Graph, Job, JobAllocation, Operator
from headgate.core.sizing import fewer_lanes, longest_pace_s, more_lanes, unmeasured
from headgate.core.windows import Sample, Windows
from tests.core.builders import LAW, Counts, Seen, chain, job_view, nothing, snapshot

PAPER = settings_from({"sizing": "paper"})
MODEL = settings_from({"sizing": "model"})
SECONDS = 60.0


def measured(
    graph: Graph,
    lanes: Mapping[str, int],
    busy: Mapping[str, float],
    sources: Mapping[str, tuple[float, float]] | None = None,
    edges: Mapping[tuple[str, str], tuple[float, float]] | None = None,
    in_epochs_s: float | None = None,
    epochs: int | None = None,
    intent: Intent | None = None,
    pace_s: float | None = None,
) -> JobView:
    """A job over a minute: `busy` is the share of time for which every lane of an operator was busy."""
    rows = 6000.0
    counts = Counts(
        graph,
        sources or dict.fromkeys(graph.sources, (rows, rows)),
        edges or {(parent, child): (rows, rows) for parent, below in graph.children.items() for child in below},
        {name: (busy[name] * SECONDS,) * lanes[name] for name in graph.operators},
    )
    first = nothing(counts).reading(in_epochs_s=None if epochs is None else 0.0, epochs=None if epochs is None else 0)
    last = counts.reading(in_epochs_s=in_epochs_s, epochs=epochs)
    windows = Windows({"job": (Sample(0.0, first), Sample(SECONDS, last))})
    now = snapshot(SECONDS, {"job": last}, allocation={"job": JobAllocation(lanes, pace_s)})
    job = Job("job", graph, intent or Intent(latency="1s"))
    return view_of(windows, now, {"job": job}, {}, Settings()).jobs["job"]


PAIR = chain("in", "work")


# -- eq. 4


@pytest.mark.parametrize(
    ("capacity", "threshold", "more"),
    [(0.6, 0.3, 10), (1.0, 0.3, 23), (0.3, 0.3, 0), (0.29, 0.3, 0), (0.45, 0.3, 5), (1.0, 0.5, 10), (0.301, 0.3, 1)],
)
def test_paper_sizing_adds_lanes_in_proportion_to_congestion(capacity: float, threshold: float, more: int) -> None:
    settings = settings_from({"sizing": "paper", "capacity_threshold": threshold})
    view = measured(PAIR, {"in": 1, "work": 4}, {"in": 0.1, "work": capacity})
    assert more_lanes(view, settings) == {"in": 1, "work": 4 + more}


def test_paper_sizing_helps_every_congested_operator_sources_too() -> None:
    view = measured(
        chain("in", "parse", "rank"), {"in": 1, "parse": 2, "rank": 3}, {"in": 0.6, "parse": 1, "rank": 0.2}
    )
    assert more_lanes(view, PAPER) == {"in": 11, "parse": 25, "rank": 3}


# -- true rates


def congested_chain() -> JobView:
    """`parse` keeps up with two rows of five, so that all behind it sees no more of them."""
    return measured(
        chain("in", "parse", "rank", "store"),
        {"in": 1, "parse": 2, "rank": 1, "store": 1},
        {"in": 0.1, "parse": 1.0, "rank": 0.29, "store": 0.1},
        sources={"in": (6000, 6000)},
        edges={("in", "parse"): (6000, 2400), ("parse", "rank"): (4800, 4800), ("rank", "store"): (1200, 1200)},
    )


def test_model_sizing_gives_the_whole_chain_what_it_needs_when_only_its_first_operator_is_congested() -> None:
    settings = settings_from({"catch_up_s": 1e9})
    assert more_lanes(congested_chain(), settings) == {"in": 1, "parse": 9, "rank": 2, "store": 1}


def test_model_sizing_adds_lanes_to_work_off_the_backlog() -> None:
    slow, fast = (more_lanes(congested_chain(), settings_from({"catch_up_s": s}))["parse"] for s in (1e9, 60))
    assert fast > slow


def test_model_sizing_counts_rows_that_wait_at_a_source() -> None:
    lanes, busy = {"in": 1, "work": 1}, {"in": 0.5, "work": 0.5}
    edges = {("in", "work"): (3000.0, 3000.0)}
    view = measured(PAIR, lanes, busy, {"in": (6000, 3000)}, edges)
    assert more_lanes(view, settings_from({"catch_up_s": 1e9})) == {"in": 2, "work": 2}
    assert more_lanes(view, settings_from({"catch_up_s": 60})) == {"in": 3, "work": 3}


def test_model_sizing_goes_for_the_lower_target_when_the_job_has_the_lanes_already() -> None:
    view = measured(PAIR, {"in": 1, "work": 4}, {"in": 0.1, "work": 0.5})
    assert more_lanes(view, MODEL) == {"in": 1, "work": 7}


def test_model_sizing_changes_nothing_when_even_the_lower_target_is_reached() -> None:
    view = measured(PAIR, {"in": 1, "work": 4}, {"in": 0.1, "work": 0.25})
    assert more_lanes(view, MODEL) == {"in": 1, "work": 4}


def test_model_sizing_leaves_operators_alone_that_were_not_measured() -> None:
    edges = {("in", "work"): (0.0, 0.0)}
    view = measured(PAIR, {"in": 1, "work": 3}, {"in": 1.0, "work": 0.0}, edges=edges)
    assert more_lanes(view, MODEL) == {"in": 2, "work": 3}


@pytest.mark.parametrize("settings", [PAPER, MODEL], ids=["paper", "model"])
def test_job_that_was_not_measured_keeps_its_lanes(settings: Settings) -> None:
    view = job_view(Seen("job", span_s=0.0), settings)
    assert more_lanes(view, settings) == fewer_lanes(view, settings) == view.allocation.lanes


def in_flight(epochs: int) -> JobView:
    """Rows wait, and so many epochs ended in the minute."""
    busy = {"in": 0.5 if epochs else 0.0, "work": 1.0 if epochs else 0.0}
    rows = 3000.0 if epochs else 0.0
    sources, edges = {"in": (6000.0, rows)}, {("in", "work"): (rows, rows)}
    return measured(PAIR, {"in": 1, "work": 1}, busy, sources, edges, in_epochs_s=SECONDS, epochs=epochs)


def test_job_without_an_epoch_that_ended_is_not_measured_and_keeps_its_lanes() -> None:
    stalled, slow = in_flight(0), in_flight(2)
    assert (unmeasured(stalled, MODEL), unmeasured(slow, MODEL)) == (True, False)
    assert more_lanes(stalled, MODEL) == stalled.allocation.lanes != more_lanes(slow, MODEL)


def test_epoch_in_flight_for_longer_than_the_patience_counts_as_measured() -> None:
    stalled = in_flight(0)
    assert stalled.span is not None
    old = replace(stalled.span.last.reading, epoch_age_s=MODEL.patience_s + 1)
    span = replace(stalled.span, last=replace(stalled.span.last, reading=old))
    assert not unmeasured(replace(stalled, span=span), MODEL)


def limited(own: int | None) -> JobView:
    graph = Graph.of(Operator("in"), Operator("work", ("in",), max_lanes=own))
    return measured(graph, {"in": 1, "work": 4}, {"in": 0.1, "work": 1.0})


@pytest.mark.parametrize("sizing", ["paper", "model"])
@pytest.mark.parametrize(("own", "all_", "lanes"), [(6, 1024, 6), (None, 5, 5), (6, 5, 5), (3, 1024, 4), (None, 2, 4)])
def test_no_operator_gets_more_lanes_than_allowed_nor_loses_any(
    sizing: str, own: int | None, all_: int, lanes: int
) -> None:
    settings = settings_from({"sizing": sizing, "max_lanes": all_})
    assert more_lanes(limited(own), settings)["work"] == lanes


shares = st.floats(0, 1)
lanes_counts = st.integers(1, 40)


@LAW
@given(st.sampled_from([PAPER, MODEL]), lanes_counts, lanes_counts, shares)
def test_a_keyed_operator_never_gets_more_lanes_than_it_has_slices(
    settings: Settings, slices: int, lanes: int, busy: float
) -> None:
    seen = measured(PAIR, {"in": 1, "work": lanes}, {"in": 0.1, "work": busy})
    work = replace(seen.samples[-1].reading.operators["work"], slice_rows=(1.0,) * slices)
    reading = replace(seen.samples[-1].reading, operators={**seen.samples[-1].reading.operators, "work": work})
    keyed = replace(seen, samples=(*seen.samples[:-1], replace(seen.samples[-1], reading=reading)))
    assert more_lanes(keyed, settings)["work"] == max(lanes, min(slices, more_lanes(seen, settings)["work"]))


@LAW
@given(st.sampled_from([PAPER, MODEL]), lanes_counts, lanes_counts, shares, shares, st.integers(0, 6000))
def test_more_lanes_are_never_fewer(
    settings: Settings, first: int, second: int, busy_in: float, busy_work: float, done: int
) -> None:
    view = measured(
        PAIR,
        {"in": first, "work": second},
        {"in": busy_in, "work": busy_work},
        edges={("in", "work"): (6000, float(done))},
    )
    lanes = more_lanes(view, settings)
    assert lanes["in"] >= first and lanes["work"] >= second


@LAW
@given(st.floats(0.1, 1.0), st.integers(1, 20), st.floats(0.1, 50))
def test_model_sizing_brings_lanes_to_their_target(busy: float, lanes: int, factor: float) -> None:
    rows = 6000 * factor
    view = measured(
        PAIR, {"in": 1, "work": lanes}, {"in": 0.0, "work": busy}, {"in": (rows, rows)}, {("in", "work"): (rows, rows)}
    )
    given_ = more_lanes(view, MODEL)["work"]
    work = busy * lanes
    assert work / given_ <= MODEL.target_busy + 1e-9
    if given_ > lanes:
        assert any(
            work / given_ <= target + 1e-9 and work / (given_ - 1) > target - 1e-9
            for target in (MODEL.target_busy, MODEL.capacity_threshold)
        )


def test_step_that_is_too_small_to_matter_is_not_taken() -> None:
    view = measured(PAIR, {"in": 1, "work": 100}, {"in": 0.1, "work": 0.32})
    assert more_lanes(view, MODEL) == {"in": 1, "work": 100}


def test_no_operator_grows_beyond_a_limit_in_one_step() -> None:
    edges = {("in", "work"): (6000.0, 300.0)}
    view = measured(PAIR, {"in": 1, "work": 2}, {"in": 0.1, "work": 1.0}, edges=edges)
    assert more_lanes(view, MODEL) == {"in": 1, "work": 10}


def test_backlog_never_counts_for_more_than_the_input() -> None:
    busy, edges = {"in": 0.1, "work": 0.3}, {("in", "work"): (106_000.0, 6000.0)}
    view = measured(PAIR, {"in": 1, "work": 2}, busy, {"in": (6000, 6000)}, edges)
    assert more_lanes(view, settings_from({"catch_up_s": 1})) == more_lanes(view, settings_from({"catch_up_s": 100}))


# -- stages one after another


def staged(work: Mapping[str, float], lanes: int = 1) -> JobView:
    graph = chain(*work)
    busy = {name: share / lanes for name, share in work.items()}
    return measured(graph, dict.fromkeys(work, lanes), busy, in_epochs_s=SECONDS, epochs=60)


works = st.lists(st.floats(0.05, 3.0), min_size=1, max_size=4)
STAGES = settings_from({"growth_limit": 1000})


@LAW
@given(works.filter(lambda work: sum(work) > 0.65))
def test_stages_together_stay_within_the_target(work: list[float]) -> None:
    needed = {f"stage-{number}": share for number, share in enumerate(work)}
    lanes = more_lanes(staged(needed), STAGES)
    assert sum(share / lanes[name] for name, share in needed.items()) <= STAGES.target_busy + 1e-6


def fewest(work: list[float], target: float) -> int:
    """The least sum of lanes whose stage times add up to the target, by trying all."""
    most = math.ceil(sum(math.sqrt(share) for share in work) * max(math.sqrt(share) for share in work) / target) + 1
    sums = (
        sum(lanes)
        for lanes in itertools.product(range(1, most + 1), repeat=len(work))
        if sum(share / count for share, count in zip(work, lanes, strict=True)) <= target
    )
    return min(sums)


@LAW
@given(st.lists(st.floats(0.05, 2.0), min_size=1, max_size=3).filter(lambda work: sum(work) > 0.65))
def test_stages_get_about_the_fewest_lanes(work: list[float]) -> None:
    needed = {f"stage-{number}": share for number, share in enumerate(work)}
    lanes = more_lanes(staged(needed), STAGES)
    assert sum(lanes.values()) <= fewest(work, STAGES.target_busy) + len(work)


# -- reduction


@pytest.mark.parametrize(("lanes", "left"), [(10, 2), (20, 4), (5, 1), (4, 1), (2, 1), (1, 1)])
def test_reduction_takes_four_fifths_of_the_lanes_but_never_the_last(lanes: int, left: int) -> None:
    view = measured(PAIR, {"in": 3, "work": lanes}, {"in": 0.01, "work": 0.01})
    assert fewer_lanes(view, PAPER) == {"in": 3, "work": left}


def test_sources_and_congested_operators_keep_their_lanes() -> None:
    view = measured(
        chain("in", "parse", "rank"), {"in": 10, "parse": 10, "rank": 10}, {"in": 0.01, "parse": 0.31, "rank": 0.3}
    )
    assert fewer_lanes(view, PAPER) == {"in": 10, "parse": 10, "rank": 2}


def test_model_sizing_keeps_the_lanes_that_the_measured_work_needs() -> None:
    view = measured(PAIR, {"in": 10, "work": 10}, {"in": 0.01, "work": 0.28})
    assert fewer_lanes(view, PAPER) == {"in": 10, "work": 2}
    assert fewer_lanes(view, MODEL) == {"in": 10, "work": 5}


@LAW
@given(st.sampled_from([PAPER, MODEL]), lanes_counts, shares)
def test_reduction_never_adds_lanes_nor_takes_the_last(settings: Settings, lanes: int, busy: float) -> None:
    view = measured(PAIR, {"in": 2, "work": lanes}, {"in": 0.1, "work": busy})
    assert 1 <= fewer_lanes(view, settings)["work"] <= lanes


# -- pace


PERIOD_S = 3.0


def paced(intent: Intent, fixed_s: float = 0.5, per_second: float = 0.2) -> float | None:
    """An epoch every 3 s takes something fixed, and `per_second` for each second of input."""
    epochs = SECONDS / PERIOD_S
    view = measured(
        PAIR,
        {"in": 1, "work": 2},
        {"in": per_second / 4, "work": per_second * 3 / 4},
        in_epochs_s=epochs * (fixed_s + per_second * PERIOD_S),
        epochs=round(epochs),
        intent=intent,
        pace_s=PERIOD_S,
    )
    return longest_pace_s(view, MODEL)


def test_longest_pace_leaves_a_margin_of_a_mean_latency() -> None:
    pace_s = paced(Intent(latency="10s"))
    assert pace_s is not None
    assert pace_s == pytest.approx(9.2857, rel=1e-4)
    assert pace_s / 2 + 0.5 + 0.2 * pace_s == pytest.approx(0.7 * 10)


def test_longest_pace_leaves_a_margin_of_a_percentile_of_latency() -> None:
    pace_s = paced(Intent(latency="10s", percentile=99))
    assert pace_s is not None
    assert pace_s == pytest.approx(5.4167, rel=1e-4)
    assert pace_s + 0.5 + 0.2 * pace_s == pytest.approx(0.7 * 10)


def test_epochs_follow_one_another_when_there_is_no_time_to_spare() -> None:
    assert paced(Intent(latency="0.5s")) == 0


def test_job_without_a_latency_intent_starts_an_epoch_every_round() -> None:
    assert paced(Intent(juice=0.9)) == MODEL.round_s


@pytest.mark.parametrize("intent", [Intent(latency="10s"), Intent(latency="10s", juice=0.9), Intent(juice=0.9)])
def test_pace_leaves_room_for_all_rows_below_the_read_limit(intent: Intent) -> None:
    """100 rows per second arrive, and an epoch reads 200: after more than 2 s, some would wait for the next epoch but one."""
    view = job_view(Seen("job", rows_s=100.0, epoch_s=0.5, pace_s=3.0))
    limited = tuple(replace(one, reading=replace(one.reading, read_limit=200)) for one in view.samples)
    assert view.span is not None
    span = replace(view.span, first=limited[0], last=limited[-1])
    job = replace(view.job, intent=intent)
    pace_s = longest_pace_s(replace(view, job=job, span=span), MODEL)
    assert pace_s == pytest.approx(MODEL.pace_margin * 2.0)


def test_pace_is_not_known_without_epochs() -> None:
    view = measured(PAIR, {"in": 1, "work": 1}, {"in": 0.1, "work": 0.1})
    assert longest_pace_s(view, MODEL) is None


@LAW
@given(st.floats(0.2, 60), st.floats(0.01, 5), st.floats(0, 1), st.booleans())
def test_longest_pace_keeps_the_intent(latency_s: float, fixed_s: float, per_second: float, mean: bool) -> None:
    pace_s = paced(Intent(latency=latency_s, percentile=None if mean else 99), fixed_s, per_second)
    assert pace_s is not None
    if pace_s > 0:
        assert pace_s * (0.5 if mean else 1) + fixed_s + per_second * pace_s <= latency_s
