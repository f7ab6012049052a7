"""The story of one job or one leased host, from the journal: measurements, decisions, actions and their effects.

The story contains only changes. A round without a change of the job adds no line.

    >>> from headgate.journal import MemoryJournal
    >>> story(MemoryJournal(), "page-load")
    Traceback (most recent call last):
    headgate.errors.InputError: there is no job "page-load" in the journal, which is still empty
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from headgate.core.quantities import did_you_mean
from headgate.errors import InputError
from headgate.explain.actions import action_lines, effect_lines
from headgate.explain.lines import JobRounds, Line
from headgate.explain.measurements import advice_lines, measured_lines
from headgate.explain.showing import CLOCK_KEY, START_KEY, WALL_CLOCK, as_json, as_text
from headgate.ports import Past, RecordedAction, RoundRecord

__all__ = ["CLOCK_KEY", "START_KEY", "WALL_CLOCK", "Line", "as_json", "as_text", "lines_from", "story"]


def story(journal: Past, job: str) -> list[Line]:
    """The story of a job or a host, in order: `print(as_text(story(journal, "page-load"), journal.about()))`."""
    rounds, actions = tuple(journal.rounds(job)), journal.actions(job)
    if not rounds and not actions:
        raise InputError(_unknown(journal, job))
    return lines_from(job, rounds, actions)


def lines_from(job: str, rounds: Sequence[RoundRecord], actions: Sequence[RecordedAction]) -> list[Line]:
    """The story from given records: all rounds of the job, or a part of the rounds."""
    view = JobRounds(job, tuple(rounds))
    # In one round, the measurements come first, then the verdict on the last action, then the next one.
    lines = chain(measured_lines(view), advice_lines(view), effect_lines(view, actions), action_lines(view, actions))
    return sorted(lines, key=lambda line: line.at_s)


def _unknown(journal: Past, job: str) -> str:
    jobs = {name for round_ in journal.rounds() for name in round_.jobs}
    hosts = {recorded.action.host for recorded in journal.actions() if recorded.action.concerns_host}
    names = sorted(jobs | hosts)
    if not names:
        return f'there is no job "{job}" in the journal, which is still empty'
    hint = did_you_mean(job, names) or f" The journal has {', '.join(names)}."
    return f'there is no job or leased host "{job}" in the journal.{hint}'
