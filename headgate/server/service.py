"""A service: jobs that come and go on one engine, the control loop that serves them, and a registry that outlives both.

Requests arrive on other threads than the loop's. Each change of a job waits for the one before it; rounds wait for none.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate import explain
from headgate.alerts import Alerts
from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import View, Windows
from headgate.core.model import Action, Allocation, JobAllocation, Outcome
from headgate.core.quantities import about, check_fields, did_you_mean, shown
from headgate.core.state import Decision
from headgate.errors import (
    DuplicateJobError,
    EngineError,
    HeadgateError,
    InputError,
    IntentError,
    JournalError,
    UnknownJobError,
)
from headgate.landlord import Landlord
from headgate.policies import policy_named
from headgate.ports import JobPhase, Jobs, JobState, Journal
from headgate.server.registry import Registered, Registry
from headgate.server.status import (
    ActionStatus,
    JobStatus,
    Known,
    Status,
    Tally,
    action_status,
    hosts_of,
    job_status,
    leases_of,
)
from headgate.spark.jobfile import JobRequest, build, request_from, whole
from headgate.spark.topology import Topology
from headgate.userpolicies import Guarded

KEPT_ACTIONS = 20
POLICY_KEY = "policy"
INTENT_FIELDS = ("latency", "percentile", "juice", "worth", "shape", "policy")
CHANGES = ("intent", "share", "read_limit")
BROKEN = (JobPhase.FAILED, JobPhase.RETRYING)
Built = tuple[JobRequest, Topology]


class Watcher(Protocol):
    """Somebody who looks on."""

    def round(self, view: View, phase: str, action: Action | None, states: Mapping[str, JobState]) -> None:
        """One turn of the loop is done."""

    def tell(self, at_s: float, job: str, text: str) -> None:
        """Something happened to a job, or to the service if it is empty."""


@dataclass(frozen=True, slots=True)
class Loop:
    """How a service decides."""

    settings: Settings
    policy: str = "headgate"
    observe_only: bool = False
    user_policies: Mapping[str, Guarded] = field(default_factory=dict)
    webhook: str | None = None


class Service:
    """Runs jobs on an engine by their intents; `start`, then `round` again and again, then `engine.close`."""

    def __init__(
        self,
        engine: Jobs,
        registry: Registry,
        journal: Journal,
        loop: Loop,
        watcher: Watcher,
        now_s: Callable[[], float] = time.time,
        landlord: Landlord | None = None,
    ) -> None:
        self.engine = engine
        self.landlord = landlord
        self.registry = registry
        self.journal = journal
        self.loop = loop
        self.watcher = watcher
        self.now_s = now_s
        self.tally = Tally()
        policy = policy_named(loop.policy, loop.settings, loop.user_policies)
        self.alerts = Alerts(lambda at_s, text: watcher.tell(at_s, "", text), loop.webhook)
        self.controller = Controller(engine, policy, journal, loop.settings, loop.observe_only, self.alerts)
        self._seen: tuple[View, Decision] | None = None
        self._actions: deque[ActionStatus] = deque(maxlen=KEPT_ACTIONS)
        self._known: dict[str, Known] = {}
        self._unstarted: dict[str, JobState] = {}
        """Jobs that could not be started when the service was; the engine has not heard of them."""
        self._told: dict[str, JobState] = {}
        self._trouble = ""
        self._locks: dict[str, threading.Lock] = {}

    # -- start

    def start(self, built: Iterable[Built], only_these: bool = True) -> None:
        """Start the jobs of the given files, and those of before: submitted live, or all unless `only_these`."""
        self._check_journal()
        restored = self.journal.restore()
        allocation = restored.allocation if restored is not None else {}
        named = by_name(built)
        before = self.registry.all()
        for name, (request, topology) in named.items():
            self._start_given(name, request, topology, allocation)
        for name, registered in before.items():
            if name in named:
                continue
            if registered.live or not only_these:
                self._start_again(name, registered, allocation)
            else:
                self.registry.drop(name)
                self._tell(name, "is no longer in the files; not started")
        self._go_on()

    def _check_journal(self) -> None:
        if self.journal.about().get(explain.CLOCK_KEY, explain.WALL_CLOCK) != explain.WALL_CLOCK:
            raise InputError("the journal is of a simulation; give another --home, or delete it to start afresh")

    def _start_given(self, name: str, request: JobRequest, topology: Topology, allocation: Allocation) -> None:
        """What was changed live holds as long as the file asks for the same; an edited entry begins anew."""
        old = self.registry.get(name)
        same = old is not None and old.request == request
        if old is not None and same:
            registered = dataclasses.replace(old, live=False)
        else:
            registered = Registered(request, paused=old is not None and old.paused)
        try:
            self._submit(name, registered, topology, allocation.get(name) if same else None)
        except EngineError as error:
            self._set_aside(name, registered, str(error))
        self.registry.put(name, registered)

    def _start_again(self, name: str, registered: Registered, allocation: Allocation) -> None:
        """A job of before must not keep the others from coming back."""
        try:
            self._submit(name, registered, build(registered.request), allocation.get(name))
        except HeadgateError as error:
            self._set_aside(name, registered, str(error))

    def _set_aside(self, name: str, registered: Registered, reason: str) -> None:
        self._known[name] = Known(registered.request.tenant or "default", None)
        self._unstarted[name] = JobState(
            JobPhase.FAILED, reason, registered.share or 1, registered.read_limit, self.now_s()
        )

    def _submit(
        self, name: str, registered: Registered, topology: Topology, allocation: JobAllocation | None = None
    ) -> None:
        topology.intent = _merged(topology.intent, registered.intent, name)
        topology.share = registered.share or topology.share
        if registered.intent:
            self._tell(name, f"its intent is {topology.intent.describe()}, as it was changed while it ran")
        self.engine.submit(topology, _fitting(topology, allocation), registered.paused)
        if registered.read_limit is not None:
            self.engine.set_read_limit(name, registered.read_limit)
        self._known[name] = Known(topology.tenant, topology.intent)

    def _go_on(self) -> None:
        """Where the journal ends; the state of another policy means nothing to this one."""
        if self.journal.about().get(POLICY_KEY, self.loop.policy) == self.loop.policy:
            if self.controller.resume(self.now_s()) is not None:
                self.controller.policy.interrupted()
        else:
            self._give_up_unfinished()
        # The engine is new, and so are its counters: nothing may be measured across the restart.
        self.controller.windows = Windows({})
        self.journal.set_about(explain.CLOCK_KEY, explain.WALL_CLOCK)
        self.journal.set_about(POLICY_KEY, self.loop.policy)
        recent = self.journal.actions()[-KEPT_ACTIONS:]
        self._actions.extend(action_status(one.at_s, one.action, one.outcome) for one in recent)

    def _give_up_unfinished(self) -> None:
        restored = self.journal.restore()
        for recorded in restored.unfinished if restored is not None else ():
            self.journal.outcome(recorded.id, Outcome(False, "another policy took over"))

    # -- the loop

    def round(self) -> None:
        """One turn; an engine that cannot be read now, or a full disk, must not end the jobs."""
        try:
            view, decision = self.controller.round()
        except (EngineError, JournalError) as error:
            self._tell_trouble(f"no round: {error}")
            return
        self._trouble = ""
        self._seen = (view, decision)
        self._look_at_hosts(view)
        if decision.action is not None:
            self._actions.append(action_status(view.at_s, decision.action, self.controller.outcome))
        self.tally.add(view, self._satisfaction(view), decision.action, self.controller.outcome)
        self.watcher.round(view, self.controller.policy.phase(), decision.action, self.states())

    def _look_at_hosts(self, view: View) -> None:
        try:
            if self.landlord is not None and self.landlord.look(view):
                self.controller.policy.cluster_changed()
        except (EngineError, JournalError) as error:
            self._tell_trouble(f"hosts: {error}")

    def _tell_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._tell("", text)

    def look(self) -> None:
        """Tell which jobs have another state than when last looked at."""
        states = self.states()
        for name, state in states.items():
            text = _change(self._told.get(name), state)
            if text:
                self._tell(name, text)
        self._told = states

    def _tell(self, job: str, text: str) -> None:
        self.watcher.tell(self.now_s(), job, text)

    # -- what is asked

    def states(self) -> dict[str, JobState]:
        """All jobs, also those that could not be started."""
        return {**self.engine.states(), **self._unstarted}

    def status(self) -> Status:
        """Everything at this moment."""
        view, decision = self._seen or (None, None)
        jobs = self._jobs(view)
        wanted = [job for job in jobs.values() if job.state != JobPhase.PAUSED.value]
        return Status(
            at_s=view.at_s if view is not None else None,
            phase=self.controller.policy.phase(),
            policy=self.loop.policy,
            score=sum(job.utility or 0.0 for job in wanted),
            max_score=sum(job.worth for job in wanted),
            satisfaction=self._satisfaction(view) if view is not None else None,
            decision=decision.cause if decision is not None else "",
            jobs=jobs,
            actions=tuple(self._actions),
            hosts=hosts_of(view),
            advice=self.controller.policy.advice(view) if view is not None else (),
            leases=leases_of(self.landlord, self.now_s()) if self.landlord is not None else None,
        )

    def _jobs(self, view: View | None) -> dict[str, JobStatus]:
        jobs = {}
        for name, state in self.states().items():
            measured = view.jobs.get(name) if view is not None and state.phase is JobPhase.RUNNING else None
            known = self._known.get(name)
            if known is not None:
                jobs[name] = job_status(state, known, measured)
        return jobs

    def _satisfaction(self, view: View) -> float | None:
        """Utility as a share of what the jobs are worth; one that failed has none, one that is not judged yet is left out."""
        got = {name: job.utility for name, job in view.jobs.items() if job.utility is not None}
        got |= {name: 0.0 for name, state in self.states().items() if state.phase in BROKEN}
        worth = sum(known.worth for name, known in list(self._known.items()) if name in got)
        return sum(got.values()) / worth if worth else None

    def story(self, name: str) -> list[explain.Line]:
        """What happened to a job, and why it does not run if it does not."""
        lines: list[explain.Line] = []
        try:
            lines = explain.story(self.journal, name)
        except InputError:
            self._registered(name)
        state = self.states().get(name)
        if state is not None and state.phase in (*BROKEN, JobPhase.PAUSED):
            lines.append(explain.Line(state.since_s, _sentence(state), {"what": "state", "state": state.phase.value}))
        return lines

    # -- what is changed

    def submit(self, table: Any) -> str:
        """Start one more job; returns its name."""
        request = request_from(table)
        topology = build(request)
        name = topology.name
        with self._alone(name):
            if self.registry.get(name) is not None:
                raise DuplicateJobError(f'there is a job "{name}" already; give this one another name with --name')
            registered = Registered(dataclasses.replace(request, name=name), live=True)
            self._submit(name, registered, topology)
            self.registry.put(name, registered)
        return name

    def change(self, name: str, table: Any) -> None:
        """Give a job another intent, share or read limit; fields that are not named stay."""
        with self._alone(name):
            registered = self._started(name)
            # All is checked before anything is changed.
            changes, intent = self._checked(name, registered, table)
            if intent is not None:
                self._set_intent(name, intent)
            if "share" in changes:
                self.engine.set_share(name, changes["share"])
            if "read_limit" in changes:
                self.engine.set_read_limit(name, changes["read_limit"])
            self.registry.put(name, dataclasses.replace(registered, **changes))

    def _checked(self, name: str, registered: Registered, table: Any) -> tuple[dict[str, Any], Intent | None]:
        """What changes in the registry, and the new intent if there is one."""
        if not isinstance(table, dict) or not table:
            raise InputError(
                f"the change is {shown(table)}; it must be a table with {', '.join(CHANGES)}, or some of them"
            )
        check_fields(table, CHANGES)
        changes, intent = dict(table), None
        if "share" in table:
            changes["share"] = whole(table["share"], f'job "{name}": share', InputError)
        if table.get("read_limit") is not None:
            changes["read_limit"] = whole(table["read_limit"], f'job "{name}": read_limit', InputError)
        current = self._known[name].intent
        if "intent" in table and current is not None:
            intent = _merged(current, table["intent"], name)
            changes["intent"] = {**registered.intent, **table["intent"]}
        return changes, intent

    def _set_intent(self, name: str, intent: Intent) -> None:
        self.engine.set_intent(name, intent)
        self._known[name] = dataclasses.replace(self._known[name], intent=intent)
        self._tell(name, f"its intent is now {intent.describe()}, worth {intent.worth:g}")

    def pause(self, name: str) -> None:
        """Stop a job after its epoch; it stays paused over restarts."""
        with self._alone(name):
            registered = self._started(name)
            self.engine.pause(name)
            self.registry.put(name, dataclasses.replace(registered, paused=True))

    def resume(self, name: str) -> None:
        """Let a job go on that was paused, that failed, or that could not be started."""
        with self._alone(name):
            registered = dataclasses.replace(self._registered(name), paused=False)
            if name in self._unstarted:
                self._submit(name, registered, build(registered.request))
                del self._unstarted[name]
            else:
                self.engine.resume(name)
            self.registry.put(name, registered)

    def remove(self, name: str) -> str:
        """Stop a job after its epoch and forget it; returns what else there is to do, if anything."""
        with self._alone(name):
            registered = self._registered(name)
            # Off the list first: killed in between, a job without its checkpoint must not come back and begin again.
            self.registry.drop(name)
            if self._unstarted.pop(name, None) is None:
                self._remove_running(name, registered)
            self._known.pop(name, None)
        self._tell(name, "removed")
        return (
            "" if registered.live else "it comes back with the next `headgate run` unless it is taken out of its file"
        )

    def _remove_running(self, name: str, registered: Registered) -> None:
        try:
            self.engine.remove(name)
        except HeadgateError:
            self.registry.put(name, registered)
            raise

    def _alone(self, name: str) -> threading.Lock:
        return self._locks.setdefault(name, threading.Lock())

    def _registered(self, name: str) -> Registered:
        registered = self.registry.get(name)
        if registered is None:
            names = self.registry.all()
            hint = did_you_mean(name, names) or (
                f" There are {', '.join(names)}." if names else " There is none at all."
            )
            raise UnknownJobError(f"there is no job {shown(name)}.{hint}")
        return registered

    def _started(self, name: str) -> Registered:
        registered = self._registered(name)
        if name in self._unstarted:
            reason = self._unstarted[name].reason.rstrip(";. ")
            raise InputError(f'job "{name}" could not be started: {reason}; `headgate resume {name}` tries again')
        return registered


def by_name(built: Iterable[Built]) -> dict[str, Built]:
    """Jobs by their names, which must differ."""
    named: dict[str, Built] = {}
    for request, topology in built:
        if topology.name in named:
            raise DuplicateJobError(
                f'two jobs are named "{topology.name}" ({named[topology.name][0].file} and {request.file});'
                " give one of them another name in a cluster file"
            )
        named[topology.name] = (dataclasses.replace(request, name=topology.name), topology)
    return named


def _merged(intent: Intent, fields: Any, name: str) -> Intent:
    with about(f'job "{name}": intent', IntentError):
        if not isinstance(fields, dict):
            raise IntentError(f"it is {shown(fields)}; it must be a table")
        check_fields(fields, INTENT_FIELDS, IntentError)
        if not isinstance(fields.get("shape", ""), str):
            raise IntentError(
                f"shape is {shown(fields['shape'])}; a running job can be given a shape by its name alone"
            )
        return dataclasses.replace(intent, **fields)


def _fitting(topology: Topology, allocation: JobAllocation | None) -> JobAllocation | None:
    """What a job had before, if its operators are still the same."""
    if allocation is None or allocation.lanes.keys() != topology.allocation().lanes.keys():
        return None
    most = {name: topology.nodes[name].max_lanes for name in allocation.lanes}
    fits = all(limit is None or allocation.lanes[name] <= limit for name, limit in most.items())
    return allocation if fits else None


def _change(before: JobState | None, now: JobState) -> str:
    """A change of state in words; empty if there is none worth telling."""
    if before is not None and (before.phase, before.reason) == (now.phase, now.reason):
        return ""
    if now.phase is JobPhase.RUNNING:
        return "runs" if before is None or before.phase is JobPhase.STARTING else "runs again"
    return _sentence(now)


def _sentence(state: JobState) -> str:
    return f"{state.phase.value}: {state.reason}" if state.reason else state.phase.value
