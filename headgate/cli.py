"""The command line: reads what a person asks for, prints what came of it; every mistake is one sentence."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import headgate
from headgate import config
from headgate.errors import HeadgateError, InputError

if TYPE_CHECKING:
    from headgate.journal import SqliteJournal
    from headgate.sim.bars import Bar
    from headgate.sim.run import Watcher
    from headgate.sim.simulate import Experiment, Simulated
    from headgate.sim.spec import Scenario

DEFAULT_JOURNAL = ".headgate/journal.sqlite"
DEMO_JOURNAL = ".headgate/demo.sqlite"
WATCH_S = 60.0
"""How long a watched simulation takes for the person in front of it."""
PICTURE_S = 0.1
PIPED_WIDTH = 140
"""Width of tables where no terminal says how wide it is."""
INTERRUPTED, PIPE_CLOSED = 130, 141
"""What a shell reports after Ctrl-C, and for a program whose reader has gone."""

# -- the edge --------------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Entry point: run a command and leave with its exit code."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; whatever goes wrong on purpose is told in one line."""
    try:
        code = cli.main(list(arguments), prog_name="headgate", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except HeadgateError as error:
        return _tell(str(error), error.exit_code)
    except click.ClickException as error:
        return _tell(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at its end; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _tell(sentence: str, code: int) -> int:
    print(f"headgate: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _console(stderr: bool = False) -> Console:
    """A console that does not squeeze tables into 80 columns when it writes to a file."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED_WIDTH, highlight=False)


def _print(*parts: RenderableType) -> None:
    console = _console()
    for part in parts:
        console.print(part)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


as_json = click.option("--json", "json_too", is_flag=True, help="End with one line of JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(headgate.__version__, prog_name="headgate", message="%(prog)s %(version)s")
def cli() -> None:
    """Share one cluster among many streaming jobs, by intent."""


# -- simulate --------------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("scenario", metavar="NAME|FILE")
@click.option("--policy", "policies", metavar="P", multiple=True, help="Run this policy; may be given several times.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of all randomness [default: 0].")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Run seeds 0 to N-1 and show the spread.")
@click.option("--trace", metavar="CSV", help="Let every load follow this trace (timestamp, rows).")
@click.option("--hours", type=float, metavar="H", help="Simulate for so long.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="Change a setting.")
@click.option("--plot", metavar="FILE", help="Draw what happened (.png, .svg, .pdf).")
@click.option("--journal", metavar="FILE", help="Record the first policy's rounds here; go on if it has some.")
@click.option("--observe-only", is_flag=True, help="Decide, but carry nothing out.")
@click.option("--watch", is_flag=True, help="Show the cluster live, for about a minute.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar does not hold.")
@as_json
def simulate(
    scenario: str, policies: tuple[str, ...], seed: int | None, seeds: int | None, trace: str | None, hours: float | None,
    settings: tuple[str, ...], plot: str | None, journal: str | None, observe_only: bool, watch: bool, strict: bool,
    json_too: bool,
) -> int:  # fmt: skip
    """Run a scenario on the simulator, under one policy or several."""
    from headgate.sim.simulate import Experiment

    experiment = Experiment(scenario, policies, trace, hours, _pairs(settings), observe_only)
    if seeds is not None:
        _refuse_with_seeds(seed=seed is not None, plot=plot, journal=journal, watch=watch)
        return _simulate_seeds(experiment, seeds, strict, json_too)
    _check_picture(plot)
    done = _simulate_one(experiment, seed or 0, journal, watch)
    _print(*_report(done, observe_only))
    if plot is not None:
        _draw(done, plot)
    if json_too:
        _print_json(done.summary())
    return _verdict(done.bars, strict)


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    for text in settings:
        if "=" not in text:
            raise InputError(f'--set is "{text}"; it must be name=value, such as round_s=5')
    return dict(text.split("=", 1) for text in settings)


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
    with _opened(journal) as opened, _progress(scenario.name, rounds_in(scenario), hidden=watch) as progress:
        count = counting(lambda: progress.advance(progress.task_ids[0]))
        with _watching(scenario, watch) as watcher:
            return simulate_scenario(scenario, seed, opened, experiment.observe_only, watcher, count)


@contextmanager
def _opened(journal: str | None) -> Iterator[SqliteJournal | None]:
    if journal is None:
        yield None
        return
    from headgate.journal import SqliteJournal

    path = Path(journal)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be created: {error.strerror}") from None
    with SqliteJournal(path) as opened:
        try:
            yield opened
        except InputError as error:
            raise type(error)(f"{path}: {error}") from error


@contextmanager
def _progress(what: str, total: int, hidden: bool = False) -> Iterator[Progress]:
    """A bar on stderr, if somebody looks at it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        progress.add_task(what, total=total)
        yield progress


@contextmanager
def _watching(scenario: Scenario, watch: bool) -> Iterator[Watcher | None]:
    """A watcher that shows the first run live; rounds are spread over a minute if there is a terminal to see them."""
    if not watch:
        yield None
        return
    from headgate.screen import Screen

    console = _console()
    pace_s = WATCH_S / max(1.0, scenario.duration_s / scenario.settings.round_s) if console.is_terminal else 0.0
    with Screen(console) as screen:
        yield _paced(screen, pace_s)


def _paced(screen: Any, pace_s: float) -> Watcher:
    begun_s = time.monotonic()
    rounds, drawn_s = 0, 0.0

    def watcher(view: Any, decision: Any, policy: Any) -> None:
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
    from headgate.sim import report

    scenario, first = done.scenario, next(iter(done.runs.values()))
    yield f"[bold]{scenario.name}[/]: {scenario.title}" + (f" ({scenario.figure})" if scenario.figure else "")
    hours = config_duration(scenario.duration_s)
    yield f"{hours} simulated, seed {done.seed}, {len(scenario.hosts)} hosts, {len(scenario.jobs)} jobs" + (
        "; observed only: no action was carried out" if observe_only else ""
    )
    yield ""
    yield report.policies_table(done.runs)
    yield f"Jobs under {first.policy}, at the end:"
    yield report.jobs_table(first)
    if done.variants:
        yield report.sweep_table(done.variants)
    if done.bars:
        yield report.bars_table(done.bars)
    if scenario.paper:
        yield report.paper_table(scenario.paper)
    yield from (f"advice: {text}" for text in first.advice)


def config_duration(value_s: float) -> str:
    """A duration in words."""
    from headgate.core.quantities import show_seconds

    return show_seconds(value_s)


def _simulate_seeds(experiment: Experiment, seeds: int, strict: bool, json_too: bool) -> int:
    from headgate.sim import report
    from headgate.sim.simulate import simulate_seeds

    scenario = experiment.load()
    results, bars = [], []
    with _progress(scenario.name, seeds) as progress:
        for result, of_seed in simulate_seeds(experiment, seeds):
            results.append(result)
            bars.append(of_seed)
            progress.advance(progress.task_ids[0])
    together = report.by_name(bars)
    worst = [report.worst(of_name) for of_name in together.values()]
    _print(f"[bold]{scenario.name}[/]: {scenario.title}, {seeds} seeds", "", report.spread_of_satisfaction(results))
    if together:
        _print(report.spread_of_bars(together, seeds))
    if json_too:
        _print_json(report.result_of_seeds(scenario, results, worst))
    return _verdict(worst, strict)


# -- pictures --------------------------------------------------------------------------------------------------------------------

PICTURES = (".png", ".svg", ".pdf")


def _check_picture(plot: str | None) -> None:
    """Refuse before the simulation what could not be written after it."""
    if plot is None:
        return
    path = Path(plot)
    if path.suffix.lower() not in PICTURES:
        raise InputError(f'--plot is "{plot}"; it must end in {", ".join(PICTURES)}')
    if not path.absolute().parent.is_dir():
        raise InputError(f'--plot is "{plot}"; there is no folder "{path.parent}"')


def _draw(done: Simulated, plot: str) -> None:
    from headgate.sim.plot import draw

    try:
        draw(done.scenario, done.runs, done.variants, Path(plot))
    except OSError as error:
        raise InputError(f"{plot}: cannot be written: {error.strerror or error}") from None
    click.echo(f"drawn: {plot}")


# -- scenarios -------------------------------------------------------------------------------------------------------------------


@cli.command()
@as_json
def scenarios(json_too: bool) -> None:
    """List the scenarios that ship with Headgate."""
    from headgate.sim.scenario import built_in, read_scenario

    known = [read_scenario(path) for path in built_in().values()]
    _print(_plain_table(("name", "figure", "title"), [(one.name, one.figure, one.title) for one in known]))
    if json_too:
        _print_json([{"name": one.name, "figure": one.figure, "title": one.title} for one in known])


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


# -- the journal -----------------------------------------------------------------------------------------------------------------

journal_option = click.option(
    "--journal", metavar="FILE", default=DEFAULT_JOURNAL, show_default=True, help="The record of the control loop."
)


@contextmanager
def _existing(journal: str) -> Iterator[SqliteJournal]:
    from headgate.journal import SqliteJournal

    if not Path(journal).is_file():
        raise InputError(f'there is no journal "{journal}"; `--journal FILE` names another one')
    with SqliteJournal(journal, read_only=True) as opened:
        yield opened


@cli.command()
@click.argument("job")
@journal_option
@as_json
def explain(job: str, journal: str, json_too: bool) -> None:
    """Tell what happened to a job, and why."""
    from headgate import explain as explaining

    with _existing(journal) as opened:
        lines = explaining.story(opened, job)
        click.echo(explaining.as_json(lines) if json_too else explaining.as_text(lines, opened.about()))


@cli.command()
@journal_option
@as_json
def status(journal: str, json_too: bool) -> None:
    """Show the last recorded round."""
    import msgspec

    from headgate import screen

    with _existing(journal) as opened:
        restored = opened.restore()
        last = list(opened.rounds(since_s=restored.at_s))[-1:] if restored is not None else []
        about = opened.about()
    if not last:
        raise InputError(f'the journal "{journal}" has no rounds yet')
    record = last[0]
    clock = screen.since_start(record.at_s) if about.get("clock") == "virtual" else _clock_time(record.at_s)
    cluster = screen.Cluster(record.score, record.max_score)
    _print(screen.headline(cluster, record.phase, (), clock), *screen.jobs_table(screen.rows_of_round(record)))
    _print(f" {record.decision}", *screen.advice_lines(record.advice))
    if json_too:
        click.echo(msgspec.json.encode(record).decode())


def _clock_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


# -- reference -------------------------------------------------------------------------------------------------------------------


@cli.command()
@click.option("--markdown", is_flag=True, help="Print the reference page.")
def settings(markdown: bool) -> None:
    """List every setting: default, unit, meaning."""
    if markdown:
        click.echo(config.reference(), nl=False)
        return
    rows = [(row["name"], str(row["default"]), row["unit"], row["text"]) for row in config.describe()]
    _print(_plain_table(("setting", "default", "unit", "meaning"), rows))


@cli.command()
def rules() -> None:
    """Print the scheduler's table of rules."""
    from headgate.core.scheduler import transition_table

    click.echo(transition_table(), nl=False)


if __name__ == "__main__":
    main()
