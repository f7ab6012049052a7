"""The command line: reads what a person asks for, prints what came of it; every mistake is one sentence."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import headgate
from headgate import config
from headgate.core.quantities import show_seconds
from headgate.errors import HeadgateError, InputError
from headgate.screen import Screen, advice_lines, since_start

if TYPE_CHECKING:
    from headgate.config import Settings
    from headgate.core.metrics import View
    from headgate.core.state import Decision
    from headgate.journal import SqliteJournal
    from headgate.policies import Policy
    from headgate.ports import RoundRecord
    from headgate.sim.bars import Bar
    from headgate.sim.run import Run, Watcher
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
        print(end="", flush=True)  # unlike sys.stdout.flush(), also where the shell closed the output
        return code if isinstance(code, int) else 0
    except HeadgateError as error:
        return _tell(str(error), error.exit_code)
    except click.ClickException as error:
        return _tell(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except MemoryError:
        return _tell("there is not enough memory for this; ask for fewer jobs, hosts or hours", 1)
    except BrokenPipeError:
        _leave_stdout()
        return PIPE_CLOSED
    except OSError as error:
        _leave_stdout()
        return _tell(f"{error.filename or 'the output'}: {error.strerror or error}", 1)


def _leave_stdout() -> None:
    """The interpreter flushes once more at its end; there is nobody left to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(sentence: str, code: int) -> int:
    print(f"headgate: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _console() -> Console:
    """A console that does not squeeze tables into 80 columns when it writes to a file."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED_WIDTH, highlight=False)


def _print(*parts: RenderableType) -> None:
    console = _console()
    for part in parts:
        # A sentence goes on one line where nobody reads it on a terminal, so that it can be searched for.
        console.print(part, soft_wrap=isinstance(part, str | Text) and not console.is_terminal)


def _text(text: str) -> Text:
    """Text in which square brackets are square brackets."""
    return Text(text)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))


as_json = click.option("--json", "json_too", is_flag=True, help="End with one line of JSON.")


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(headgate.__version__, prog_name="headgate", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Share one cluster among many streaming jobs, by intent."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


# -- simulate --------------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("scenario", metavar="NAME|FILE")
@click.option("--policy", "policies", metavar="P[,P...]", multiple=True, help="Run these policies; may be repeated.")
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

    named = tuple(name for given in policies for name in given.split(","))
    experiment = Experiment(scenario, named, trace, hours, _pairs(settings), observe_only)
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
    with _opened(journal, scenario.settings) as opened:
        restored = opened.restore() if opened is not None else None
        with (
            _progress(scenario.name, rounds_in(scenario), hidden=watch) as progress,
            _watching(scenario, watch) as watcher,
        ):
            count = counting(lambda: progress.advance(progress.task_ids[0]))
            done = simulate_scenario(scenario, seed, opened, experiment.observe_only, watcher, count)
    if restored is not None and restored.at_s < done.runs[scenario.policies[0]].times_s[-1]:
        click.echo(f"went on from {since_start(restored.at_s)} of the journal", err=True)
    return done


@contextmanager
def _opened(journal: str | None, settings: Settings) -> Iterator[SqliteJournal | None]:
    if journal is None:
        yield None
        return
    from headgate.config import snapshots_needed
    from headgate.journal import SqliteJournal

    path = Path(journal)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be created: {error.strerror}") from None
    with SqliteJournal(path, window=snapshots_needed(settings)) as opened:
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
    console = _console()
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
    from headgate.sim import report

    scenario, first = done.scenario, next(iter(done.runs.values()))
    yield (
        Text(scenario.name, "bold")
        .append(f": {scenario.title}", "not bold")
        .append(f" ({scenario.figure})" if scenario.figure else "", "not bold")
    )
    size = f"{report.count(len(scenario.hosts), 'host')}, {report.count(len(scenario.jobs), 'job')}"
    yield (
        f"{show_seconds(scenario.duration_s)} simulated, seed {done.seed}, {size}"
        + ("; observed only: no action was carried out" if observe_only else "")
    )
    yield ""
    yield report.policies_table(done.runs)
    yield f"\nJobs under {first.policy}, at the end; met: share of the time under control:"
    yield report.jobs_table(first)
    below: list[Sequence[RenderableType]] = [
        (report.sweep_table(done.variants), _text(report.sweep_answer(done.variants))) if done.variants else (),
        (report.bars_table(done.bars),) if done.bars else (),
        (report.paper_table(scenario.paper),) if scenario.paper else (),
        advice_lines(first.advice),
    ]
    for parts in filter(None, below):
        yield ""
        yield from parts


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
    title = f"{scenario.name}: {scenario.title}; {report.count(seeds, 'seed')}"
    _print(_text(title), "", report.spread_of_satisfaction(results))
    if scenario.sweep:
        _print("", report.spread_of_sweep(results))
    if together:
        _print("", report.spread_of_bars(together, seeds))
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
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise InputError(f'--plot is "{plot}", which cannot be written: {error.strerror}') from None
    if not existed:
        path.unlink()


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
    if json_too:
        _print_json([{"name": one.name, "figure": one.figure, "title": one.title} for one in known])
        return
    _print(_plain_table(("name", "figure", "title"), [(one.name, one.figure, one.title) for one in known]))


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*map(_text, row))
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
        about = opened.about()
    if json_too:
        _print_json(json.loads(explaining.as_json(lines)))
        return
    click.echo(explaining.as_text(lines, about))


@cli.command()
@journal_option
@as_json
def status(journal: str, json_too: bool) -> None:
    """Show the last recorded round."""
    import msgspec

    with _existing(journal) as opened:
        restored = opened.restore()
        last = list(opened.rounds(since_s=restored.at_s))[-1:] if restored is not None else []
        about = opened.about()
    if not last:
        raise InputError(f'the journal "{journal}" has no rounds yet')
    if json_too:
        click.echo(msgspec.json.encode(last[0]).decode())
        return
    _print(*_status(last[0], about))


def _status(record: RoundRecord, about: Mapping[str, str]) -> Iterator[RenderableType]:
    from headgate import explain as explaining
    from headgate import screen

    by_the_clock = about.get(explaining.CLOCK_KEY) == explaining.WALL_CLOCK
    clock = _clock_time(record.at_s) if by_the_clock else since_start(record.at_s)
    yield screen.headline(screen.Cluster(record.score, record.max_score), record.phase, (), clock)
    yield from screen.jobs_table(screen.rows_of_round(record))
    if record.decision != record.phase:
        yield _text(f" {record.decision}")
    yield from screen.advice_lines(record.advice)


def _clock_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


# -- demo ------------------------------------------------------------------------------------------------------------------------

DEMO = "demo"


@cli.command()
def demo() -> None:
    """Watch the control loop share a simulated cluster, for a minute."""
    from headgate.sim.run import run
    from headgate.sim.scenario import load_scenario
    from headgate.sim.simulate import counting, run_on

    scenario = load_scenario(DEMO)
    for leftover in Path(DEMO_JOURNAL).parent.glob(f"{Path(DEMO_JOURNAL).name}*"):
        leftover.unlink()
    _print(Text(scenario.title, "bold"), "")
    with _opened(DEMO_JOURNAL, scenario.settings) as journal, _watching(scenario, watch=True) as watcher:
        controlled = run_on(scenario, "headgate", 0, journal, False, watcher)
    with _progress("the same without control", _rounds(scenario)) as progress:
        alone = run(scenario, "static", 0, watch=counting(lambda: progress.advance(progress.task_ids[0])))
    _print("", *_demo_summary(controlled, alone), "", *_next_commands(controlled))


def _rounds(scenario: Scenario) -> int:
    return int(scenario.duration_s / scenario.settings.round_s)


def _demo_summary(controlled: Run, alone: Run) -> Iterator[RenderableType]:
    from headgate.sim import report

    yield report.comparison_table(controlled, alone)
    yield ""
    with_it, without = (report.satisfaction(run)["mean"] for run in (controlled, alone))
    yield f"Over the whole time, the jobs got {report.percent(with_it)} of their utility, and {report.percent(without)} without control."
    if controlled.log:
        yield f"{len(controlled.log)} actions did it:"
    for one in controlled.log:
        yield _text(f"  {since_start(one.at_s)}  {one.job or one.kind}: {one.cause}")


def _next_commands(controlled: Run) -> Iterator[RenderableType]:
    touched = [one.job for one in controlled.log if one.job] or list(controlled.worths)
    yield "Now try:"
    yield _text(f"  headgate explain {touched[0]} --journal {DEMO_JOURNAL}")
    yield _text("  headgate scenarios")
    yield _text(f"  headgate simulate {DEMO} --policy headgate --policy static --plot demo.png")


# -- benchmarks ------------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("name", metavar="NAME")
@as_json
def bench(name: str, json_too: bool) -> None:
    """Measure one of three things: simulator, controller, sizing."""
    from dataclasses import asdict

    from headgate.bench import bench as measure
    from headgate.sim import report

    result = measure(name)
    rows = [(figure.name, report.figure(figure.value), figure.unit) for figure in result.figures]
    _print(_plain_table(("measured", "value", "unit"), rows), "", report.bars_table(result.bars))
    if json_too:
        bars = [report.bar_summary(bar) for bar in result.bars]
        _print_json({"bench": name, "figures": [asdict(figure) for figure in result.figures], "bars": bars})


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
