"""Intents: the latency or juice that a job needs, and the utility of meeting them (Henge (SoCC '18), section 4).

An intent names a latency, a juice or both, and the maximum utility of the job. A shape maps a missed intent to the remaining
share of that utility. A utility must never rise with latency nor fall with juice; `Intent` checks this when created.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from headgate.core.quantities import (
    about,
    check_fields,
    choice,
    interpolate,
    number,
    rows_s,
    seconds,
    show_seconds,
    shown,
)
from headgate.errors import IntentError

GRID_REACH = 1000.0
"""A shape is checked from 1/1000 of the latency threshold to 1000 times the threshold."""
GRID_POINTS = 200
"""Number of values, besides the threshold, at which a shape is checked."""
IMPLIED_JUICE = 0.95
"""Default juice intent of a job that regulates itself."""
THROUGHPUT = "throughput"
"""Name of the policy that takes a target rate, as in "throughput:4000000/min"."""
ROUNDING = 1e-9
"""Rounding error that the check of a shape tolerates in a utility share."""


@runtime_checkable
class Shape(Protocol):
    """Maps a measured latency or juice to a share, 0..1, of the job's worth."""

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        """Share for a measured latency; must not rise with `value_s`."""

    def for_juice(self, value: float, threshold: float) -> float:
        """Share for a measured juice; must not fall with `value`."""


@dataclass(frozen=True, slots=True)
class Knee:
    """Full utility while the intent is met, below that in proportion to the miss (Henge (SoCC '18), section 4)."""

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return 1.0 if value_s <= threshold_s else threshold_s / value_s

    def for_juice(self, value: float, threshold: float) -> float:
        return min(1.0, value / threshold)


@dataclass(frozen=True, slots=True)
class Step:
    """Full utility while the intent is met, none otherwise."""

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return float(value_s <= threshold_s)

    def for_juice(self, value: float, threshold: float) -> float:
        return float(value >= threshold)


@dataclass(frozen=True, slots=True)
class Linear:
    """Utility falls linearly to zero at `zero_at` times the latency, or at 1/`zero_at` of the juice."""

    zero_at: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "zero_at", number(self.zero_at, "zero_at", above=1, error=IntentError))

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return _clamped((self.zero_at - value_s / threshold_s) / (self.zero_at - 1))

    def for_juice(self, value: float, threshold: float) -> float:
        zero = 1 / self.zero_at
        return _clamped((value / threshold - zero) / (1 - zero))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Probability that a user with lognormally distributed patience still waits beyond the threshold.

    A miss by a factor f leaves the share 2 * (1 - Phi(ln(f) / sigma)); a small sigma approximates a step.
    """

    sigma: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", number(self.sigma, "sigma", above=0, error=IntentError))

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return 1.0 if value_s <= threshold_s else self._left(value_s / threshold_s)

    def for_juice(self, value: float, threshold: float) -> float:
        if value <= 0:
            return 0.0
        return 1.0 if value >= threshold else self._left(threshold / value)

    def _left(self, miss: float) -> float:
        return math.erfc(math.log(miss) / (self.sigma * math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Linear interpolation between (value, utility) points, constant beyond the ends and monotonic.

    >>> Piecewise([("1s", 1.0), ("3s", 0.5)]).for_latency(2.0, 1.0)
    0.75
    """

    points: Sequence[tuple[str | float, float]]
    values: tuple[float, ...] = field(init=False, repr=False)
    shares: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pairs = _points(self.points)
        object.__setattr__(self, "points", pairs)
        object.__setattr__(self, "values", tuple(value for value, _ in pairs))
        object.__setattr__(self, "shares", tuple(share for _, share in pairs))
        _check_one_direction(pairs)

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return interpolate(value_s, self.values, self.shares)

    def for_juice(self, value: float, threshold: float) -> float:
        return interpolate(value, self.values, self.shares)


@dataclass(frozen=True, slots=True)
class Custom:
    """A user-defined function from seconds or juice to a utility share 0..1.

    Headgate calls the function only inside the checked range; beyond that range, utility stays constant.
    """

    function: Callable[[float], float]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise IntentError(f"function is {shown(self.function)}; it must be a function from a number to 0..1")

    def __repr__(self) -> str:
        """The qualified name instead of an address, so that the text is the same in every process."""
        return f"Custom({self.name})"

    @property
    def name(self) -> str:
        """Module and qualified name of the function, or of the class of a callable object."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}:{named.__qualname__}"

    def for_latency(self, value_s: float, threshold_s: float) -> float:
        return self._at(min(max(value_s, threshold_s / GRID_REACH), threshold_s * GRID_REACH))

    def for_juice(self, value: float, threshold: float) -> float:
        return self._at(min(value, 1.0))

    def _at(self, value: float) -> float:
        try:
            share = self.function(value)
        # User code: report anything that the function raises, SystemExit included, as a mistake in the intent.
        except (Exception, SystemExit) as error:
            raise IntentError(
                f"function {self.name} fails at {value:g} with {type(error).__name__}: {error}"
            ) from error
        return number(share, f"utility by function {self.name} at {value:g}", low=0, high=1, error=IntentError)


SHAPES: Mapping[str, Shape] = {"knee": Knee(), "step": Step(), "linear": Linear(), "lognormal": Lognormal()}
"""Shapes that can be chosen by name alone."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The latency or juice that a job needs, and the utility of meeting them; intents with the same meaning are equal.

    >>> Intent(latency="2s", juice=0.95, worth=35).utility(latency_s=4.0, juice=1.0)
    26.25
    """

    latency: str | float | None = field(default=None, compare=False)
    """Longest acceptable latency: "250ms", "2s", or a number of seconds; None: no latency intent."""
    percentile: float | None = None
    """Percentile of the latency that must meet the intent, 1..100; None: the mean."""
    juice: float | None = None
    """Share of the arriving input that the job must process, above 0 and at most 1; None: no juice intent."""
    worth: float = 1.0
    """Maximum utility of the job, which acts as its priority."""
    shape: str | Shape | Mapping[str, str | Shape] = field(default="knee", compare=False)
    """How utility falls when the intent is missed; a mapping holds one shape for "latency" and one for "juice"."""
    policy: str | None = None
    """Policy of a job that regulates itself: "provision", "throughput:4000000/min", or a user-defined policy; None: scheduled."""
    latency_s: float | None = field(init=False, repr=False)
    latency_shape: Shape | None = field(init=False, repr=False)
    juice_shape: Shape | None = field(init=False, repr=False)
    _identity: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._set("latency_s", None if self.latency is None else seconds(self.latency, "latency", error=IntentError))
        self._set("worth", number(self.worth, "worth", above=0, error=IntentError))
        if self.percentile is not None:
            self._set("percentile", _percentile(self.percentile))
        if self.juice is not None:
            self._set("juice", number(self.juice, "juice", above=0, high=1, error=IntentError))
        self._check_policy()
        self._check_goals()
        self._choose_shapes()
        names = ("latency_s", "percentile", "juice", "worth", "latency_shape", "juice_shape", "policy")
        self._set("_identity", " ".join(f"{name}={getattr(self, name)!r}" for name in names))

    def utility(self, latency_s: float | None, juice: float | None, tolerance: float = 0.0) -> float | None:
        """Utility, 0..worth, averaged over latency and juice if both are set; None while a needed measurement is unknown.

        The juice intent counts as met down to `tolerance`, a share of the threshold, below the threshold.
        """
        verdicts = self._verdicts(latency_s, juice, tolerance)
        return None if verdicts is None else self.worth * sum(verdict.share for verdict in verdicts) / len(verdicts)

    def met(self, latency_s: float | None, juice: float | None, tolerance: float = 0.0) -> bool | None:
        """Whether latency and juice both meet the intent, whatever the shape; None while a needed measurement is unknown."""
        verdicts = self._verdicts(latency_s, juice, tolerance)
        return None if verdicts is None else all(verdict.met for verdict in verdicts)

    def describe(self) -> str:
        """The intent in short form: `2 s`, `p99 2 s`, `juice 0.95`, `2 s · 0.95`, `provision`."""
        if self.policy is not None:
            return self.policy
        if self.latency_s is None:
            return f"juice {self.juice:g}"
        percentile = "" if self.percentile is None else f"p{self.percentile:g} "
        juice = "" if self.juice is None else f" · {self.juice:g}"
        return f"{percentile}{show_seconds(self.latency_s)}{juice}"

    def fingerprint(self) -> str:
        """Text that identifies the intent: the same in every process, different for every different intent."""
        return self._identity

    def _verdicts(self, latency_s: float | None, juice: float | None, tolerance: float) -> list[_Verdict] | None:
        verdicts: list[_Verdict] = []
        if self.latency_s is not None and self.latency_shape is not None:
            if latency_s is None or math.isnan(latency_s):
                return None
            verdicts.append(_judge_latency(latency_s, self.latency_s, self.latency_shape))
        if self.juice is not None and self.juice_shape is not None:
            if juice is None or math.isnan(juice):
                return None
            verdicts.append(_judge_juice(juice, self.juice, self.juice_shape, tolerance))
        return verdicts

    def _check_policy(self) -> None:
        """Check the policy name, and set the default juice for a job that regulates itself without a latency or juice."""
        if self.policy is None:
            return
        if not isinstance(self.policy, str) or not self.policy:
            raise IntentError(f'policy is {shown(self.policy)}; it must be a name, such as "provision"')
        kind, _, target = self.policy.partition(":")
        if kind == THROUGHPUT:
            rows_s(target, "policy", IntentError)
        if self.latency_s is None and self.juice is None:
            self._set("juice", IMPLIED_JUICE)

    def _check_goals(self) -> None:
        if self.latency_s is None and self.percentile is not None:
            raise IntentError(f"percentile is {self.percentile:g} but there is no latency; give a latency as well")
        if self.latency_s is None and self.juice is None:
            raise IntentError('an intent needs a latency, such as "2s", or a juice, such as 0.95, or both')

    def _choose_shapes(self) -> None:
        by_goal = _shapes_by_goal(self.shape)
        for goal, threshold in (("latency", self.latency_s), ("juice", self.juice)):
            if threshold is None and isinstance(self.shape, Mapping) and goal in self.shape:
                raise IntentError(f"shape has an entry for {goal}, but the intent has no {goal}; remove the entry")
            self._set(f"{goal}_shape", None if threshold is None else by_goal[goal])
        if self.latency_s is not None:
            _check_never_rises(by_goal["latency"], self.latency_s)
        if self.juice is not None:
            _check_never_falls(by_goal["juice"], self.juice)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _percentile(value: Any) -> float:
    amount = number(value, "percentile", above=0, high=100, error=IntentError)
    if amount < 1:
        raise IntentError(f"percentile is {shown(value)}; it goes from 1 to 100. Did you mean {100 * amount:g}?")
    return amount


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The remaining utility share for latency or juice, and whether the measurement meets the intent."""

    share: float
    met: bool


def _judge_latency(value_s: float, threshold_s: float, shape: Shape) -> _Verdict:
    # Clock skew between two hosts can make a latency negative.
    value_s = max(0.0, value_s)
    return _Verdict(_share(shape, shape.for_latency, value_s, threshold_s), value_s <= threshold_s)


def _judge_juice(value: float, threshold: float, shape: Shape, tolerance: float) -> _Verdict:
    met = value >= threshold * (1 - tolerance)
    value = max(value, threshold) if met else value
    return _Verdict(_share(shape, shape.for_juice, _clamped(value), threshold), met)


def _share(shape: Shape, share_at: Callable[[float, float], float], value: float, threshold: float) -> float:
    """The share that the shape returns, clamped to 0..1; errors of a user-defined shape become an `IntentError`."""
    try:
        share = share_at(value, threshold)
    except IntentError:
        raise
    except (Exception, SystemExit) as error:
        raise IntentError(f"shape {shape!r} fails at {value:g} with {type(error).__name__}: {error}") from error
    if type(share) is float and 0.0 <= share <= 1.0:
        return share
    return _clamped(
        number(share, f"utility by shape {shape!r} at {value:g}", low=-ROUNDING, high=1 + ROUNDING, error=IntentError)
    )


def _clamped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _shapes_by_goal(shape: str | Shape | Mapping[str, str | Shape]) -> dict[str, Shape]:
    if not isinstance(shape, Mapping):
        return dict.fromkeys(("latency", "juice"), _shape(shape, "shape"))
    with about("shape", IntentError):
        check_fields(shape, ("latency", "juice"), IntentError)
    return {goal: _shape(shape.get(goal, "knee"), f"shape for {goal}") for goal in ("latency", "juice")}


def _shape(shape: str | Shape, what: str) -> Shape:
    if isinstance(shape, Shape) and not isinstance(shape, type):
        return shape
    if isinstance(shape, str):
        return SHAPES[choice(shape, what, SHAPES, IntentError)]
    raise IntentError(f"{what} is {shown(shape)}; allowed are {', '.join(SHAPES)} or a shape such as Linear(zero_at=3)")


def _check_never_rises(shape: Shape, threshold_s: float) -> None:
    for (left, before), (right, after) in pairwise(
        _sampled(shape.for_latency, _latency_grid(shape, threshold_s), threshold_s)
    ):
        if after > before + ROUNDING:
            first, second = _apart(before, after)
            between = f"latency {show_seconds(left, 6)} and {show_seconds(right, 6)}"
            raise IntentError(f"utility rises from {first} to {second} between {between}; it must not rise")


def _check_never_falls(shape: Shape, threshold: float) -> None:
    for (left, before), (right, after) in pairwise(_sampled(shape.for_juice, _juice_grid(shape, threshold), threshold)):
        if after < before - ROUNDING:
            first, second = _apart(before, after)
            between = f"juice {left:.6g} and {right:.6g}"
            raise IntentError(f"utility falls from {first} to {second} between {between}; it must not fall")


def _sampled(
    share_at: Callable[[float, float], float], values: Iterable[float], threshold: float
) -> list[tuple[float, float]]:
    return [
        (value, number(share_at(value, threshold), f"utility at {value:g}", low=0, high=1, error=IntentError))
        for value in values
    ]


def _latency_grid(shape: Shape, threshold_s: float) -> list[float]:
    if isinstance(shape, Piecewise):
        return list(shape.values)
    exponents = (2 * step / (GRID_POINTS - 1) - 1 for step in range(GRID_POINTS))
    return sorted({threshold_s, *(threshold_s * GRID_REACH**exponent for exponent in exponents)})


def _juice_grid(shape: Shape, threshold: float) -> list[float]:
    if isinstance(shape, Piecewise):
        return list(shape.values)
    return sorted({threshold, *(step / (GRID_POINTS - 1) for step in range(GRID_POINTS))})


def _apart(first: float, second: float) -> tuple[str, str]:
    """Both numbers, formatted with enough digits to differ."""
    texts = [(f"{first:.{digits}f}", f"{second:.{digits}f}") for digits in (2, 4, 6, 10)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[-1])


def _points(points: object) -> tuple[tuple[float, float], ...]:
    if isinstance(points, str) or not isinstance(points, Sequence) or len(points) < 2:
        raise IntentError(f'points is {shown(points)}; it must be two or more pairs such as ["1s", 1.0]')
    pairs = tuple(_point(point) for point in points)
    for (left, _), (right, _) in pairwise(pairs):
        if right <= left:
            raise IntentError(f"points has {right:g} after {left:g}; each value must be larger than the one before")
    return pairs


def _point(point: object) -> tuple[float, float]:
    if isinstance(point, str) or not isinstance(point, Sequence) or len(point) != 2:
        raise IntentError(f'points has {shown(point)}; each must be a value and its utility, such as ["1s", 1.0]')
    value, share = point
    return (
        seconds(value, "the value of a point", zero=True, error=IntentError),
        number(share, f"the utility of the point at {value}", low=0, high=1, error=IntentError),
    )


def _check_one_direction(pairs: tuple[tuple[float, float], ...]) -> None:
    falling = pairs[-1][1] <= pairs[0][1]
    for (left, before), (right, after) in pairwise(pairs):
        if (after > before) if falling else (after < before):
            verb, other = ("rises", "falls") if falling else ("falls", "rises")
            first, second = _apart(before, after)
            raise IntentError(
                f"utility {verb} from {first} to {second} between the points at {left:g} and {right:g}"
                f" but {other} elsewhere; it must go one way"
            )


Resolve = Callable[[str], Callable[[float], float]]
"""Loads the function named "package.module:name"; the caller passes the loader, because the core imports no user code."""

_FIELDS = ("latency", "percentile", "juice", "worth", "shape", "policy")
_KINDS: Mapping[str, Callable[..., Shape]] = {
    "knee": Knee,
    "step": Step,
    "linear": Linear,
    "lognormal": Lognormal,
    "piecewise": Piecewise,
}
_KIND_FIELDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("zero_at",),
    "lognormal": ("sigma",),
    "piecewise": ("points",),
}


def intent_from(table: Mapping[str, Any], where: str, resolve: Resolve | None = None) -> Intent:
    """Build the intent from a TOML table; `where` starts every error message.

    >>> intent_from({"latency": "2s", "shape": {"kind": "linear", "zero_at": 3}}, 'job "T1": intent').latency_s
    2.0
    """
    with about(where, IntentError):
        if not isinstance(table, Mapping):
            raise IntentError(f'it is {shown(table)}; it must be a table such as {{latency = "2s", worth = 35}}')
        check_fields(table, _FIELDS, IntentError)
        shape = _shape_or_shapes(table.get("shape", "knee"), resolve)
        return Intent(**{**table, "shape": shape})


def _shape_or_shapes(given: Any, resolve: Resolve | None) -> str | Shape | Mapping[str, str | Shape]:
    if isinstance(given, Mapping) and not {"kind", "function"} & set(given):
        with about("shape", IntentError):
            check_fields(given, ("latency", "juice", "kind", "function"), IntentError)
        return {goal: _shape_from(shape, f"shape for {goal}", resolve) for goal, shape in given.items()}
    return _shape_from(given, "shape", resolve)


def _shape_from(given: Any, what: str, resolve: Resolve | None) -> str | Shape:
    if not isinstance(given, Mapping):
        return _shape(given, what)
    with about(what, IntentError):
        return _from_function(given, resolve) if "function" in given else _from_kind(given)


def _from_kind(given: Mapping[str, Any]) -> Shape:
    kind = choice(given.get("kind"), "kind", _KINDS, IntentError)
    fields = _KIND_FIELDS.get(kind, ())
    check_fields(given, ("kind", *fields), IntentError)
    if kind == "piecewise" and "points" not in given:
        raise IntentError('a piecewise shape needs points, such as [["1s", 1.0], ["2s", 0.5]]')
    return _KINDS[kind](**{name: given[name] for name in fields if name in given})


def _from_function(given: Mapping[str, Any], resolve: Resolve | None) -> Shape:
    check_fields(given, ("function",), IntentError)
    name = given["function"]
    if not isinstance(name, str) or ":" not in name:
        raise IntentError(f'function is {shown(name)}; it must be "package.module:name"')
    if resolve is None:
        raise IntentError(f"function is {shown(name)}; functions cannot be loaded here, use a kind instead")
    return Custom(resolve(name))
