"""Who decides: Headgate's scheduler, or one of the baselines it is compared with.

A policy sees a view and returns a decision; its state can be written down and read back, so that a restart changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgspec

from headgate.config import Settings
from headgate.core.metrics import JobView, View, capacities
from headgate.core.model import Action, ActionKind, Cause, JobAllocation
from headgate.core.sizing import most_lanes
from headgate.errors import InvalidTransitionError
from headgate.health.care import carried_out, not_applied
from headgate.health.examiners import Examiner
from headgate.scheduler import advice, events, rules
from headgate.scheduler.memory import Decision, State
from headgate.scheduler.quarantine import arriving, quarantined, restarted
from headgate.scheduler.regulation import Regulation

KEPT_DECISIONS = 5
"""Decisions that the error of an impossible transition carries."""


class Policy(Protocol):
    """Decides once per round."""

    def decide(self, view: View) -> Decision:
        """What to do now."""

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        """The action was not carried out: the engine `refused` it, or it was only observed."""

    def carried_out(self, at_s: float) -> None:
        """The action that was under way was carried out only now."""

    def interrupted(self) -> None:
        """Rounds were missed: fresh measurements come first."""

    def cluster_changed(self) -> None:
        """Hosts came: what did not help before may help now."""

    def since_s(self) -> Mapping[str, float]:
        """From when on each job should be measured."""

    def phase(self) -> str:
        """Where it stands, in a word."""

    def advice(self, view: View) -> tuple[str, ...]:
        """What only a person can change."""

    def dump(self) -> bytes:
        """Its state as JSON."""

    def load(self, data: bytes) -> None:
        """Go on from a state written by `dump`."""


class Headgate:
    """The rules of the scheduler for jobs with intents, the health pipeline for jobs that regulate themselves."""

    def __init__(self, settings: Settings, examiners: Mapping[str, Examiner] | None = None) -> None:
        self.settings = settings
        self.state = State()
        self.regulation = Regulation(settings, examiners or {})
        self._story: deque[str] = deque(maxlen=KEPT_DECISIONS)
        """The last decisions, for the error of an impossible transition."""

    def decide(self, view: View) -> Decision:
        """One action a round: a job that regulates itself comes first, because it waits for minutes after each."""
        regulated = {name for name, job in view.jobs.items() if job.job.intent.policy is not None}
        unjudged = quarantined(self.state.quarantined, view, self.settings)
        silent = {name for name, found in unjudged.items() if found.host}
        care, decision = self.regulation.look(self.state.care, view, regulated - silent, unjudged)
        cared = {name: found for name, found in unjudged.items() if name in regulated}
        care = dataclasses.replace(care, since_s=restarted(care.since_s, cared, view))
        since_s = restarted(self.state.since_s, unjudged, view)
        self.state = dataclasses.replace(self.state, care=care, quarantined=unjudged, since_s=since_s)
        apart = regulated | unjudged.keys()
        apart |= arriving(self.state.intents, view, apart, self.settings)
        others = {name: job for name, job in view.jobs.items() if name not in apart}
        if silent and not others:
            return dataclasses.replace(decision, cause=min(unjudged[name].sentence(name) for name in silent))
        if decision.action is not None or decision.verdict is not None or not others:
            return decision
        rest = dataclasses.replace(view, jobs=others, unread=view.unread - apart)
        scheduled = self._step(rest)
        found = {**decision.diagnoses, **scheduled.diagnoses}
        return dataclasses.replace(scheduled, diagnoses=found, alerts=(*decision.alerts, *scheduled.alerts))

    def _step(self, view: View) -> Decision:
        try:
            self.state, decision = rules.step(self.state, view, self.settings)
        except InvalidTransitionError as error:
            raise InvalidTransitionError(error.text, tuple(self._story)) from None
        self._story.append(f"{view.at_s:g} s, {decision.rule}: {decision.cause}")
        return decision

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        if action.job is not None and action.job in self.state.care.trials:
            care = not_applied(self.state.care, action.job, at_s, self.settings, refused)
            self.state = dataclasses.replace(self.state, care=care)
        else:
            self.state = events.withdrawn(self.state, action, at_s, self.settings, refused)

    def carried_out(self, at_s: float) -> None:
        self.state = events.carried_out(self.state, at_s)
        for job in self.state.care.trials:
            self.state = dataclasses.replace(self.state, care=carried_out(self.state.care, job, at_s, self.settings))

    def interrupted(self) -> None:
        self.state = events.interrupted(self.state)

    def cluster_changed(self) -> None:
        self.state = events.cluster_changed(self.state)

    def since_s(self) -> Mapping[str, float]:
        return {**self.state.since_s, **self.state.care.since_s}

    def phase(self) -> str:
        return self.state.phase.value

    def advice(self, view: View) -> tuple[str, ...]:
        return (*advice.advice(self.state, view, self.settings), *self.regulation.standing())

    def dump(self) -> bytes:
        return msgspec.json.encode(self.state)

    def load(self, data: bytes) -> None:
        self.state = msgspec.json.decode(data, type=State)


class Static:
    """Never acts: jobs keep what they started with."""

    def decide(self, view: View) -> Decision:
        return Decision("static", "this policy never acts")

    def not_applied(self, action: Action, at_s: float, refused: bool = True) -> None:
        """Nothing is remembered."""

    def carried_out(self, at_s: float) -> None:
        """Nothing is awaited."""

    def interrupted(self) -> None:
        """Nothing depends on it."""

    def cluster_changed(self) -> None:
        """Nothing was tried."""

    def since_s(self) -> Mapping[str, float]:
        return {}

    def phase(self) -> str:
        return "static"

    def advice(self, view: View) -> tuple[str, ...]:
        return tuple(f"{name} is not judged: {job.trouble}" for name, job in sorted(view.jobs.items()) if job.trouble)

    def dump(self) -> bytes:
        return b"{}"

    def load(self, data: bytes) -> None:
        """There is no state."""


class Threshold(Static):
    """The usual autoscaler: every operator above a mark gets half as many lanes again, every one below a mark loses a quarter."""

    HIGH = 0.8
    LOW = 0.2
    REST_S = 60.0

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._acted_s: dict[str, float] = {}

    def decide(self, view: View) -> Decision:
        changes = {}
        for name, job in view.jobs.items():
            change = self._change(job) if view.at_s - self._acted_s.get(name, -1e9) >= self.REST_S else None
            if change is not None:
                changes[name] = change
                self._acted_s[name] = view.at_s
        if not changes:
            return Decision("threshold", "no operator is above or below its mark")
        cause = Cause(f"operators of {', '.join(changes)} above {self.HIGH:g} or below {self.LOW:g} busy")
        return Decision("threshold", cause.text, Action(ActionKind.RECONFIGURE, None, changes, cause))

    def _change(self, job: JobView) -> JobAllocation | None:
        if job.span is None or job.span.seconds < self.settings.warm_up_s:
            return None
        busy = capacities(job.job.graph, job.span)
        lanes = {name: self._lanes(job, name, count, busy[name]) for name, count in job.allocation.lanes.items()}
        return None if lanes == job.allocation.lanes else job.allocation.with_lanes(lanes)

    def _lanes(self, job: JobView, operator: str, count: int, busy: float) -> int:
        if busy > self.HIGH:
            return max(count, most_lanes(job.job.graph, operator, count + max(1, count // 2), self.settings))
        if busy < self.LOW and count > 1:
            return count - max(1, count // 4)
        return count

    def phase(self) -> str:
        return "threshold"

    def dump(self) -> bytes:
        return msgspec.json.encode(self._acted_s)

    def load(self, data: bytes) -> None:
        self._acted_s = msgspec.json.decode(data, type=dict[str, float])


def policy_named(name: str, settings: Settings, examiners: Mapping[str, Examiner] | None = None) -> Policy:
    """The policy of that name; `manual` differs from `static` by its initial allocation only."""
    if name == "headgate":
        return Headgate(settings, examiners)
    if name == "lanes-only":
        return Headgate(dataclasses.replace(settings, remedies="lanes"), examiners)
    if name == "threshold":
        return Threshold(settings)
    return Static()
