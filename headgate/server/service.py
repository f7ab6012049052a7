"""A service: jobs that come and go on one engine, the control loop that serves them, and a registry that outlives both.

Requests arrive on other threads than the loop's. Each change of a job waits for the one before it; rounds wait for none. What the loop
knows it publishes as one frozen picture per round; what requests change is in tables that are replaced, never changed.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from headgate import clock, explain
from headgate.alerts import Alerts, Webhook
from headgate.config import Settings
from headgate.controller import Controller
from headgate.core.intents import Intent
from headgate.core.metrics import View, Windows
from headgate.core.model import Action, Allocation, JobAllocation, Outcome
from headgate.core.quantities import about, check_fields, did_you_mean, show_seconds, shown
from headgate.errors import (
    DuplicateJobError,
    EngineError,
    HeadgateError,
    InputError,
    IntentError,
    UnknownJobError,
)
from headgate.health.isolation.processes import IsolatedPolicy
from headgate.health.policies import check_policy
from headgate.hosts.landlord import Landlord
from headgate.jobfile import JobRequest, request_from, whole
from headgate.ports import JobPhase, Jobs, JobState, Journal
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import policy_named
from headgate.server.board import BROKEN, KEPT_ACTIONS, NO_ROUND, StatusBoard
from headgate.server.lost_hosts import LostHosts
from headgate.server.registry import Registered, Registry
from headgate.server.removed import PLACE, RemovedJob
from headgate.server.retention import Retention
from headgate.server.status import Health, Known, Picture, Status, Tally, action_status, leases_of
from headgate.spark.jobloader import build
from headgate.topology import Topology

CLOCK_TOLERANCE_S = 1.0
"""A last round that lies this far ahead is none of a clock that was set back."""
POLICY_KEY = "policy"
INTENT_FIELDS = ("latency", "percentile", "juice", "worth", "shape", "policy")
CHANGES = ("intent", "share", "read_limit")
Built = tuple[JobRequest, Topology]


class Watcher(Protocol):
    """Is shown every round."""

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
    user_policies: Mapping[str, IsolatedPolicy] = field(default_factory=dict)
    webhook: Webhook | None = None


class Service:
    """Runs jobs on an engine by their intents; `start`, then `round` again and again, then `engine.close`."""

    def __init__(
        self,
        engine: Jobs,
        registry: Registry,
        journal: Journal,
        loop: Loop,
        watcher: Watcher,
        now_s: Callable[[], float] = clock.now_s,
        landlord: Landlord | None = None,
    ) -> None:
        self.engine = engine
        self.landlord = landlord
        self.registry = registry
        self.retention = Retention(registry.path.parent, loop.settings)
        self.journal = journal
        self.loop = loop
        self.watcher = watcher
        self.now_s = now_s
        self.tally = Tally()
        policy = policy_named(loop.policy, loop.settings, loop.user_policies)
        self.alerts = Alerts(watcher.tell, loop.webhook)
        self.controller = Controller(engine, policy, journal, loop.settings, loop.observe_only, self._alert)
        self.board = StatusBoard(engine, loop.settings, loop.policy, now_s)
        self._told: dict[str, JobState] = {}
        """Only the loop uses it, and `_lost`."""
        self._lost = LostHosts()
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        """One per job that is being changed; `_locks_lock` guards it."""
        self._locks_lock = threading.Lock()

    # -- start

    def start(self, built: Iterable[Built], only_these: bool = True) -> None:
        """Start the jobs of the given files, and those of before: submitted live, or all unless `only_these`."""
        self._check_journal()
        if self.registry.damage:
            self.alerts(self.now_s(), f"{self.registry.damage}; submit the jobs that are missing again")
        self.retention.removed.recover(self.registry.all().keys())
        self._clean()
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
                self.tried("the list of jobs", partial(self.registry.drop, name))
                self._tell(name, "is no longer in the files; not started")
        self._go_on()

    def _check_journal(self) -> None:
        if self.journal.about().get(explain.CLOCK_KEY, explain.WALL_CLOCK) != explain.WALL_CLOCK:
            raise InputError("the journal is of a simulation; give another --home, or delete it to start afresh")

    def _start_given(self, name: str, request: JobRequest, topology: Topology, allocation: Allocation) -> None:
        """What was changed live holds as long as the file asks for the same; an edited entry starts from the file again."""
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
        # A full disk must not keep the jobs down; the file that names this one names it at the next start too.
        self.tried("the list of jobs", partial(self.registry.put, name, registered))

    def _start_again(self, name: str, registered: Registered, allocation: Allocation) -> None:
        """A job of before must not keep the others from coming back."""
        try:
            self._submit(name, registered, self._built(registered.request), allocation.get(name))
        except HeadgateError as error:
            self._set_aside(name, registered, str(error))

    def _set_aside(self, name: str, registered: Registered, reason: str) -> None:
        self.board.known.put(name, Known(registered.request.tenant or "default", None))
        share = registered.share or 1
        self.board.unstarted.put(name, JobState(JobPhase.FAILED, reason, share, registered.read_limit, self.now_s()))

    def _submit(
        self, name: str, registered: Registered, topology: Topology, allocation: JobAllocation | None = None
    ) -> None:
        topology.intent = _merged(topology.intent, registered.intent, name)
        self._check_policy(name, topology.intent)
        topology.share = registered.share or topology.share
        if registered.intent:
            self._tell(name, f"its intent is {topology.intent.describe()}, as it was changed while it ran")
        self.retention.dead_letters.add(topology)
        self.engine.submit(topology, _fitting(topology, allocation), registered.paused)
        if registered.read_limit is not None:
            self.engine.set_read_limit(name, registered.read_limit)
        self.board.known.put(name, Known(topology.tenant, topology.intent))

    def _go_on(self) -> None:
        """Where the journal ends; the state of another policy, or of a time to come, means nothing to this one."""
        if self.journal.about().get(POLICY_KEY, self.loop.policy) != self.loop.policy:
            self._give_up_unfinished("another policy took over")
        elif self._is_set_back():
            self._give_up_unfinished("the clock was set back")
        elif self.controller.resume(self.now_s()) is not None:
            self.controller.policy.interrupted()
        # The engine is new, and so are its counters: nothing may be measured across the restart.
        self.controller.windows = Windows({})
        self.journal.set_about(explain.CLOCK_KEY, explain.WALL_CLOCK)
        self.journal.set_about(POLICY_KEY, self.loop.policy)
        recent = [one for one in self.journal.actions() if not one.action.concerns_host][-KEPT_ACTIONS:]
        self.board.actions = tuple(action_status(one.at_s, one.action, one.outcome) for one in recent)
        if self.landlord is not None:
            self.board.leases = leases_of(self.landlord, self.now_s())

    def _is_set_back(self) -> bool:
        """Whether the last round lies in the future: waits that end there would stop all decisions until then."""
        restored = self.journal.restore()
        ahead_s = restored.at_s - self.now_s() if restored is not None else 0.0
        if ahead_s > CLOCK_TOLERANCE_S:
            text = f"the last round of the journal lies {show_seconds(ahead_s)} in the future: the clock was set back"
            self._tell("", f"{text}; the control loop begins without what it remembered")
        return ahead_s > CLOCK_TOLERANCE_S

    def _give_up_unfinished(self, reason: str) -> None:
        restored = self.journal.restore()
        for recorded in restored.unfinished if restored is not None else ():
            self.journal.outcome(recorded.id, Outcome(False, reason))

    # -- the loop

    def round(self) -> None:
        """One turn; whatever goes wrong in it is told and must not end the jobs."""
        begun_s = time.perf_counter()
        self._clean()
        self.tally.failed_rounds += not self._round()
        self.tally.seconds += time.perf_counter() - begun_s

    def _round(self) -> bool:
        """Whether it was completed."""
        try:
            view, decision = self.controller.round()
        except Exception as error:  # the edge of the round: an engine that cannot be read, a broken policy
            self._tell_trouble(f"{NO_ROUND}: {_reason(error)}", self._look_at_hosts(None))
            self._show_stale()
            return False
        self._publish(view, decision)
        self._tell_trouble(self.controller.trouble, self._look_at_hosts(view))
        self.tally.add(view, self.board.satisfaction(view), decision.action, self.controller.outcome)
        self.watcher.round(view, self.board.phase(), decision.action, self.states())
        return True

    def _clean(self) -> None:
        """Delete what was kept for long enough; what cannot be deleted now is tried again in an hour."""
        try:
            for name in self.retention.clean(self.now_s()):
                self._tell(name, "cannot be restored any more: it was removed too long ago")
        except OSError as error:
            self._tell("", f"clean-up: {error}")

    def _publish(self, view: View, decision: Decision) -> None:
        policy, samples = self.controller.policy, self.controller.windows.samples
        self.tally.hosts_lost += self._lost.count(view.hosts, self.board.leases)
        read_s = {name: kept[-1].at_s for name, kept in samples.items() if kept}
        picture = Picture(view, policy.phase(), decision.cause, policy.advice(view), self.now_s(), read_s)
        done = [] if decision.action is None else [action_status(view.at_s, decision.action, self.controller.outcome)]
        self.board.publish(picture, done)

    def _show_stale(self) -> None:
        """Once readings are stale, whoever looks on sees no job as met any more."""
        view = self.board.stale_view()
        if view is not None:
            self.watcher.round(view, self.board.phase(), None, self.states())

    def _look_at_hosts(self, view: View | None) -> str:
        """What went wrong with the hosts. Without a view the landlord only tends the hosts: they may be why there is none."""
        if self.landlord is None:
            return ""
        try:
            came = self.landlord.look(view) if view is not None else self.landlord.tend(self.now_s())
            if came:
                self.controller.policy.cluster_changed()
            self.board.leases = leases_of(self.landlord, self.now_s())
        except Exception as error:  # the edge of the hosts: jobs go on with those that there are
            return f"hosts: {_reason(error)}"
        return ""

    def _tell_trouble(self, *troubles: str) -> None:
        text = "; ".join(filter(None, troubles))
        if text and text != self.board.trouble:
            self._tell("", text)
        self.board.trouble = text

    def tried(self, what: str, step: Callable[[], None]) -> None:
        """A step of the loop beside the round; what goes wrong in it is told and must not end the jobs."""
        try:
            step()
        except Exception as error:  # the edge of a step
            self._tell_trouble(f"{what}: {_reason(error)}")

    def look(self) -> None:
        """Tell which jobs have another state than when last looked at."""
        self.tried("the jobs", self._look)

    def _look(self) -> None:
        """A job that does not run raises an alert."""
        states = self.states()
        for name, state in states.items():
            before = self._told.get(name)
            self.tally.failures[name] += state.phase in BROKEN and _standing(state) != _standing(before)
            text = _change(before, state)
            if text and state.phase in BROKEN:
                self.board.note_failure(name, state)
                self.alerts(self.now_s(), text, name)
            elif text:
                self._tell(name, text)
        self._told = states

    def _alert(self, at_s: float, text: str) -> None:
        """An alert of the policy; one about a job begins with its name."""
        job, _, rest = text.partition(": ")
        if rest and job in self.board.known.now():
            self.alerts(at_s, rest, job)
        else:
            self.alerts(at_s, text)

    def _tell(self, job: str, text: str) -> None:
        self.watcher.tell(self.now_s(), job, text)

    # -- what is asked

    def states(self) -> dict[str, JobState]:
        """All jobs, also those that could not be started."""
        return self.board.states()

    def status(self) -> Status:
        """Everything at this moment."""
        return self.board.status()

    def health(self) -> Health:
        """Whether the loop turns and the engine answers."""
        return self.board.health()

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
        topology = self._built(request)
        name = topology.name
        with self._alone(name):
            if self.registry.get(name) is not None:
                raise DuplicateJobError(f'there is a job "{name}" already; give this one another name with --name')
            registered = Registered(dataclasses.replace(request, name=name), live=True)
            # On the list first: one that runs without being there could not be changed, and would not come back.
            self.registry.put(name, registered)
            try:
                self._submit(name, registered, topology)
            except HeadgateError:
                self.registry.drop(name)
                raise
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
        current = self.board.known.now()[name].intent
        if "intent" in table and current is not None:
            intent = _merged(current, table["intent"], name)
            self._check_policy(name, intent)
            changes["intent"] = {**registered.intent, **table["intent"]}
        return changes, intent

    def _built(self, request: JobRequest) -> Topology:
        return build(request, self.loop.settings.load_job_s)

    def _check_policy(self, name: str, intent: Intent) -> None:
        with about(f'job "{name}": intent', IntentError):
            check_policy(intent, self.loop.user_policies)

    def _set_intent(self, name: str, intent: Intent) -> None:
        self.engine.set_intent(name, intent)
        self.board.known.put(name, dataclasses.replace(self.board.known.now()[name], intent=intent))
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
            if name in self.board.unstarted.now():
                self._submit(name, registered, self._built(registered.request))
                self.board.unstarted.drop(name)
            else:
                self.engine.resume(name)
            self.registry.put(name, registered)

    def remove(self, name: str) -> str:
        """Stop a job after its epoch and take it off the list; returns what else there is to do, if anything."""
        with self._alone(name):
            registered = self._registered(name)
            kept = self.retention.removed.begin(name, registered, self.now_s())
            # Off the list first: killed in between, a job without its checkpoint must not come back and begin again.
            self.registry.drop(name)
            if not self.board.unstarted.drop(name):
                self._remove_running(name, registered, kept)
            self.retention.removed.move(name, kept)
            self.retention.removed.expire(self.now_s())  # this one too, if removed jobs are not kept
            self.board.known.drop(name)
        self._tell(name, "removed")
        return (
            "" if registered.live else "it comes back with the next `headgate run` unless it is taken out of its file"
        )

    def _remove_running(self, name: str, registered: Registered, kept: Path) -> None:
        try:
            self.engine.remove(name, keep=True)
        except HeadgateError:
            self.registry.put(name, registered)
            self.retention.removed.cancel(kept)
            raise

    def removed(self) -> list[RemovedJob]:
        """Removed jobs that can be restored, oldest first."""
        return self.retention.removed.all()

    def restore(self, name: str, at: str | None = None) -> None:
        """Let a removed job go on where it stopped: the newest of this name, or the one that was removed at that time."""
        with self._alone(name):
            if self.registry.get(name) is not None:
                raise DuplicateJobError(f'there is a job "{name}" already; remove it before another one is restored')
            path, record = self.retention.removed.find(name, at)
            topology = self._built(record.registered.request)
            self.retention.removed.bring_back(path, name)
            registered = dataclasses.replace(record.registered, live=True)
            try:
                self._submit(name, registered, topology)
            except HeadgateError:
                self.retention.removed.move(name, path / PLACE)
                raise
            self.registry.put(name, registered)
            self.retention.removed.done(path)
        self._tell(name, "restored")

    def _alone(self, name: str) -> threading.Lock:
        with self._locks_lock:
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
        unstarted = self.board.unstarted.now().get(name)
        if unstarted is not None:
            reason = unstarted.reason.rstrip(";. ")
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


def _standing(state: JobState | None) -> tuple[object, ...] | None:
    """What differs from one failure to the next; share and read limit are not part of it."""
    return None if state is None else (state.phase, state.reason, state.since_s)


def _change(before: JobState | None, now: JobState) -> str:
    """A change of state in words; empty if there is none worth telling."""
    if before is not None and (before.phase, before.reason) == (now.phase, now.reason):
        return ""
    if now.phase is not JobPhase.RUNNING:
        return _sentence(now)
    if before is not None and before.phase is JobPhase.RUNNING:
        return _sentence(now) if now.reason else ""
    return "runs" if before is None or before.phase is JobPhase.STARTING else "runs again"


def _reason(error: Exception) -> str:
    """What went wrong; an error that was not raised on purpose is named."""
    return str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"


def _sentence(state: JobState) -> str:
    return f"{state.phase.value}: {state.reason}" if state.reason else state.phase.value
