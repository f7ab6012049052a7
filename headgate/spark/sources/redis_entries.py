"""Entries of Redis Streams: how far they were read, what is there now, what is missing in between, and ranges of them."""

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
"""Before every entry."""
PAGE_ROWS = 2000
"""Entries that a lane fetches at once, and puts into one Arrow batch."""
WALK_ROWS = 5000
"""Entries that Redis walks over before it serves others again; about 15 ms."""
FINENESS = 64
"""Lanes of a stream differ by about one row in so many."""

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
    """Entry ids compare by their numbers.

    >>> order("9-10") < order("10-2") < order("10-11")
    True
    """
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)


# -- streams


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it is now."""

    last: str = FIRST
    """The highest id that it ever gave."""
    length: int = 0
    added: int = 0
    """Entries ever added to it, including those that were removed again."""
    first: str | None = None
    """The oldest entry that is still there; None if there is none."""
    deleted: str = FIRST
    """The highest id that was deleted individually, not by trimming."""


def look(client: Redis, streams: Sequence[str]) -> dict[str, StreamState]:
    """All streams in one round trip; one that does not exist is empty."""
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
    """How far a stream was read; the offset of an epoch has one for each stream."""

    id: str = FIRST
    added: int = 0
    """Entries that had been added to the stream up to this one."""
    rows: int = 0
    """Entries that were read since the job first started."""
    lost: int = 0
    """Entries that were removed before they were read."""
    gaps: int = 0
    """How often the stream began again with other ids or counts."""
    after: str | None = None
    """Where the range that ends here begins; None: at the mark before."""


def first_mark(state: StreamState) -> StreamPosition:
    """Where a job begins that has read nothing: what was removed before is not missing."""
    return StreamPosition(added=state.added - state.length)


def present(client: Redis, stream: str, mark: StreamPosition, state: StreamState, seen: StreamState) -> StreamPosition:
    """The same place, with what is missing after it counted as lost: the rest up to `state` can be read without a gap.

    `seen` is the stream as it was when it was last looked at.
    """
    if _began_again(mark, state) or state.added < seen.added or order(state.last) < order(seen.last):
        removed = state.added - state.length
        return StreamPosition(FIRST, removed, mark.rows, mark.lost + removed, mark.gaps + 1, FIRST)
    lost = max(0, state.added - mark.added - _readable(client, stream, mark, state))
    return replace(mark, added=mark.added + lost, lost=mark.lost + lost, after=None)


def _began_again(mark: StreamPosition, state: StreamState) -> bool:
    """Ids and counts of a stream only grow; a stream that was deleted and made again has fewer added than it should, or more left."""
    if order(state.last) < order(mark.id) or state.added < mark.added:
        return True
    all_after = state.first is not None and order(state.first) > order(mark.id)
    return all_after and state.length > state.added - mark.added


def _readable(client: Redis, stream: str, mark: StreamPosition, state: StreamState) -> int:
    """Entries after the mark that are still there; counted one by one only if some were deleted among them."""
    if state.first is None or order(state.first) > order(mark.id):
        return state.length
    if order(state.deleted) > order(mark.id):
        return survey(client, EntryRange(stream, mark.id, state.last)).rows
    return state.added - mark.added


# -- ranges of entries


@dataclass(frozen=True)
class EntryRange(InputPartition):
    """Entries of one stream: those after one id, up to and with another."""

    stream: str
    after: str
    last: str
    rows: int | None = None
    """How many there were when the epoch was planned; None if not known."""


@dataclass(frozen=True, slots=True)
class Survey:
    """How many entries a range has, and where some of them are."""

    rows: int
    last: str
    ranks: list[int]
    marks: list[str]

    def split(self, part: EntryRange, lanes: int) -> list[EntryRange]:
        """Ranges with about the same number of entries, which together are the whole, each entry in one of them."""
        ranks = (bisect_left(self.ranks, self.rows * lane / lanes) for lane in range(1, lanes))
        inner = {
            self.marks[rank]: self.ranks[rank]
            for rank in ranks
            if rank < len(self.marks) and self.ranks[rank] < self.rows
        }
        bounds = ((part.after, 0), *inner.items(), (part.last, self.rows))
        return [EntryRange(part.stream, after, last, high - low) for (after, low), (last, high) in pairwise(bounds)]


def survey(client: Redis, part: EntryRange, limit: int | None = None) -> Survey:
    """Walks over a range, or over its first entries, in steps that grow, so that its marks stay few."""
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
    """At least one lane each; the others go where a lane has most to read.

    >>> share_out([600, 200, 0], 5)
    [3, 1, 1]
    """
    shares = [1] * len(rows)
    for _ in range(lanes - len(rows)):
        fullest = max(range(len(rows)), key=lambda index: rows[index] / shares[index])
        shares[fullest] += 1
    return shares


def pages(client: Redis, part: EntryRange) -> Iterator[Entries]:
    """The entries of a range, some at a time."""
    after = part.after
    while entries := cast(Entries, client.xrange(part.stream, f"({after}", part.last, PAGE_ROWS)):
        yield entries
        after = entries[-1][0].decode()
        if len(entries) < PAGE_ROWS:
            return
