"""The control loop. One round: observe, judge, decide, record, act.

The controller records every action in the journal before applying it, so that a controller killed at any moment resumes from
the journal after a restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from headgate.config import Settings
from headgate.core.alerts import Alert
from headgate.core.metrics import JobView, View, view_of, with_output
from headgate.core.model import Action, Job, Outcome, Snapshot
from headgate.core.windows import Windows
from headgate.errors import EngineError, JournalError
from headgate.journal.definitions import JOBS_KEY, SETTINGS_KEY, definitions_text, settings_text
from headgate.ports import Clock, Effect, Engine, JobRecord, Journal, RoundRecord, latency_record
from headgate.scheduler.memory import Decision, Verdict
from headgate.scheduler.policies import Policy

HOUR_S = 3600.0
OBSERVED_ONLY = Outcome(False, "observed only", observed=True)


class Controller:
    """Runs the control loop for one engine with one policy."""

    def __init__(
        self, engine: Engine, policy: Policy, journal: Journal | None, settings: Settings, observe_only: bool = False,
        alert: Callable[[float, Alert], None] = lambda at_s, alert: None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.policy = policy
        self.journal = journal
        self.settings = settings
        self.observe_only = observe_only
        self.alert = alert
        self.windows = Windows({})
        self.outcome: Outcome | None = None
        """Outcome of the last round's action; None if the round had no action."""
        self._purge_next_s = 0.0
        """Time at which the controller next purges old records from the journal."""
        self.trouble = ""
        """Journal error of the last round, in a sentence; empty without an error."""
        self._judged_next: dict[str, int] = {}
        """Journal id of the applied action whose effect each owner awaits."""
        self._proposed: Action | None = None
        """The last action that was only observed; None before the first. A policy remembers by itself what an engine refused."""
        self._defined: dict[str, str] | None = None
        """Fingerprint of the intent of each job defined in the journal, and the weight of its tenant; None before the first record."""

    def round(self) -> tuple[View, Decision]:
        """Run one round; return the decision and the view as recorded, in which a job without output does not count as met."""
        snapshot = self.engine.observe()
        jobs = self.engine.jobs()
        self.windows = self.windows.push(snapshot, self.settings.window_s, self._longer_s(jobs))
        view = view_of(self.windows, snapshot, jobs, self.policy.since_s(), self.settings)
        decision = self._not_again(self.policy.decide(view), view.at_s)
        view = with_output(view)
        for alert in decision.alerts:
            self.alert(view.at_s, alert)
        self.trouble = ""
        try:
            action_id = self._record(view, snapshot, decision)
        except JournalError as error:
            return view, self._unrecorded(decision, view.at_s, error)
        self.outcome = self._act(decision.action, action_id, view.at_s) if decision.action is not None else None
        return view, decision

    def _not_again(self, decision: Decision, at_s: float) -> Decision:
        """Drop the action of an observer that repeats its last one: the journal has each proposal once."""
        action = decision.action
        if action is None or self._proposed is None or not self.observe_only or not _same_step(action, self._proposed):
            return decision
        self.policy.not_applied(action, at_s, refused=False)
        return dataclasses.replace(decision, action=None)

    def _unrecorded(self, decision: Decision, at_s: float, error: JournalError) -> Decision:
        """Drop the action of a round that could not be recorded: the controller applies only recorded actions."""
        self.trouble, self.outcome = str(error), None
        if decision.action is None:
            return decision
        self.policy.not_applied(decision.action, at_s, refused=False)
        return dataclasses.replace(decision, action=None)

    def _longer_s(self, jobs: Mapping[str, Job]) -> dict[str, float]:
        """Window length in seconds of each self-regulating job, which is longer than that of scheduled jobs."""
        regulated = (name for name, job in jobs.items() if job.intent.policy is not None)
        settings = self.settings
        return dict.fromkeys(regulated, max(settings.window_s, settings.health_window_s, settings.spare_window_s))

    def run(self, clock: Clock, until_s: float) -> None:
        """Run one round every `round_s` until `until_s`."""
        while clock.now_s() + self.settings.round_s <= until_s:
            clock.sleep_until(clock.now_s() + self.settings.round_s)
            self.round()

    def _act(self, action: Action, action_id: int | None, at_s: float) -> Outcome:
        outcome = OBSERVED_ONLY if self.observe_only else self._applied(action)
        self._proposed = action if outcome.observed else None
        if not outcome.applied:
            self.policy.not_applied(action, at_s, refused=not self.observe_only)
        if self.journal is not None and action_id is not None:
            self._note_outcome(self.journal, action, action_id, outcome)
        return outcome

    def _note_outcome(self, journal: Journal, action: Action, action_id: int, outcome: Outcome) -> None:
        """Record the outcome; if the journal fails, the action is applied again after a restart, which changes nothing."""
        try:
            journal.outcome(action_id, outcome)
        except JournalError as error:
            self.trouble = str(error)
        self._await(action, action_id if outcome.applied else None)

    def _applied(self, action: Action) -> Outcome:
        """Apply the action; an error of the engine becomes an outcome and never ends the control loop."""
        try:
            return self.engine.apply(action)
        except EngineError as error:
            return Outcome(False, str(error))
        # The edge of an action: treat a full disk or a lost connection as a refusal.
        except Exception as error:
            return Outcome(False, f"{type(error).__name__}: {error}")

    # -- the journal

    def _record(self, view: View, snapshot: Snapshot, decision: Decision) -> int | None:
        if self.journal is None:
            return None
        for verdict in decision.verdicts:
            self._record_verdict(self.journal, verdict, view.at_s)
        self._define(self.journal, view)
        if view.at_s >= self._purge_next_s:
            keep = self.settings
            self.journal.purge(view.at_s - keep.journal_keep_h * HOUR_S, view.at_s - keep.actions_keep_h * HOUR_S)
            self._purge_next_s = view.at_s + HOUR_S
        return self.journal.record(self._summary(view, decision), snapshot, self.policy.dump(), decision.action)

    def _define(self, journal: Journal, view: View) -> None:
        """Record the job definitions when a job starts, ends or changes its intent."""
        defined = {name: f"{one.job.intent.fingerprint()} {one.job.weight:g}" for name, one in view.jobs.items()}
        if defined != self._defined:
            journal.set_about(SETTINGS_KEY, settings_text(self.settings))
            journal.set_about(JOBS_KEY, definitions_text({name: one.job for name, one in view.jobs.items()}))
            self._defined = defined

    def _summary(self, view: View, decision: Decision) -> RoundRecord:
        return RoundRecord(
            at_s=view.at_s,
            phase=self.policy.phase(),
            score=sum(job.utility or 0.0 for job in view.jobs.values()),
            max_score=sum(job.worth for job in view.jobs.values()),
            jobs={name: _job_record(job) for name, job in view.jobs.items()},
            decision=decision.cause,
            advice=self.policy.advice(view),
        )

    def _record_verdict(self, journal: Journal, verdict: Verdict, at_s: float) -> None:
        awaited = self._judged_next.pop(verdict.owner, None)
        if awaited is None:
            return
        effect = Effect(
            at_s, verdict.total_before, verdict.total_after, verdict.utility_before, verdict.utility_after, verdict.text
        )
        journal.effect(awaited, effect)

    def _await(self, action: Action, action_id: int | None) -> None:
        if action_id is None:
            self._judged_next.pop(action.owner, None)
        else:
            self._judged_next[action.owner] = action_id

    def resume(self, now_s: float) -> float | None:
        """Resume from the journal; return the time of its last round, None if the journal is empty.

        The controller applies a recorded action without an outcome again: applying an action twice changes nothing. The windows stay as
        they are: a caller whose engine has kept its counters hands the windows over.
        """
        restored = self.journal.restore() if self.journal is not None else None
        if self.journal is None or restored is None:
            return None
        if (
            restored.at_s <= now_s
        ):  # after the clock was set back, waits that end in the future would block all decisions
            self.policy.load(restored.state)
        about_jobs = (one for one in self.journal.actions(since_s=restored.at_s) if not one.action.concerns_host)
        for recorded in about_jobs:
            if recorded.outcome is not None and not recorded.applied:
                self.policy.not_applied(recorded.action, recorded.at_s, refused=not recorded.outcome.observed)
                self._proposed = recorded.action if recorded.outcome.observed else None
        for recorded in restored.actions:
            if recorded.effect is None:
                self._await(recorded.action, recorded.id)
            else:
                self._judged_next.pop(recorded.action.owner, None)
        for recorded in restored.unfinished:
            self._act(recorded.action, recorded.id, now_s)
            self.policy.note_carried_out(recorded.action, now_s)
        return restored.at_s


def _same_step(first: Action, second: Action) -> bool:
    return (first.kind, first.job, first.changes) == (second.kind, second.job, second.changes)


def _job_record(job: JobView) -> JobRecord:
    reading = job.span.last.reading if job.span is not None else None
    return JobRecord(
        utility=job.utility,
        worth=job.worth,
        latency_s=job.latency_s,
        juice=job.juice,
        arrival_rows_s=job.span.arrival_rows_s() if job.span is not None else None,
        backlog=reading.backlog if reading is not None else None,
        lanes=job.allocation.lanes,
        pace_s=job.allocation.pace_s,
        raised_share=job.allocation.share,
        intent=job.job.intent.describe(),
        latency_intent_s=job.job.intent.latency_s,
        juice_intent=job.job.intent.juice,
        met=job.met,
        latency=latency_record(job.span.latency) if job.span is not None else None,
    )
