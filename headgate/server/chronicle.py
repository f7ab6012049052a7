"""The story of a job as data: each action with its symptoms, diagnosis, remedy and effect, and what was measured between actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate import explain
from headgate.core.model import Cause
from headgate.ports import RecordedAction, RoundRecord
from headgate.server.changes import Change
from headgate.server.history import ActionEntry, action_entries

ABOUT_ACTIONS = frozenset({"action", "effect", "symptom"})
"""Kinds of lines of `explain` that repeat an action and its figures."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A symptom or a measurement, with its figures."""

    text: str
    facts: dict[str, float | str]
    because: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One thing that happened to a job."""

    at_s: float
    kind: str
    """`action`, `measured`, `advice` or `change`."""
    text: str
    facts: dict[str, float | str]
    action: ActionEntry | None = None
    diagnosis: Reason | None = None
    """Why the action was taken: the diagnosis, and the symptoms that it follows from."""
    remedy: str = ""
    """The resolver that proposed the action; empty if the scheduler itself did."""
    lanes: dict[str, int] | None = None
    """Lanes of the job by operator after the action."""
    pace_s: float | None = None
    who: str = ""
    """The person who made a change."""


def chronicle(
    job: str, rounds: Sequence[RoundRecord], actions: Sequence[RecordedAction], changes: Sequence[Change]
) -> list[StoryEntry]:
    """Return the story of a job, newest entry first."""
    measured = [one for one in explain.lines_from(job, rounds, actions) if one.facts.get("what") not in ABOUT_ACTIONS]
    entries = [
        *(
            StoryEntry(line.at_s, str(line.facts.get("what", "measured")), line.text, dict(line.facts))
            for line in measured
        ),
        *(_action_entry(job, one) for one in actions),
        *_changes(changes),
    ]
    return sorted(entries, key=lambda entry: entry.at_s, reverse=True)


def _action_entry(job: str, recorded: RecordedAction) -> StoryEntry:
    action = recorded.action
    given = action.changes.get(job)
    (entry,) = action_entries([recorded])
    return StoryEntry(
        at_s=recorded.at_s,
        kind="action",
        text=action.what or action.cause.text,
        facts=dict(action.cause.facts),
        action=entry,
        diagnosis=_reason(action.cause),
        remedy=action.remedy,
        lanes=dict(given.lanes) if given is not None else None,
        pace_s=given.pace_s if given is not None else None,
    )


def _reason(cause: Cause) -> Reason:
    return Reason(cause.text, dict(cause.facts), tuple(_reason(one) for one in cause.because))


def _changes(changes: Sequence[Change]) -> Iterator[StoryEntry]:
    for change in changes:
        yield StoryEntry(change.at_s, "change", change.what, {"via": change.via}, who=change.who)
