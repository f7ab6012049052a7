"""Partitions of Kafka topics: how far each was read, what is left of it, and ranges of offsets that are shared out among lanes."""

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
        """From its text: a topic has no slash in its name.

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
    """How far a partition was read; the offset of an epoch has one for each partition."""

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
    """How often the topic began again with lower offsets."""
    begin: int | None = None
    """Where the range that ends here begins; None: at the mark before."""


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
    """The same place, with what is missing after it counted as lost: the rest up to `bounds.high` can be read.

    `seen_high` is where the partition ended when it was last looked at; offsets only grow, unless the topic was created again.

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
    """A partition that has more than was read of it."""

    partition: Partition
    begin: PartitionPosition
    """After what was lost."""
    end: PartitionPosition

    @staticmethod
    def up_to(partition: Partition, begin: PartitionPosition, high: int) -> UnreadPartition:
        """All that there is."""
        return UnreadPartition(partition, begin, _moved(begin, max(begin.offset, high)))

    @property
    def rows(self) -> int:
        return self.end.rows - self.begin.rows

    def first(self, rows: int) -> UnreadPartition:
        """No more than so many of it."""
        return self if self.rows <= rows else replace(self, end=_moved(self.begin, self.begin.offset + rows))


def _moved(mark: PartitionPosition, offset: int) -> PartitionPosition:
    return replace(mark, offset=offset, rows=mark.rows + offset - mark.offset)


def within_limit(news: Sequence[UnreadPartition], limit: int | None) -> list[UnreadPartition]:
    """As many rows as an epoch may read. Partitions with least go first: what they leave of their share goes to the others."""
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
    """What one lane reads."""

    ranges: tuple[OffsetRange, ...]


def ranges_between(
    start: Mapping[Partition, PartitionPosition], end: Mapping[Partition, PartitionPosition]
) -> list[OffsetRange]:
    """What an epoch reads of each partition."""
    return [
        OffsetRange(partition, first, mark.offset)
        for partition, mark in sorted(end.items())
        if (first := mark.begin if mark.begin is not None else start[partition].offset) < mark.offset
    ]


def share_out(ranges: Sequence[OffsetRange], lanes: int) -> list[LaneOffsets]:
    """Equal shares for so many lanes, however many partitions there are.

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
