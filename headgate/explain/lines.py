"""A line of a story, and the rounds of one job that the lines are about."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headgate.ports import JobRecord, RoundRecord

Facts = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a story: its time, a sentence for people, and figures for machines."""

    at_s: float
    text: str
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRounds:
    """The rounds of one job."""

    job: str
    rounds: tuple[RoundRecord, ...]

    def pairs(self) -> Iterator[tuple[float, JobRecord]]:
        return ((round_.at_s, round_.jobs[self.job]) for round_ in self.rounds)

    def at(self, at_s: float) -> JobRecord | None:
        """The record of the job in the last round at or before `at_s`; None if that round was deleted."""
        after = bisect_right(self.rounds, at_s, key=lambda round_: round_.at_s)
        return self.rounds[after - 1].jobs[self.job] if after else None

    def utility_at(self, at_s: float) -> float | None:
        record = self.at(at_s)
        return None if record is None else record.utility
