"""Starts, submits, changes, pauses, removes and restores the jobs of a service; each change is on disk before its request returns.

Requests run on other threads than the control loop. Each change of a job waits for earlier changes of the job, but never for a round.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from headgate.config import Settings
from headgate.core.intents import Intent
from headgate.core.model import Allocation, JobAllocation
from headgate.core.quantities import about, check_fields, did_you_mean, shown
from headgate.errors import (
    DuplicateJobError,
    HeadgateError,
    InputError,
    IntentError,
    UnknownJobError,
)
from headgate.health.isolation.processes import IsolatedPolicy
from headgate.health.policies import check_policy
from headgate.jobfile import JobRequest, request_from, whole
from headgate.ports import JobPhase, Jobs, JobState
from headgate.server.board import StatusBoard
from headgate.server.quotas import Accounts
from headgate.server.registry import Demand, Registered, Registry
from headgate.server.removed import PLACE, RemovedJob
from headgate.server.retention import Retention
from headgate.server.starting import QueuedJob, StartQueue
from headgate.server.status import DeclaredJob
from headgate.spark.processes.jobloader import TenantFile, build
from headgate.spark.reasons import reason_of, trace_of
from headgate.topology import Topology

INTENT_FIELDS = ("latency", "percentile", "juice", "worth", "shape", "policy")
LOADED_AT_ONCE = 4
"""Number of job files of registered jobs that are loaded in parallel when the service starts."""
CHANGES = ("intent", "share", "read_limit")
Built = tuple[JobRequest, Topology]
Tell = Callable[[str, str], None]
"""Reports an event: takes the name of a job, and a sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobRules:
    """What the jobs of a service are checked against."""

    settings: Settings
    user_policies: Mapping[str, IsolatedPolicy]
    accounts: Accounts
    tenant_file: TenantFile


class ServedJobs:
    """The jobs of a service, on its engine and in its registry."""

    def __init__(
        self, engine: Jobs, registry: Registry, board: StatusBoard, rules: JobRules, tell: Tell,
        now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self.engine, self.registry, self.board, self.rules = engine, registry, board, rules
        self.retention = Retention(registry.path.parent, rules.settings)
        self.starts = StartQueue()
        """Queued starts of the jobs with which the service begins."""
        self.queued: dict[str, QueuedJob] = {}
        """Jobs that wait for their start, by name; the holder of a job's lock removes the job."""
        self._tell, self._now_s = tell, now_s
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        """One lock per job or tenant that is being changed; `_locks_lock` guards the table of locks."""
        self._locks_lock = threading.Lock()

    # -- when the service starts

    def prepare(self, built: Iterable[Built], only_these: bool, allocation: Allocation) -> None:
        """Queue the jobs of the files and registered jobs; with `only_these`, only registered jobs that were submitted live."""
        named, before = by_name(built), self.registry.all()
        for name, (request, topology) in named.items():
            self._queue_given(name, request, topology, allocation)
        again = {name: one for name, one in before.items() if name not in named and (one.live or not only_these)}
        with ThreadPoolExecutor(LOADED_AT_ONCE) as pool:
            for name, found in zip(again, pool.map(self._built_or_error, again.values()), strict=True):
                self._queue_again(name, again[name], found, allocation)
        for name in before.keys() - named.keys() - again.keys():
            self._tried(name, partial(self.registry.drop, name))
            self._tell(name, "is no longer in the files; not started")

    def _tried(self, name: str, step: Callable[[], None]) -> None:
        """Run a step on the registry; an error, such as a full disk, is reported and does not keep the jobs from starting."""
        try:
            step()
        except HeadgateError as error:
            self._tell(name, f"the list of jobs: {error}")

    def _queue_given(self, name: str, request: JobRequest, topology: Topology, allocation: Allocation) -> None:
        """Queue a job of a file; live changes of the job stay while its entry in the file stays, and end when the entry is edited."""
        old = self.registry.get(name)
        same = old is not None and old.request == request
        if old is not None and same:
            registered = dataclasses.replace(old, live=False, granted=None, of_tenant=False)
        else:
            kept = old is not None and old.tenant == topology.tenant
            since_s = old.since_s if old is not None and kept else self._now_s()
            registered = Registered(request, paused=old is not None and old.paused, since_s=since_s)
        self._prepared(name, registered, topology)
        self._queue(name, registered, topology, allocation.get(name) if same else None)
        self._tried(name, partial(self.registry.put, name, registered))

    def _built_or_error(self, registered: Registered) -> Topology | HeadgateError:
        try:
            return self._build(registered)
        except HeadgateError as error:
            return error

    def _queue_again(
        self, name: str, registered: Registered, topology: Topology | HeadgateError, allocation: Allocation
    ) -> None:
        """Queue a registered job; a job that cannot be loaded is set aside as failed, so that other jobs still start."""
        try:
            if isinstance(topology, HeadgateError):
                raise topology
            self._prepared(name, registered, topology)
        except HeadgateError as error:
            self._set_aside(name, registered, error)
        else:
            self._queue(name, registered, topology, allocation.get(name))

    def _queue(self, name: str, registered: Registered, topology: Topology, allocation: JobAllocation | None) -> None:
        """Queue a job, which is shown as starting until its turn; paused jobs come first, because the engine only registers them."""
        self.queued[name] = QueuedJob(registered, topology, allocation)
        state = JobState(JobPhase.STARTING, "", topology.share, registered.read_limit, self._now_s())
        self.board.declared.put(name, DeclaredJob(topology.tenant, topology.intent, _lanes(topology)))
        self.board.unstarted.put(name, state)
        self.starts.add(math.inf if registered.paused else topology.intent.worth, partial(self._start_queued, name))

    def _start_queued(self, name: str) -> None:
        """Start a queued job, unless the job was paused, removed or resumed while it waited."""
        with self._alone(name):
            job = self.queued.pop(name)
            if not self._is_queued(name):
                return
            try:
                self._submit_prepared(name, job.registered, job.topology, job.allocation)
            except Exception as error:  # at the edge of a start, which must not keep the other jobs from starting
                if not self.engine.lost():
                    self._set_aside(name, job.registered, error)
            else:
                self.board.unstarted.drop(name)

    def _is_queued(self, name: str) -> bool:
        """Whether the job waits for its turn to start."""
        state = self.board.unstarted.now().get(name)
        return state is not None and state.phase is JobPhase.STARTING

    def _set_aside(self, name: str, registered: Registered, error: Exception) -> None:
        self.board.declared.put(name, DeclaredJob(registered.request.tenant or "default", None))
        share, limit = registered.share or 1, registered.read_limit
        state = JobState(JobPhase.FAILED, reason_of(error), share, limit, self._now_s(), trace_of(error))
        self.board.unstarted.put(name, state)

    def _prepared(self, name: str, registered: Registered, topology: Topology) -> None:
        """Apply the live changes of a job to its topology; raises if a change does not fit."""
        topology.intent = _merge(topology.intent, registered.intent, name)
        self._check_policy(name, topology.intent)
        topology.share = registered.share or topology.share
        if registered.granted is not None:
            self.rules.accounts.check(topology.tenant, name, _demand(topology), registered.granted)
        if registered.intent:
            self._tell(name, f"its intent is {topology.intent.describe()}, as it was changed while it ran")

    def _submit(self, name: str, registered: Registered, topology: Topology) -> None:
        self._prepared(name, registered, topology)
        self._submit_prepared(name, registered, topology, None)

    def _submit_prepared(
        self, name: str, registered: Registered, topology: Topology, allocation: JobAllocation | None
    ) -> None:
        self.retention.dead_letters.add(topology)
        self.engine.submit(topology, _fitting(topology, allocation), registered.paused)
        if registered.read_limit is not None:
            self.engine.set_read_limit(name, registered.read_limit)
        self.board.declared.put(name, DeclaredJob(topology.tenant, topology.intent, _lanes(topology)))

    # -- while it runs

    def submit(self, table: Any, tenant: str | None = None) -> str:
        """Start one more job, for this tenant if one is given; returns its name."""
        request = _owned(request_from(table), tenant)
        wanted = Registered(request, live=True, of_tenant=tenant is not None)
        topology = self._build(wanted)
        name = topology.name
        with self._alone(name), self._alone(f"tenant {topology.tenant}"):
            if self.registry.get(name) is not None:
                raise DuplicateJobError(f'there is a job "{name}" already; give this one another name with --name')
            granted = self._granted(topology)
            owned = dataclasses.replace(request, name=name, tenant=topology.tenant)
            registered = dataclasses.replace(wanted, request=owned, since_s=self._now_s(), granted=granted)
            # Registered first: a running job without an entry could not be changed, and would not start again with the service.
            self.registry.put(name, registered)
            try:
                self._submit(name, registered, topology)
            except HeadgateError:
                self.registry.drop(name)
                raise
        return name

    def _granted(self, topology: Topology) -> Demand:
        """Return what the job asks for; raises if the quotas of its tenant have no room for the job."""
        asked = _demand(topology)
        self.rules.accounts.check(topology.tenant, topology.name, asked)
        return asked

    def owner(self, name: str) -> str | None:
        """The tenant of a job; None if there is no such job."""
        declared = self.board.declared.now().get(name)
        return declared.tenant if declared is not None and self.registry.get(name) is not None else None

    def change(self, name: str, table: Any, tenant: str | None = None) -> None:
        """Give a job another intent, share or read limit, if it is this tenant's; fields that are not named stay."""
        with self._alone(name), self._alone(f"tenant {self.owner(name)}"):
            registered = self._started(name, tenant)
            # All is checked before anything is changed.
            changes, intent = self._checked(name, registered, table)
            changes["granted"] = self._check_changed_quota(name, registered.granted, changes.get("share"), intent)
            if intent is not None:
                self._set_intent(name, intent)
            if "share" in changes:
                self.engine.set_share(name, changes["share"])
            if "read_limit" in changes:
                self.engine.set_read_limit(name, changes["read_limit"])
            self.registry.put(name, dataclasses.replace(registered, **changes))

    def _check_changed_quota(
        self, name: str, granted: Demand | None, share: int | None, intent: Intent | None
    ) -> Demand | None:
        """Check a change against the quotas; returns what the job is granted from now on, or None if it had no grant."""
        declared, state = self.board.declared.now()[name], self.board.states().get(name)
        has = state.share if state is not None else 1
        asked = Demand(0, share or has, declared.worth if intent is None else intent.worth)
        self.rules.accounts.check(declared.tenant, name, asked)
        return None if granted is None else dataclasses.replace(asked, lanes=granted.lanes)

    def _checked(self, name: str, registered: Registered, table: Any) -> tuple[dict[str, Any], Intent | None]:
        """Check a change; returns the new fields of the registry entry, and the new intent if there is one."""
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
        current = self.board.declared.now()[name].intent
        if "intent" in table and current is not None:
            intent = _merge(current, table["intent"], name)
            self._check_policy(name, intent)
            changes["intent"] = {**registered.intent, **table["intent"]}
        return changes, intent

    def _build(self, registered: Registered) -> Topology:
        rules = self.rules.tenant_file if registered.of_tenant else None
        return build(registered.request, self.rules.settings.load_job_s, rules)

    def _check_policy(self, name: str, intent: Intent) -> None:
        with about(f'job "{name}": intent', IntentError):
            check_policy(intent, self.rules.user_policies)

    def _set_intent(self, name: str, intent: Intent) -> None:
        self.engine.set_intent(name, intent)
        self.board.declared.put(name, dataclasses.replace(self.board.declared.now()[name], intent=intent))
        self._tell(name, f"its intent is now {intent.describe()}, worth {intent.worth:g}")

    def pause(self, name: str, tenant: str | None = None) -> None:
        """Stop a job after its epoch; it stays paused over restarts."""
        with self._alone(name):
            if self._is_queued(name):
                waiting = self.board.unstarted.now()[name]
                paused = dataclasses.replace(waiting, phase=JobPhase.PAUSED, since_s=self._now_s())
                registered = self.registered(name, tenant)
                self.board.unstarted.put(name, paused)
            else:
                registered = self._started(name, tenant)
                self.engine.pause(name)
            self.registry.put(name, dataclasses.replace(registered, paused=True))

    def resume(self, name: str, tenant: str | None = None) -> None:
        """Continue a job that was paused, that failed, or that could not be started."""
        with self._alone(name), self._alone(f"tenant {self.owner(name)}"):
            registered = dataclasses.replace(self.registered(name, tenant), paused=False)
            if name in self.board.unstarted.now():
                self._submit(name, registered, self._build(registered))
                self.board.unstarted.drop(name)
            else:
                self.engine.resume(name)
            self.registry.put(name, registered)

    def remove(self, name: str, tenant: str | None = None) -> str:
        """Stop a job after its epoch and remove it; returns what the user still has to do, or an empty text."""
        with self._alone(name):
            registered = self.registered(name, tenant)
            kept = self.retention.removed.begin(registered, self._now_s())
            # Unregistered first: after a kill in between, a job without its checkpoint must not start from the beginning.
            self.registry.drop(name)
            if not self.board.unstarted.drop(name):
                self._remove_running(name, registered, kept)
            self.retention.removed.move(name, kept)
            self.retention.removed.expire(self._now_s())  # deletes this job too, if removed jobs are not kept
            self.board.declared.drop(name)
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

    def removed(self, tenant: str | None = None) -> list[RemovedJob]:
        """Removed jobs that can be restored, oldest first: all, or those of a tenant."""
        return [one for one in self.retention.removed.all() if tenant is None or one.tenant == tenant]

    def removed_by_others(self, tenant: str) -> set[str]:
        """Names of removed jobs of other tenants."""
        return {one.name for one in self.retention.removed.records() if one.tenant != tenant}

    def restore(self, name: str, at: str | None = None, tenant: str | None = None) -> None:
        """Continue a removed job where it stopped: the last one removed under this name, or the one removed at the time `at`."""
        with self._alone(name):
            if self.registry.get(name) is not None:
                raise DuplicateJobError(f'there is a job "{name}" already; remove it before another one is restored')
            path, record = self.retention.removed.find(name, at, tenant)
            topology = self._build(record)
            with self._alone(f"tenant {topology.tenant}"):
                self._restore(name, path, record, topology)
        self._tell(name, "restored")

    def _restore(self, name: str, path: Path, record: Registered, topology: Topology) -> None:
        granted = self._granted(topology)
        self.retention.removed.bring_back(path, name)
        since_s = max(record.since_s, self._others_until_s(name, topology.tenant))
        registered = dataclasses.replace(record, live=True, removed_s=None, since_s=since_s, granted=granted)
        try:
            self._submit(name, registered, topology)
        except HeadgateError:
            self.retention.removed.move(name, path / PLACE)
            raise
        self.registry.put(name, registered)
        self.retention.removed.done(path)

    def _others_until_s(self, name: str, tenant: str) -> float:
        """When a job of this name was last removed by another tenant; 0 if none was."""
        records = self.retention.removed.records()
        others = [one for one in records if one.name == name and one.tenant != tenant]
        return max((one.removed_s or 0.0 for one in others), default=0.0)

    def _alone(self, name: str) -> threading.Lock:
        with self._locks_lock:
            return self._locks.setdefault(name, threading.Lock())

    def registered(self, name: str, tenant: str | None = None) -> Registered:
        """Return the entry of a job. The owner is checked again, because it may have changed since the gate passed the request."""
        registered = self.registry.get(name)
        if tenant is not None and self.owner(name) != tenant:
            raise UnknownJobError(f"there is no job {shown(name)}")
        if registered is None:
            names = self.registry.all()
            hint = did_you_mean(name, names) or (
                f" There are {', '.join(names)}." if names else " There is none at all."
            )
            raise UnknownJobError(f"there is no job {shown(name)}.{hint}")
        return registered

    def _started(self, name: str, tenant: str | None) -> Registered:
        registered = self.registered(name, tenant)
        unstarted = self.board.unstarted.now().get(name)
        if unstarted is not None and unstarted.phase is not JobPhase.FAILED:
            raise InputError(f'job "{name}" has not started yet; try again when it runs')
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
        named[topology.name] = (dataclasses.replace(request, name=topology.name, tenant=topology.tenant), topology)
    return named


def _merge(intent: Intent, fields: Any, name: str) -> Intent:
    with about(f'job "{name}": intent', IntentError):
        if not isinstance(fields, dict):
            raise IntentError(f"it is {shown(fields)}; it must be a table")
        check_fields(fields, INTENT_FIELDS, IntentError)
        if not isinstance(fields.get("shape", ""), str):
            raise IntentError(
                f"shape is {shown(fields['shape'])}; a running job can be given a shape by its name alone"
            )
        return dataclasses.replace(intent, **fields)


def _owned(request: JobRequest, tenant: str | None) -> JobRequest:
    """Return the request with its tenant; raises if a tenant submits a job of another tenant."""
    if tenant is None:
        return request
    if request.tenant not in (None, tenant):
        raise InputError(f'tenant is "{request.tenant}"; this token submits jobs of tenant "{tenant}": leave it out')
    return dataclasses.replace(request, tenant=tenant)


def _demand(topology: Topology) -> Demand:
    return Demand(_lanes(topology), topology.share, topology.intent.worth)


def _lanes(topology: Topology) -> int:
    return sum(topology.allocation().lanes.values())


def _fitting(topology: Topology, allocation: JobAllocation | None) -> JobAllocation | None:
    """Return the earlier allocation of a job if its operators are still the same and its lanes fit; else None."""
    if allocation is None or allocation.lanes.keys() != topology.allocation().lanes.keys():
        return None
    most = {name: topology.nodes[name].max_lanes for name in allocation.lanes}
    fits = all(limit is None or allocation.lanes[name] <= limit for name, limit in most.items())
    return allocation if fits else None
