"""The state library: what a processor may keep per key. Everything ends up as rows (key, field, part) of bytes, and only
the parts that changed are written: a window of a million items costs an epoch no more than the items it gained and lost.

| kind | for |
|---|---|
| `Value(default)` | one thing |
| `Map()` | things by name |
| `Items()` | a list or a queue |
| `CountWindow(size)` | the newest `size` things |
| `TimeWindow(length_ms)` | the things of the last `length_ms` milliseconds of event time |
| `TopK(size)` | scores by name, and the highest of them |
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.errors import StateError, StateSchemaError
from headgate.state import codec


class Rows(Protocol):
    """Rows of bytes of one slice, as the epoch sees them."""

    def get(self, row: bytes) -> bytes | None:
        """None if there is no such row."""

    def set(self, row: bytes, value: bytes | None) -> None:
        """None deletes the row."""


class Part:
    """Things decoded once and encoded once per epoch: row by row, those that were touched."""

    def __init__(self, rows: Rows, prefix: bytes, field: str = "") -> None:
        self._rows, self._prefix, self._field = rows, prefix, field
        self._decoded: dict[bytes, Any] = {}
        self._changed: set[bytes] = set()
        self._deep: set[bytes] = set()
        """Rows with more than scalars in them."""

    def load(self, part: bytes, default: Callable[[], Any]) -> Any:
        """The content of a row; what is changed in place must be passed to `changed`."""
        if part not in self._decoded:
            self._decoded[part] = self._read(part)
        content = self._decoded[part]
        return default() if content is None else content

    def _read(self, part: bytes) -> Any:
        data = self._rows.get(self._prefix + part)
        if data is None:
            return None
        if data[0] in codec.DEEP:
            self._deep.add(part)
        return codec.decode(data)

    def take(self, part: bytes, thing: Any) -> None:
        """Something of the user's is about to become part of a row: refuse it unless it can be kept."""
        kind = type(thing)
        if kind in codec.SCALARS or (kind is str and thing.isascii()):  # in place: once for every thing that is set
            return
        try:
            codec.check(thing)
        except StateError as error:
            raise StateError(f'state field "{self._field}": {error}') from None
        self._deep.add(part)

    def changed(self, part: bytes, content: Any) -> None:
        """Content None deletes the row."""
        self._decoded[part] = content
        self._changed.add(part)

    def flush(self) -> None:
        """Hand over what changed."""
        for part in self._changed:
            content, encode = self._decoded[part], codec.encode if part in self._deep else codec.encode_scalars
            self._rows.set(self._prefix + part, None if content is None else encode(content))
        self._changed.clear()


# -- kinds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """One thing per key; keys that have none yet get a copy of the default."""

    default: Any = None
    kind = "value"

    def __post_init__(self) -> None:
        if isinstance(self.default, type):
            raise StateSchemaError(
                f"the default of a Value is the type {self.default.__name__}; give it a thing, such as Value(0) or Value([])"
            )
        codec.check(self.default)

    def opened(self, part: Part, chunk: int) -> OneValue:
        return OneValue(part, self.default)


@dataclass(frozen=True, slots=True)
class Map:
    """Things by name."""

    kind = "map"

    def opened(self, part: Part, chunk: int) -> ManyByName:
        return ManyByName(part, chunk)


@dataclass(frozen=True, slots=True)
class Items:
    """A list, or a queue."""

    kind = "list"

    def opened(self, part: Part, chunk: int) -> Series:
        return Series(part, chunk)


@dataclass(frozen=True, slots=True)
class CountWindow:
    """The newest `size` things."""

    size: int
    kind = "count window"

    def __post_init__(self) -> None:
        _whole(self.size, "the size of a CountWindow")

    def opened(self, part: Part, chunk: int) -> NewestByCount:
        return NewestByCount(part, chunk, self.size)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The things of the last `length_ms` milliseconds of event time."""

    length_ms: int
    kind = "time window"

    def __post_init__(self) -> None:
        _whole(self.length_ms, "the length_ms of a TimeWindow")

    def opened(self, part: Part, chunk: int) -> NewestByTime:
        return NewestByTime(part, chunk, self.length_ms)


@dataclass(frozen=True, slots=True)
class TopK:
    """Scores by name, and the `size` highest of them."""

    size: int
    kind = "top-k"

    def __post_init__(self) -> None:
        _whole(self.size, "the size of a TopK")

    def opened(self, part: Part, chunk: int) -> Ranking:
        return Ranking(part, chunk, self.size)


Kind = Value | Map | Items | CountWindow | TimeWindow | TopK


def _whole(value: Any, what: str) -> None:
    if type(value) is not int or value < 1:
        raise StateSchemaError(f"{what} is {value!r}; it must be a whole number of at least 1")


# -- in use ----------------------------------------------------------------------------------------------------------


def _nothing() -> None:
    return None


class OneValue:
    """`state.field.get()`, `.set(thing)`, `.clear()`."""

    def __init__(self, part: Part, default: Any) -> None:
        self._part, self._default = part, default

    def get(self) -> Any:
        """What was set last. A list or dict that is changed in place must be set again."""
        found = self._part.load(b"", _nothing)
        if found is not None:
            return found[0]
        return self._default if type(self._default) in codec.SCALARS else deepcopy(self._default)

    def set(self, thing: Any) -> None:
        self._part.take(b"", thing)
        self._part.changed(b"", [thing])

    def clear(self) -> None:
        """As if it had never been set."""
        self._part.changed(b"", None)

    def flush(self) -> None:
        self._part.flush()


class ManyByName:
    """Like a dict, kept in buckets so that one name costs one bucket."""

    def __init__(self, part: Part, chunk: int) -> None:
        self._part, self._chunk = part, chunk

    def _about(self) -> list[int]:
        """Number of names and of buckets."""
        return list(self._part.load(b"", lambda: [0, 1]))

    def _bucket(self, name: Any, buckets: int) -> bytes:
        return b"%d" % (codec.code_of(name) % buckets)

    def get(self, name: Any, default: Any = None) -> Any:
        pairs = self._part.load(self._bucket(name, self._about()[1]), list)
        return next((thing for key, thing in pairs if key == name), default)

    def __contains__(self, name: Any) -> bool:
        missing = object()
        return self.get(name, missing) is not missing

    def __len__(self) -> int:
        return self._about()[0]

    def set(self, name: Any, thing: Any) -> None:
        count, buckets = self._about()
        bucket = self._bucket(name, buckets)
        pairs = self._part.load(bucket, list)
        others = [pair for pair in pairs if pair[0] != name]
        self._part.take(bucket, name)
        self._part.take(bucket, thing)
        self._part.changed(bucket, [*others, [name, thing]])
        if len(others) == len(pairs):
            self._part.changed(b"", [count + 1, buckets])
            if count + 1 > buckets * self._chunk:
                self._split()

    def remove(self, name: Any) -> None:
        """A name that is not there is fine; the last one that goes leaves nothing behind."""
        count, buckets = self._about()
        bucket = self._bucket(name, buckets)
        pairs = self._part.load(bucket, list)
        others = [pair for pair in pairs if pair[0] != name]
        if len(others) < len(pairs):
            self._part.changed(bucket, others or None)
            self._part.changed(b"", [count - 1, buckets] if count > 1 else None)

    def clear(self) -> None:
        """Remove all names."""
        for number in range(self._about()[1]):
            self._part.changed(b"%d" % number, None)
        self._part.changed(b"", None)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Names and things, in no particular order, but always the same."""
        for number in range(self._about()[1]):
            yield from [(name, thing) for name, thing in self._part.load(b"%d" % number, list)]

    def _split(self) -> None:
        """Four times as many buckets: rare, and the larger the rarer."""
        count, buckets = self._about()
        found = list(self.items())
        fresh: dict[bytes, list[Any]] = {b"%d" % number: [] for number in range(buckets * 4)}
        for name, thing in found:
            bucket = self._bucket(name, buckets * 4)
            fresh[bucket].append([name, thing])
            self._part.take(bucket, name)
            self._part.take(bucket, thing)
        for bucket, pairs in fresh.items():
            self._part.changed(bucket, pairs or None)
        self._part.changed(b"", [count, buckets * 4])

    def flush(self) -> None:
        self._part.flush()


class Series:
    """A list and a queue in chunks: `append`, `popleft`, `[i]`, `len`, iteration from the oldest to the newest."""

    def __init__(self, part: Part, chunk: int) -> None:
        self._part, self._chunk = part, chunk

    def _ends(self) -> tuple[int, int]:
        first, end = self._part.load(b"", lambda: [0, 0])
        return first, end

    def __len__(self) -> int:
        first, end = self._ends()
        return end - first

    def append(self, thing: Any) -> None:
        self._append(thing, thing)

    def _append(self, thing: Any, stored: Any) -> None:
        first, end = self._ends()
        name = b"%d" % (end // self._chunk)
        chunk = self._part.load(name, list)
        self._part.take(name, thing)
        self._part.changed(name, [*chunk, stored])
        self._part.changed(b"", [first, end + 1])

    def popleft(self) -> Any:
        """Take the oldest; `IndexError` if there is none. The last one that goes leaves nothing behind."""
        first, end = self._ends()
        if first == end:
            raise IndexError("popleft from an empty list")
        thing = self[0]
        emptied = first + 1 == end
        self._part.changed(b"", None if emptied else [first + 1, end])
        if emptied or (first + 1) % self._chunk == 0:
            self._part.changed(b"%d" % (first // self._chunk), None)
        return thing

    def __getitem__(self, index: int) -> Any:
        first, end = self._ends()
        at = first + index if index >= 0 else end + index
        if not first <= at < end:
            raise IndexError(f"index {index} in a list of {end - first}")
        return self._part.load(b"%d" % (at // self._chunk), list)[at % self._chunk]

    def __iter__(self) -> Iterator[Any]:
        first, end = self._ends()
        for at in range(first, end):
            yield self._part.load(b"%d" % (at // self._chunk), list)[at % self._chunk]

    def clear(self) -> None:
        """Take all of them."""
        while len(self):
            self.popleft()

    def flush(self) -> None:
        self._part.flush()


class NewestByCount(Series):
    """`append` says what fell out, so that sums over the window can follow it."""

    def __init__(self, part: Part, chunk: int, size: int) -> None:
        super().__init__(part, chunk)
        self._size = size

    def append(self, thing: Any) -> list[Any]:  # type: ignore[override]
        super().append(thing)
        return [self.popleft() for _ in range(len(self) - self._size)]


class _Timed(Series):
    """Things with their times."""

    def append_at(self, at_ms: int, thing: Any) -> None:
        self._append(thing, [at_ms, thing])


class NewestByTime:
    """`append(at_ms, thing)` says what fell out; a thing that comes too late for the window falls out at once.

    An emptied window leaves nothing behind: it also forgets the latest time that it has seen.
    """

    def __init__(self, part: Part, chunk: int, length_ms: int) -> None:
        self._items = _Timed(part, chunk)
        self._length_ms, self._part = length_ms, part

    def append(self, at_ms: int, thing: Any) -> list[Any]:
        newest = max(at_ms, self._newest())
        if at_ms <= newest - self._length_ms:
            return [thing]
        self._items.append_at(at_ms, thing)
        return self.expire(newest)

    def expire(self, now_ms: int) -> list[Any]:
        """Let go of what is older than the window at this time; returns it."""
        horizon, gone = now_ms - self._length_ms, []
        # Things may have come out of order, so one that is still valid may hide older ones; those are passed over below.
        while len(self._items) and self._items[0][0] <= horizon:
            gone.append(self._items.popleft()[1])
        self._part.changed(b"newest", max(now_ms, self._newest()) if len(self._items) else None)
        return gone

    def clear(self) -> None:
        """Let go of everything."""
        self._items.clear()
        self._part.changed(b"newest", None)

    def _newest(self) -> int:
        return int(self._part.load(b"newest", lambda: -(1 << 62)))

    def __iter__(self) -> Iterator[Any]:
        horizon = self._newest() - self._length_ms
        return (thing for at_ms, thing in self._items if at_ms > horizon)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def flush(self) -> None:
        self._part.flush()


class Ranking(ManyByName):
    """`add(name, by)` changes a score, one that falls to 0 goes; `best()` are the highest, ties in order of name."""

    def __init__(self, part: Part, chunk: int, size: int) -> None:
        super().__init__(part, chunk)
        self._size = size

    def add(self, name: Any, by: float = 1) -> None:
        score = self.get(name, 0) + by
        if score:
            self.set(name, score)
        else:
            self.remove(name)

    def best(self) -> list[tuple[Any, Any]]:
        """Names with their scores."""
        return heapq.nsmallest(self._size, self.items(), key=lambda pair: (-pair[1], str(pair[0])))


# -- a key's state ---------------------------------------------------------------------------------------------------


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
            self._opened[name] = self._kinds[name].opened(part, self._chunk)
        return self._opened[name]

    def wake_at(self, at_ms: int) -> None:
        """Call `on_timer` of this key once the watermark has passed this time."""
        self._timers.set(self._key, at_ms)

    def flush(self) -> None:
        """Hand over what changed."""
        for kept in self._opened.values():
            kept.flush()


def row_owner(row: bytes) -> tuple[bytes, str, bytes]:
    """Key, field and part of a row: for people who look."""
    end = 4 + int.from_bytes(row[:4], "big")
    field, _, part = row[end:].partition(b"\0")
    return row[4:end], field.decode(), part


TIMERS = b"\xff\xff\xff\xfftimers"
"""Rows with this prefix belong to no key: no key is that long."""
_MINUTE_MS, _DAY = 60_000, 1440
_TIMERS_A_ROW = 64


class Timers:
    """Times at which keys of one slice want to be called: by minute, with an index of minutes by day, so that a timer costs the
    same however many there are."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._index = Part(rows, TIMERS)
        """Days that have timers, and by day the minutes that have some."""
        self._minutes: dict[int, ManyByName] = {}

    def set(self, key: bytes, at_ms: int) -> None:
        """Once, however often it is asked for."""
        minute = at_ms // _MINUTE_MS
        timers = self._of(minute)
        timers.set(at_ms.to_bytes(8, "big", signed=True) + key, None)
        if len(timers) == 1:
            self._enter(b"", minute // _DAY)
            self._enter(b"%d" % (minute // _DAY), minute)

    def due(self, watermark_ms: int) -> list[tuple[int, bytes]]:
        """Take the timers that the watermark has passed, in order."""
        last = watermark_ms // _MINUTE_MS
        days = [day for day in self._entries(b"") if day <= last // _DAY]
        minutes = [minute for day in days for minute in self._entries(b"%d" % day) if minute <= last]
        return [timer for minute in minutes for timer in self._taken(minute, watermark_ms)]

    def next_ms(self) -> int | None:
        """When the next one is due; None if there is none."""
        for day in self._entries(b""):
            for minute in self._entries(b"%d" % day):
                return min(at_ms for at_ms, _ in self._in(minute))
        return None

    def flush(self) -> None:
        self._index.flush()
        for timers in self._minutes.values():
            timers.flush()

    def _of(self, minute: int) -> ManyByName:
        if minute not in self._minutes:
            self._minutes[minute] = ManyByName(Part(self._rows, TIMERS + b"%d/" % minute), _TIMERS_A_ROW)
        return self._minutes[minute]

    def _in(self, minute: int) -> list[tuple[int, bytes]]:
        return [(int.from_bytes(name[:8], "big", signed=True), name[8:]) for name, _ in self._of(minute).items()]

    def _taken(self, minute: int, watermark_ms: int) -> list[tuple[int, bytes]]:
        found = sorted(timer for timer in self._in(minute) if timer[0] <= watermark_ms)
        timers = self._of(minute)
        if len(found) == len(timers):
            timers.clear()
            self._leave(minute)
        else:
            for at_ms, key in found:
                timers.remove(at_ms.to_bytes(8, "big", signed=True) + key)
        return found

    def _leave(self, minute: int) -> None:
        day = b"%d" % (minute // _DAY)
        left = [other for other in self._entries(day) if other != minute]
        self._index.changed(day, left or None)
        if not left:
            days = [other for other in self._entries(b"") if other != minute // _DAY]
            self._index.changed(b"", days or None)

    def _enter(self, row: bytes, number: int) -> None:
        entries = self._entries(row)
        if number not in entries:
            self._index.changed(row, sorted([*entries, number]))

    def _entries(self, row: bytes) -> list[int]:
        entries: list[int] = self._index.load(row, list)
        return entries
