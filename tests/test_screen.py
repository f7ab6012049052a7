"""The live table, drawn from views that are made by hand."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from headgate.bench.showcase import NAMED, ROUND_S, show
from headgate.core.intents import Intent
from headgate.core.metrics import JobView, View
from headgate.core.model import Action, ActionKind, Cause, Graph, HostReading, Job, JobAllocation, Operator
from headgate.ports import JobRecord, RoundRecord
from headgate.screen import (
    Happened,
    Row,
    Screen,
    advice_lines,
    happened,
    jobs_table,
    rows_of_round,
    since_start,
    sparkline,
    table,
    thin_out,
)

LIVE = Path(__file__).parents[1] / "docs/images/live.svg"
GRAPH = Graph.of(Operator("parse"), Operator("look-up", ("parse",)))
HOSTS = (HostReading("host-1", 8, 2.0), HostReading("host-2", 8, 4.0))
HELP = Action(ActionKind.RECONFIGURE, "page-load", {}, Cause("look-up was the bottleneck: look-up 2 → 5 lanes"))


def job(
    name: str = "page-load", utility: float | None = 54.0, met: bool | None = False, latency_s: float | None = 2.8,
    juice: float | None = 0.97, pace_s: float | None = None, intent: Intent | None = None,
) -> JobView:  # fmt: skip
    intent = intent or Intent(latency="1.5s", worth=100)
    allocation = JobAllocation({"parse": 1, "look-up": 2}, pace_s)
    known: dict[str, Any] = {
        "job": Job(name, GRAPH, intent),
        "allocation": allocation,
        "latency_s": latency_s,
        "juice": juice,
    }
    known |= {"utility": utility, "met": met, "recent": utility, "samples": ()}
    return JobView(**{**dict.fromkeys(JobView.__dataclass_fields__), **known})


def view(*jobs: JobView, at_s: float = 900.0) -> View:
    by_name: Mapping[str, JobView] = {one.job.name: one for one in jobs}
    return View(at_s, by_name, HOSTS, frozenset())


def drawn(picture: RenderableType, width: int = 110) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(picture)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def test_headline_tells_cores_load_utility_and_phase():
    head = drawn(table(view(job()), "not converged", [0.1, 0.5, 1.0]))[0]
    assert head == " cluster  16 cores · load 0.38 · utility 54/100 ▂▅█  converging"


def test_headline_shows_no_utility_before_a_job_is_measured():
    assert "utility -/100" in drawn(table(view(job(utility=None, met=None)), "not converged"))[0]


def test_missed_latency_has_an_arrow_and_a_half_full_bar():
    line = drawn(table(view(job()), "converged"))[2]
    assert line.split() == ["page-load", "1.5", "s", "2.8", "s", "↑", "0.97", "████░░░░", "54/100", "3", "missed"]


def test_met_job_has_no_arrow():
    line = drawn(table(view(job(utility=100.0, met=True, latency_s=0.9)), "converged"))[2]
    assert line.split() == ["page-load", "1.5", "s", "900", "ms", "0.97", "████████", "100/100", "3", "met"]


def test_bar_is_full_only_when_all_utility_is_there():
    line = drawn(table(view(job(utility=99.9)), "converged"))[2]
    assert "███████░ 100/100" in line


def test_missed_juice_has_an_arrow():
    hybrid = job(intent=Intent(juice=0.99, worth=10), utility=9.0)
    assert "0.97 ↓" in drawn(table(view(hybrid), "converged"))[2]


def test_column_for_the_pace_only_where_there_are_epochs():
    assert "every" not in drawn(table(view(job()), "converged"))[1]
    lines = drawn(table(view(job("a", pace_s=0.0), job("b", pace_s=8.0)), "converged"))
    assert lines[1].split()[-2:] == ["every", "state"]
    assert lines[2].split()[-2] == "now"
    assert lines[3].split()[-3:-1] == ["8", "s"]


def test_job_that_is_not_measured_yet_shows_dashes():
    line = drawn(table(view(job(utility=None, met=None, latency_s=None, juice=None)), "converged"))[2]
    assert line.split() == ["page-load", "1.5", "s", "-", "-", "········", "-/100", "3", "measuring"]


def test_jobs_that_miss_come_first():
    lines = drawn(table(view(job("fine", 100.0, True), job("late")), "converged"))
    assert [line.split()[0] for line in lines[2:]] == ["late", "fine"]


def test_forty_jobs_fit_a_small_terminal():
    jobs = [job(f"job-{index}", met=index % 2 == 0) for index in range(40)]
    actions = [Happened("0:15:00", "job-1", "because")] * 9
    lines = drawn(table(view(*jobs), "converged", [], actions, height=20))
    assert len(lines) <= 20
    assert " and 29 more jobs; 9 of them miss their intents" in lines
    assert sum("because" in line for line in lines) == 5


def test_long_cause_stays_on_its_line():
    lines = drawn(table(view(job()), "converged", [], [Happened("0:15:00", "page-load", "long " * 50)]), width=80)
    assert len(lines) == 4
    assert lines[-1].endswith("…")


def test_name_in_square_brackets_is_shown_as_it_is():
    assert "[red]job" in drawn(table(view(job("[red]job")), "converged"))[2]


def test_round_of_the_journal_is_drawn_like_a_view():
    record = JobRecord(54.0, 100.0, 2.8, 0.97, lanes={"a": 3}, intent="1.5 s", latency_intent_s=1.5, met=False)
    summary = RoundRecord(900.0, "converged", 54.0, 100.0, {"page-load": record})
    [of_round] = jobs_table(rows_of_round(summary))
    assert drawn(of_round) == drawn(table(view(job()), "converged"))[1:]


# -- the age of readings, on terminals of any width

AGED = [
    Row("checkout", "3 s", 100.0, 60.0, False, 5.0, True, 1.0, False, 7, 0.0, age_s=4.2),
    Row("product-recommendations", "p95 2 s · 0.9", 1000.0, 1000.0, True, 0.5, False, 1.0, False, 2, 0.36, age_s=4.2),
    Row("audit", "5 min", 100.0, None, None, None, False, None, False, 2, 20.0, "stale", age_s=131.0),
    Row("new", "3 s", 9.0, None, None, None, False, None, False, 0, None),
]


def test_age_of_every_reading_is_in_its_row():
    [aged] = jobs_table(AGED)
    lines = drawn(aged, width=200)
    assert [line[lines[0].index("read") :].split("   ")[0].strip() for line in lines] == [
        "read", "4 s ago", "4 s ago", "2.2 min ago", "-"
    ]  # fmt: skip


def test_table_without_ages_has_no_column_for_them():
    assert "read" not in drawn(table(view(job()), "converged"))[1]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_only_names_and_intents_are_cut_on_a_narrow_terminal(width):
    [aged] = jobs_table(AGED)
    lines = drawn(aged, width)
    assert max(map(len, lines)) <= width
    figures = [line[lines[0].index("latency") :] for line in lines]
    assert not any("…" in line for line in figures)
    for shown in ("5 s ↑", "1.00", "1,000/1,000", "360 ms", "2.2 min ago", "stale", "measuring"):
        assert any(shown in line for line in figures)
    assert ("████░░░░ 60/100" in figures[1]) == (width >= 120)
    assert (lines[2].split()[0] == "product-recommendations") == (width > 80)


@pytest.mark.parametrize(
    ("history", "expected"), [([], ""), ([math.nan], ""), ([-1.0, 2.0], "▁█"), ([1.0] * 40, "█" * 16)]
)
def test_sparkline_clips_and_keeps_the_newest(history, expected):
    assert sparkline(history) == expected


def test_thinned_keeps_both_ends():
    assert thin_out(range(1000), 4) == [0, 333, 666, 999]
    assert thin_out([1.0], 4) == [1.0]


def test_advice_begins_at_the_margin():
    assert [line.plain for line in advice_lines(["add hosts"])] == ["advice: add hosts"]


def test_times_pass_the_day():
    assert since_start(26 * 3600 + 61) == "26:01:01"


def test_without_a_terminal_each_action_and_some_rounds_are_lines():
    console = Console(file=io.StringIO(), width=40)
    with Screen(console, line_every_s=300) as screen:
        for number in range(40):
            screen.show(view(job(), at_s=10.0 * number), "not converged", HELP if number == 3 else None)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "0:00:00  utility 54/100, 0 of 1 jobs meet their intents, converging",
        "0:00:30  page-load: look-up was the bottleneck: look-up 2 → 5 lanes",
        "0:05:00  utility 54/100, 0 of 1 jobs meet their intents, converging",
    ]


def test_on_a_terminal_the_last_picture_stays():
    console = Console(file=io.StringIO(), width=90, height=20, force_terminal=True)
    with Screen(console) as screen:
        screen.show(view(job(), at_s=10.0), "not converged", HELP)
        screen.show(view(job("fine", 100.0, True), at_s=20.0), "converged", None)
    last = console.file.getvalue().rsplit("cluster", 1)[1]  # type: ignore[attr-defined]
    assert "fine" in last
    assert "look-up was the bottleneck" in last


def test_juice_of_a_job_whose_lag_is_unknown_is_called_unknown():
    record = JobRecord(utility=9.0, worth=10.0, latency_s=0.5, juice=None, arrival_rows_s=100.0, met=True)
    rows = rows_of_round(RoundRecord(10.0, "converged", 9.0, 10.0, {"page-load": record}))
    assert "unknown" in drawn(jobs_table(rows)[0])[-1].split()


# -- the picture of the docs


def test_picture_of_the_live_table_shows_the_table_as_it_is(tmp_path):
    """`HEADGATE_SCREENSHOTS=1 pytest tests/test_screen.py -k picture` renews the picture."""
    clock = [1_780_000_000.0]
    with show(tmp_path, NAMED[:4], 3600.0, lambda: clock[0]) as shown:
        for _ in range(6):
            clock[0] += ROUND_S
            shown.service.round()
        rounds, actions = shown.service.journal.sampled(0.0, 64, ()), shown.service.journal.actions()
        picture = shown.service.board.picture()
    assert picture is not None
    console = Console(file=io.StringIO(), record=True, width=126)
    history = thin_out([one.score / one.max_score for one in rounds], 16)
    shown_actions = [happened(one.action, clock_of(one.at_s)) for one in actions[-3:]]
    console.print(table(picture.view, picture.phase, history, shown_actions, clock=clock_of(clock[0])))
    drawing = console.export_svg(title="headgate run", unique_id="live")
    if "HEADGATE_SCREENSHOTS" in os.environ:
        LIVE.write_text(drawing)
    assert LIVE.read_text() == drawing


def clock_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")
