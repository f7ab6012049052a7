"""The runs of `headgate simulate`: which runs an experiment has, and how they are executed."""

from __future__ import annotations

import dataclasses
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool
from pathlib import Path

from headgate.config import HostSettings
from headgate.config.settings import describe, host_settings_from, settings_from
from headgate.core.quantities import choice, show_seconds
from headgate.errors import InputError
from headgate.explain import CLOCK_KEY
from headgate.ports import Journal
from headgate.sim.changes import with_hours, with_model, with_trace
from headgate.sim.leased_run import run_leased
from headgate.sim.reports.bars import Bar, bars
from headgate.sim.reports.report import Runs, Summary, Variants, result, without_logs
from headgate.sim.run import Run, Watcher, run
from headgate.sim.scenario import load_scenario, policies_of
from headgate.sim.spec import Scenario, Variant

VIRTUAL_CLOCK = "virtual"
HOST_SETTINGS = frozenset(row["name"] for row in describe(HostSettings))

# -- what is asked for -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario with the changes of the command line; plain data, so that another process can build it again."""

    scenario: str
    """The name of a built-in scenario, or a file."""
    policies: tuple[str, ...] = ()
    """The policies to run; empty for the policies that the scenario names."""
    trace: str | None = None
    hours: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    observe_only: bool = False
    model: str | None = None
    """The model to use; None for the model of the scenario."""

    def load(self) -> Scenario:
        """The scenario, checked and changed."""
        scenario = load_scenario(self.scenario)
        if self.model is not None:
            scenario = with_model(scenario, self.model)
        if self.trace is not None:
            scenario = with_trace(scenario, Path(self.trace))
        if self.hours is not None:
            scenario = with_hours(scenario, self.hours)
        policies = tuple(
            dict.fromkeys(
                choice(name, "policy", policies_of(scenario.engine)) for name in self.policies or scenario.policies
            )
        )
        return _long_enough(_with_settings(scenario, self.settings, policies))


def _long_enough(scenario: Scenario) -> Scenario:
    """Refuse a run without a single round under control."""
    least_s = scenario.control_after_s + scenario.settings.round_s
    if scenario.duration_s < least_s - 1e-6:
        raise InputError(
            f"{scenario.name} runs for {show_seconds(scenario.duration_s)}, but its first round under control ends"
            f" after {show_seconds(least_s)}; give more --hours"
        )
    return scenario


def _with_settings(scenario: Scenario, settings: Mapping[str, str], policies: tuple[str, ...]) -> Scenario:
    variants = tuple(
        dataclasses.replace(v, scenario=_with_settings(v.scenario, settings, policies)) for v in scenario.sweep
    )
    hosts = {name: value for name, value in settings.items() if scenario.terms is not None and name in HOST_SETTINGS}
    merged = settings_from({k: v for k, v in settings.items() if k not in hosts}, scenario.settings)
    changed = dataclasses.replace(scenario, settings=merged, policies=policies, sweep=variants)
    if scenario.terms is None:
        return changed
    terms = dataclasses.replace(scenario.terms, settings=host_settings_from(hosts, scenario.terms.settings))
    return dataclasses.replace(changed, terms=terms)


# -- one seed --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Simulated:
    """All runs of one seed and how they compare."""

    scenario: Scenario
    seed: int
    runs: Runs
    variants: Variants
    bars: Sequence[Bar]

    def summary(self) -> Summary:
        """Return everything about this seed as an object for JSON."""
        return result(self.scenario, self.seed, self.runs, self.variants, self.bars)


def rounds_in(scenario: Scenario) -> int:
    """How many rounds all runs of the scenario have together."""
    one = int(scenario.duration_s / scenario.settings.round_s) * len(scenario.policies)
    return one + sum(rounds_in(variant.scenario) for variant in scenario.sweep if not _same(variant, scenario))


def _same(variant: Variant, scenario: Scenario) -> bool:
    """Whether a point of the sweep is the scenario itself, so that no second run is needed."""
    return variant.scenario == dataclasses.replace(scenario, sweep=())


def simulate(
    scenario: Scenario, seed: int, journal: Journal | None = None, observe_only: bool = False,
    watch_first: Watcher | None = None, watch: Watcher | None = None,
) -> Simulated:  # fmt: skip
    """Run the scenario and its variants under all policies; the first run has the journal, and its own watcher if there is one."""
    first, *others = scenario.policies
    runs = {first: run_on(scenario, first, seed, journal, observe_only, watch_first or watch)}
    runs |= _runs(scenario, others, seed, observe_only, watch)
    variants = [
        (
            variant,
            runs if _same(variant, scenario) else _runs(variant.scenario, scenario.policies, seed, observe_only, watch),
        )
        for variant in scenario.sweep
    ]
    return Simulated(scenario, seed, runs, variants, bars(scenario, runs, variants))


def _runs(
    scenario: Scenario, policies: Sequence[str], seed: int, observe_only: bool, watch: Watcher | None
) -> dict[str, Run]:
    return {policy: runner(scenario)(scenario, policy, seed, None, watch, observe_only) for policy in policies}


def runner(scenario: Scenario) -> Callable[..., Run]:
    """Return the function that runs the scenario: on fixed hosts, or on leased hosts."""
    return run if scenario.terms is None else run_leased


# -- with a journal --------------------------------------------------------------------------------------------------------------


def run_on(
    scenario: Scenario, policy: str, seed: int, journal: Journal | None, observe_only: bool, watch: Watcher | None
) -> Run:
    """Run the scenario under one policy; a journal with a part of the run is continued, and the result covers the whole run."""
    if journal is None:
        return runner(scenario)(scenario, policy, seed, None, watch, observe_only)
    _claim(journal, _about(scenario, seed, policy, observe_only))
    return runner(scenario)(scenario, policy, seed, journal, watch, observe_only)


def _about(scenario: Scenario, seed: int, policy: str, observe_only: bool) -> dict[str, str]:
    same = dataclasses.replace(
        scenario, duration_s=0.0, policies=(), sweep=(), directory=""
    )  # a run may be made longer
    fingerprint = f"{zlib.crc32(repr(same).encode()):08x}"
    return {
        "scenario": scenario.name,
        "seed": str(seed),
        "policy": policy,
        "content": fingerprint,
        "begun": "with --observe-only" if observe_only else "without --observe-only",
        CLOCK_KEY: VIRTUAL_CLOCK,
    }


def _claim(journal: Journal, wanted: Mapping[str, str]) -> None:
    """Claim a journal for one scenario, seed and policy; refuse a journal that belongs to another run."""
    known = journal.about()
    sentences = {"content": "was begun before the scenario was changed", "begun": f"was begun {known.get('begun')}"}
    for key, value in wanted.items():
        if known.get(key, value) != value:
            what = sentences.get(key, f"is of {key} {known[key]}, not {value}")
            raise InputError(f"the journal {what}; give another file, or delete it to start afresh")
    for key, value in wanted.items():
        journal.set_about(key, value)


# -- many seeds ------------------------------------------------------------------------------------------------------------------


def simulate_seeds(experiment: Experiment, seeds: Sequence[int]) -> Iterator[tuple[Summary, list[Bar]]]:
    """Run seeds in parallel, one process per core; results come in the order of the seeds."""
    jobs = [(experiment, seed) for seed in seeds]
    # A pool, because leaving it ends the processes at once, also those in the middle of their work.
    with Pool(min(len(seeds), os.cpu_count() or 1), _quietly) as pool:
        yield from pool.imap(_one_seed, jobs)


def _quietly() -> None:
    """Leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _one_seed(job: tuple[Experiment, int]) -> tuple[Summary, list[Bar]]:
    experiment, seed = job
    done = simulate(experiment.load(), seed, observe_only=experiment.observe_only)
    return without_logs(done.summary()), list(done.bars)


def counting(advance: Callable[[], None]) -> Watcher:
    """A watcher that counts rounds."""
    return lambda view, decision, policy: advance()
