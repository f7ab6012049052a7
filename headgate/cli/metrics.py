"""`headgate metrics`: configuration for Prometheus and Grafana, and the current metrics of a running service."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from headgate.cli.output import home_option


def shipped(name: str) -> str:
    """Return the text of a file that ships with Headgate."""
    return (files("headgate.server") / "prometheus" / name).read_text()


@click.group(short_help="Configure Prometheus and Grafana, or print the metrics.")
def metrics() -> None:
    """Print what Prometheus and Grafana are configured with, or the metrics of the running service."""


@metrics.command()
def rules() -> None:
    """Print the recording and alert rules for Prometheus."""
    click.echo(shipped("headgate.rules.yml"), nl=False)


@metrics.command()
def grafana() -> None:
    """Print the dashboard for Grafana as JSON; import the file into Grafana."""
    click.echo(shipped("headgate.grafana.json"), nl=False)


@metrics.command()
def scrape() -> None:
    """Print a scrape config for Prometheus."""
    click.echo(shipped("headgate.scrape.yml"), nl=False)


@metrics.command("list")
def list_() -> None:
    """Print every metric with its type, labels and meaning as a Markdown table."""
    from headgate.server.metrics import reference

    click.echo(reference(), nl=False)


@metrics.command()
@home_option
def show(home: str) -> None:
    """Print the metrics of the running service as Prometheus reads them."""
    from headgate.server.client import Client
    from headgate.server.home import Home

    click.echo(Client(Home(Path(home))).metrics(), nl=False)


COMMANDS = (metrics,)
