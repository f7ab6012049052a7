"""The service: one engine, its jobs, the control loop, and a registry of jobs that survives restarts.

Requests change jobs (`jobs.py`) on other threads than the loop's; rounds wait for none of them. What the loop knows it publishes as one
frozen picture per round; what requests change is in tables that are replaced, never changed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate import clock, explain
from headgate.alerts import Alerts, Webhook
from headgate.config import ServiceSettings, Settings
from headgate.config.settings import names_in
from headgate.controller import Controller
from headgate.core.alerts import Alert, AlertKind
from headgate.core.metrics import View
from headgate.core.model import Action, Outcome
from headgate.core.quantities import show_seconds
from headgate.errors import HeadgateError, InputError
from headgate.health.isolation.processes import IsolatedPolicy
from headgate.hosts.landlord import Landlord
from headgate.ports import JobPhase, Jobs, JobState, Journal, Past
from headgate.scheduler.memory import Decision
from headgate.scheduler.policies import policy_named
from headgate.server.board import BROKEN, KEPT_ACTIONS, StatusBoard
from headgate.server.capping import CappedEngine
from headgate.server.changes import Change, Changes, submitted
from headgate.server.home import user_name
from headgate.server.jobs import Built, JobRules, ServedJobs
from headgate.server.lost_hosts import LostHosts
from headgate.server.quotas import Accounts
from headgate.server.registry import Registered, Registry
from headgate.server.removed import JOBS as JOBS_FOLDER
from headgate.server.starting import QueuedEngine, StartProgress
from headgate.server.state_changes import StateChanges, state_sentence
from headgate.server.state_sizes import StateSizes
from headgate.server.status import Health, Picture, Status, Tally, action_status, leases_of
from headgate.server.tenants import Tenant, Tenants, tenant_added
from headgate.spark.processes.jobloader import TenantFile
from headgate.threads import in_parallel

CLOCK_TOLERANCE_S = 1.0
"""Seconds that the last round may lie in the future before the service concludes that the clock was set back."""
POLICY_KEY = "policy"


class Watcher(Protocol):
    """Receives every round and every message of a service."""

    def round(self, view: View, phase: str, action: Action | None, states: Mapping[str, JobState]) -> None:
        """Handle the end of a round of the control loop."""

    def tell(self, at_s: float, job: str, text: str, epoch: int | None = None) -> None:
        """Handle a message about a job and its epoch, or about the service if `job` is empty."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The settings, the policy and the tenants of a service's control loop."""

    settings: Settings
    policy: str = "headgate"
    observe_only: bool = False
    user_policies: Mapping[str, IsolatedPolicy] = field(default_factory=dict)
    webhook: Webhook | None = None
    service: ServiceSettings = field(default_factory=ServiceSettings)
    tenants: Sequence[Tenant] = ()
    """Tenants of the cluster file; their quotas replace earlier quotas."""


class Service:
    """Runs jobs on an engine by their intents: call `prepare`, then `round` repeatedly beside `jobs.starts`, then `engine.close`."""

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
        self.journal = journal
        self.loop = loop
        self.watcher = watcher
        self.now_s = now_s
        self.tally = Tally()
        self.board = StatusBoard(engine, loop.settings, loop.policy, now_s)
        home = registry.path.parent
        self.tenants = Tenants(home, now_s)
        self.sizes = StateSizes(home / JOBS_FOLDER, loop.service.metrics_state_s)
        self.accounts = Accounts(self.tenants, self.board, self.sizes, loop.service.lane_memory_mb)
        capped = CappedEngine(
            engine,
            self.accounts.lane_limit,
            lambda name: self.tenants.get(name).quota.share,
            lambda name: self.tenants.get(name).weight,
        )
        self.changes = Changes(home, loop.service.changes_kept, self._alert_unwritten)
        policy = policy_named(loop.policy, loop.settings, loop.user_policies, in_parallel)
        self.alerts = Alerts(self._log, loop.webhook)
        self.controller = Controller(capped, policy, journal, loop.settings, loop.observe_only, self.alerts)
        variables = TenantFile(names_in(loop.service.tenant_environment))
        rules = JobRules(loop.settings, loop.user_policies, self.accounts, variables)
        self.jobs = ServedJobs(engine, registry, self.board, rules, self._tell, now_s)
        self._state_changes = StateChanges(self.board, self.tally)
        self._progress = StartProgress()
        self._lost = LostHosts()
        self._above_state: frozenset[str] = frozenset()
        """Tenants above their quota of state in the last round. Only the loop uses `_above_state`, `_lost` and `_progress`."""

    # -- start

    def prepare(self, built: Iterable[Built], only_these: bool = True) -> None:
        """Queue the jobs of the files and registered jobs; with `only_these`, only registered jobs that were submitted live."""
        self._check_journal()
        if self.registry.damage:
            text = f"{self.registry.damage}; submit the jobs that are missing again"
            self.alerts(self.now_s(), Alert(text, kind=AlertKind.JOBS_LOST))
        self.jobs.retention.removed.recover(self.registry.all().keys())
        self._clean()
        restored = self.journal.restore()
        allocation = restored.allocation if restored is not None else {}
        tenants, jobs = self.tenants.all(), self.registry.all()
        if self.loop.tenants:
            self.tenants.put(*self.loop.tenants)
        self.jobs.prepare(built, only_these, allocation)
        self._note_files(tenants, jobs)
        self._go_on()

    def _note_files(self, tenants: Mapping[str, Tenant], jobs: Mapping[str, Registered]) -> None:
        """Record in the audit log which tenants and jobs the files changed."""
        changes = [("", tenant_added(one)) for one in self.loop.tenants if tenants.get(one.name) != one]
        now = self.registry.all()
        for name, one in now.items():
            if name not in jobs or jobs[name].request != one.request:
                changes.append((name, submitted(dataclasses.asdict(one.request))))
        changes.extend((name, "remove: no longer in the files") for name in jobs if name not in now)
        if changes:
            at_s, who = self.now_s(), user_name()
            self.changes.add(*(Change(at_s, who, "files", name, what) for name, what in changes))

    def _alert_unwritten(self, trouble: str) -> None:
        self.alerts(self.now_s(), Alert(trouble, kind=AlertKind.AUDIT))

    def _check_journal(self) -> None:
        if self.journal.about().get(explain.CLOCK_KEY, explain.WALL_CLOCK) != explain.WALL_CLOCK:
            raise InputError("the journal is of a simulation; give another --home, or delete it to start afresh")

    def _go_on(self) -> None:
        """Continue where the journal ends; give up unfinished actions if the policy is another one, or if the clock was set back."""
        if self.journal.about().get(POLICY_KEY, self.loop.policy) != self.loop.policy:
            self._give_up_unfinished("another policy took over")
        elif self._is_set_back():
            self._give_up_unfinished("the clock was set back")
        elif self._resume() is not None:
            self.controller.policy.note_interruption()
        self.journal.set_about(explain.CLOCK_KEY, explain.WALL_CLOCK)
        self.journal.set_about(POLICY_KEY, self.loop.policy)
        recent = [one for one in self.journal.actions() if not one.action.concerns_host][-KEPT_ACTIONS:]
        self.board.actions = tuple(action_status(one.at_s, one.action, one.outcome) for one in recent)
        if self.landlord is not None:
            self.board.leases = leases_of(self.landlord, self.now_s())

    def _resume(self) -> float | None:
        """Resume the controller before any job starts; an action that is carried out late changes the first allocation of its jobs."""
        engine = self.controller.engine
        self.controller.engine = QueuedEngine(engine, self.jobs.queued)
        try:
            return self.controller.resume(self.now_s())
        finally:
            self.controller.engine = engine

    def _is_set_back(self) -> bool:
        """Whether the last round lies in the future: waits until such a time would stop all decisions."""
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
        """Run one round of the loop; an error is reported and never ends the jobs."""
        begun_s = time.perf_counter()
        self._clean()
        self.tally.failed_rounds += not self._round()
        self.tally.seconds += time.perf_counter() - begun_s

    def _round(self) -> bool:
        """Run one round; returns whether the round was completed."""
        try:
            view, decision = self.controller.round()
        except Exception as error:  # the edge of the round: an engine that cannot be read, a broken policy
            self._tell_trouble(f"no round: {_reason(error)}", self._look_at_hosts(None))
            self.board.last_round_failed = True
            self._show_stale()
            return False
        self._publish(view, decision)
        self.board.last_round_failed = False
        self._tell_trouble(self.controller.trouble, self._look_at_hosts(view))
        self.tally.add(view, self.board.satisfaction(view), decision.action, self.controller.outcome)
        self.watcher.round(view, self.board.phase(), decision.action, self.states())
        return True

    def _clean(self) -> None:
        """Delete removed jobs and dead letters whose time is over; a failed deletion is tried again in an hour."""
        try:
            for name in self.jobs.retention.clean(self.now_s()):
                self._tell(name, "cannot be restored any more: it was removed too long ago")
        except OSError as error:
            self._tell("", f"clean-up: {error}")

    def _publish(self, view: View, decision: Decision) -> None:
        policy, samples = self.controller.policy, self.controller.windows.samples
        self.tally.hosts_lost += self._lost.count(view.hosts, self.board.leases)
        read_s = {name: kept[-1].at_s for name, kept in samples.items() if kept}
        advice = tuple(alert.sentence for alert in (*policy.advice(view), *self._grown()))
        picture = Picture(view, policy.phase(), decision.cause, advice, self.now_s(), read_s)
        done = [] if decision.action is None else [action_status(view.at_s, decision.action, self.controller.outcome)]
        self.board.publish(picture, done)

    def _grown(self) -> list[Alert]:
        """Return an alert per tenant above its quota of state; each is raised when the tenant exceeds the quota, not every round."""
        found = self.accounts.above_state()
        for alert in found:
            if alert.about not in self._above_state:
                self.alerts(self.now_s(), alert)
        self._above_state = frozenset(alert.about for alert in found)
        return found

    def _show_stale(self) -> None:
        """Update the live table once readings are stale: no job counts as met on a stale reading."""
        view = self.board.stale_view()
        if view is not None:
            self.watcher.round(view, self.board.phase(), None, self.states())

    def _look_at_hosts(self, view: View | None) -> str:
        """Let the landlord work on hosts; without a view, it only refreshes the hosts. Returns the error, or an empty text."""
        if self.landlord is None:
            return ""
        try:
            came = self.landlord.look(view) if view is not None else self.landlord.refresh(self.now_s())
            if came:
                self.controller.policy.cluster_changed()
            self.board.leases = leases_of(self.landlord, self.now_s())
        except Exception as error:  # the edge of the hosts: jobs continue on the present hosts
            return f"hosts: {_reason(error)}"
        return ""

    def _tell_trouble(self, *troubles: str) -> None:
        text = "; ".join(filter(None, troubles))
        if text and text != self.board.trouble:
            self._tell("", text)
        self.board.trouble = text

    def tried(self, what: str, step: Callable[[], None]) -> None:
        """Run a step of the loop beside the round; an error is reported and never ends the jobs."""
        try:
            step()
        except Exception as error:  # the edge of a step
            self._tell_trouble(f"{what}: {_reason(error)}")

    def look(self) -> None:
        """Report the jobs whose state changed since the last call."""
        self.tried("the jobs", self._look)

    def _look(self) -> None:
        self._tell_progress()
        for name, text, broken in self._state_changes.since_last():
            if broken:
                self.alerts(self.now_s(), Alert(text, job=name, kind=AlertKind.JOB_DOWN))
            else:
                self._tell(name, text)

    def _tell_progress(self) -> None:
        told = self._progress.sentence(self.states(), self.now_s())
        if told:
            self._tell("", told)

    def _tell(self, job: str, text: str) -> None:
        self._log(self.now_s(), job, text)

    def _log(self, at_s: float, job: str, text: str) -> None:
        """Send a message to the watcher, with the epoch in which the loop last saw the job."""
        self.watcher.tell(at_s, job, text, self._state_changes.epoch_of(job))

    # -- what is asked

    def states(self) -> dict[str, JobState]:
        """Return the states of all jobs, including jobs that have not started."""
        return self.board.states()

    def status(self) -> Status:
        """Return the status of the service at this moment."""
        status = self.board.status()
        return dataclasses.replace(status, tenants=self.accounts.statuses(status))

    def health(self, detailed: bool = True) -> Health:
        """Whether the control loop completes rounds and the engine answers."""
        return self.board.health(detailed)

    def story(self, name: str, past: Past | None = None) -> list[explain.Line]:
        """Return what happened to a job and, if the job does not run, why; `past` is the part of the journal a tenant may read."""
        lines: list[explain.Line] = []
        try:
            lines = explain.story(past or self.journal, name)
        except InputError:
            self.jobs.registered(name)
        state = self.states().get(name)
        if state is not None and state.phase in (*BROKEN, JobPhase.PAUSED):
            lines.append(
                explain.Line(state.since_s, state_sentence(state), {"what": "state", "state": state.phase.value})
            )
        return lines


def _reason(error: Exception) -> str:
    """Return the text of an error, with its type if Headgate did not raise the error on purpose."""
    return str(error) if isinstance(error, HeadgateError) else f"{type(error).__name__}: {error}"
