"""Laws that hold for every shape, threshold and measurement."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.intents import Custom, Intent, Knee, Linear, Lognormal, Piecewise, Shape, Step

latencies_s = st.floats(0, 1e9, allow_subnormal=False)
juices = st.floats(0, 1)
thresholds_s = st.floats(1e-3, 1e4)
thresholds_juice = st.floats(1e-3, 1)
worths = st.floats(0.1, 1e6)
tolerances = st.floats(0, 0.1)


def falls_with_latency(latency_s: float) -> float:
    return math.exp(-latency_s)


def rises_with_juice(juice: float) -> float:
    return math.sqrt(juice)


def _points(draw: st.DrawFn, highest: float) -> tuple[list[float], list[float]]:
    values = sorted(draw(st.sets(st.floats(0, highest, allow_subnormal=False), min_size=2, max_size=6)))
    shares = sorted(draw(st.lists(st.floats(0, 1), min_size=len(values), max_size=len(values))))
    return values, shares


@st.composite
def falling_points(draw: st.DrawFn) -> Piecewise:
    values, shares = _points(draw, 1e6)
    return Piecewise(list(zip(values, reversed(shares), strict=True)))


@st.composite
def rising_points(draw: st.DrawFn) -> Piecewise:
    values, shares = _points(draw, 1)
    return Piecewise(list(zip(values, shares, strict=True)))


plain_shapes: st.SearchStrategy[Shape] = st.one_of(
    st.just(Knee()),
    st.just(Step()),
    st.builds(Linear, st.floats(1.001, 1e3)),
    st.builds(Lognormal, st.floats(0.01, 10)),
)
latency_shapes = plain_shapes | falling_points() | st.just(Custom(falls_with_latency))
juice_shapes = plain_shapes | rising_points() | st.just(Custom(rises_with_juice))

ROUNDING = 1e-9


@given(latency_shapes, thresholds_s, worths, latencies_s, latencies_s)
def test_utility_never_rises_with_latency(
    shape: Shape, threshold_s: float, worth: float, first_s: float, second_s: float
) -> None:
    intent = Intent(latency=threshold_s, worth=worth, shape=shape)
    lower, higher = (intent.utility(latency_s, None) for latency_s in sorted((first_s, second_s)))
    assert lower is not None and higher is not None
    assert 0 <= higher <= worth * (1 + ROUNDING)
    assert higher <= lower + ROUNDING * worth


@given(juice_shapes, thresholds_juice, worths, tolerances, juices, juices)
def test_utility_never_falls_with_juice(
    shape: Shape, threshold: float, worth: float, tolerance: float, first: float, second: float
) -> None:
    intent = Intent(juice=threshold, worth=worth, shape=shape)
    lower, higher = (intent.utility(None, juice, tolerance) for juice in sorted((first, second)))
    assert lower is not None and higher is not None
    assert 0 <= lower <= worth * (1 + ROUNDING)
    assert lower <= higher + ROUNDING * worth


@given(plain_shapes, thresholds_s, thresholds_juice, worths, latencies_s, juices, tolerances)
def test_met_intent_has_its_full_worth(
    shape: Shape, threshold_s: float, threshold: float, worth: float, latency_s: float, juice: float, tolerance: float
) -> None:
    intent = Intent(latency=threshold_s, juice=threshold, worth=worth, shape=shape)
    utility = intent.utility(latency_s, juice, tolerance)
    assert utility is not None
    if intent.met(latency_s, juice, tolerance):
        assert utility >= worth * (1 - ROUNDING)


@given(plain_shapes, thresholds_s, thresholds_juice, latencies_s, juices)
def test_hybrid_is_the_mean_of_its_goals(
    shape: Shape, threshold_s: float, threshold: float, latency_s: float, juice: float
) -> None:
    both = Intent(latency=threshold_s, juice=threshold, shape=shape).utility(latency_s, juice)
    by_latency = Intent(latency=threshold_s, shape=shape).utility(latency_s, None)
    by_juice = Intent(juice=threshold, shape=shape).utility(None, juice)
    assert both is not None and by_latency is not None and by_juice is not None
    assert both == (by_latency + by_juice) / 2


@given(plain_shapes, thresholds_s, worths)
def test_same_intent_has_the_same_fingerprint(shape: Shape, threshold_s: float, worth: float) -> None:
    first, second = (Intent(latency=threshold_s, worth=worth, shape=shape) for _ in range(2))
    assert first == second and first.fingerprint() == second.fingerprint()
