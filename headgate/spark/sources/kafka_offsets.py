"""Offsets of Kafka partitions: read positions, unread rows, and ranges of offsets that lanes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True, order=True, slots=True)
class Partition:
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"

    @staticmethod
    def of(text: str) -> Partition:
        """Parse the text of a partition: a topic has no slash in its name.

        >>> Partition.of("orders/2")
        Partition(topic='orders', number=2)
        """
        topic, _, number = text.rpartition("/")
        return Partition(topic, int(number))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds now: offsets from `low` up to but not including `high`."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Read position in a partition; the offset of an epoch has one position for each partition."""

    offset: int
    """The next offset to read."""
    rows: int = 0
    """Offsets that were planned since the job first started."""
    holes: int = 0
    """Offsets before `counted` that had no row: compacted, aborted, or the end of a transaction."""
    counted: int = 0
    lost: int = 0
    """Rows that were removed before they were read."""
    gaps: int = 0
    """Number of times that the topic began again with lower offsets."""
    begin: int | None = None
    """First offset of the range that ends here; None if the range begins at the previous position."""


def spark_offsets(offset: Mapping[str, Any]) -> dict[Partition, int] | None:
    """Offsets by partition from an offset of Spark's own Kafka source; None if the offset has another form.

    >>> spark_offsets({"orders": {"0": 17}})
    {Partition(topic='orders', number=0): 17}
    >>> spark_offsets({"orders/0": {"offset": 17, "rows": 3}})
    """
    topics = [(topic, numbers) for topic, numbers in offset.items() if isinstance(numbers, Mapping)]
    found = {(topic, number): end for topic, numbers in topics for number, end in numbers.items()}
    if len(topics) < len(offset) or not all(
        number.isdigit() and type(end) is int for (_, number), end in found.items()
    ):
        return None
    return {Partition(topic, int(number)): end for (topic, number), end in found.items()}


def present(mark: PartitionPosition, bounds: Bounds, seen_high: int) -> PartitionPosition:
    """Return the position with removed rows counted as lost, so that all rows from there up to `bounds.high` can be read.

    `seen_high` is the last known end of the partition; offsets only grow, unless the topic was created again.

    >>> present(PartitionPosition(10), Bounds(25, 40), 30)
    PartitionPosition(offset=25, rows=0, holes=0, counted=0, lost=15, gaps=0, begin=25)
    >>> present(PartitionPosition(10), Bounds(0, 5), 30).gaps
    1
    """
    low = bounds.low
    if bounds.high < max(mark.offset, seen_high):
        return replace(mark, offset=low, begin=low, lost=mark.lost + low, gaps=mark.gaps + 1, counted=low)
    if low > mark.offset:
        return replace(mark, offset=low, begin=low, lost=mark.lost + low - mark.offset)
    return replace(mark, begin=None)


# -- what there is to read


@dataclass(frozen=True, slots=True)
class UnreadPartition:
    """A partition with unread rows."""

    partition: Partition
    begin: PartitionPosition
    """Position after lost rows."""
    end: PartitionPosition

    @staticmethod
    def up_to(partition: Partition, begin: PartitionPosition, high: int) -> UnreadPartition:
        """Return all unread rows of a partition."""
        return UnreadPartition(partition, begin, _moved(begin, max(begin.offset, high)))

    @property
    def rows(self) -> int:
        return self.end.rows - self.begin.rows

    def first(self, rows: int) -> UnreadPartition:
        """Return at most `rows` of the unread rows."""
        return self if self.rows <= rows else replace(self, end=_moved(self.begin, self.begin.offset + rows))


def _moved(mark: PartitionPosition, offset: int) -> PartitionPosition:
    return replace(mark, offset=offset, rows=mark.rows + offset - mark.offset)


def within_limit(news: Sequence[UnreadPartition], limit: int | None) -> list[UnreadPartition]:
    """Limit the rows of an epoch. Partitions with the fewest rows go first: the rest of their shares goes to the other partitions."""
    if limit is None or sum(new.rows for new in news) <= limit:
        return list(news)
    cut, room = list[UnreadPartition](), limit
    for others, new in enumerate(sorted(news, key=lambda new: new.rows)):
        cut.append(new.first(room // (len(news) - others)))
        room -= cut[-1].rows
    return cut


# -- ranges


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets of one partition: from `first` up to but not including `last`."""

    partition: Partition
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class LaneOffsets(InputPartition):
    """The ranges of offsets that one lane reads."""

    ranges: tuple[OffsetRange, ...]


def ranges_between(
    start: Mapping[Partition, PartitionPosition], end: Mapping[Partition, PartitionPosition]
) -> list[OffsetRange]:
    """Return the range of offsets that an epoch reads of each partition."""
    return [
        OffsetRange(partition, first, mark.offset)
        for partition, mark in sorted(end.items())
        if (first := mark.begin if mark.begin is not None else start[partition].offset) < mark.offset
    ]


def share_out(ranges: Sequence[OffsetRange], lanes: int) -> list[LaneOffsets]:
    """Divide ranges into equal shares for the lanes, regardless of the number of partitions.

    >>> a, b = Partition("a", 0), Partition("a", 1)
    >>> lanes = share_out([OffsetRange(a, 0, 6), OffsetRange(b, 0, 2)], 2)
    >>> [[(part.partition.number, part.first, part.last) for part in one.ranges] for one in lanes]
    [[(0, 0, 4)], [(0, 4, 6), (1, 0, 2)]]
    """
    total = sum(one.rows for one in ranges)
    lanes = max(1, min(lanes, total))
    bounds = [total * lane // lanes for lane in range(lanes + 1)]
    return [LaneOffsets(_between(ranges, low, high)) for low, high in pairwise(bounds) if low < high]


def _between(ranges: Sequence[OffsetRange], low: int, high: int) -> tuple[OffsetRange, ...]:
    """The rows from number `low` up to number `high` of all ranges, one after the other."""
    found, before = list[OffsetRange](), 0
    for one in ranges:
        first, last = max(low, before), min(high, before + one.rows)
        if first < last:
            found.append(OffsetRange(one.partition, one.first + first - before, one.first + last - before))
        before += one.rows
    return tuple(found)
