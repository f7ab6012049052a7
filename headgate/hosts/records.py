"""Leases and releases in the journal: intended before they are carried out, confirmed after, judged once their effect is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headgate.core.metrics import View
from headgate.core.model import Action, ActionKind, Outcome
from headgate.ports import Effect, Journal, RecordedAction


@dataclass(frozen=True, slots=True)
class HostNote:
    """Something that the landlord did, or that happened to a host."""

    at_s: float
    host: str
    text: str


@dataclass(frozen=True, slots=True)
class Utilities:
    """Total utility and the utility of each job; None means unknown."""

    total: float | None = None
    by_job: Mapping[str, float | None] = field(default_factory=dict)

    def of(self, job: str | None) -> float | None:
        """Utility of one job; None if unknown."""
        return self.by_job.get(job) if job is not None else None


@dataclass(frozen=True, slots=True)
class _Awaited:
    """An action that is not judged yet, and the utilities before it."""

    id: int
    at_s: float
    action: Action
    before: Utilities


class HostRecords:
    """Leases and releases in the journal, identified by action kind and host name: each host name is used only once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._awaited: dict[tuple[ActionKind, str], _Awaited] = {}
        self._settled: set[str] = set()
        """Hosts whose release was judged."""
        self._now = Utilities()

    def resume(self) -> tuple[list[Action], list[HostNote]]:
        """Return, after a restart, the actions without an outcome, and the recorded notes in order of time."""
        recorded = [one for one in self._journal.actions() if one.action.concerns_host]
        for one in recorded:
            if one.outcome is None or (one.applied and one.effect is None):
                self._await(_Awaited(one.id, one.at_s, one.action, Utilities()))
            elif one.applied and one.action.kind is ActionKind.RELEASE:
                self._settled.add(one.action.host)
        notes = [note for one in recorded for note in _notes_of(one)]
        return [one.action for one in recorded if one.outcome is None], sorted(notes, key=lambda note: note.at_s)

    def see(self, view: View) -> None:
        """Use the utilities of this view for effects from now on."""
        by_job = {name: job.utility for name, job in view.jobs.items()}
        self._now = Utilities(sum(utility or 0.0 for utility in by_job.values()), by_job)

    def intend(self, at_s: float, action: Action) -> None:
        """Write an action before the landlord carries it out."""
        self._await(_Awaited(self._journal.intend(at_s, action), at_s, action, self._now))

    def confirm(self, action: Action, outcome: Outcome) -> None:
        """Write whether the pool carried out the action; a refused action gets no verdict."""
        key = (action.kind, action.host)
        self._journal.outcome(self._awaited[key].id, outcome)
        if not outcome.applied:
            del self._awaited[key]

    def awaits(self, kind: ActionKind, host: str) -> bool:
        """Whether an action of this kind about this host is not judged yet."""
        return (kind, host) in self._awaited

    def unjudged_leases(self) -> list[tuple[str, float]]:
        """Each host with a lease that is not judged yet, and the time of the lease in seconds."""
        return [(host, one.at_s) for (kind, host), one in self._awaited.items() if kind is ActionKind.LEASE]

    def is_settled(self, host: str) -> bool:
        """Whether the release of a host has been judged."""
        return host in self._settled

    def judge(self, kind: ActionKind, host: str, at_s: float, verdict: str) -> None:
        """Write the verdict on an action."""
        one = self._awaited.pop((kind, host))
        job = one.action.job
        if kind is ActionKind.RELEASE:
            self._settled.add(host)
        utilities = (one.before.total, self._now.total, one.before.of(job), self._now.of(job))
        self._journal.effect(one.id, Effect(at_s, *utilities, verdict))

    def _await(self, one: _Awaited) -> None:
        self._awaited[one.action.kind, one.action.host] = one


def _notes_of(recorded: RecordedAction) -> Iterator[HostNote]:
    host = recorded.action.host
    yield HostNote(recorded.at_s, host, recorded.action.sentence)
    if recorded.effect is not None:
        yield HostNote(recorded.effect.at_s, host, recorded.effect.verdict)
