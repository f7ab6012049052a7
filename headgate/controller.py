"""The round: observe, judge, decide, write down, act.

The journal is written before anything is done, so that a controller killed at any moment finds on its return what it had
intended, and goes on from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from headgate.config import Settings
from headgate.core.metrics import JobView, View, Windows, view_of, with_output
from headgate.core.model import Action, Job, Outcome, Snapshot
from headgate.errors import EngineError, JournalError
from headgate.journal.definitions import JOBS_KEY, SETTINGS_KEY, definitions_text, settings_text
from headgate.ports import Clock, Effect, Engine, JobRecord, Journal, RoundRecord, latency_record
from headgate.scheduler.memory import Decision, Verdict
from headgate.scheduler.policies import Policy

HOUR_S = 3600.0
OBSERVED_ONLY = Outcome(False, "observed only")


class Controller:
    """Drives one engine by one policy."""

    def __init__(
        self, engine: Engine, policy: Policy, journal: Journal | None, settings: Settings, observe_only: bool = False,
        alert: Callable[[float, str], None] = lambda at_s, text: None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.policy = policy
        self.journal = journal
        self.settings = settings
        self.observe_only = observe_only
        self.alert = alert
        self.windows = Windows({})
        self.outcome: Outcome | None = None
        """What became of the last round's action, if it had one."""
        self._purge_next_s = 0.0
        self.trouble = ""
        """What went wrong in the last round although it was completed, in a sentence."""
        self._judged_next: dict[str | None, int] = {}
        """By the job that it is for, the action whose effect is awaited."""
        self._declined: tuple[Action, float] | None = None
        """The last action that was not carried out, and when that was."""
        self._defined: dict[str, str] | None = None
        """The intents of the jobs whose definitions the journal has, by fingerprint."""

    def round(self) -> tuple[View, Decision]:
        """One turn of the control loop; the view is returned as the journal has it, in which no data is not success."""
        snapshot = self.engine.observe()
        jobs = self.engine.jobs()
        self.windows = self.windows.push(snapshot, self.settings.window_s, self._longer_s(jobs))
        view = view_of(self.windows, snapshot, jobs, self.policy.since_s(), self.settings)
        decision = self._not_again(self.policy.decide(view), view.at_s)
        view = with_output(view)
        for text in decision.alerts:
            self.alert(view.at_s, text)
        self.trouble = ""
        try:
            action_id = self._record(view, snapshot, decision)
        except JournalError as error:
            return view, self._unrecorded(decision, view.at_s, error)
        self.outcome = self._act(decision.action, action_id, view.at_s) if decision.action is not None else None
        return view, decision

    def _not_again(self, decision: Decision, at_s: float) -> Decision:
        """A step that was refused is not asked for again at once: the reason would be the same, round after round."""
        action = decision.action
        if action is None or self._declined is None:
            return decision
        declined, declined_s = self._declined
        recently = self.observe_only or declined_s <= at_s < declined_s + self.settings.retry_s
        if not recently or not _same_step(action, declined):
            return decision
        self.policy.not_applied(action, at_s, refused=not self.observe_only)
        return dataclasses.replace(decision, action=None)

    def _unrecorded(self, decision: Decision, at_s: float, error: JournalError) -> Decision:
        """Jobs are still watched while the journal cannot be written, but nothing is done that is not written down before."""
        self.trouble, self.outcome = str(error), None
        if decision.action is None:
            return decision
        self.policy.not_applied(decision.action, at_s, refused=False)
        return dataclasses.replace(decision, action=None)

    def _longer_s(self, jobs: Mapping[str, Job]) -> dict[str, float]:
        """Jobs that regulate themselves are looked at over longer windows."""
        regulated = (name for name, job in jobs.items() if job.intent.policy is not None)
        settings = self.settings
        return dict.fromkeys(regulated, max(settings.window_s, settings.health_window_s, settings.spare_window_s))

    def run(self, clock: Clock, until_s: float) -> None:
        """Rounds at their times until then."""
        while clock.now_s() + self.settings.round_s <= until_s:
            clock.sleep_until(clock.now_s() + self.settings.round_s)
            self.round()

    def _act(self, action: Action, action_id: int | None, at_s: float) -> Outcome:
        outcome = OBSERVED_ONLY if self.observe_only else self._applied(action)
        self._declined = None if outcome.applied else (action, at_s)
        if not outcome.applied:
            self.policy.not_applied(action, at_s, refused=not self.observe_only)
        if self.journal is not None and action_id is not None:
            self._note_outcome(self.journal, action, action_id, outcome)
        return outcome

    def _note_outcome(self, journal: Journal, action: Action, action_id: int, outcome: Outcome) -> None:
        """An outcome that is not written down is found out after a restart: the action is applied again then."""
        try:
            journal.outcome(action_id, outcome)
        except JournalError as error:
            self.trouble = str(error)
        self._await(action, action_id if outcome.applied else None)

    def _applied(self, action: Action) -> Outcome:
        """An engine that cannot do it now must not end the loop."""
        try:
            return self.engine.apply(action)
        except EngineError as error:
            return Outcome(False, str(error))
        except (
            Exception
        ) as error:  # the edge of an action: a full disk or a lost connection is one more reason for a refusal
            return Outcome(False, f"{type(error).__name__}: {error}")

    # -- the journal

    def _record(self, view: View, snapshot: Snapshot, decision: Decision) -> int | None:
        if self.journal is None:
            return None
        self._record_verdict(self.journal, decision.verdict, view.at_s)
        self._define(self.journal, view)
        if view.at_s >= self._purge_next_s:
            keep = self.settings
            self.journal.purge(view.at_s - keep.journal_keep_h * HOUR_S, view.at_s - keep.actions_keep_h * HOUR_S)
            self._purge_next_s = view.at_s + HOUR_S
        return self.journal.record(self._summary(view, decision), snapshot, self.policy.dump(), decision.action)

    def _define(self, journal: Journal, view: View) -> None:
        """Write the definitions of the jobs when a job comes or goes, or its intent changes."""
        defined = {name: one.job.intent.fingerprint() for name, one in view.jobs.items()}
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

    def _record_verdict(self, journal: Journal, verdict: Verdict | None, at_s: float) -> None:
        awaited = self._judged_next.pop(verdict.job, None) if verdict is not None else None
        if verdict is None or awaited is None:
            return
        effect = Effect(
            at_s, verdict.total_before, verdict.total_after, verdict.utility_before, verdict.utility_after, verdict.text
        )
        journal.effect(awaited, effect)

    def _await(self, action: Action, action_id: int | None) -> None:
        """The scheduler waits for one action at a time, a job that regulates itself for its own."""
        regulated = self._regulated()
        if action.job not in regulated:
            self._judged_next = {job: one for job, one in self._judged_next.items() if job in regulated}
        if action_id is None:
            self._judged_next.pop(action.job, None)
        else:
            self._judged_next[action.job] = action_id

    def _regulated(self) -> set[str]:
        return {name for name, job in self.engine.jobs().items() if job.intent.policy is not None}

    def resume(self, now_s: float) -> float | None:
        """Go on where the journal ends; returns the time of its last round, None if it is empty.

        An action that was written down but not confirmed is carried out now: applying it twice changes nothing.
        """
        restored = self.journal.restore() if self.journal is not None else None
        if self.journal is None or restored is None:
            return None
        if (
            restored.at_s <= now_s
        ):  # a clock that was set back: what is dated later than now would only bar new measurements
            self.policy.load(restored.state)
            longer_s = self._longer_s(self.engine.jobs())
            for snapshot in restored.snapshots:
                self.windows = self.windows.push(snapshot, self.settings.window_s, longer_s)
        about_jobs = (one for one in self.journal.actions(since_s=restored.at_s) if not one.action.concerns_host)
        for recorded in about_jobs:
            if recorded.outcome is not None and not recorded.applied:
                refused = recorded.outcome.detail != OBSERVED_ONLY.detail
                self.policy.not_applied(recorded.action, recorded.at_s, refused)
                self._declined = (recorded.action, recorded.at_s)
        for recorded in restored.actions:
            if recorded.effect is None:
                self._await(recorded.action, recorded.id)
            else:
                self._judged_next.pop(recorded.action.job, None)
        for recorded in restored.unfinished:
            self._act(recorded.action, recorded.id, now_s)
            self.policy.carried_out(now_s)
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
        intent=job.job.intent.describe(),
        latency_intent_s=job.job.intent.latency_s,
        juice_intent=job.job.intent.juice,
        met=job.met,
        latency=latency_record(job.span.latency) if job.span is not None else None,
    )
