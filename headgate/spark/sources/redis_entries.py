"""Entries of Redis Streams: read positions, the state of streams, lost entries, and ranges of entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from redis import Redis

FIRST = "0-0"
"""Id before every entry."""
PAGE_ROWS = 2000
"""Entries that a lane fetches at once, and puts into one Arrow batch."""
WALK_ROWS = 5000
"""Entries that one script counts before Redis serves other clients; about 15 ms."""
FINENESS = 64
"""Precision of a division into lanes: lanes of a stream differ by about one row in 64."""

WALK = """
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local marks, step = {}, tonumber(ARGV[4])
for number = step, #entries, step do
    marks[#marks + 1] = entries[number][1]
end
return {#entries, #entries > 0 and entries[#entries][1] or '', marks}
"""
"""Counts the entries of a range and returns every n-th id, without sending what the entries hold."""

Entries = list[tuple[bytes, dict[bytes, bytes]]]


def order(entry: str) -> tuple[int, int]:
    """Return the sort key of an entry id, whose two numbers are compared.

    >>> order("9-10") < order("10-2") < order("10-11")
    True
    """
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)


# -- streams


@dataclass(frozen=True, slots=True)
class StreamState:
    """The current state of a stream."""

    last: str = FIRST
    """The highest id of an entry so far."""
    length: int = 0
    added: int = 0
    """Number of entries ever added to the stream, including removed entries."""
    first: str | None = None
    """Id of the oldest existing entry; None if there is none."""
    deleted: str = FIRST
    """The highest id that was deleted individually, not by trimming."""


def look(client: Redis, streams: Sequence[str]) -> dict[str, StreamState]:
    """Return the state of all streams in one round trip; a stream that does not exist is empty."""
    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xinfo_stream(stream)
    return dict(zip(streams, map(_state, pipeline.execute(raise_on_error=False)), strict=True))


def _state(reply: Any) -> StreamState:
    from redis.exceptions import ResponseError

    if isinstance(reply, ResponseError) and "no such key" in str(reply).lower():
        return StreamState()
    if isinstance(reply, Exception):
        raise reply
    first = reply["first-entry"]
    return StreamState(
        reply["last-generated-id"].decode(),
        reply["length"],
        reply["entries-added"],
        first[0].decode() if first else None,
        reply["max-deleted-entry-id"].decode(),
    )


# -- how far a stream was read


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Read position in a stream; the offset of an epoch has one position for each stream."""

    id: str = FIRST
    added: int = 0
    """Entries that had been added to the stream up to this one."""
    rows: int = 0
    """Entries that were read since the job first started."""
    lost: int = 0
    """Entries that were removed before they were read."""
    gaps: int = 0
    """Number of times that the stream began again with other ids or counts."""
    after: str | None = None
    """Id after which the range that ends here begins; None if the range begins at the previous position."""


def first_mark(state: StreamState) -> StreamPosition:
    """Return the first position of a job: entries that were removed before do not count as lost."""
    return StreamPosition(added=state.added - state.length)


def present(client: Redis, stream: str, mark: StreamPosition, state: StreamState, seen: StreamState) -> StreamPosition:
    """Return the position with removed entries counted as lost, so that all entries from there up to `state` can be read.

    `seen` is the last known state of the stream.
    """
    if _began_again(mark, state) or state.added < seen.added or order(state.last) < order(seen.last):
        removed = state.added - state.length
        return StreamPosition(FIRST, removed, mark.rows, mark.lost + removed, mark.gaps + 1, FIRST)
    lost = max(0, state.added - mark.added - _readable(client, stream, mark, state))
    return replace(mark, added=mark.added + lost, lost=mark.lost + lost, after=None)


def _began_again(mark: StreamPosition, state: StreamState) -> bool:
    """Whether a stream was deleted and made again: its ids or counts are lower than before, or it has more entries than were added."""
    if order(state.last) < order(mark.id) or state.added < mark.added:
        return True
    all_after = state.first is not None and order(state.first) > order(mark.id)
    return all_after and state.length > state.added - mark.added


def _readable(client: Redis, stream: str, mark: StreamPosition, state: StreamState) -> int:
    """Count the existing entries after the position; one by one only if some of them were deleted individually."""
    if state.first is None or order(state.first) > order(mark.id):
        return state.length
    if order(state.deleted) > order(mark.id):
        return survey(client, EntryRange(stream, mark.id, state.last)).rows
    return state.added - mark.added


# -- ranges of entries


@dataclass(frozen=True)
class EntryRange(InputPartition):
    """A range of entries in one stream: after one id, up to and including another."""

    stream: str
    after: str
    last: str
    rows: int | None = None
    """Number of entries when the epoch was planned; None if not known."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The number of entries in a range, and the positions of some of them."""

    rows: int
    last: str
    ranks: list[int]
    marks: list[str]

    def split(self, part: EntryRange, lanes: int) -> list[EntryRange]:
        """Divide a range into ranges with about the same number of entries; each entry is in exactly one of them."""
        ranks = (bisect_left(self.ranks, self.rows * lane / lanes) for lane in range(1, lanes))
        inner = {
            self.marks[rank]: self.ranks[rank]
            for rank in ranks
            if rank < len(self.marks) and self.ranks[rank] < self.rows
        }
        bounds = ((part.after, 0), *inner.items(), (part.last, self.rows))
        return [EntryRange(part.stream, after, last, high - low) for (after, low), (last, high) in pairwise(bounds)]


def survey(client: Redis, part: EntryRange, limit: int | None = None) -> Survey:
    """Count the entries of a range, or of its beginning, in growing steps, so that few marks suffice."""
    walk = client.register_script(WALK)
    rows, last, ranks, marks = 0, part.after, list[int](), list[str]()
    while limit is None or rows < limit:
        count = WALK_ROWS if limit is None else min(WALK_ROWS, limit - rows)
        step = min(count, 1 + rows // FINENESS)
        found, end, named = walk(keys=[part.stream], args=[f"({last}", part.last, count, step])
        ranks.extend(rows + step * number for number in range(1, len(named) + 1))
        marks.extend(entry.decode() for entry in named)
        rows, last = rows + found, end.decode() or last
        if found < count:
            break
    return Survey(rows, last, ranks, marks)


def share_out(rows: Sequence[int], lanes: int) -> list[int]:
    """Divide lanes among streams: at least one each, and further lanes to the stream with the most entries per lane.

    >>> share_out([600, 200, 0], 5)
    [3, 1, 1]
    """
    shares = [1] * len(rows)
    for _ in range(lanes - len(rows)):
        fullest = max(range(len(rows)), key=lambda index: rows[index] / shares[index])
        shares[fullest] += 1
    return shares


def pages(client: Redis, part: EntryRange) -> Iterator[Entries]:
    """Yield the entries of a range page by page."""
    after = part.after
    while entries := cast(Entries, client.xrange(part.stream, f"({after}", part.last, PAGE_ROWS)):
        yield entries
        after = entries[-1][0].decode()
        if len(entries) < PAGE_ROWS:
            return
