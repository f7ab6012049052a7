"""The journal as a tenant reads it: its own jobs, since it owns them, without names and figures of other tenants' jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from headgate.core.alerts import Alert
from headgate.core.model import Action, Cause
from headgate.explain import CLOCK_KEY
from headgate.ports import Effect, Past, RecordedAction, RoundRecord
from headgate.server.hiding import hiding

FOR_ANOTHER, FOR_ALL = "to help a job of another tenant", "for jobs of several tenants"


class OwnedPast:
    """The past of a tenant's jobs since the tenant owns each; an earlier job of the same name may have had another tenant."""

    def __init__(self, past: Past, since_s: Mapping[str, float], others: Collection[str]) -> None:
        self._past, self._since_s, self._others = past, since_s, frozenset(others)

    def actions(self, job: str | None = None, since_s: float | None = None) -> list[RecordedAction]:
        """Return actions on jobs of the tenant in order, without details of other jobs."""
        found = ((one, self._touched(one)) for one in self._past.actions(job, since_s))
        return [self._redacted(one, own) for one, own in found if (job in own if job is not None else own)]

    def rounds(self, job: str | None = None, since_s: float | None = None) -> Iterator[RoundRecord]:
        """Return rounds in order, with jobs of the tenant only."""
        return self._with_jobs(self._past.rounds(job, since_s))

    def sampled(self, since_s: float, most: int, jobs: Collection[str] | None = None) -> list[RoundRecord]:
        """Return at most `most` rounds with these jobs, or with all jobs of the tenant; totals cover the returned jobs only."""
        wanted = self._since_s.keys() if not jobs else jobs & self._since_s.keys()
        return list(self._with_jobs(self._past.sampled(since_s, most, wanted)))

    def about(self) -> dict[str, str]:
        """Return which clock the times are of; other facts could reveal jobs of other tenants."""
        return {key: value for key, value in self._past.about().items() if key == CLOCK_KEY}

    def _is_own(self, job: str, at_s: float) -> bool:
        return job in self._since_s and at_s >= self._since_s[job]

    def _with_jobs(self, rounds: Iterable[RoundRecord]) -> Iterator[RoundRecord]:
        hide = hiding(self._others)
        for one in rounds:
            jobs = {name: record for name, record in one.jobs.items() if self._is_own(name, one.at_s)}
            if jobs:
                yield RoundRecord(
                    one.at_s,
                    one.phase,
                    sum(record.utility or 0.0 for record in jobs.values()),
                    sum(record.worth for record in jobs.values()),
                    jobs,
                    advice=tuple(_alert(alert, hide) for alert in one.advice if alert.job in jobs),
                )

    def _touched(self, recorded: RecordedAction) -> set[str]:
        named = {*recorded.action.changes, *([recorded.action.job] if recorded.action.job is not None else [])}
        return {name for name in named if self._is_own(name, recorded.at_s)}

    def _redacted(self, recorded: RecordedAction, own: Collection[str]) -> RecordedAction:
        action = recorded.action
        foreign = {*action.changes, *filter(None, [action.job])} - set(own)
        hide = hiding(self._others | foreign)
        # Only the tenant of a job may read the cause and the effect of an action for the job.
        mine = action.job in own or (action.job is None and not foreign)
        shown = dataclasses.replace(
            action,
            job=action.job if mine else None,
            changes={name: one for name, one in action.changes.items() if name in own},
            cause=_cause(action.cause, hide) if mine else _cause_of_another(action),
            what=hide(action.what) if mine else "",
            remedy=action.remedy if mine else "",
        )
        outcome, effect = recorded.outcome, recorded.effect
        return dataclasses.replace(
            recorded,
            action=shown,
            outcome=dataclasses.replace(outcome, detail=hide(outcome.detail) if mine else "") if outcome else None,
            effect=_effect(effect, hide, mine) if effect else None,
        )


def _alert(alert: Alert, hide: Callable[[str], str]) -> Alert:
    return dataclasses.replace(alert, text=hide(alert.text), about=hide(alert.about))


def _cause(cause: Cause, hide: Callable[[str], str]) -> Cause:
    facts = {key: hide(value) if isinstance(value, str) else value for key, value in cause.facts.items()}
    return Cause(hide(cause.text), facts, tuple(_cause(one, hide) for one in cause.because))


def _cause_of_another(action: Action) -> Cause:
    return Cause(FOR_ALL if action.job is None else FOR_ANOTHER)


def _effect(effect: Effect, hide: Callable[[str], str], mine: bool) -> Effect:
    """Return an effect without the score, which is the total utility of all tenants."""
    before, after = (effect.utility_before, effect.utility_after) if mine else (None, None)
    return Effect(effect.at_s, None, None, before, after, hide(effect.verdict))
