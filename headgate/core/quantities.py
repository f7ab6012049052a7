"""Parse, check, interpolate and format quantities that people write and read.

Every error message is one sentence that names the field, the value and the allowed values. The caller chooses the error class.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real
from typing import Any

from headgate.errors import InputError

UNIT_S: Mapping[str, float] = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Seconds per unit, for every unit allowed in a duration."""

_DURATION = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)")
_SHOWN_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def seconds(value: Any, what: str, *, zero: bool = False, error: type[InputError] = InputError) -> float:
    """Parse a duration, a number of seconds or text with a unit, into seconds; `zero` allows 0.

    >>> seconds("250ms", "latency")
    0.25
    """
    amount = _duration(value.strip()) if isinstance(value, str) else _finite(value)
    if amount is None or amount < 0 or (amount == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise error(
            f'{what} is {shown(value)}; it must be a duration {least}, such as "250ms", "2s", "1m", "1.5h",'
            " or a number of seconds"
        )
    return amount


def rows_s(value: str, what: str, error: type[InputError] = InputError) -> float:
    """Parse a rate such as "4000000/min" into rows per second.

    >>> rows_s("6_000/min", "target")
    100.0
    """
    amount, _, unit = value.partition("/")
    plain = amount.replace("_", "").replace(",", "").strip()
    rate = _duration(plain) if plain and plain[-1].isdigit() else None  # a bare number
    if rate is None or rate <= 0 or unit.strip() not in ("", "s", "min", "h"):
        raise error(f'{what} is {shown(value)}; a rate looks like "4000000/min" or "500/s"')
    return rate / UNIT_S[unit.strip() or "s"]


def number(
    value: Any,
    what: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    error: type[InputError] = InputError,
) -> float:
    """Check for a finite number; `low` and `high` are inclusive bounds, `above` is an exclusive bound.

    >>> number(35, "worth", above=0)
    35.0
    """
    amount = _finite(value)
    too_low = amount is None or (low is not None and amount < low) or (above is not None and amount <= above)
    if amount is None or too_low or (high is not None and amount > high):
        raise error(f"{what} is {shown(value)}; it must be a number{_range(low, above, high)}")
    return amount


def choice(value: Any, what: str, allowed: Collection[str], error: type[InputError] = InputError) -> str:
    """Check that the value is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise error(f"{what} is {shown(value)}; allowed are {', '.join(allowed)}.{did_you_mean(value, allowed)}")
    return value


def check_fields(table: Mapping[str, Any], allowed: Collection[str], error: type[InputError] = InputError) -> None:
    """Raise an error for the first field of `table` that is not allowed."""
    for name in table:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise error(f"there is no field {shown(name)}; allowed are {', '.join(allowed)}.{hint}")


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """The hint ` Did you mean "..."?` with the closest known word; empty if no word is close."""
    close = get_close_matches(value, list(known), 1) if isinstance(value, str) else []
    return f' Did you mean "{close[0]}"?' if close else ""


@contextmanager
def about(what: str, error: type[InputError] = InputError) -> Iterator[None]:
    """Start the message of every error raised inside the block with `what`.

    >>> with about('job "T1"'):
    ...     number(-1, "worth", above=0)
    Traceback (most recent call last):
    headgate.errors.InputError: job "T1": worth is -1; it must be a number above 0
    """
    try:
        yield
    except InputError as refusal:
        raise error(f"{what}: {refusal}") from refusal


def shown(value: Any) -> str:
    """The value as text for an error message: strings in double quotes, on one line, cut at 60 characters."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=False)
    return reprlib.repr(value)


def interpolate(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """The value at `at` by linear interpolation between increasing places, constant beyond the ends.

    >>> interpolate(2.0, (1.0, 3.0), (10.0, 20.0))
    15.0
    """
    after = bisect_right(places, at)
    if after == 0 or after == len(places):
        return values[max(0, after - 1)]
    share = (at - places[after - 1]) / (places[after] - places[after - 1])
    return values[after - 1] + (values[after] - values[after - 1]) * share


def show_seconds(value_s: float, digits: int = 3) -> str:
    """Format a duration in the largest unit that yields at least 1.

    >>> show_seconds(0.25), show_seconds(90)
    ('250 ms', '1.5 min')
    """
    if value_s == 0 or not math.isfinite(value_s):
        return f"{value_s:g} s"
    # Round before choosing the unit, so that 0.9999 s prints as "1 s" instead of "1000 ms".
    rounded_s = float(f"{value_s:.{digits}g}")
    unit, unit_s = next((pair for pair in _SHOWN_UNITS if abs(rounded_s) >= pair[1]), _SHOWN_UNITS[-1])
    amount = rounded_s / unit_s
    return f"{amount:,.0f} {unit}" if abs(amount) >= 10**digits else f"{amount:.{digits}g} {unit}"


def _duration(text: str) -> float | None:
    match = _DURATION.fullmatch(text)
    unit = match.group(2) or "s" if match else ""
    if match is None or unit not in UNIT_S:
        return None
    return _finite(float(match.group(1)) * UNIT_S[unit])


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if math.isfinite(amount) else None


def _range(low: float | None, above: float | None, high: float | None) -> str:
    bounds = (("of at least", low), ("above", above), ("at most", high))
    words = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
    return f" {' and '.join(words)}" if words else ""
