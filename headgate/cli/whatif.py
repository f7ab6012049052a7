"""`headgate what-if`: the jobs of a journal in the simulator, with another load, other intents or another cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from headgate.cli.jobs import field_value
from headgate.cli.journal import existing, journal_in, journal_option
from headgate.cli.output import as_json, home_option, plain_table, show, show_json, verbatim
from headgate.core.quantities import seconds, show_seconds
from headgate.errors import InputError
from headgate.screen import sparkline, thin_out

if TYPE_CHECKING:
    from headgate.sim.whatif import Answer, JobOutlook, Outlook, Question

CELLS = 24
"""Width of a bar in characters."""
COURSE_CELLS = 60
UNITS = ("slots", "hosts")


@click.command("what-if", short_help="Predict the effect of a load, intent or cluster.")
@click.option("--load", "loads", multiple=True, metavar="JOB=Kx", help='Multiply the input of a job, or of "all".')
@click.option("--intent", "intents", multiple=True, metavar="JOB:FIELDS", help="Change it: fraud:latency=1s,worth=50.")
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="Slots of all hosts together.")
@click.option("--hosts", type=click.IntRange(min=1), metavar="N", help="Hosts; new ones are like the last one.")
@click.option("--until-met", type=click.Choice(UNITS), help="Search for the least number that meets all intents.")
@click.option("--hold", is_flag=True, help="Keep lanes and pace; without it, the scheduler changes them.")
@click.option("--after", default="15m", show_default=True, metavar="TIME", help="Simulated time before the verdict.")
@home_option
@journal_option
@as_json
def what_if(home: str, journal: str | None, json_too: bool, **given: Any) -> None:
    """Simulate the running jobs with changes, and compare what is predicted with what is measured now.

    The simulator is calibrated from the newest readings in the journal. Several changes combine.
    """
    from headgate.sim.whatif import answer_question, summary

    question = _question(**given)
    with existing(journal or journal_in(home)) as opened:
        answer = answer_question(opened, question)
    if json_too:
        show_json(summary(answer))
    else:
        show(*_report(answer, question))


def _question(
    loads: tuple[str, ...], intents: tuple[str, ...], slots: int | None, hosts: int | None, until_met: str | None,
    **how: Any,
) -> Question:  # fmt: skip
    from headgate.sim.whatif import Question, Unit, WhatIfChanges

    changes = WhatIfChanges(parsed_loads(loads), parsed_intents(intents), slots, hosts)
    if changes == WhatIfChanges() and until_met is None:
        raise InputError("what should change? give --load, --intent, --slots, --hosts or --until-met, or several")
    if until_met is not None and {"slots": slots, "hosts": hosts}[until_met] is not None:
        raise InputError(f"--until-met searches the number of {until_met}; leave out --{until_met}")
    unit = Unit(until_met) if until_met is not None else None
    return Question(changes, how["hold"], seconds(how["after"], "--after"), unit)


def parsed_loads(texts: Sequence[str]) -> dict[str, float]:
    """Parse multiples of loads from texts such as "page-load=2x".

    >>> parsed_loads(["all=2x", "fraud=0.5"])
    {'all': 2.0, 'fraud': 0.5}
    """
    loads = {}
    for text in texts:
        name, equals, factor = text.rpartition("=")
        try:
            amount = float(factor.strip().removesuffix("x"))
        except ValueError:
            amount = math.nan
        if not equals or not name or not 0 <= amount < math.inf:
            raise InputError(f'--load is "{text}"; it must be a job, or "all", and a multiple, such as page-load=2x')
        loads[name] = amount
    return loads


def parsed_intents(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse changed fields of intents from texts such as "fraud:latency=1s,worth=50".

    >>> parsed_intents(["fraud:latency=1s,worth=50"])
    {'fraud': {'latency': '1s', 'worth': 50.0}}
    """
    intents: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, colon, fields = text.partition(":")
        pairs = [part.partition("=") for part in fields.split(",")]
        if not colon or not name or not all(equals and key for key, equals, _ in pairs):
            raise InputError(f'--intent is "{text}"; it must be a job and fields, such as fraud:latency=1s,worth=50')
        intents[name] = intents.get(name, {}) | {key.strip(): field_value(value.strip()) for key, _, value in pairs}
    return intents


# -- for people --------------------------------------------------------------------------------------------------------


def _report(answer: Answer, question: Question) -> Iterator[RenderableType]:
    now, then = answer.now, answer.then
    if question.until_met is not None:
        yield from _search(answer, question.until_met.value)
    columns = ("job", "intent", "latency", "juice", "utility", "lanes")
    yield plain_table(columns, [_row(name, now.jobs.get(name), one) for name, one in then.jobs.items()])
    yield ""
    width = max(len(name) for name in then.jobs)
    for name, one in then.jobs.items():
        yield verbatim(f" {name:{width}}  {_bars(now.jobs.get(name), one)}")
    yield ""
    yield verbatim(f" now        {_bar(now.satisfaction)} of all utility, {_cluster(now)}, as measured")
    yield verbatim(f" predicted  {_bar(then.satisfaction)} of all utility, {_cluster(then)}")
    course = thin_out([value for value in then.course if value is not None], COURSE_CELLS)
    yield verbatim(f" course     {sparkline(course, COURSE_CELLS)} {show_seconds(question.after_s)} after the change")
    yield verbatim(f" model      {100 * answer.modelled_now:.0f} % without any change")
    for note in answer.notes:
        yield verbatim(f" {note}")


def _search(answer: Answer, unit: str) -> Iterator[RenderableType]:
    for one in answer.tried:
        yield verbatim(f" {one.size:5d} {unit}  {_bar(one.satisfaction)}  {'all met' if one.met else 'missed'}")
    if answer.enough is None:
        yield verbatim(f" Even {answer.tried[-1].size} {unit} do not meet all intents.")
    else:
        yield verbatim(f" {answer.enough} {unit} are the least that meets all intents.")
    yield ""


def _row(name: str, now: JobOutlook | None, then: JobOutlook) -> tuple[str, ...]:
    """Return the cells of a job: the measured and the predicted figure, or one figure if both are the same."""
    return (
        name,
        then.intent,
        _both(now, then, lambda one: "-" if one.latency_s is None else show_seconds(one.latency_s, 2)),
        _both(now, then, lambda one: "-" if one.juice is None else f"{one.juice:.2f}"),
        f"{_both(now, then, _utility)}/{then.worth:g}{STATES[then.met]}",
        _both(now, then, lambda one: str(one.lanes)),
    )


STATES = {True: "", False: " missed", None: " measuring"}


def _both(now: JobOutlook | None, then: JobOutlook, shown: Callable[[JobOutlook], str]) -> str:
    before, after = "-" if now is None else shown(now), shown(then)
    return after if before == after else f"{before} → {after}"


def _utility(one: JobOutlook) -> str:
    return "-" if one.utility is None else f"{one.utility:.3g}"


def _bars(now: JobOutlook | None, then: JobOutlook) -> str:
    before, after = (_bar(_share(one)) for one in (now, then))
    return f"{before} → {after}"


def _share(one: JobOutlook | None) -> float | None:
    return None if one is None or one.utility is None else one.utility / one.worth


def _bar(share: float | None) -> str:
    if share is None or math.isnan(share):
        return f"{'?':{CELLS}}    -"
    full = round(CELLS * min(1.0, max(0.0, share)))
    return f"{'█' * full}{'░' * (CELLS - full)} {100 * share:3.0f} %"


def _cluster(outlook: Outlook) -> str:
    return f"{outlook.hosts} host{'s' if outlook.hosts > 1 else ''}, {outlook.slots} slots"


COMMANDS = (what_if,)
