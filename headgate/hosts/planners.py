"""Planners decide which hosts are leased and released: their interface, and the planner for engines whose lanes share slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.config import Settings
from headgate.core.hosts import Host, OperatorKey
from headgate.core.metrics import View
from headgate.core.model import Action
from headgate.core.windows import span_of
from headgate.errors import EngineError
from headgate.hosts import slots
from headgate.hosts.leases import LaneStep, Ledger, TenantJob
from headgate.hosts.provision import ProvisionState, Terms

Use = Mapping[str, Mapping[TenantJob, float]]
"""Use of each host by each job, in seconds: busy lanes or, in the simulator of leased lanes, reserved cores."""


@dataclass(frozen=True, slots=True)
class HostsView:
    """The input of a planner."""

    view: View
    hosts: Mapping[str, Host]
    ledger: Ledger


class Planner(Protocol):
    """Decides which hosts are leased and released."""

    terms: Terms
    settings: Settings

    def observe(self, view: View, hosts: Mapping[str, Host]) -> None:
        """Note the measurements of a round, with or without a decision."""

    def take_use(self) -> Use:
        """The use of hosts by jobs since the last call."""

    def decide(self, state: ProvisionState, now: HostsView) -> tuple[ProvisionState, Sequence[Action | LaneStep]]:
        """Decide on hosts to lease and to release, on new lane counts of jobs and, if the engine places lanes, on steps of single lanes."""

    def place(self, step: LaneStep) -> None:
        """Start, stop or move a lane."""


class SharedSlots:
    """A planner for engines whose lanes share slots, as on Spark; hosts/slots.py decides by sums of slots."""

    def __init__(self, terms: Terms, settings: Settings) -> None:
        self.terms, self.settings = terms, settings
        self._work: dict[OperatorKey, float] = {}
        """The last measured work of each operator."""
        self._use: dict[str, dict[TenantJob, float]] = {}

    def observe(self, view: View, hosts: Mapping[str, Host]) -> None:
        """Note the measured work, and add up the busy seconds of each job's lanes on each host, by which jobs share the cost."""
        self._work = {key: amount for key, amount in self._work.items() if key[0] in view.jobs}
        self._work |= slots.measured_work(view, self.settings)
        named = {host.address or name: name for name, host in hosts.items()}
        for job, seen in view.jobs.items():
            span = span_of(seen.samples[-2:])
            if span is None:
                continue
            for operator in seen.job.graph.operators:
                places = span.last.reading.operators[operator].hosts or ()
                for place, busy_s in zip(places, span.busy_s(operator), strict=False):
                    if place in named:
                        of_host, owned = self._use.setdefault(named[place], {}), (seen.job.tenant, job)
                        of_host[owned] = of_host.get(owned, 0.0) + busy_s

    def take_use(self) -> Use:
        """The use of hosts by jobs since the last call."""
        use, self._use = self._use, {}
        return use

    def decide(self, state: ProvisionState, now: HostsView) -> tuple[ProvisionState, Sequence[Action | LaneStep]]:
        """Decide on hosts to lease and to release."""
        seen = slots.SlotsView(now.view, now.hosts, now.ledger, self._work)
        return slots.step(state, seen, self.terms, self.settings)

    def place(self, step: LaneStep) -> None:
        """Raise an error, because Spark places lanes itself."""
        raise EngineError(f"{step} places a lane, but lanes of this engine run in whichever slot is free")
