"""Load patterns: rows per second as a function of time. Load patterns are pure functions; callers add noise."""

from __future__ import annotations

import dataclasses
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from headgate.core.quantities import about, check_fields, choice, interpolate, number, seconds, shown
from headgate.errors import ScenarioError

HOURS = 24

# Hourly means of the EPA-HTTP and SDSC-HTTP traces, Internet Traffic Archive, 1995, as a share of the busiest hour, by
# local hour of the day. Henge (SoCC '18), section 8.1.2 runs its diurnal jobs on the same two traces.
HOURLY: Mapping[str, tuple[float, ...]] = {
    "epa": (
        *(0.145, 0.092, 0.085, 0.053, 0.074, 0.079, 0.064, 0.179, 0.423, 0.656, 0.680, 0.810),
        *(0.811, 0.931, 1.000, 0.908, 0.857, 0.592, 0.386, 0.317, 0.278, 0.215, 0.237, 0.247),
    ),
    "sdsc": (
        *(0.258, 0.193, 0.265, 0.266, 0.187, 0.236, 0.349, 0.606, 0.782, 0.826, 0.896, 0.983),
        *(0.805, 1.000, 0.840, 0.718, 0.669, 0.479, 0.451, 0.298, 0.378, 0.302, 0.310, 0.236),
    ),
}

Points = Sequence[tuple[float | str, float]]


class Load(Protocol):
    """A load pattern: the rate of rows at any time."""

    def rate_rows_s(self, at_s: float) -> float:
        """Rows per second at `at_s` seconds after the start."""


@dataclass(frozen=True, slots=True)
class Steady:
    """A constant rate."""

    rate: float

    def __post_init__(self) -> None:
        _keep(self, rate=_rate(self.rate, "rate"))

    def rate_rows_s(self, at_s: float) -> float:
        return self.rate


@dataclass(frozen=True, slots=True)
class Steps:
    """The rate of the last (time, rate) point that has passed; before the first point, the first rate.

    >>> Steps([(0, 100), ("1m", 300)]).rate_rows_s(60)
    300.0
    """

    points: Points
    times_s: tuple[float, ...] = field(init=False, repr=False)
    rates: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep_points(self, self.points)

    def rate_rows_s(self, at_s: float) -> float:
        return self.rates[max(0, bisect_right(self.times_s, at_s) - 1)]


@dataclass(frozen=True, slots=True)
class Cycle:
    """Levels in turn, each for `each_s` seconds, repeated endlessly; the rate is the level times `rate`.

    >>> Cycle([2, 6], "8m", rate=10).rate_rows_s(480)
    60.0
    """

    levels: Sequence[float]
    each_s: float
    rate: float = 1.0

    def __post_init__(self) -> None:
        _keep(self, levels=_in_turn(self.levels))
        _keep(self, each_s=seconds(self.each_s, "each_s", error=ScenarioError), rate=_rate(self.rate, "rate"))

    def rate_rows_s(self, at_s: float) -> float:
        return self.rate * self.levels[int(at_s / self.each_s + 1e-9) % len(self.levels)]


@dataclass(frozen=True, slots=True)
class Ramp:
    """Linear interpolation between (time, rate) points, constant beyond the ends."""

    points: Points
    times_s: tuple[float, ...] = field(init=False, repr=False)
    rates: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep_points(self, self.points)

    def rate_rows_s(self, at_s: float) -> float:
        return interpolate(at_s, self.times_s, self.rates)


@dataclass(frozen=True, slots=True)
class Spike:
    """`height` times the rate from `start_s` until `end_s`."""

    rate: float
    height: float
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        _keep(self, rate=_rate(self.rate, "rate"), height=number(self.height, "height", low=0, error=ScenarioError))
        _keep(self, start_s=_time(self.start_s, "start_s"), end_s=_time(self.end_s, "end_s"))
        if self.end_s <= self.start_s:
            raise ScenarioError(f"end_s is {self.end_s:g}; it must be later than start_s, which is {self.start_s:g}")

    def rate_rows_s(self, at_s: float) -> float:
        return self.rate * self.height if self.start_s <= at_s < self.end_s else self.rate


@dataclass(frozen=True, slots=True)
class Sine:
    """A sine wave around `mean`; `phase_s` seconds before time 0, the wave rises through its mean."""

    mean: float
    amplitude: float
    period_s: float
    phase_s: float = 0.0

    def __post_init__(self) -> None:
        _keep(self, mean=_rate(self.mean, "mean"), amplitude=_rate(self.amplitude, "amplitude"))
        _keep(self, period_s=seconds(self.period_s, "period_s", error=ScenarioError))
        _keep(self, phase_s=_time(self.phase_s, "phase_s"))
        if self.amplitude > self.mean:
            raise ScenarioError(
                f"amplitude is {self.amplitude:g}; it must be at most the mean, {self.mean:g}, since no rate is below 0"
            )

    def rate_rows_s(self, at_s: float) -> float:
        # Rounding could lead to a negative rate at the lowest point of a wave that touches 0.
        return max(0.0, self.mean + self.amplitude * math.sin(2 * math.pi * (at_s + self.phase_s) / self.period_s))


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A daily cycle: each hourly level is reached at the middle of its hour, with linear interpolation between levels.

    `hour_s` is the duration of an hour of the day in seconds, `offset_hours` the hour of the day at the start.

    >>> Diurnal(peak=1000, shape="epa", hour_s=600).rate_rows_s(14.5 * 600)
    1000.0
    """

    peak: float
    shape: str | Sequence[float] = "epa"
    hour_s: float = 3600.0
    offset_hours: float = 0.0
    levels: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep(self, peak=_rate(self.peak, "peak"), levels=_levels(self.shape))
        _keep(self, hour_s=seconds(self.hour_s, "hour_s", error=ScenarioError))
        _keep(self, offset_hours=number(self.offset_hours, "offset_hours", error=ScenarioError))

    def rate_rows_s(self, at_s: float) -> float:
        hour, past = divmod(at_s / self.hour_s + self.offset_hours - 0.5, 1)
        before, after = self.levels[int(hour) % HOURS], self.levels[int(hour + 1) % HOURS]
        return self.peak * (before + (after - before) * past)


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows counted from each timestamp to the next, replayed from the first timestamp on, repeated endlessly.

    `time_scale` stretches time (1/6 plays an hour in 10 minutes) without changing the rates. Rates are multiplied by
    `height_scale`, or scaled so that the highest rate is `peak`.

    >>> Trace([(0, 60), (60, 120)], peak=10).rate_rows_s(0)
    5.0
    """

    points: Sequence[tuple[float, float]]
    time_scale: float = 1.0
    height_scale: float | None = None
    peak: float | None = None
    starts_s: tuple[float, ...] = field(init=False, repr=False)
    rates: tuple[float, ...] = field(init=False, repr=False)
    length_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep(self, points=_points(self.points, _timestamp, at_least=2))
        _keep(self, time_scale=number(self.time_scale, "time_scale", above=0, error=ScenarioError))
        times_s = [at_s for at_s, _ in self.points]
        # The last count has no next timestamp: its interval is assumed to be as long as the previous interval.
        ends_s = [*times_s[1:], 2 * times_s[-1] - times_s[-2]]
        counted = [count / (end - start) for (start, count), end in zip(self.points, ends_s, strict=True)]
        factor = self._factor(max(counted))
        _keep(self, rates=tuple(rate * factor for rate in counted))
        _keep(self, starts_s=tuple((start - times_s[0]) * self.time_scale for start in times_s))
        _keep(self, length_s=(ends_s[-1] - times_s[0]) * self.time_scale)

    def rate_rows_s(self, at_s: float) -> float:
        return self.rates[bisect_right(self.starts_s, at_s % self.length_s) - 1]

    def _factor(self, highest: float) -> float:
        if self.peak is None:
            scale = 1.0 if self.height_scale is None else self.height_scale
            return number(scale, "height_scale", low=0, error=ScenarioError)
        if self.height_scale is not None:
            raise ScenarioError("peak and height_scale are both given; give one of them")
        if highest == 0:
            raise ScenarioError("peak is given, but all counts of the trace are 0; leave peak out")
        return _rate(self.peak, "peak") / highest


def median_rate(load: Load, duration_s: float, samples: int = 1000) -> float:
    """The median of the load's rate over its first `duration_s` seconds.

    >>> median_rate(Spike(100, 5, start_s=10, end_s=20), 60)
    100.0
    """
    return statistics.median(load.rate_rows_s((sample + 0.5) * duration_s / samples) for sample in range(samples))


PATTERNS: Mapping[str, type[Load]] = {
    "steady": Steady,
    "steps": Steps,
    "cycle": Cycle,
    "ramp": Ramp,
    "spike": Spike,
    "sine": Sine,
    "diurnal": Diurnal,
    "trace": Trace,
}


def load_from(table: Mapping[str, Any], where: str, base_dir: Path) -> Load:
    """The load that a table of a scenario file describes; a trace's `file` is relative to `base_dir`.

    >>> load_from({"pattern": "steady", "rate": 1000}, 'job "T1": load', Path())
    Steady(rate=1000.0)
    """
    with about(where, ScenarioError):
        if not isinstance(table, Mapping):
            raise ScenarioError(f'it is {shown(table)}; it must be a table such as {{pattern = "steady", rate = 1000}}')
        if "pattern" not in table:
            raise ScenarioError(f"pattern is missing; allowed are {', '.join(PATTERNS)}")
        pattern = PATTERNS[choice(table["pattern"], "pattern", PATTERNS, ScenarioError)]
        values = {name: value for name, value in table.items() if name != "pattern"}
        return _trace_from(values, base_dir) if pattern is Trace else _load_of(pattern, values)


def read_trace(path: Path) -> tuple[tuple[float, float], ...]:
    """The (timestamp, count) points of a CSV file `timestamp_s,count`; the header is optional."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ScenarioError(f'trace "{path}" cannot be read: {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f'trace "{path}" cannot be read: it is not UTF-8 text') from error
    with about(f'trace "{path}"', ScenarioError):
        return _trace_points(lines)


def _trace_points(lines: Sequence[str]) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    for line_number, line in enumerate(lines, 1):
        if not line.strip() or (line_number == 1 and _is_header(line)):
            continue
        at_s, count = _trace_line(line, line_number)
        if points and at_s <= points[-1][0]:
            raise ScenarioError(f"line {line_number} has timestamp {at_s:.12g}, not later than the line before")
        points.append((at_s, count))
    if len(points) < 2:
        raise ScenarioError(f"the number of counts is {len(points)}; it must be at least 2")
    return tuple(points)


def _is_header(line: str) -> bool:
    """Whether a line holds two column names instead of two numbers."""
    cells = line.split(",")
    return len(cells) == 2 and all(cell.strip().replace("_", "").isidentifier() for cell in cells)


def _trace_line(line: str, line_number: int) -> tuple[float, float]:
    try:
        at_s, count = (float(cell) for cell in line.split(","))
    except ValueError:
        at_s = count = math.nan
    if not (math.isfinite(at_s) and math.isfinite(count) and count >= 0):
        raise ScenarioError(
            f"line {line_number} is {shown(line)}; it must be a timestamp in seconds, a comma and a count of at least 0"
        )
    return at_s, count


def _trace_from(values: Mapping[str, Any], base_dir: Path) -> Trace:
    check_fields(values, ("file", "time_scale", "height_scale", "peak"), ScenarioError)
    if not isinstance(values.get("file"), str) or "\0" in values["file"]:
        raise ScenarioError(f"file is {shown(values.get('file'))}; it must be the path of a CSV file timestamp_s,count")
    scales = {name: value for name, value in values.items() if name != "file"}
    return Trace(read_trace(base_dir / values["file"]), **scales)


def _load_of(pattern: Callable[..., Load], values: Mapping[str, Any]) -> Load:
    # Every pattern is a dataclass whose fields are the fields of its table.
    fields = {known.name: known for known in dataclasses.fields(pattern) if known.init}  # type: ignore[arg-type]
    check_fields(values, fields, ScenarioError)
    missing = [name for name, known in fields.items() if known.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ScenarioError(f"{missing[0]} is missing; this pattern needs it")
    return pattern(**values)


def _keep(load: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(load, name, value)


def _keep_points(load: object, points: Points) -> None:
    kept = _points(points, _time, at_least=1)
    _keep(load, points=kept, times_s=tuple(at_s for at_s, _ in kept), rates=tuple(rate for _, rate in kept))


def _points(points: object, read_time: Callable[[Any, str], float], at_least: int) -> tuple[tuple[float, float], ...]:
    if isinstance(points, str) or not isinstance(points, Sequence) or len(points) < at_least:
        raise ScenarioError(f"points is {shown(points)}; it must be {at_least} or more pairs such as [60, 1000]")
    pairs = tuple(_point(point, read_time) for point in points)
    for (left, _), (right, _) in pairwise(pairs):
        if right <= left:
            raise ScenarioError(f"points has time {right:g} after {left:g}; each must be later than the one before")
    return pairs


def _point(point: object, read_time: Callable[[Any, str], float]) -> tuple[float, float]:
    if isinstance(point, str) or not isinstance(point, Sequence) or len(point) != 2:
        raise ScenarioError(f"points has {shown(point)}; each must be a time and its rows, such as [60, 1000]")
    return read_time(point[0], "the time of a point"), _rate(point[1], f"the value of the point at {shown(point[0])}")


def _in_turn(levels: object) -> tuple[float, ...]:
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise ScenarioError(f"levels is {shown(levels)}; it must be a list of numbers such as [2, 4, 6, 4]")
    return tuple(_rate(level, "a level") for level in levels)


def _rate(value: Any, what: str) -> float:
    return number(value, what, low=0, error=ScenarioError)


def _time(value: Any, what: str) -> float:
    return seconds(value, what, zero=True, error=ScenarioError)


def _timestamp(value: Any, what: str) -> float:
    return number(value, what, error=ScenarioError)


def _levels(shape: str | Sequence[float]) -> tuple[float, ...]:
    """The hourly levels of a day, scaled so that the highest level is 1."""
    if isinstance(shape, str):
        return HOURLY[choice(shape, "shape", HOURLY, ScenarioError)]
    if not isinstance(shape, Sequence) or len(shape) != HOURS:
        raise ScenarioError(f"shape is {shown(shape)}; allowed are {', '.join(HOURLY)} or {HOURS} hourly numbers")
    levels = [number(level, f"shape at hour {hour}", low=0, error=ScenarioError) for hour, level in enumerate(shape)]
    highest = max(levels)
    if highest == 0:
        raise ScenarioError("shape has only zeros; at least one hour must be above 0")
    return tuple(level / highest for level in levels)
