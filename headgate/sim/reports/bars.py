"""The bars of each built-in scenario: the limit of each figure, and the measured value.

A bar that does not hold is shown as failed; no figure is rounded in favour of its bar.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headgate.core.model import SearchPhase
from headgate.hosts.leases import Budget
from headgate.loads import Steady
from headgate.sim.reports import health_bars as health
from headgate.sim.run import Run, run, sized_for
from headgate.sim.spec import JobSpec, Scenario, Variant

Runs = Mapping[str, Run]
Variants = Sequence[tuple[Variant, Runs]]

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured figure and its limit."""

    name: str
    value: float | None
    op: str
    bar: float

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limit; a figure that was not measured is not."""
        return self.value is not None and not math.isnan(self.value) and _COMPARISONS[self.op](self.value, self.bar)


def bars(scenario: Scenario, runs: Runs, variants: Variants) -> list[Bar]:
    """Return the bars of a built-in scenario; empty for a scenario of the user, or if a policy that the bars compare was not run."""
    rows = _BARS.get(scenario.name)
    compared = _COMPARED.get(scenario.name, {"headgate"})
    return rows(scenario, runs, variants) if rows is not None and compared <= set(runs) else []


# -- figures ---------------------------------------------------------------------------------------------------------------------


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _quantile(values: Sequence[float], share: float) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.percentile(known, 100 * share)) if known else math.nan


def _lowest(values: Sequence[float]) -> float:
    """Return the lowest value; NaN if nothing was measured, as in a run that ends too early."""
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _satisfaction(run_: Run) -> list[float]:
    return [value for _, value in run_.controlled()]


def _between(run_: Run, start_s: float, end_s: float) -> list[float]:
    """Satisfaction in the sub-windows that lie in an interval."""
    pairs = zip(run_.times_s, run_.satisfaction, strict=True)
    return [value for at_s, value in pairs if start_s + run_.scenario.settings.round_s <= at_s <= end_s]


def _met(run_: Run) -> float:
    return float(sum(bool(job.met) for job in run_.final.jobs.values())) if run_.final is not None else math.nan


def _all_met_after_s(run_: Run) -> float | None:
    """Seconds of control until the total is at its maximum for a minute."""
    pairs = run_.controlled()
    needed = max(1, round(60 / run_.scenario.settings.round_s))
    for index in range(len(pairs) - needed + 1):
        if all(value >= 1 - 1e-9 for _, value in pairs[index : index + needed]):
            return pairs[index][0] - run_.scenario.control_after_s
    return None


def _reconfigurations(run_: Run) -> dict[str, int]:
    return {job: run_.reconfigurations(job) for job in run_.series}


# -- per scenario ----------------------------------------------------------------------------------------------------------------


def _greedy_order(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    touched = list(dict.fromkeys(entry.job for entry in result.log if entry.kind == "reconfigure" and entry.job))
    worths = [result.worths[name] for name in touched]
    descending = sum(first > second for first, second in pairwise(worths))
    return [
        Bar("T9 is touched first", float(bool(touched) and touched[0] == "T9"), "==", 1),
        Bar("first touches in descending order of worth (pairs)", descending, "==", len(result.worths) - 1),
        Bar("jobs that meet their intents", _met(result), "==", 9),
        Bar("seconds of control until all nine meet it", _all_met_after_s(result), "<=", 900),
    ]


def _hybrid(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    return [Bar("jobs that meet both thresholds", _met(runs["headgate"]), "==", 10)]


def _spike(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    calm_s = 300.0
    lowest = _lowest([value for start in (3600.0, 7200.0) for value in _between(result, start + calm_s, start + 3600)])
    return [Bar("lowest satisfaction in any window of the spikes after 5 minutes", lowest, ">=", 0.95)]


def _diurnal(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    values = _satisfaction(runs["headgate"])
    rows = [
        Bar("mean satisfaction", _mean(values), ">=", 0.95),
        Bar("15th percentile of satisfaction", _quantile(values, 0.15), ">=", 0.80),
    ]
    if "manual" in runs:
        rows.append(Bar("mean satisfaction above manual's", _mean(values), ">", _mean(_satisfaction(runs["manual"]))))
    return rows


def _constrained(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    end_s = result.times_s[-1] if result.times_s else 0.0
    kinds = [entry.kind for entry in result.log]
    return [
        Bar("jobs that miss their intent in the end (not all five can meet it)", 5 - _met(result), ">=", 1),
        Bar("ends Converged", float(result.phases[-1:] == [SearchPhase.CONVERGED]), "==", 1),
        Bar(
            "satisfaction in the last 10 minutes above that before control",
            _mean(_between(result, end_s - 600, end_s)),
            ">",
            _mean(_between(result, 300, scenario.control_after_s)),
        ),
        Bar("reductions in the log", kinds.count("reduce"), ">=", 1),
        Bar("reversions in the log", kinds.count("revert"), ">=", 1),
        Bar("actions in the last hour", sum(entry.at_s > end_s - 3600 for entry in result.log), "<=", 3),
    ]


def _cpu_spike(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    hit_s, over_s = (event.at_s for event in scenario.events)
    before = _mean(_between(result, hit_s - 1200, hit_s))
    lasting = _mean(_between(result, hit_s + 1200, over_s))
    end_s = result.times_s[-1] if result.times_s else 0.0
    return [
        Bar("satisfaction 20 minutes into the spike, of that before it", lasting / before, ">=", 0.99),
        Bar(
            "satisfaction at the end, of that before the spike",
            _mean(_between(result, end_s - 600, end_s)) / before,
            ">=",
            0.999,
        ),
    ]


def _stateful(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    counts = _reconfigurations(result)
    with_state = [count for name, count in counts.items() if name.startswith("stateful")]
    without = [count for name, count in counts.items() if name.startswith("stateless")]
    return [
        Bar("jobs that meet their intent", _met(result), "==", 4),
        Bar("mean reconfigurations of stateful jobs (Henge 5.5)", _mean(with_state), "<=", 5.5),
        Bar("mean reconfigurations of stateless jobs (Henge 4)", _mean(without), "<=", 4),
        Bar("seconds of control until all meet it (Henge 1359)", _all_met_after_s(result), "<=", 1359),
    ]


def _tenants(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    arrivals = sorted({event.at_s for event in scenario.events})
    calm = [_mean(_between(result, start + 3600, start + 7200)) for start in arrivals]
    return [
        Bar("lowest mean satisfaction in the second hour after an arrival", _lowest(calm), ">=", 0.95),
        Bar("jobs that meet their intent in the end", _met(result), ">=", 80),
    ]


def _cluster_size(scenario: Scenario, runs: Runs, variants: Variants) -> list[Bar]:
    """Compare satisfaction with the papers' 5th percentile over the jobs, which is that of the worst-served twentieth at the end."""
    paper = {20: 0.564, 30: 0.740, 40: 0.945}
    rows = []
    for variant, results in variants:
        hosts, final = int(variant.value), results["headgate"].final
        shares = [job.satisfaction or 0.0 for job in final.jobs.values()] if final is not None else []
        if hosts in paper:
            name = f"5th percentile of the jobs' satisfaction on {hosts} hosts (Henge {paper[hosts]})"
            rows.append(Bar(name, _quantile(shares, 0.05), ">=", paper[hosts]))
        else:
            met = _met(results["headgate"]) / len(scenario.jobs)
            rows.append(Bar(f"jobs that meet their intent on {hosts} hosts (Henge 40 %)", met, ">=", 0.4))
    return rows


def _failure(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    failed_s, restored_s = (event.at_s for event in scenario.events)
    blind = [entry for entry in result.log if failed_s <= entry.at_s < restored_s + scenario.settings.outage_data_s]
    return [
        Bar("actions between failure and recovery plus 5 minutes", len(blind), "==", 0),
        Bar("actions after that", sum(entry.at_s >= restored_s + 300 for entry in result.log), ">=", 1),
        Bar("satisfaction in the last 5 minutes", _lowest(result.satisfaction[-30:]), "==", 1),
    ]


def _memory(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    reached_s = _all_met_after_s(result)
    last = [value for value in result.memory[-60:] if not math.isnan(value)]
    return [
        Bar("jobs that meet their intent", _met(result), "==", 8),
        Bar(
            "seconds until maximum utility (Henge 2444)",
            None if reached_s is None else reached_s + scenario.control_after_s,
            "<=",
            2444,
        ),
        Bar("highest mean memory use", max(result.memory, default=math.nan), "<=", 0.36),
        Bar("spread of memory use in the last 10 minutes", max(last, default=math.nan) - _lowest(last), "<=", 0.02),
    ]


def _juice_rate(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    before = [value for pairs in result.column("juice").values() for at_s, value in pairs if 3000 <= at_s < 4000]
    after = [value for pairs in result.column("juice").values() for at_s, value in pairs if at_s >= 5734]
    return [
        Bar("lowest juice at the single rate", _lowest(before), ">=", 0.992),
        Bar("lowest juice at the triple rate, once mended (from 5734 s on)", _lowest(after), ">=", 0.992),
        Bar("correlation of juice and growth of the queue without control", _queue_correlation(runs), "<=", -0.5),
    ]


def _queue_correlation(runs: Runs) -> float | None:
    """Return the correlation of juice and the growth of the queue in the same window, over all jobs before control begins."""
    juices, growths = [], []
    result = runs["headgate"]
    queues = result.column("backlog")
    for name, pairs in result.column("juice").items():
        queue = queues[name]
        for index in range(6, len(pairs)):
            if pairs[index][0] < result.scenario.control_after_s:
                juices.append(pairs[index][1])
                growths.append(queue[index][1] - queue[index - 6][1])
    return _correlation(juices, growths)


def _correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    mean_1, mean_2 = _mean(first), _mean(second)
    spread = math.sqrt(sum((a - mean_1) ** 2 for a in first) * sum((b - mean_2) ** 2 for b in second))
    return sum((a - mean_1) * (b - mean_2) for a, b in zip(first, second, strict=True)) / spread if spread else None


def _initial_config(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    counts = _reconfigurations(result)
    met = {name for name, job in result.final.jobs.items() if job.met} if result.final is not None else set()
    strict, hard, easy = (
        [name for name in counts if name.startswith(slo)] for slo in ("slo-40", "slo-50", ("slo-60", "slo-70"))
    )
    end_s = result.times_s[-1] if result.times_s else 0.0
    late = [entry for entry in result.log if entry.job in strict and entry.at_s > end_s - 3600]
    return [
        Bar("60 and 70 ms jobs that meet their intent", len(met.intersection(easy)), "==", 20),
        Bar("50 ms jobs that meet it or are set aside", len({*met, *result.skipped}.intersection(hard)), "==", 10),
        Bar("40 ms jobs (impossible) that are set aside", len(set(strict).intersection(result.skipped)), "==", 10),
        Bar("steps in which a 40 ms job took lanes in the last hour", len(late), "==", 0),
        Bar(
            "most steps in which a 40 ms job took lanes",
            max((counts[name] for name in strict), default=math.nan),
            "<=",
            6,
        ),
        Bar(
            "median reconfigurations per job (Henge 4 to 5.5)",
            _quantile(list(map(float, counts.values())), 0.5),
            "<=",
            3,
        ),
    ]


def _consolidation(scenario: Scenario, runs: Runs, variants: Variants) -> list[Bar]:
    alone = sum(hosts_alone(scenario, job) for job in scenario.jobs)
    by_hosts = {int(variant.value): results for variant, results in variants}
    many, few = (by_hosts.get(math.floor(alone * share)) for share in (0.6, 0.4))
    rows = [Bar("hosts that the jobs need when each has its own", alone, "==", 20)]
    if many is not None:
        kept = sum(_kept_at_peak(many["headgate"], job) for job in scenario.jobs)
        rows.append(Bar("jobs that meet their intent at their own peak on 60 %", kept, "==", len(scenario.jobs)))
        rows.append(Bar("mean satisfaction on 60 %", _mean(_satisfaction(many["headgate"])), ">=", 0.98))
    if few is not None:
        value = _mean(_satisfaction(few["headgate"]))
        rows.append(Bar("mean satisfaction on 40 %", value, ">=", 0.935))
        if "static" in few:
            rows.append(Bar("times static's on 40 %", value / _mean(_satisfaction(few["static"])), ">=", 6.7))
    return rows


def _kept_at_peak(run_: Run, job: JobSpec) -> bool:
    """Whether the intent holds in 95 % of the sub-windows of the job's own peak, from five minutes into that peak."""
    (load,) = job.loads.values()
    pairs = run_.column("satisfaction")[job.name]
    peak = max((load.rate_rows_s(at_s) for at_s, _ in pairs), default=0.0)
    busy = [(at_s, value) for at_s, value in pairs if load.rate_rows_s(at_s) >= 0.999 * peak]
    calm = [value >= 1 - 1e-9 for at_s, value in busy if at_s >= busy[0][0] + 300]
    return sum(calm) >= 0.95 * len(calm) > 0


def hosts_alone(scenario: Scenario, job: JobSpec) -> int:
    """The fewest hosts on which one job, with lanes for its own peak, meets its intent for half an hour of that peak."""
    peaks = {
        source: max(load.rate_rows_s(scenario.duration_s * i / 500) for i in range(501))
        for source, load in job.loads.items()
    }
    sized = sized_for(job, peaks, scenario.settings.target_busy)
    sized = dataclasses.replace(sized, loads={source: Steady(rate) for source, rate in peaks.items()})
    for count in range(1, MOST_HOSTS):
        hosts = tuple(dataclasses.replace(scenario.hosts[0], name=f"host-{i + 1}") for i in range(count))
        single = dataclasses.replace(
            scenario, jobs=(sized,), hosts=hosts, duration_s=2100.0, control_after_s=300.0, events=(), sweep=()
        )
        if min(_satisfaction(run(single, "static", 0))) >= 1 - 1e-9:
            return count
    return MOST_HOSTS


def _load_change(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    rose_s = scenario.events[1].at_s
    kept = [
        Bar(
            "throughput with fewer lanes, of that without control",
            health.throughput(result, scenario) / all_,
            ">=",
            0.99,
        )
        for all_ in (health.throughput(runs[other], scenario) for other in runs if other == "static")
    ]
    return [
        *kept,
        Bar("share of the last 10 minutes in which input was held back", health.held_in_the_end(result), "==", 0),
        Bar("lanes of split in the end (Dhalion 12)", health.lanes_in_the_end(result, "split"), "<=", 12),
        Bar("lanes of count in the end (Dhalion 14)", health.lanes_in_the_end(result, "count"), "<=", 14),
        Bar("actions that took lanes away (Dhalion 2)", health.actions(result, "reduce"), ">=", 1),
        Bar("rounds of scaling up (Dhalion 4)", health.actions(result, "reconfigure", rose_s), "<=", 3),
        Bar("actions in all (Dhalion 6)", health.actions(result), "<=", 5),
    ]


def _throughput_slo(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    return [
        Bar("rows per minute in the end", 60 * health.emitted_in_the_end(result), ">=", 4_000_000),
        Bar("share of the last 10 minutes in which input was held back", health.held_in_the_end(result), "==", 0),
        Bar("actions (Dhalion 11)", health.actions(result), "<=", 10),
    ]


def _diagnosers(scenario: Scenario, runs: Runs, variants: Variants) -> list[Bar]:
    troubles = [(str(variant.value), results["headgate"]) for variant, results in variants]
    return [
        Bar("troubles that the first diagnosis names rightly (Dhalion 5)", health.right_at_first(troubles), "==", 6),
        Bar("diagnoses in ten runs without trouble", health.false_diagnoses(scenario, runs["headgate"].seed), "==", 0),
    ]


def _mixed(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    rows = [
        Bar("share of the last 10 minutes in which input was held back", health.held_in_the_end(result), "==", 0),
        Bar("actions", health.actions(result), "<=", 3),
        Bar("actions (at least)", health.actions(result), ">=", 1),
    ]
    if scenario.name == "mixed-75":
        easier = health.lanes_of_the_easier_case(result.seed)
        rows.append(
            Bar("lanes of split and count in the end, no more than with 25 % (Dhalion 26 and 23)",
                health.lanes_in_the_end(result, "split", "count"), "<=", easier)
        )  # fmt: skip
    return rows


def _remedies(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    rows = [
        Bar("jobs that meet their intent in the end", _met(result), "==", 3),
        Bar("jobs whose first diagnosis is right", health.right_for_each(result), "==", 3),
    ]
    if "lanes-only" in runs:
        others = runs["lanes-only"]
        better = _mean(_satisfaction(result)), _mean(_satisfaction(others))
        rows.append(Bar("mean satisfaction, above that with lanes only", better[0], ">", better[1]))
        rows.append(
            Bar("lanes in the end, fewer than with lanes only", health.all_lanes(result), "<", health.all_lanes(others))
        )
    return rows


def _noise(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    result = runs["headgate"]
    return [
        Bar("actions in 24 hours", health.actions(result), "<=", 2),
        Bar("mean satisfaction", _mean(_satisfaction(result)), ">=", 0.95),
    ]


MOST_HOSTS = 50
"""The largest number of hosts that the search for enough hosts returns."""


def _billing(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    btu, threshold, fixed = (runs[name].leased or {} for name in ("btu", "threshold", "fixed"))
    paid = "paid_btus"
    return [
        Bar("paid BTUs, as a share of threshold's (VISP 0.88)", btu[paid] / threshold[paid], "<=", 0.88),
        Bar("paid BTUs, as a share of fixed's (VISP 0.75)", btu[paid] / fixed[paid], "<=", 0.75),
        Bar(
            "rows in near real time, less threshold's share",
            btu["near-real-time"] - threshold["near-real-time"],
            ">=",
            0,
        ),
    ]


def _billing_intents(scenario: Scenario, runs: Runs, _: Variants) -> list[Bar]:
    ours, alone = (runs[name].leased or {} for name in ("headgate", "btu"))
    budget = scenario.terms.budget if scenario.terms is not None else Budget()
    more = _mean(_satisfaction(runs["headgate"])) - _mean(_satisfaction(runs["btu"]))
    return [
        Bar("mean satisfaction, less that of BTU-based alone", more, ">=", 0),
        Bar("cost, as a share of that of BTU-based alone", ours["cost"] / alone["cost"], "<=", 0.99),
        Bar(
            "highest spending per hour",
            max(ours["most_per_hour"], alone["most_per_hour"]),
            "<=",
            budget.most_per_hour or math.inf,
        ),
        Bar("most hosts at once", max(ours["most_hosts"], alone["most_hosts"]), "<=", budget.most_hosts or math.inf),
    ]


_COMPARED: Mapping[str, set[str]] = {
    "billing-intents": {"headgate", "btu"},
    "billing-stepwise": {"btu", "threshold", "fixed"},
    "billing-two-level": {"btu", "threshold", "fixed"},
}
"""The policies that must have run for the bars of a scenario; scenarios that are not listed need `headgate`."""

_BARS: Mapping[str, Callable[[Scenario, Runs, Variants], list[Bar]]] = {
    "greedy-order": _greedy_order,
    "hybrid": _hybrid,
    "spike": _spike,
    "diurnal": _diurnal,
    "constrained": _constrained,
    "cpu-spike": _cpu_spike,
    "stateful": _stateful,
    "tenants": _tenants,
    "cluster-size": _cluster_size,
    "failure": _failure,
    "memory": _memory,
    "juice-rate": _juice_rate,
    "initial-config": _initial_config,
    "consolidation": _consolidation,
    "load-change": _load_change,
    "throughput-slo": _throughput_slo,
    "diagnosers": _diagnosers,
    "mixed-25": _mixed,
    "mixed-75": _mixed,
    "noise": _noise,
    "remedies": _remedies,
    "billing-stepwise": _billing,
    "billing-two-level": _billing,
    "billing-intents": _billing_intents,
}
