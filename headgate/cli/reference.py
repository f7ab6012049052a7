"""`headgate settings` and `headgate rules`, which print the reference of settings and scheduler rules from the code."""

from __future__ import annotations

import click

from headgate.cli.output import plain_table, show
from headgate.config.settings import KINDS, describe, reference


@click.command()
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
def settings(markdown: bool) -> None:
    """List every setting with its default, unit and meaning."""
    if markdown:
        click.echo(reference(), nl=False)
        return
    described = [row for kind in KINDS.values() for row in describe(kind)]
    rows = [(row["name"], str(row["default"]), row["unit"], row["text"]) for row in described]
    show(plain_table(("setting", "default", "unit", "meaning"), rows))


@click.command()
def rules() -> None:
    """Print the rules of the scheduler as a table."""
    from headgate.config import Settings
    from headgate.scheduler.rules import transition_table

    click.echo(transition_table(Settings()), nl=False)


COMMANDS = (settings, rules)
