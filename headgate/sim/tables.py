"""Tables, lists and numbers of a scenario file; every error is one sentence that names the field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.core.quantities import did_you_mean, number, shown
from headgate.errors import ScenarioError

Table = Mapping[str, Any]


def table_in(table: Table, key: str) -> Table:
    """The table under a key; empty if there is none."""
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{key} is {value!r}; it must be a table")
    return value


def rows_in(table: Table, key: str) -> list[Table]:
    """The list of tables under a key; empty if there is none."""
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise ScenarioError(f"{key} is {value!r}; it must be a list of tables ([[{key}]])")
    return value


def lane_count(value: Any, what: str) -> int:
    """A number of lanes: at least one."""
    return whole(value, what, low=1)


def whole(value: Any, what: str, low: int, high: int = 10_000) -> int:
    """A whole number in a range."""
    amount = number(value, what, low=low, high=high, error=ScenarioError)
    if amount != int(amount):
        raise ScenarioError(f"{what} is {shown(value)}; it must be a whole number")
    return int(amount)


def existing(value: Any, what: str, known: Iterable[str]) -> str:
    """The name of something that exists at that time."""
    if not isinstance(value, str) or value not in set(known):
        raise ScenarioError(f"{what} is {shown(value)}, which does not exist then.{did_you_mean(value, known)}")
    return str(value)
