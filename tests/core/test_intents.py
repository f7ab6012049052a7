from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headgate.core.intents import Custom, Intent, Knee, Linear, Lognormal, Piecewise, Shape, Step, intent_from
from headgate.errors import IntentError


def inverse(latency_s: float) -> float:
    return 1 / (1 + latency_s)


def has_a_bump(latency_s: float) -> float:
    return 0.7 if 1 < latency_s < 2 else 0.5


def test_hybrid_utility_is_the_mean_of_both_goals() -> None:
    intent = Intent(latency="2s", juice=0.95, worth=35)
    assert intent.utility(latency_s=4.0, juice=1.0) == pytest.approx(35 * (0.5 + 1) / 2)
    assert intent.utility(latency_s=1.0, juice=0.475) == pytest.approx(35 * (1 + 0.5) / 2)
    assert intent.utility(latency_s=2.0, juice=0.95) == 35


def test_only_the_goals_of_the_intent_are_needed() -> None:
    assert Intent(latency="2s", worth=10).utility(latency_s=4.0, juice=None) == 5
    assert Intent(juice=0.5, worth=10).utility(latency_s=None, juice=0.25) == 5


@pytest.mark.parametrize(
    ("latency_s", "juice"), [(None, 1.0), (1.0, None), (None, None), (math.nan, 1.0), (1.0, math.nan)]
)
def test_utility_and_met_are_unknown_while_a_measurement_is(latency_s: float | None, juice: float | None) -> None:
    intent = Intent(latency="2s", juice=0.95)
    assert intent.utility(latency_s, juice) is None
    assert intent.met(latency_s, juice) is None


@pytest.mark.parametrize("latency_s", [0.0, -0.1])
@pytest.mark.parametrize("shape", ["knee", "step", "linear", "lognormal", Custom(inverse)])
def test_no_latency_at_all_counts_as_met(latency_s: float, shape: str | Shape) -> None:
    intent = Intent(latency="2s", shape=shape)
    assert intent.met(latency_s, None) is True
    assert intent.utility(latency_s, None) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("shape", ["knee", "step", "linear", "lognormal"])
def test_endless_latency_and_no_juice_are_worth_nothing(shape: str) -> None:
    intent = Intent(latency="2s", juice=0.95, shape=shape)
    assert intent.utility(math.inf, 0.0) == 0
    assert intent.met(math.inf, 0.0) is False


def test_met_needs_every_goal() -> None:
    intent = Intent(latency="2s", juice=0.95)
    assert intent.met(2.0, 0.95) is True
    assert intent.met(2.1, 1.0) is False
    assert intent.met(1.0, 0.94) is False


@pytest.mark.parametrize("shape", ["knee", "step", "linear"])
def test_juice_within_the_tolerance_counts_as_met(shape: str) -> None:
    intent = Intent(juice=1.0, worth=35, shape=shape)
    assert intent.met(None, 0.996, tolerance=0.005) is True
    assert intent.utility(None, 0.996, tolerance=0.005) == 35
    assert intent.met(None, 0.994, tolerance=0.005) is False
    assert intent.met(None, 0.996) is False


def test_tolerance_is_a_share_of_the_threshold() -> None:
    intent = Intent(juice=0.2)
    assert intent.met(None, 0.181, tolerance=0.1) is True
    assert intent.met(None, 0.179, tolerance=0.1) is False


@pytest.mark.parametrize(
    ("shape", "latency_s", "expected"),
    [
        (Knee(), 3.0, 2 / 3),
        (Step(), 2.0, 1.0),
        (Step(), 2.001, 0.0),
        (Linear(), 3.0, 0.5),
        (Linear(), 4.0, 0.0),
        (Linear(zero_at=3), 3.0, 0.75),
        (Lognormal(sigma=0.5), 2.0, 1.0),
        (Lognormal(sigma=0.5), 2 * math.exp(0.5), 0.3173105),
        (Lognormal(sigma=0.5), 2 * math.exp(1.0), 0.0455003),
        (Piecewise([("1s", 1.0), ("2s", 0.5), ("6s", 0.0)]), 0.5, 1.0),
        (Piecewise([("1s", 1.0), ("2s", 0.5), ("6s", 0.0)]), 1.5, 0.75),
        (Piecewise([("1s", 1.0), ("2s", 0.5), ("6s", 0.0)]), 4.0, 0.25),
        (Piecewise([("1s", 1.0), ("2s", 0.5), ("6s", 0.0)]), 9.0, 0.0),
        (Custom(inverse), 3.0, 0.25),
    ],
)
def test_latency_utility_follows_the_shape(shape: Shape, latency_s: float, expected: float) -> None:
    assert Intent(latency="2s", shape=shape).utility(latency_s, None) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "juice", "expected"),
    [
        (Knee(), 0.2, 0.25),
        (Step(), 0.79, 0.0),
        (Step(), 0.8, 1.0),
        (Linear(), 0.6, 0.5),
        (Linear(), 0.4, 0.0),
        (Lognormal(sigma=0.5), 0.8 * math.exp(-0.5), 0.3173105),
        (Piecewise([(0.5, 0.0), (0.9, 1.0)]), 0.7, 0.5),
        (Custom(lambda juice: juice**2), 0.5, 0.25),
    ],
)
def test_juice_utility_follows_the_shape(shape: Shape, juice: float, expected: float) -> None:
    assert Intent(juice=0.8, shape=shape).utility(None, juice) == pytest.approx(expected, abs=1e-6)


def test_each_goal_may_have_its_own_shape() -> None:
    intent = Intent(latency="2s", juice=1.0, worth=10, shape={"latency": "step", "juice": Linear(zero_at=4)})
    assert intent.utility(2.1, 1.0) == 5
    assert intent.utility(2.0, 0.25) == 5
    assert Intent(latency="2s", juice=1.0, shape={"latency": "step"}).juice_shape == Knee()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "needs a latency.*or a juice"),
        ({"percentile": 99}, "percentile is 99 but there is no latency"),
        ({"juice": 0.9, "percentile": 99}, "percentile is 99 but there is no latency"),
        ({"latency": "soon"}, 'latency is "soon"; it must be a duration above 0'),
        ({"latency": 0}, "latency is 0; it must be a duration above 0"),
        ({"latency": math.nan}, "latency is nan; it must be a duration"),
        ({"latency": "2s", "percentile": 0}, "percentile is 0; it must be a number above 0 and at most 100"),
        ({"latency": "2s", "percentile": 101}, "percentile is 101; .* at most 100"),
        ({"juice": 0}, "juice is 0; it must be a number above 0 and at most 1"),
        ({"juice": 1.01}, "juice is 1.01; it must be a number above 0 and at most 1"),
        ({"juice": True}, "juice is True; it must be a number"),
        ({"latency": "2s", "worth": 0}, "worth is 0; it must be a number above 0"),
        ({"latency": "2s", "worth": math.inf}, "worth is inf; it must be a number above 0"),
        ({"latency": "2s", "shape": "stop"}, r'shape is "stop"; allowed are knee, step.*Did you mean "step"\?'),
        ({"latency": "2s", "shape": 3}, "shape is 3; allowed are knee"),
        ({"latency": "2s", "shape": Knee}, "shape is <class .*; allowed are knee"),
        (
            {"latency": "2s", "shape": {"latncy": "knee"}},
            r'shape: there is no field "latncy".*Did you mean "latency"\?',
        ),
        ({"latency": "2s", "shape": {"juice": "knee"}}, "shape has an entry for juice, but the intent has no juice"),
    ],
)
def test_impossible_intents_are_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(IntentError, match=sentence):
        Intent(**fields)


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        ([("1s", 1.0)], "it must be two or more pairs"),
        ("1s", "it must be two or more pairs"),
        ([("1s", 1.0), "2s"], 'points has "2s"; each must be a value and its utility'),
        ([("1s", 1.0), ("1s", 0.5)], "points has 1 after 1; each value must be larger"),
        (
            [("1s", 1.0), ("2s", 1.5)],
            "the utility of the point at 2s is 1.5; it must be a number of at least 0 and at most 1",
        ),
        (
            [("1s", 1.0), ("2s", 0.5), ("3s", 0.7)],
            "rises from 0.50 to 0.70 between the points at 2 and 3 but falls elsewhere",
        ),
        ([(0.1, 0.0), (0.5, 0.5), (0.7, 0.4), (1, 1)], "falls from 0.50 to 0.40 between the points at 0.5 and 0.7"),
    ],
)
def test_points_that_form_no_utility_are_refused(points: Any, sentence: str) -> None:
    with pytest.raises(IntentError, match=sentence):
        Piecewise(points)


def test_points_that_go_the_wrong_way_for_their_goal_name_the_breach() -> None:
    rising = Piecewise([("1s", 0.5), ("1.2s", 0.7)])
    with pytest.raises(IntentError) as refusal:
        Intent(latency="1s", shape=rising)
    assert str(refusal.value) == "utility rises from 0.50 to 0.70 between latency 1 s and 1.2 s; it must not rise"
    with pytest.raises(
        IntentError, match=r"utility falls from 1.00 to 0.50 between juice 0.2 and 0.8; it must not fall"
    ):
        Intent(juice=0.9, shape=Piecewise([(0.2, 1.0), (0.8, 0.5)]))


def test_function_that_rises_with_latency_names_the_breach() -> None:
    with pytest.raises(
        IntentError, match=r"utility rises from 0.50 to 0.70 between latency .* and .*; it must not rise"
    ):
        Intent(latency="1s", shape=Custom(has_a_bump))


def test_function_that_falls_with_juice_names_the_breach() -> None:
    with pytest.raises(
        IntentError, match=r"utility falls from 1.00 to 0.99\d* between juice 0 and 0.00\d+; it must not fall"
    ):
        Intent(juice=0.9, shape=Custom(lambda juice: 1 - juice))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda latency_s: math.nan, "is nan; it must be a number of at least 0 and at most 1"),
        (lambda latency_s: -1.0, "is -1.0; it must be a number of at least 0 and at most 1"),
        (lambda latency_s: 35.0, "is 35.0; it must be a number of at least 0 and at most 1"),
        (lambda latency_s: None, "is None; it must be a number"),
        (lambda latency_s: 1 / 0, "fails at .* with ZeroDivisionError: division by zero"),
        (0.5, "function is 0.5; it must be a function"),
    ],
)
def test_function_that_gives_no_share_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(IntentError, match=sentence):
        Intent(latency="1s", shape=Custom(function))


def test_function_is_never_asked_beyond_the_checked_range() -> None:
    asked: list[float] = []

    def remembers(latency_s: float) -> float:
        asked.append(latency_s)
        return 1 / (1 + latency_s)

    intent = Intent(latency="2s", shape=Custom(remembers))
    for latency_s in (0.0, math.inf, 1e12):
        intent.utility(latency_s, None)
    assert min(asked) == pytest.approx(0.002) and max(asked) == pytest.approx(2000)


@pytest.mark.parametrize(
    "make", [lambda: Linear(zero_at=1), lambda: Lognormal(sigma=0), lambda: Linear(zero_at=math.inf)]
)
def test_shapes_refuse_impossible_parameters(make: Any) -> None:
    with pytest.raises(IntentError, match=r"(zero_at|sigma) is .*; it must be a number above"):
        make()


@pytest.mark.parametrize(
    ("intent", "text"),
    [
        (Intent(latency="2s"), "2 s"),
        (Intent(latency=0.25, percentile=99), "p99 250 ms"),
        (Intent(latency="1s", percentile=99.9), "p99.9 1 s"),
        (Intent(juice=0.95), "juice 0.95"),
        (Intent(latency="2s", juice=0.95), "2 s · 0.95"),
    ],
)
def test_describes_itself_in_a_few_signs(intent: Intent, text: str) -> None:
    assert intent.describe() == text


def test_intents_that_mean_the_same_are_equal() -> None:
    first, second = Intent(latency="2s", worth=35), Intent(latency=2.0, worth=35.0, shape=Knee())
    assert first == second
    assert hash(first) == hash(second)
    assert first.fingerprint() == second.fingerprint()


def test_fingerprint_differs_when_anything_of_the_intent_does() -> None:
    base = Intent(latency="2s", percentile=99, juice=0.95, worth=35)
    changes: list[dict[str, Any]] = [
        {"latency": "2.1s"},
        {"percentile": 95},
        {"percentile": None},
        {"juice": 0.9},
        {"juice": None},
        {"worth": 36},
        {"shape": "step"},
        {"shape": Linear(zero_at=2)},
        {"shape": Linear(zero_at=3)},
        {"shape": {"juice": "step"}},
        {"shape": {"latency": Custom(inverse)}},
        {"shape": {"latency": Custom(math.erfc)}},
        {"shape": {"latency": Piecewise([("1s", 1.0), ("3s", 0.0)])}},
    ]
    fingerprints = {dataclasses.replace(base, **change).fingerprint() for change in changes}
    assert len(fingerprints | {base.fingerprint()}) == len(changes) + 1


def test_fingerprint_of_a_function_is_its_qualified_name() -> None:
    fingerprint = Intent(latency="2s", shape=Custom(inverse)).fingerprint()
    assert f"Custom({__name__}:inverse)" in fingerprint


def test_worth_may_change_while_all_else_stays() -> None:
    intent = dataclasses.replace(Intent(latency="2s", shape=Linear(zero_at=3), worth=5), worth=50)
    assert intent.utility(2.0, None) == 50
    assert intent.latency_shape == Linear(zero_at=3)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"latency": "2s", "percentile": 99, "juice": 0.95, "worth": 35}, Intent("2s", 99, 0.95, 35)),
        ({"latency": 2, "shape": "step"}, Intent("2s", shape="step")),
        ({"latency": 2, "shape": {"kind": "linear", "zero_at": 3}}, Intent("2s", shape=Linear(3))),
        ({"latency": 2, "shape": {"kind": "lognormal", "sigma": 1}}, Intent("2s", shape=Lognormal(1))),
        ({"latency": 2, "shape": {"kind": "knee"}}, Intent("2s")),
        (
            {"latency": 2, "shape": {"kind": "piecewise", "points": [["1s", 1.0], ["2s", 0.5]]}},
            Intent("2s", shape=Piecewise([(1, 1.0), (2, 0.5)])),
        ),
        (
            {"latency": 2, "juice": 1, "shape": {"latency": "step", "juice": {"kind": "linear"}}},
            Intent("2s", juice=1, shape={"latency": "step", "juice": Linear()}),
        ),
    ],
)
def test_intent_is_read_from_a_table(table: dict[str, Any], expected: Intent) -> None:
    assert intent_from(table, "intent") == expected


def test_function_is_found_by_the_resolver() -> None:
    table = {"latency": "2s", "shape": {"function": "shop.intents:inverse"}}
    found = {"shop.intents:inverse": inverse}
    assert intent_from(table, "intent", found.__getitem__).utility(3.0, None) == 0.25


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("2s", 'it is "2s"; it must be a table'),
        ({"latency": "2x"}, 'latency is "2x"; it must be a duration'),
        ({"latncy": "2s"}, r'there is no field "latncy"; allowed are latency, .*Did you mean "latency"\?'),
        ({"latency_s": 2}, 'there is no field "latency_s"'),
        ({"latency": 2, "shape": {"kind": "liner"}}, r'shape: kind is "liner".*Did you mean "linear"\?'),
        (
            {"latency": 2, "shape": {"kind": "linear", "zero": 3}},
            'shape: there is no field "zero"; allowed are kind, zero_at',
        ),
        (
            {"latency": 2, "shape": {"kind": "linear", "zero_at": 0.5}},
            "shape: zero_at is 0.5; it must be a number above 1",
        ),
        ({"latency": 2, "shape": {"kind": "piecewise"}}, "shape: a piecewise shape needs points"),
        ({"latency": 2, "shape": {"kid": "linear"}}, r'shape: there is no field "kid".*Did you mean "kind"\?'),
        ({"latency": 2, "shape": {"latency": {"kind": 3}}}, "shape for latency: kind is 3; allowed are knee"),
        (
            {"latency": 2, "shape": {"function": "inverse"}},
            'shape: function is "inverse"; it must be "package.module:name"',
        ),
        (
            {"latency": 2, "shape": {"function": "shop:f"}},
            'shape: function is "shop:f"; functions cannot be loaded here',
        ),
    ],
)
def test_mistakes_in_a_table_are_told_with_their_place(table: Any, sentence: str) -> None:
    with pytest.raises(IntentError, match=f'^job "T1": intent: {sentence}'):
        intent_from(table, 'job "T1": intent')


@pytest.mark.parametrize(("percentile", "meant"), [(0.99, "99"), (0.5, "50"), (0.999, "99.9")])
def test_percentile_that_is_a_share_is_refused(percentile: float, meant: str) -> None:
    with pytest.raises(
        IntentError, match=rf"percentile is {percentile}; it goes from 1 to 100\. Did you mean {meant}\?"
    ):
        Intent(latency="2s", percentile=percentile)
