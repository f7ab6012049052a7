"""The state library: the kinds of fields that a processor may keep per key, and the state of one key.

| kind | for |
|---|---|
| `Value(default)` | one value |
| `Map()` | values by name |
| `Items()` | a list or a queue |
| `CountWindow(size)` | the newest `size` values |
| `TimeWindow(length_ms)` | the values of the last `length_ms` milliseconds of event time |
| `TopK(size)` | scores by name, and the highest scores |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.errors import StateSchemaError
from headgate.state import codec
from headgate.state.fields import ManyByName, NewestByCount, NewestByTime, OneValue, Part, Ranking, Rows, Series
from headgate.state.timers import Timers


@dataclass(frozen=True, slots=True)
class Value:
    """One value per key; keys that have none yet get a copy of the default."""

    default: Any = None
    kind = "value"

    def __post_init__(self) -> None:
        if isinstance(self.default, type):
            raise StateSchemaError(
                f"the default of a Value is the type {self.default.__name__}; give it a value, such as Value(0) or Value([])"
            )
        codec.check(self.default)

    def open(self, part: Part, chunk: int) -> OneValue:
        return OneValue(part, self.default)


@dataclass(frozen=True, slots=True)
class Map:
    """Values by name."""

    kind = "map"

    def open(self, part: Part, chunk: int) -> ManyByName:
        return ManyByName(part, chunk)


@dataclass(frozen=True, slots=True)
class Items:
    """A list, or a queue."""

    kind = "list"

    def open(self, part: Part, chunk: int) -> Series:
        return Series(part, chunk)


@dataclass(frozen=True, slots=True)
class CountWindow:
    """The newest `size` values."""

    size: int
    kind = "count window"

    def __post_init__(self) -> None:
        _whole(self.size, "the size of a CountWindow")

    def open(self, part: Part, chunk: int) -> NewestByCount:
        return NewestByCount(part, chunk, self.size)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The values of the last `length_ms` milliseconds of event time."""

    length_ms: int
    kind = "time window"

    def __post_init__(self) -> None:
        _whole(self.length_ms, "the length_ms of a TimeWindow")

    def open(self, part: Part, chunk: int) -> NewestByTime:
        return NewestByTime(part, chunk, self.length_ms)


@dataclass(frozen=True, slots=True)
class TopK:
    """Scores by name, and the `size` highest of them."""

    size: int
    kind = "top-k"

    def __post_init__(self) -> None:
        _whole(self.size, "the size of a TopK")

    def open(self, part: Part, chunk: int) -> Ranking:
        return Ranking(part, chunk, self.size)


Kind = Value | Map | Items | CountWindow | TimeWindow | TopK


def _whole(value: Any, what: str) -> None:
    if type(value) is not int or value < 1:
        raise StateSchemaError(f"{what} is {value!r}; it must be a whole number of at least 1")


# -- the state of a key -------------------------------------------------------------------------------------------------


class KeyState:
    """All fields of one key as attributes, opened when first used, and its timers."""

    def __init__(self, rows: Rows, key: bytes, kinds: Mapping[str, Kind], chunk: int, timers: Timers) -> None:
        self._rows, self._kinds, self._chunk = rows, kinds, chunk
        self._prefix = len(key).to_bytes(4, "big") + key
        self._opened: dict[str, Any] = {}
        self._key, self._timers = key, timers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._kinds:
            raise AttributeError(f'the state has no field "{name}"; it declares {", ".join(self._kinds) or "none"}')
        if name not in self._opened:
            part = Part(self._rows, self._prefix + name.encode() + b"\0", name)
            self._opened[name] = self._kinds[name].open(part, self._chunk)
        return self._opened[name]

    def wake_at(self, at_ms: int) -> None:
        """Call `on_timer` of this key once the watermark has passed this time."""
        self._timers.set(self._key, at_ms)

    def flush(self) -> None:
        """Write the changed rows of all fields."""
        for kept in self._opened.values():
            kept.flush()


def row_owner(row: bytes) -> tuple[bytes, str, bytes]:
    """The key, field and part that a row belongs to."""
    end = 4 + int.from_bytes(row[:4], "big")
    field, _, part = row[end:].partition(b"\0")
    return row[4:end], field.decode(), part
