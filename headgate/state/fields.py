"""State fields as functions use them.

A field is kept as rows of bytes, and an epoch writes only the rows that changed: a window of a million items costs an epoch no more than
the items that the window gained and lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Protocol

from headgate.errors import StateError
from headgate.state import codec


class Rows(Protocol):
    """Rows of bytes of one slice, as the epoch sees them."""

    def get(self, row: bytes) -> bytes | None:
        """The content of a row; None if there is no such row."""

    def set(self, row: bytes, value: bytes | None) -> None:
        """Set the content of a row; None deletes the row."""


class Part:
    """The rows of one field. A row is decoded once and encoded once per epoch, and only if the epoch uses it."""

    def __init__(self, rows: Rows, prefix: bytes, field: str = "") -> None:
        self._rows, self._prefix, self._field = rows, prefix, field
        self._decoded: dict[bytes, Any] = {}
        self._changed: set[bytes] = set()
        self._deep: set[bytes] = set()
        """Rows that contain more than scalars."""

    def load(self, part: bytes, default: Callable[[], Any]) -> Any:
        """The content of a row; a caller that changes the content in place must pass it to `put`."""
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

    def take(self, part: bytes, value: Any) -> None:
        """Refuse a value of the user that state cannot keep, before it becomes part of a row."""
        kind = type(value)
        if kind in codec.SCALARS or (kind is str and value.isascii()):  # inline, because every `set` runs this check
            return
        try:
            codec.check(value)
        except StateError as error:
            raise StateError(f'state field "{self._field}": {error}') from None
        self._deep.add(part)

    def put(self, part: bytes, content: Any) -> None:
        """Set the content of a row; None deletes the row."""
        self._decoded[part] = content
        self._changed.add(part)

    def flush(self) -> None:
        """Write the rows that changed."""
        for part in self._changed:
            content, encode = self._decoded[part], codec.encode if part in self._deep else codec.encode_scalars
            self._rows.set(self._prefix + part, None if content is None else encode(content))
        self._changed.clear()


# -- fields -------------------------------------------------------------------------------------------------------------


def _nothing() -> None:
    return None


class OneValue:
    """One value: `get()`, `set(value)`, `clear()`."""

    def __init__(self, part: Part, default: Any) -> None:
        self._part, self._default = part, default

    def get(self) -> Any:
        """The value that was set last. Call `set` again after you change a list or a dict in place."""
        found = self._part.load(b"", _nothing)
        if found is not None:
            return found[0]
        return self._default if type(self._default) in codec.SCALARS else deepcopy(self._default)

    def set(self, value: Any) -> None:
        self._part.take(b"", value)
        self._part.put(b"", [value])

    def clear(self) -> None:
        """Delete the value: `get` returns the default again."""
        self._part.put(b"", None)

    def flush(self) -> None:
        self._part.flush()


class ManyByName:
    """Values by name, like a dict, kept in buckets so that an access to one name reads one bucket."""

    def __init__(self, part: Part, chunk: int) -> None:
        self._part, self._chunk = part, chunk

    def _about(self) -> list[int]:
        """The number of names and the number of buckets."""
        return list(self._part.load(b"", lambda: [0, 1]))

    def _bucket(self, name: Any, buckets: int) -> bytes:
        return b"%d" % (codec.code_of(name) % buckets)

    def get(self, name: Any, default: Any = None) -> Any:
        pairs = self._part.load(self._bucket(name, self._about()[1]), list)
        return next((value for key, value in pairs if key == name), default)

    def __contains__(self, name: Any) -> bool:
        missing = object()
        return self.get(name, missing) is not missing

    def __len__(self) -> int:
        return self._about()[0]

    def set(self, name: Any, value: Any) -> None:
        count, buckets = self._about()
        bucket = self._bucket(name, buckets)
        pairs = self._part.load(bucket, list)
        others = [pair for pair in pairs if pair[0] != name]
        self._part.take(bucket, name)
        self._part.take(bucket, value)
        self._part.put(bucket, [*others, [name, value]])
        if len(others) == len(pairs):
            self._part.put(b"", [count + 1, buckets])
            if count + 1 > buckets * self._chunk:
                self._split()

    def remove(self, name: Any) -> None:
        """Remove a name, if it is there; a map without names takes no space."""
        count, buckets = self._about()
        bucket = self._bucket(name, buckets)
        pairs = self._part.load(bucket, list)
        others = [pair for pair in pairs if pair[0] != name]
        if len(others) < len(pairs):
            self._part.put(bucket, others or None)
            self._part.put(b"", [count - 1, buckets] if count > 1 else None)

    def clear(self) -> None:
        """Remove all names."""
        for number in range(self._about()[1]):
            self._part.put(b"%d" % number, None)
        self._part.put(b"", None)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Names and values, in an arbitrary order that is the same each time."""
        for number in range(self._about()[1]):
            yield from [(name, value) for name, value in self._part.load(b"%d" % number, list)]

    def _split(self) -> None:
        """Spread the names over four times as many buckets: the more names, the rarer a split."""
        count, buckets = self._about()
        found = list(self.items())
        fresh: dict[bytes, list[Any]] = {b"%d" % number: [] for number in range(buckets * 4)}
        for name, value in found:
            bucket = self._bucket(name, buckets * 4)
            fresh[bucket].append([name, value])
            self._part.take(bucket, name)
            self._part.take(bucket, value)
        for bucket, pairs in fresh.items():
            self._part.put(bucket, pairs or None)
        self._part.put(b"", [count, buckets * 4])

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

    def append(self, value: Any) -> None:
        self._append(value, value)

    def _append(self, value: Any, stored: Any) -> None:
        first, end = self._ends()
        name = b"%d" % (end // self._chunk)
        chunk = self._part.load(name, list)
        self._part.take(name, value)
        self._part.put(name, [*chunk, stored])
        self._part.put(b"", [first, end + 1])

    def popleft(self) -> Any:
        """Remove and return the oldest value; `IndexError` if there is none. An empty list takes no space."""
        first, end = self._ends()
        if first == end:
            raise IndexError("popleft from an empty list")
        value = self[0]
        emptied = first + 1 == end
        self._part.put(b"", None if emptied else [first + 1, end])
        if emptied or (first + 1) % self._chunk == 0:
            self._part.put(b"%d" % (first // self._chunk), None)
        return value

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
        """Remove all values."""
        while len(self):
            self.popleft()

    def flush(self) -> None:
        self._part.flush()


class NewestByCount(Series):
    """The newest values by count: `append` returns the evicted values, so that a function can keep sums over the window."""

    def __init__(self, part: Part, chunk: int, size: int) -> None:
        super().__init__(part, chunk)
        self._size = size

    def append(self, value: Any) -> list[Any]:  # type: ignore[override]
        super().append(value)
        return [self.popleft() for _ in range(len(self) - self._size)]


class _Timed(Series):
    """Values, each with its time."""

    def append_at(self, at_ms: int, value: Any) -> None:
        self._append(value, [at_ms, value])


class NewestByTime:
    """The newest values by time: `append(at_ms, value)` returns the evicted values; the window evicts a value that comes too late at once.

    An empty window takes no space: an empty window also forgets the latest time that it has seen.
    """

    def __init__(self, part: Part, chunk: int, length_ms: int) -> None:
        self._items = _Timed(part, chunk)
        self._length_ms, self._part = length_ms, part

    def append(self, at_ms: int, value: Any) -> list[Any]:
        newest = max(at_ms, self._newest())
        if at_ms <= newest - self._length_ms:
            return [value]
        self._items.append_at(at_ms, value)
        return self.expire(newest)

    def expire(self, now_ms: int) -> list[Any]:
        """Remove and return the values that are older than the window at this time."""
        horizon, gone = now_ms - self._length_ms, []
        # Values may have come out of order, so a valid value may precede older values; iteration skips the older values.
        while len(self._items) and self._items[0][0] <= horizon:
            gone.append(self._items.popleft()[1])
        self._part.put(b"newest", max(now_ms, self._newest()) if len(self._items) else None)
        return gone

    def clear(self) -> None:
        """Remove all values."""
        self._items.clear()
        self._part.put(b"newest", None)

    def _newest(self) -> int:
        return int(self._part.load(b"newest", lambda: -(1 << 62)))

    def __iter__(self) -> Iterator[Any]:
        horizon = self._newest() - self._length_ms
        return (value for at_ms, value in self._items if at_ms > horizon)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def flush(self) -> None:
        self._part.flush()


class Ranking(ManyByName):
    """Scores by name: `add(name, by)` changes a score and removes a score of 0; `best()` returns the highest scores, ties by name."""

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
        """The names with the highest scores, with their scores."""
        return heapq.nsmallest(self._size, self.items(), key=lambda pair: (-pair[1], str(pair[0])))
