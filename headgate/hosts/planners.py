"""Who decides which hosts come and go: what a landlord asks of a planner, and the planner for engines whose lanes share slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.config import Settings
from headgate.core.hosts import Host, OperatorKey
from headgate.core.metrics import View, span_of
from headgate.core.model import Action
from headgate.errors import EngineError
from headgate.hosts import capacity as slots
from headgate.hosts.leases import LaneStep, Ledger
from headgate.hosts.provision import ProvisionState, Terms

Use = Mapping[str, Mapping[str, float]]
"""By host, what each job had of it."""


@dataclass(frozen=True, slots=True)
class HostsView:
    """What decisions about hosts are made on."""

    view: View
    hosts: Mapping[str, Host]
    ledger: Ledger


class Planner(Protocol):
    """Decides which hosts come and go, by what runs on them."""

    terms: Terms
    settings: Settings

    def observe(self, view: View, hosts: Mapping[str, Host]) -> None:
        """Look at a round, whether or not anything is decided in it."""

    def take_use(self) -> Use:
        """What jobs had of hosts since this was last asked."""

    def decide(self, state: ProvisionState, now: HostsView) -> tuple[ProvisionState, Sequence[Action | LaneStep]]:
        """Hosts to lease and to release, and where single lanes go if the engine places them."""

    def place(self, step: LaneStep) -> None:
        """Start, stop or move a lane."""


class SharedSlots:
    """A planner for engines whose lanes share slots, as on Spark: hosts by sums of slots (hosts/capacity.py)."""

    def __init__(self, terms: Terms, settings: Settings) -> None:
        self.terms, self.settings = terms, settings
        self._work: dict[OperatorKey, float] = {}
        """As it was measured last."""
        self._use: dict[str, dict[str, float]] = {}

    def observe(self, view: View, hosts: Mapping[str, Host]) -> None:
        """Each job pays for the time that its lanes were busy on a host."""
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
                        by_job = self._use.setdefault(named[place], {})
                        by_job[job] = by_job.get(job, 0.0) + busy_s

    def take_use(self) -> Use:
        """What jobs had of hosts since this was last asked."""
        use, self._use = self._use, {}
        return use

    def decide(self, state: ProvisionState, now: HostsView) -> tuple[ProvisionState, Sequence[Action | LaneStep]]:
        """Hosts to lease and to release."""
        seen = slots.SlotsView(now.view, now.hosts, now.ledger, self._work)
        return slots.step(state, seen, self.terms, self.settings)

    def place(self, step: LaneStep) -> None:
        """Where a lane runs is up to Spark."""
        raise EngineError(f"{step} places a lane, but lanes of this engine run in whichever slot is free")
