"""`headgate settings` and `headgate rules`: what the docs say, printed from the code."""

from __future__ import annotations

import click

from headgate import config
from headgate.cli.output import plain_table, show


@click.command()
@click.option("--markdown", is_flag=True, help="Print the reference page.")
def settings(markdown: bool) -> None:
    """List every setting: default, unit, meaning."""
    if markdown:
        click.echo(config.reference(), nl=False)
        return
    described = [row for kind in config.KINDS.values() for row in config.describe(kind)]
    rows = [(row["name"], str(row["default"]), row["unit"], row["text"]) for row in described]
    show(plain_table(("setting", "default", "unit", "meaning"), rows))


@click.command()
def rules() -> None:
    """Print the scheduler's table of rules."""
    from headgate.core.scheduler import transition_table

    click.echo(transition_table(), nl=False)


COMMANDS = (settings, rules)
