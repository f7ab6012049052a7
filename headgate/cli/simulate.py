"""`headgate simulate` and `headgate scenarios`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType
from rich.text import Text

from headgate.cli.output import (
    as_json,
    console_of_stdout,
    opened,
    pairs,
    plain_table,
    progress_bar,
    show,
    show_json,
    verbatim,
)
from headgate.core.quantities import show_seconds
from headgate.errors import InputError
from headgate.screen import Screen, advice_lines, since_start

if TYPE_CHECKING:
    from headgate.core.metrics import View
    from headgate.scheduler.memory import Decision
    from headgate.scheduler.policies import Policy
    from headgate.sim.reports.bars import Bar
    from headgate.sim.run import Watcher
    from headgate.sim.simulate import Experiment, Simulated
    from headgate.sim.spec import Scenario

WATCH_S = 60.0
"""Real time in seconds over which a watched simulation is spread."""
PICTURE_S = 0.1


@click.command(short_help="Run a scenario on the simulator.")
@click.argument("scenario", metavar="NAME|FILE")
@click.option(
    "--policy",
    "policies",
    metavar="P[,P...]",
    multiple=True,
    help="Run these policies in place of those of the scenario; may be repeated.",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the simulation [default: 0].")
@click.option(
    "--seeds", type=click.IntRange(min=1), metavar="N", help="Run N seeds, from --seed on, and show the spread."
)
@click.option("--trace", metavar="CSV", help="Give every load the shape of this trace (timestamp, rows).")
@click.option(
    "--model",
    type=click.Choice(["continuous", "epochs"]),
    help="Run a scenario of threads in epochs, as Spark does, with latency intents 50 times longer.",
)
@click.option("--hours", type=float, metavar="H", help="Simulate this many hours.")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="Change a setting; `headgate settings` lists them."
)
@click.option("--plot", metavar="FILE", help="Draw the result to this file (.png, .svg, .pdf).")
@click.option(
    "--journal",
    metavar="FILE",
    help="Record the rounds of the first policy here; continue from a journal that has rounds.",
)
@click.option("--observe-only", is_flag=True, help="Record decisions, but apply none.")
@click.option("--watch", is_flag=True, help="Show the live table for about a minute.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar of the scenario does not hold.")
@as_json
def simulate(
    scenario: str, policies: tuple[str, ...], seed: int | None, seeds: int | None, trace: str | None,
    model: str | None, hours: float | None, settings: tuple[str, ...], plot: str | None, journal: str | None,
    observe_only: bool, watch: bool, strict: bool, json_too: bool,
) -> int:  # fmt: skip
    """Run a scenario on the simulator, under one or more policies."""
    from headgate.sim.simulate import Experiment

    named = tuple(name for given in policies for name in given.split(","))
    experiment = Experiment(scenario, named, trace, hours, pairs(settings), observe_only, model)
    if seeds is not None:
        _refuse_with_seeds(plot=plot, journal=journal, watch=watch)
        return _simulate_seeds(experiment, range(seed or 0, (seed or 0) + seeds), strict, json_too)
    check_picture(plot)
    done = _simulate_one(experiment, seed or 0, journal, watch)
    show(*_report(done, observe_only))
    if plot is not None:
        _draw(done, plot)
    if json_too:
        show_json(done.summary())
    return _verdict(done.bars, strict)


def _refuse_with_seeds(**given: Any) -> None:
    for option, value in given.items():
        if value:
            raise InputError(f"--{option} is for one run; leave out --seeds or --{option}")


def _verdict(bars: Sequence[Bar], strict: bool) -> int:
    return int(strict and not all(bar.holds for bar in bars))


def _simulate_one(experiment: Experiment, seed: int, journal: str | None, watch: bool) -> Simulated:
    from headgate.sim.simulate import counting, rounds_in
    from headgate.sim.simulate import simulate as simulate_scenario

    scenario = experiment.load()
    with opened(journal, scenario.settings) as written:
        restored = written.restore() if written is not None else None
        with (
            progress_bar(scenario.name, rounds_in(scenario), hidden=watch) as progress,
            watching(scenario, watch) as watcher,
        ):
            count = counting(lambda: progress.advance(progress.task_ids[0]))
            done = simulate_scenario(scenario, seed, written, experiment.observe_only, watcher, count)
    if restored is not None and restored.at_s < done.runs[scenario.policies[0]].times_s[-1]:
        click.echo(f"went on from {since_start(restored.at_s)} of the journal", err=True)
    return done


@contextmanager
def watching(scenario: Scenario, watch: bool) -> Iterator[Watcher | None]:
    """Yield a watcher that shows the first run live, or None; on a terminal, the rounds are spread over a minute."""
    if not watch:
        yield None
        return
    console = console_of_stdout()
    pace_s = WATCH_S / max(1.0, scenario.duration_s / scenario.settings.round_s) if console.is_terminal else 0.0
    with Screen(console) as screen:
        yield _paced(screen, pace_s)


def _paced(screen: Screen, pace_s: float) -> Watcher:
    begun_s = time.monotonic()
    rounds, drawn_s = 0, 0.0

    def watcher(view: View, decision: Decision, policy: Policy) -> None:
        nonlocal rounds, drawn_s
        rounds += 1
        ahead_s = begun_s + rounds * pace_s - time.monotonic()
        if ahead_s > 0:
            time.sleep(ahead_s)
        draw = time.monotonic() - drawn_s >= PICTURE_S
        drawn_s = time.monotonic() if draw else drawn_s
        screen.show(view, policy.phase(), decision.action, draw)

    return watcher


def _report(done: Simulated, observe_only: bool) -> Iterator[RenderableType]:
    from headgate.sim.reports import report
    from headgate.sim.reports.billing_report import hosts_table

    scenario, first = done.scenario, next(iter(done.runs.values()))
    yield (
        Text(scenario.name, "bold")
        .append(f": {scenario.title}", "not bold")
        .append(f" ({scenario.figure})" if scenario.figure else "", "not bold")
    )
    hosts = "hosts as needed" if scenario.terms is not None else report.count(len(scenario.hosts), "host")
    size = f"{hosts}, {report.count(len(scenario.jobs), 'job')}"
    yield (
        f"{show_seconds(scenario.duration_s)} simulated, seed {done.seed}, {size}"
        + ("; observed only: no action was carried out" if observe_only else "")
    )
    yield ""
    yield report.policies_table(done.runs)
    yield f"\nJobs under {first.policy}, at the end; met: share of the time under control:"
    yield report.jobs_table(first)
    below: list[Sequence[RenderableType]] = [
        (hosts_table(done.runs),) if scenario.terms is not None else (),
        (report.sweep_table(done.variants), verbatim(report.sweep_answer(done.variants))) if done.variants else (),
        (report.bars_table(done.bars),) if done.bars else (),
        (report.paper_table(scenario.paper),) if scenario.paper else (),
        advice_lines(first.advice),
    ]
    for parts in filter(None, below):
        yield ""
        yield from parts


def _simulate_seeds(experiment: Experiment, seeds: range, strict: bool, json_too: bool) -> int:
    from headgate.sim.reports import report
    from headgate.sim.reports.billing_report import spread_of_hosts
    from headgate.sim.simulate import simulate_seeds

    scenario = experiment.load()
    results, bars = [], []
    with progress_bar(scenario.name, len(seeds)) as progress:
        for result, of_seed in simulate_seeds(experiment, seeds):
            results.append(result)
            bars.append(of_seed)
            progress.advance(progress.task_ids[0])
    together = report.by_name(bars)
    worst = [report.worst(of_name) for of_name in together.values()]
    title = f"{scenario.name}: {scenario.title}; {report.count(len(seeds), 'seed')}"
    show(verbatim(title), "", report.spread_of_satisfaction(results))
    if scenario.terms is not None:
        show("", spread_of_hosts(results))
    if scenario.sweep:
        show("", report.spread_of_sweep(results))
    if together:
        show("", report.spread_of_bars(together, len(seeds)))
    if json_too:
        show_json(report.result_of_seeds(scenario, results, worst))
    return _verdict(worst, strict)


# -- pictures --------------------------------------------------------------------------------------------------------------------

PICTURES = (".png", ".svg", ".pdf")


def check_picture(plot: str | None) -> None:
    """Refuse a picture file that cannot be written, before the simulation runs."""
    if plot is None:
        return
    path = Path(plot)
    if path.suffix.lower() not in PICTURES:
        raise InputError(f'--plot is "{plot}"; it must end in {", ".join(PICTURES)}')
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise InputError(f'--plot is "{plot}", which cannot be written: {error.strerror}') from None
    if not existed:
        path.unlink()


def _draw(done: Simulated, plot: str) -> None:
    from headgate.sim.reports.plot import draw

    try:
        draw(done.scenario, done.runs, done.variants, Path(plot))
    except OSError as error:
        raise InputError(f"{plot}: cannot be written: {error.strerror or error}") from None
    click.echo(f"drawn: {plot}")


# -- scenarios -----------------------------------------------------------------------------------------------------------------


@click.command()
@as_json
def scenarios(json_too: bool) -> None:
    """List the scenarios that ship with Headgate."""
    from headgate.sim.scenario import built_in, read_scenario

    known = [read_scenario(path) for path in built_in().values()]
    if json_too:
        show_json([{"name": one.name, "figure": one.figure, "title": one.title} for one in known])
        return
    show(plain_table(("name", "figure", "title"), [(one.name, one.figure, one.title) for one in known]))


COMMANDS = (simulate, scenarios)
