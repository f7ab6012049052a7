"""The command line: parses arguments, prints results; every error is one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import click

import headgate
from headgate.cli import (
    adopt,
    bench,
    demo,
    epochs,
    jobs,
    journal,
    metrics,
    reference,
    run,
    simulate,
    state,
    tenants,
    whatif,
)
from headgate.cli.output import complain
from headgate.errors import EngineLostError, HeadgateError

INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit codes after Ctrl-C, and after the reader of the output closed the pipe, as a shell reports them."""

TOGETHER: Mapping[tuple[str, ...], str] = {
    ("explain", "epochs"): "Show what happened to a job, or its last epochs.",
    ("pause", "resume"): "Stop a job after its epoch, or continue it.",
    ("remove", "removed", "restore"): "Remove a job, list removed jobs, restore one.",
    ("share", "limit"): "Set the weight of a job, or its read limit.",
    ("status", "ui"): "Show the jobs as they are now, or the dashboard.",
    ("simulate", "scenarios"): "Run a scenario on the simulator, or list them.",
    ("bench", "demo"): "Measure Headgate, or watch three jobs share Spark.",
    ("settings", "rules", "metrics"): "List settings, rules, or metrics for Prometheus.",
    ("tenant", "audit"): "Manage tenants, or list who changed what.",
    ("submit", "adopt"): "Add the jobs of a file, or of a PySpark script.",
}
"""Commands that share a line of the help."""


def main() -> None:
    """Entry point: run a command and leave with its exit code."""
    code = run_command(sys.argv[1:])
    if code == EngineLostError.exit_code:
        # Threads that wait for a lost Spark would keep the process alive and delay its restart.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; an error that Headgate raises on purpose is printed as one line."""
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
    """Point standard output at /dev/null, because the flush of the interpreter at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(sentence: str, code: int) -> int:
    complain(sentence)
    return code


class Commands(click.Group):
    """A group whose help fits a screen: commands that are alike share a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command, or per group of similar commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines(formatter.width)))

    def _lines(self, width: int) -> Iterator[tuple[str, str]]:
        alone = self.commands.keys() - {name for names in TOGETHER for name in names}
        texts = {name: self.commands[name].get_short_help_str(width) for name in alone}
        yield from sorted([*texts.items(), *((", ".join(names), text) for names, text in TOGETHER.items())])


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(headgate.__version__, prog_name="headgate", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Share one Spark cluster among many streaming jobs, by intent."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _module in (simulate, journal, epochs, whatif, run, jobs, adopt, metrics, reference, state, tenants, bench, demo):
    for _command in _module.COMMANDS:
        cli.add_command(_command)
