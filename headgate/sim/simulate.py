"""Behind `headgate simulate`: which runs an experiment is made of, and how they are carried out."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pool
from pathlib import Path

from headgate.config import settings_from
from headgate.core.quantities import choice
from headgate.errors import InputError
from headgate.explain import CLOCK_KEY
from headgate.ports import Journal
from headgate.sim.bars import Bar, bars
from headgate.sim.report import Runs, Summary, Variants, result, without_logs
from headgate.sim.run import Run, Watcher, run, sized_for_median
from headgate.sim.scenario import POLICIES, load_scenario, with_hours, with_trace
from headgate.sim.spec import Scenario, Variant

VIRTUAL_CLOCK = "virtual"

# -- what is asked for -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario with the changes of the command line; plain data, so that another process can build it again."""

    scenario: str
    """The name of a built-in one, or a file."""
    policies: tuple[str, ...] = ()
    """Empty: those that the scenario names."""
    trace: str | None = None
    hours: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    observe_only: bool = False

    def load(self) -> Scenario:
        """The scenario, checked and changed."""
        scenario = load_scenario(self.scenario)
        if self.trace is not None:
            scenario = _traced(scenario, Path(self.trace))
        if self.hours is not None:
            scenario = with_hours(scenario, self.hours)
        policies = tuple(dict.fromkeys(choice(name, "policy", POLICIES) for name in self.policies or scenario.policies))
        return _changed(scenario, self.settings, policies)


def _traced(scenario: Scenario, path: Path) -> Scenario:
    variants = tuple(dataclasses.replace(v, scenario=with_trace(v.scenario, path)) for v in scenario.sweep)
    return dataclasses.replace(with_trace(scenario, path), sweep=variants)


def _changed(scenario: Scenario, settings: Mapping[str, str], policies: tuple[str, ...]) -> Scenario:
    variants = tuple(dataclasses.replace(v, scenario=_changed(v.scenario, settings, policies)) for v in scenario.sweep)
    merged = settings_from(settings, scenario.settings)
    return dataclasses.replace(scenario, settings=merged, policies=policies, sweep=variants)


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
        """As JSON."""
        return result(self.scenario, self.seed, self.runs, self.variants, self.bars)


def rounds_in(scenario: Scenario) -> int:
    """How many rounds all runs of the scenario have together."""
    one = int(scenario.duration_s / scenario.settings.round_s) * len(scenario.policies)
    return one + sum(rounds_in(variant.scenario) for variant in scenario.sweep if not _same(variant, scenario))


def _same(variant: Variant, scenario: Scenario) -> bool:
    """A point of the sweep that is the scenario itself need not be run twice."""
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
    return {policy: run(scenario, policy, seed, None, watch, observe_only) for policy in policies}


# -- with a journal --------------------------------------------------------------------------------------------------------------


def run_on(
    scenario: Scenario, policy: str, seed: int, journal: Journal | None, observe_only: bool, watch: Watcher | None
) -> Run:
    """One run; with a journal that was begun before, the whole run all the same."""
    if journal is None:
        return run(scenario, policy, seed, None, watch, observe_only)
    _claim(journal, {"scenario": scenario.name, "seed": str(seed), "policy": policy, CLOCK_KEY: VIRTUAL_CLOCK})
    restored = journal.restore()
    if restored is None:
        return run(scenario, policy, seed, journal, watch, observe_only)
    earlier = _earlier(scenario, policy, seed, restored.at_s, observe_only, watch)
    if not observe_only:
        _check_same(earlier, journal, restored.at_s)
    return _joined(earlier, run(scenario, policy, seed, journal, watch, observe_only))


def _claim(journal: Journal, wanted: Mapping[str, str]) -> None:
    """A journal belongs to one scenario, seed and policy."""
    known = journal.about()
    for key, value in wanted.items():
        if known.get(key, value) != value:
            raise InputError(
                f"the journal is of {key} {known[key]}, not {value}; give another file, or delete it to start afresh"
            )
    for key, value in wanted.items():
        journal.set_about(key, value)


def _earlier(
    scenario: Scenario, policy: str, seed: int, until_s: float, observe_only: bool, watch: Watcher | None
) -> Run:
    """What was measured before the journal ends: it keeps decisions, not every figure, and the simulator repeats itself exactly."""
    if policy == "manual":
        # Sized for the median of the whole time, not of the part of it that is repeated here.
        scenario, policy = sized_for_median(scenario), "static"
    before = dataclasses.replace(scenario, duration_s=min(until_s, scenario.duration_s))
    return run(before, policy, seed, None, watch, observe_only)


def _check_same(earlier: Run, journal: Journal, until_s: float) -> None:
    """A scenario that was edited meanwhile would continue another's history."""
    then = [(one.at_s, one.action.kind.value, one.action.job) for one in journal.actions() if one.at_s <= until_s]
    now = [(one.at_s, one.kind, one.job) for one in earlier.log]
    if then != now:
        raise InputError(
            "the journal holds other actions than this scenario leads to; it or its settings were changed since:"
            " give another file, or delete it to start afresh"
        )


def _joined(earlier: Run, later: Run) -> Run:
    """Two parts of a run as one."""
    whole = dataclasses.replace(later)
    for name in ("times_s", "satisfaction", "load", "memory", "log", "phases"):
        setattr(whole, name, getattr(earlier, name) + getattr(later, name))
    for name in ("utilities", "juices", "backlogs", "arrivals", "outputs"):
        setattr(whole, name, _joined_series(getattr(earlier, name), getattr(later, name)))
    begun = later.converged_at_s
    if earlier.phases and later.phases and earlier.phases[-1] == later.phases[0]:
        begun = [at_s for at_s in begun if at_s != later.times_s[0]]
    whole.converged_at_s = earlier.converged_at_s + begun
    whole.worths = earlier.worths | later.worths
    if later.final is None:
        whole.final, whole.skipped, whole.advice = earlier.final, earlier.skipped, earlier.advice
    return whole


Series = dict[str, list[tuple[float, float]]]


def _joined_series(earlier: Series, later: Series) -> Series:
    return {name: earlier.get(name, []) + later.get(name, []) for name in {**earlier, **later}}


# -- many seeds ------------------------------------------------------------------------------------------------------------------


def simulate_seeds(experiment: Experiment, seeds: int) -> Iterator[tuple[Summary, list[Bar]]]:
    """Seeds 0, 1, ... side by side, one process per core; results come in order."""
    jobs = [(experiment, seed) for seed in range(seeds)]
    # A pool, because leaving it ends the processes at once, also those in the middle of their work.
    with Pool(min(seeds, os.cpu_count() or 1), _quietly) as pool:
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
