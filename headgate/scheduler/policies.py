"""Scheduling policies: Headgate's scheduler, and the baselines for comparison.

A policy maps a view to a decision. The journal stores the policy's state, so that a restart changes no decision.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgspec

from headgate.config import AllowedRemedies, Settings
from headgate.core.alerts import Alert, AlertKind
from headgate.core.metrics import JobView, View, capacities
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.sizing import lane_limit
from headgate.errors import InvalidTransitionError
from headgate.health.examiners import Examiner
from headgate.scheduler import advice, events, rules
from headgate.scheduler.memory import Decision, State
from headgate.scheduler.quarantine import arriving, quarantined, restart_windows
from headgate.scheduler.regulation import AskAll, PolicyAdvice, Regulation, one_by_one

KEPT_DECISIONS = 5
"""Number of latest decisions that an `InvalidTransitionError` carries."""


class Policy(Protocol):
    """Decides once per round which action to take."""

    def decide(self, view: View) -> Decision:
        """Decide on an action for this round, or on none, with the cause."""

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        """Note that the action was not applied: the engine `refused` the action, or the controller only observes."""

    def note_carried_out(self, action: Action, at_s: float) -> None:
        """Note that the action was applied at `at_s`, later than decided."""

    def note_interruption(self) -> None:
        """Note missed rounds: the policy collects fresh measurements before it acts."""

    def cluster_changed(self) -> None:
        """Note that hosts joined or left: actions that did not help before may help now."""

    def since_s(self) -> Mapping[str, float]:
        """Earliest time, in seconds, of the measurements to use for each job."""

    def phase(self) -> str:
        """The policy's phase in a word, such as "converged"."""

    def advice(self, view: View) -> tuple[Alert, ...]:
        """Alerts about problems that the policy cannot solve."""

    def dump(self) -> bytes:
        """The policy's state as JSON."""

    def load(self, data: bytes) -> None:
        """Resume from a state written by `dump`."""


class Headgate:
    """Headgate's policy: scheduler rules for jobs with intents, health policies for self-regulating jobs."""

    def __init__(
        self, settings: Settings, examiners: Mapping[str, Examiner] | None = None, ask_all: AskAll = one_by_one
    ) -> None:
        self.settings = settings
        self.state = State()
        self.regulation = Regulation(settings, examiners or {}, ask_all)
        self._story: deque[str] = deque(maxlen=KEPT_DECISIONS)
        """The latest decisions, for the text of an `InvalidTransitionError`."""

    def decide(self, view: View) -> Decision:
        """Decide on at most one action; a remedy for a self-regulating job comes first, because its job waits minutes after each remedy."""
        regulated = {name for name, job in view.jobs.items() if job.job.intent.policy is not None}
        unjudged = quarantined(self.state.quarantined, view, self.settings)
        trials = restart_windows(self.state.trials.forget(view.jobs), unjudged, view)
        silent = {name for name, found in unjudged.items() if found.host}
        advice = self.regulation.advise(trials, view, regulated - silent, unjudged)
        self.state = dataclasses.replace(self.state, trials=trials, quarantined=unjudged)
        apart = regulated | unjudged.keys()
        apart |= arriving(self.state.intents, view, apart, self.settings)
        others = {name: job for name, job in view.jobs.items() if name not in apart}
        return self._step(dataclasses.replace(view, jobs=others, unread=view.unread - apart), advice)

    def _step(self, view: View, advice: PolicyAdvice) -> Decision:
        try:
            self.state, decision = rules.step(self.state, view, self.settings, advice)
        except InvalidTransitionError as error:
            raise InvalidTransitionError(error.text, tuple(self._story)) from None
        self._story.append(f"{view.at_s:g} s, {decision.rule}: {decision.cause}")
        return decision

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        self.state = events.withdrawn(self.state, action, at_s, self.settings, refused)

    def note_carried_out(self, action: Action, at_s: float) -> None:
        self.state = events.carried_out(self.state, action, at_s, self.settings)

    def note_interruption(self) -> None:
        self.state = events.interrupted(self.state)

    def cluster_changed(self) -> None:
        self.state = events.cluster_changed(self.state)

    def since_s(self) -> Mapping[str, float]:
        return self.state.trials.since_s

    def phase(self) -> str:
        return self.state.phase.value

    def advice(self, view: View) -> tuple[Alert, ...]:
        return (*advice.advice(self.state, view, self.settings), *self.regulation.standing())

    def dump(self) -> bytes:
        return msgspec.json.encode(dataclasses.replace(self.state, switched_off=self.regulation.switched_off))

    def load(self, data: bytes) -> None:
        self.state = msgspec.json.decode(data, type=State)
        self.regulation.switched_off = self.state.switched_off


class Static:
    """Never acts: jobs keep their initial allocations."""

    def decide(self, view: View) -> Decision:
        return Decision("static", "this policy never acts")

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        """Does nothing: the policy takes no actions."""

    def note_carried_out(self, action: Action, at_s: float) -> None:
        """Does nothing: the policy awaits no effects."""

    def note_interruption(self) -> None:
        """Does nothing: the policy does not depend on earlier rounds."""

    def cluster_changed(self) -> None:
        """Does nothing: the policy keeps no history."""

    def since_s(self) -> Mapping[str, float]:
        return {}

    def phase(self) -> str:
        return "static"

    def advice(self, view: View) -> tuple[Alert, ...]:
        failing = {name: job.trouble for name, job in sorted(view.jobs.items()) if job.trouble}
        return tuple(Alert(f"not judged: {why}", job=name, kind=AlertKind.NOT_JUDGED) for name, why in failing.items())

    def dump(self) -> bytes:
        return b"{}"

    def load(self, data: bytes) -> None:
        """Does nothing: the policy has no state."""


class Threshold(Static):
    """Threshold autoscaler: an operator busy above `HIGH` gets 50 % more lanes, an operator busy below `LOW` loses 25 %."""

    HIGH = 0.8
    """Share of busy time above which an operator gets lanes."""
    LOW = 0.2
    """Share of busy time below which an operator loses lanes."""
    REST_S = 60.0
    """Shortest time between two changes of a job, in seconds."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._acted_s: dict[str, float] = {}

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        """Leave the jobs of a refused action alone for `retry_s`."""
        if refused:
            self._acted_s |= dict.fromkeys(action.changes, at_s + self.settings.retry_s - self.REST_S)

    def decide(self, view: View) -> Decision:
        changes = {}
        for name, job in view.jobs.items():
            change = self._change(job) if view.at_s - self._acted_s.get(name, -1e9) >= self.REST_S else None
            if change is not None:
                changes[name] = change
                self._acted_s[name] = view.at_s
        if not changes:
            return Decision(
                "threshold", f"no operator is busy above {self.HIGH:.0%} or below {self.LOW:.0%} of the time"
            )
        cause = Cause(
            f"operators of {', '.join(changes)} are busy above {self.HIGH:.0%} or below {self.LOW:.0%} of the time"
        )
        return Decision("threshold", cause.text, Action(ActionKind.RECONFIGURE, None, changes, cause))

    def _change(self, job: JobView) -> JobAllocation | None:
        if job.span is None or job.span.seconds < self.settings.warm_up_s:
            return None
        busy = capacities(job.job.graph, job.span)
        lanes = {name: self._lanes(job, name, count, busy[name]) for name, count in job.allocation.lanes.items()}
        return None if lanes == job.allocation.lanes else job.allocation.with_lanes(lanes)

    def _lanes(self, job: JobView, operator: str, count: int, busy: float) -> int:
        if busy > self.HIGH:
            return max(count, min(count + max(1, count // 2), lane_limit(job, operator, self.settings)))
        if busy < self.LOW and count > 1:
            return count - max(1, count // 4)
        return count

    def phase(self) -> str:
        return "threshold"

    def dump(self) -> bytes:
        return msgspec.json.encode(self._acted_s)

    def load(self, data: bytes) -> None:
        self._acted_s = msgspec.json.decode(data, type=dict[str, float])


def policy_named(
    name: str, settings: Settings, examiners: Mapping[str, Examiner] | None = None, ask_all: AskAll = one_by_one
) -> Policy:
    """The policy with this name; `manual` differs from `static` only in its initial allocation."""
    if name == "headgate":
        return Headgate(settings, examiners, ask_all)
    if name == "lanes-only":
        return Headgate(dataclasses.replace(settings, remedies=AllowedRemedies.LANES.value), examiners, ask_all)
    if name == "threshold":
        return Threshold(settings)
    return Static()
