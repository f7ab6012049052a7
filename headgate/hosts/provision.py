"""Provisioning of lanes and leased hosts: VISP's algorithms 1 to 3 and its procedures (figures 4 and 5), and two baselines.

`step(state, view, terms) -> (state, steps)` is pure. Each procedure is tried on a copy of the cluster first, so that no step is taken
towards a change that cannot be completed. Where the paper's listings are wrong, the code does what the paper intends;
docs/decisions/0030 lists the places.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.config import HostSettings
from headgate.core.hosts import Host, HostPhase, HostType, OperatorKey, host_name
from headgate.errors import HostError
from headgate.hosts.leases import (
    Budget,
    LeasedCluster,
    LeaseHost,
    Ledger,
    MoveLane,
    Need,
    PlanStep,
    ReleaseHost,
    StartLane,
    StopLane,
    apply_step,
)


@dataclass(frozen=True, slots=True)
class OperatorDemand:
    """Measurements of one operator; None means not measured."""

    expected_s: float
    """Expected duration of a row, in seconds."""
    duration_s: float | None
    """Recent duration of a row, in seconds."""
    queue: float | None
    """Number of rows that wait at the operator."""
    busy_lanes: float | None = None
    """Mean number of busy lanes."""
    starting: int = 0
    """Number of lanes that are still starting."""


@dataclass(frozen=True, slots=True)
class ProvisionView:
    """The input of a provisioner."""

    at_s: float
    cluster: LeasedCluster
    demands: Mapping[OperatorKey, OperatorDemand]
    ledger: Ledger
    unplaced: Mapping[OperatorKey, int] = field(default_factory=dict)
    """Number of lanes without a host, by operator: lanes of new jobs, and lanes that lost their host."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of leasing: host types, budget and settings."""

    kinds: tuple[HostType, ...]
    budget: Budget = field(default_factory=Budget)
    settings: HostSettings = field(default_factory=HostSettings)

    def __post_init__(self) -> None:
        """Refuse a budget that does not pay for one host."""
        self.budget.check(self.kinds)


@dataclass(frozen=True, slots=True)
class ProvisionState:
    """The state of a provisioner between two decisions."""

    durations: Mapping[OperatorKey, tuple[float, ...]] = field(default_factory=dict)
    """The last row durations of each operator in seconds, oldest first."""
    scalings: Mapping[OperatorKey, int] = field(default_factory=dict)
    leases: int = 0
    """Number of hosts leased so far; the name of a host contains its number."""
    failures: int = 0
    """Number of consecutive failed leases."""
    no_lease_until_s: float = 0.0
    """End of the pause after too many consecutive failed leases, in seconds."""
    settled: frozenset[str] = frozenset()
    """Hosts whose lease succeeded, or was counted as a failure."""


# -- the three algorithms --------------------------------------------------------------------------------------------------------


def predict_next(durations: Sequence[float]) -> float:
    """The next value by least squares (algorithm 1, lines 5 to 9).

    >>> predict_next([1.0, 2.0, 3.0])
    4.0
    """
    count = len(durations)
    middle, mean = (count + 1) / 2, sum(durations) / count
    spread = sum((place - middle) ** 2 for place in range(1, count + 1))
    # The paper multiplies duration and mean here; least squares subtracts.
    covariance = sum((place - middle) * (one - mean) for place, one in enumerate(durations, 1))
    slope = covariance / spread if spread else 0.0
    return mean - slope * middle + slope * (count + 1)


def needs_lane(demand: OperatorDemand, durations: Sequence[float], settings: HostSettings) -> bool:
    """Whether an operator needs a lane: the row duration is, or is predicted to be, too long, and the queue is long (algorithm 1)."""
    if demand.duration_s is None or demand.queue is None:
        return False
    late = demand.duration_s > demand.expected_s
    soon = len(durations) >= settings.trend and predict_next(durations) > demand.expected_s
    return (late or soon) and demand.queue > settings.scaling_queue


def suitability(cluster: LeasedCluster, host: Host, operator: OperatorKey, settings: HostSettings) -> float | None:
    """Fit of another lane on a host, lower is better; None if the lane does not fit (algorithm 2)."""
    need, room = cluster.needs[operator], cluster.room(host.name)
    times = need.times_in(room)
    if times < 1:
        return None
    left = room.plus(need, -1)
    lopsided = abs(left.cores / host.kind.cores - left.memory_mb / host.kind.memory_mb)
    return lopsided / times * (settings.cached_factor if operator in host.images else 1.0)


def spareness(
    operator: OperatorKey, cluster: LeasedCluster, view: ProvisionView, state: ProvisionState, settings: HostSettings
) -> float | None:
    """How easily an operator can spare a lane, higher is easier; None if the operator cannot spare a lane (algorithm 3)."""
    demand, lanes = view.demands[operator], cluster.lanes(operator)
    if lanes < 2 or demand.duration_s is None or demand.queue is None:
        return None
    if demand.busy_lanes is not None and demand.busy_lanes > settings.spare_busy * (lanes - 1):
        return None  # the other lanes could not do the work (beyond the paper)
    counts = [cluster.lanes(key) for key in view.demands]
    many = _share(lanes - min(counts), max(counts) - min(counts))
    delay = demand.duration_s / demand.expected_s * settings.penalty
    changes = _share(state.scalings.get(operator, 0), sum(state.scalings.values()))
    idle = 1.0 if demand.queue < 1 else 0.0
    return (
        many * settings.instances_weight
        - delay * settings.delay_weight
        - changes * settings.scalings_weight
        + idle * settings.queue_weight
    )


def _share(part: float, whole: float) -> float:
    """The part divided by the whole; 0 if the whole is 0."""
    return part / whole if whole > 0 else 0.0


# -- planning on a copy ----------------------------------------------------------------------------------------------------------

Spare = Callable[[OperatorKey, LeasedCluster], float | None]
"""How easily an operator can spare a lane; None, 0 or less: the operator cannot spare a lane."""


@dataclass(frozen=True, slots=True)
class ProvisionPlan:
    """The steps planned so far, and the cluster and the ledger after these steps."""

    cluster: LeasedCluster
    ledger: Ledger
    at_s: float
    leases: int
    steps: tuple[PlanStep, ...] = ()
    may_lease: bool = True

    def then(self, *steps: PlanStep) -> ProvisionPlan:
        """The plan with more steps."""
        plan = self
        for step in steps:
            ledger, leases = plan.ledger, plan.leases
            if isinstance(step, LeaseHost):
                ledger, leases = ledger.leased(step.host, step.kind, plan.at_s), leases + 1
            cluster = apply_step(plan.cluster, step, plan.at_s)
            plan = dataclasses.replace(plan, cluster=cluster, ledger=ledger, leases=leases, steps=(*plan.steps, step))
        return plan


def best_host(
    cluster: LeasedCluster, operator: OperatorKey, settings: HostSettings, without: Iterable[str] = ()
) -> str | None:
    """The best host for another lane of an operator; None if the lane fits on no host."""
    barred = set(without)
    found = [
        (value, host.name)
        for host in cluster.usable()
        if host.name not in barred and (value := suitability(cluster, host, operator, settings)) is not None
    ]
    return min(found)[1] if found else None


def lane_up(plan: ProvisionPlan, operator: OperatorKey, spare: Spare, terms: Terms) -> ProvisionPlan:
    """Add one lane (figure 4): on the best host, else where spare lanes can stop, else on a new host if the budget allows a lease."""
    return lane_on_hosts(plan, operator, spare, terms) or _on_new_host(plan, operator, terms) or plan


def lane_on_hosts(plan: ProvisionPlan, operator: OperatorKey, spare: Spare, terms: Terms) -> ProvisionPlan | None:
    """Add one lane on the existing hosts, after stopping spare lanes if necessary; None if the hosts have no room for the lane."""
    placed = _placed(plan, operator, spare, terms)
    return None if placed is None else placed[0].then(StartLane(operator, placed[1]))


def _placed(
    plan: ProvisionPlan, operator: OperatorKey, spare: Spare, terms: Terms, without: frozenset[str] = frozenset()
) -> tuple[ProvisionPlan, str] | None:
    """The plan after stopping spare lanes if necessary, and a host for one more lane; None if spare lanes free too little room."""
    while (host := best_host(plan.cluster, operator, terms.settings, without)) is None:
        victim = _victim(plan.cluster, operator, spare, without)
        if victim is None:
            return None
        plan = plan.then(victim)
    return plan, host


def _victim(cluster: LeasedCluster, operator: OperatorKey, spare: Spare, without: frozenset[str]) -> StopLane | None:
    """The lane that is easiest to spare, on the host with the most room for the operator."""
    found = [
        (value, cluster.needs[operator].times_in(cluster.room(host.name)), host.name, key)
        for host in cluster.usable()
        for key in cluster.on(host.name)
        if host.name not in without and key != operator and (value := spare(key, cluster) or 0.0) > 0
    ]
    if not found:
        return None
    *_, host_name, key = max(found)
    return StopLane(key, host_name)


def _on_new_host(plan: ProvisionPlan, operator: OperatorKey, terms: Terms) -> ProvisionPlan | None:
    kind = cheapest(plan.cluster.needs[operator], terms.kinds)
    if not plan.may_lease or not terms.budget.allows(plan.ledger, kind, plan.at_s):
        return None
    name = host_name(plan.leases + 1)
    return plan.then(LeaseHost(name, kind), StartLane(operator, name))


def cheapest(need: Need, kinds: Iterable[HostType]) -> HostType:
    """The kind of host with the lowest price per lane of this need."""
    fitting = [(kind, need.times_in(Need(kind.cores, kind.memory_mb))) for kind in kinds]
    return min((one for one in fitting if one[1] >= 1), key=lambda one: (one[0].price_per_hour / one[1], one[0].name))[
        0
    ]


def host_down(plan: ProvisionPlan, host: str, spare: Spare, terms: Terms) -> ProvisionPlan | None:
    """Release a host (figure 5): spare lanes stop, the other lanes move. None if lanes find no room, or need longer than the paid time."""
    if len(plan.cluster.usable()) < 2:
        return None
    before, barred = len(plan.steps), frozenset([host, *_starting(plan.cluster)])
    for operator, lanes in plan.cluster.on(host).items():
        for _ in range(lanes):
            after = _lane_off(plan, operator, host, spare, terms, barred)
            if after is None:
                return None
            plan = after
    takes_s = _takes_s(plan.steps[before:], host, terms.settings)
    return plan.then(ReleaseHost(host)) if takes_s <= plan.cluster.hosts[host].remaining_s(plan.at_s) else None


def _starting(cluster: LeasedCluster) -> list[str]:
    return [host.name for host in cluster.hosts.values() if host.phase is HostPhase.STARTING]


def _lane_off(
    plan: ProvisionPlan, operator: OperatorKey, host: str, spare: Spare, terms: Terms, barred: frozenset[str]
) -> ProvisionPlan | None:
    if (spare(operator, plan.cluster) or 0.0) > 0:
        return plan.then(StopLane(operator, host))
    placed = _placed(plan, operator, spare, terms, barred)
    return None if placed is None else placed[0].then(MoveLane(operator, host, placed[1]))


def _takes_s(steps: Sequence[PlanStep], host: str, settings: HostSettings) -> float:
    """Seconds until the host is empty: lanes elsewhere drain to make room, then moved lanes start, then the lanes of the host drain."""
    makes_room = any(isinstance(one, StopLane) and one.host != host for one in steps)
    moves = any(isinstance(one, MoveLane) for one in steps)
    return settings.lane_drain_s * (1 + makes_room) + settings.lane_start_s * moves


def at_end_of_btu(host: Host, at_s: float, settings: HostSettings) -> bool:
    """Whether to release a host before its next BTU is paid.

    The paper decides in the last 5 % of the BTU; the decision comes earlier if lanes need longer to move, as in VISP's code.
    """
    takes_s = settings.lane_start_s + 2 * settings.lane_drain_s
    window_s = max(settings.release_share * host.kind.btu_s, takes_s + settings.provision_s)
    return host.remaining_s(at_s) <= min(window_s, host.kind.btu_s / 2)


# -- hosts that fail -------------------------------------------------------------------------------------------------------------


def start_plan(state: ProvisionState, view: ProvisionView, terms: Terms) -> tuple[ProvisionState, ProvisionPlan]:
    """The initial plan: failed hosts are released; their lanes, and lanes without a host, start on other or new hosts."""
    failed = [host.name for host in view.cluster.hosts.values() if host.phase is HostPhase.FAILED]
    state = count_failures(state, view.cluster.hosts.values(), view.at_s, terms.settings)
    may_lease = view.at_s >= state.no_lease_until_s
    plan = ProvisionPlan(view.cluster, view.ledger, view.at_s, state.leases, may_lease=may_lease)
    homeless = _one_each(view.unplaced)
    for host in failed:
        lost = _one_each(plan.cluster.on(host))
        plan = plan.then(*(StopLane(operator, host) for operator in lost), ReleaseHost(host))
        homeless += lost
    for operator in homeless:
        plan = lane_up(plan, operator, lambda operator, cluster: None, terms)
    return state, plan


def _one_each(lanes: Mapping[OperatorKey, int]) -> list[OperatorKey]:
    return [operator for operator, count in lanes.items() for _ in range(count)]


def count_failures(state: ProvisionState, hosts: Iterable[Host], at_s: float, settings: HostSettings) -> ProvisionState:
    """Count consecutive failed leases; more than `lease_retries` of these failures pause leasing for `lease_retry_s`.

    Each failed host counts once. A host that was ready before it failed does not count, because its lease succeeded.
    """
    hosts = tuple(hosts)
    phases = Counter(host.phase for host in hosts)
    failed = sum(host.phase is HostPhase.FAILED and host.name not in state.settled for host in hosts)
    failures = state.failures + failed
    if not phases[HostPhase.FAILED] and not phases[HostPhase.STARTING]:
        failures = 0
    known = (HostPhase.READY, HostPhase.FAILED)
    settled = frozenset(host.name for host in hosts if host.phase in known or host.name in state.settled)
    state = dataclasses.replace(state, settled=settled)
    if failures <= settings.lease_retries:
        return dataclasses.replace(state, failures=failures)
    return dataclasses.replace(state, failures=0, no_lease_until_s=at_s + settings.lease_retry_s)


# -- the BTU-based provisioner ---------------------------------------------------------------------------------------------------


def step(state: ProvisionState, view: ProvisionView, terms: Terms) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
    """Make one decision: add lanes to operators that need lanes, then release hosts at the end of their BTU where possible."""
    state, plan = start_plan(_with_durations(state, view, terms.settings), view, terms)
    spare = _spare(view, state, terms.settings)
    for operator, demand in view.demands.items():
        for _ in range(_lanes_wanted(demand, state.durations.get(operator, ()), terms.settings)):
            plan = lane_up(plan, operator, spare, terms)
    return finish_plan(state, plan, spare, terms)


def finish_plan(
    state: ProvisionState, plan: ProvisionPlan, spare: Spare, terms: Terms
) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
    """Finish a decision: release hosts at the end of their BTU where possible, hosts with the most free memory first."""
    ending = [host.name for host in plan.cluster.usable() if at_end_of_btu(host, plan.at_s, terms.settings)]
    for host in sorted(ending, key=lambda name: -plan.cluster.room(name).memory_mb):
        plan = host_down(plan, host, spare, terms) or plan
    return state_after(state, plan), plan.steps


def _lanes_wanted(demand: OperatorDemand, durations: Sequence[float], settings: HostSettings) -> int:
    """Number of lanes to add: two if very many rows wait, and with starting lanes at most `lanes_ahead` (both beyond the paper)."""
    if not needs_lane(demand, durations, settings):
        return 0
    lanes = 2 if (demand.queue or 0.0) > settings.queue_higher else 1
    return max(0, min(lanes, settings.lanes_ahead - demand.starting))


def _spare(view: ProvisionView, state: ProvisionState, settings: HostSettings) -> Spare:
    return lambda operator, cluster: spareness(operator, cluster, view, state, settings)


def _with_durations(state: ProvisionState, view: ProvisionView, settings: HostSettings) -> ProvisionState:
    durations = {
        key: (*state.durations.get(key, ()), demand.duration_s)[-settings.trend :]
        for key, demand in view.demands.items()
        if demand.duration_s is not None
    }
    return dataclasses.replace(state, durations={**state.durations, **durations})


def state_after(state: ProvisionState, plan: ProvisionPlan) -> ProvisionState:
    """The state after a plan."""
    scalings = dict(state.scalings)
    for one in plan.steps:
        if isinstance(one, StartLane | StopLane):
            scalings[one.operator] = scalings.get(one.operator, 0) + 1
    return dataclasses.replace(state, scalings=scalings, leases=plan.leases)


# -- baselines -------------------------------------------------------------------------------------------------------------------


def threshold_step(
    state: ProvisionState, view: ProvisionView, terms: Terms
) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
    """Make one decision of the threshold baseline: lanes by queue length, a lease when hosts are full, a release when a host is empty."""
    state, plan = start_plan(state, view, terms)
    for operator, demand in view.demands.items():
        for _ in range(_lanes_by_queue(demand.queue, terms.settings)):
            plan = _first_fit(plan, operator) or _on_new_host(plan, operator, terms) or plan
        if demand.queue is not None and demand.queue < terms.settings.queue_low and plan.cluster.lanes(operator) > 1:
            plan = plan.then(StopLane(operator, _loneliest(plan.cluster, operator)))
    for host in plan.cluster.usable():
        if not plan.cluster.on(host.name) and len(plan.cluster.usable()) > 1:
            plan = plan.then(ReleaseHost(host.name))
    return state_after(state, plan), plan.steps


def _lanes_by_queue(queue: float | None, settings: HostSettings) -> int:
    if queue is None:
        return 0
    return 2 if queue > settings.queue_higher else 1 if queue > settings.queue_high else 0


def _first_fit(plan: ProvisionPlan, operator: OperatorKey) -> ProvisionPlan | None:
    need = plan.cluster.needs[operator]
    for host in plan.cluster.usable():
        if need.times_in(plan.cluster.room(host.name)) >= 1:
            return plan.then(StartLane(operator, host.name))
    return None


def _loneliest(cluster: LeasedCluster, operator: OperatorKey) -> str:
    """The host with the most room among the hosts of an operator, so that hosts become empty early."""
    holding = [host.name for host in cluster.usable() if cluster.on(host.name).get(operator)]
    return max(holding, key=lambda host: (cluster.room(host).memory_mb, cluster.room(host).cores, host))


def fixed_step(state: ProvisionState, view: ProvisionView, terms: Terms) -> tuple[ProvisionState, tuple[PlanStep, ...]]:
    """Replace failed hosts and lanes without a host, and change nothing else."""
    state, plan = start_plan(state, view, terms)
    return state_after(state, plan), plan.steps


Provisioner = Callable[[ProvisionState, ProvisionView, Terms], tuple[ProvisionState, tuple[PlanStep, ...]]]


class ProvisionerName(StrEnum):
    """Provisioners that decide about lanes and hosts alone; policies of scenarios go by these names."""

    BTU = "btu"
    THRESHOLD = "threshold"
    FIXED = "fixed"


PROVISIONERS: Mapping[ProvisionerName, Provisioner] = {
    ProvisionerName.BTU: step,
    ProvisionerName.THRESHOLD: threshold_step,
    ProvisionerName.FIXED: fixed_step,
}


def lanes_on_hosts(
    wanted: Mapping[OperatorKey, int], needs: Mapping[OperatorKey, Need], terms: Terms, at_s: float = 0.0
) -> ProvisionPlan:
    """Plan hosts for these lanes; the largest lanes are placed first, so that few hosts are needed."""
    plan = ProvisionPlan(LeasedCluster({}, needs), Ledger(), at_s, 0)
    for operator in sorted(wanted, key=lambda key: (-needs[key].memory_mb, -needs[key].cores, key)):
        for _ in range(wanted[operator]):
            plan = _first_fit(plan, operator) or _on_new_host(plan, operator, terms) or plan
    return plan


def check_budget(needs: Mapping[OperatorKey, Need], terms: Terms) -> None:
    """Refuse a budget whose hosts have no room for one lane of each operator."""
    cluster = lanes_on_hosts(dict.fromkeys(needs, 1), needs, terms).cluster
    for job, operator in needs:
        if not cluster.lanes((job, operator)):
            raise HostError(
                f"the budget pays for {len(cluster.hosts)} host(s), with no room for one lane of each operator;"
                f' "{operator}" of job "{job}" is left over'
            )
