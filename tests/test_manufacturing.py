"""The manufacturing example without Spark: its formulas, what it reads from pictures, when it warns, what it reports."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.errors import JobFileError
from headgate.jobfile import JobRequest
from headgate.spark.jobs.loading import imported, load
from tests.examples import examples

FILE = Path(__file__).parents[1] / "examples" / "manufacturing.py"
with imported(FILE) as module:
    EXAMPLE = SimpleNamespace(**vars(module))
NEEDS_TESSERACT = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
FORMULAS = ("availability", "performance", "quality")

displays = st.builds(EXAMPLE.display, st.integers(0, 9999), st.integers(1, 20))


class Kept:
    """A field of a key's state, in memory."""

    def __init__(self, thing: Any = None) -> None:
        self.thing = thing

    def get(self) -> Any:
        return self.thing

    def set(self, thing: Any) -> None:
        self.thing = thing


# -- formulas


def test_formulas_are_those_of_the_paper():
    shown = {"produced": 80, "cycle": 6, "planned": 9, "unplanned": 6, "total": 500, "defective": 20}
    assert EXAMPLE.performance(shown) == 0.8  # 80 items of 0.1 s in 10 s
    assert EXAMPLE.availability(shown) == 0.75  # 45 s of 60 s
    assert EXAMPLE.quality(shown) == 0.96  # 480 of 500


def test_machine_that_never_stops_and_never_fails_is_fully_effective():
    shown = {"produced": 100, "cycle": 3, "planned": 0, "unplanned": 0, "total": 300, "defective": 0}
    assert [getattr(EXAMPLE, name)(shown) for name in FORMULAS] == [1.0, 1.0, 1.0]


@example(EXAMPLE.display(2, 3))  # the first cycle of a machine that would not begin with no items
@given(displays)
def test_every_part_of_a_display_that_machines_show_is_a_share(shown):
    assert all(0 < getattr(EXAMPLE, name)(shown) <= 1 for name in FORMULAS)


@given(st.integers(0, 500), st.integers(1, 20))
def test_items_of_all_cycles_are_the_total(cycles, machines):
    rows = [cycle * machines for cycle in range(cycles + 1)]
    shown = [EXAMPLE.display(row, machines) for row in rows]
    assert sum(one["produced"] for one in shown) == shown[-1]["total"]


# -- pictures


@NEEDS_TESSERACT
@examples(5)
@given(displays)
def test_what_is_read_from_a_picture_is_what_the_display_showed(shown):
    assert EXAMPLE.numbers_in(EXAMPLE.picture(shown)) == shown


@NEEDS_TESSERACT
def test_picture_that_lacks_a_line_cannot_be_read():
    shown = {name: value for name, value in EXAMPLE.display(5, 2).items() if name != "total"}
    with pytest.raises(ValueError, match=r"no number can be read for total$"):
        EXAMPLE.numbers_in(EXAMPLE.picture(shown))


@NEEDS_TESSERACT
def test_machine_that_has_not_begun_to_work_has_no_effectiveness():
    idle = {**EXAMPLE.display(0, 1), "total": 0}
    assert EXAMPLE.parse({"row": 0, "picture": EXAMPLE.picture(idle), "arrived": None}) is None


def test_job_without_an_ocr_engine_is_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobFileError, match=r"tesseract is needed .* \(Debian: tesseract-ocr\)$"):
        load(JobRequest(str(FILE)))


# -- warnings and reports


def warnings(function: Any, field: str, first: Any, column: str, values: list[Any]) -> list[str]:
    emitted: list[Any] = []
    state = SimpleNamespace(**{field: Kept(first)})
    for value in values:
        function(7, {column: value, "arrived": None}, state, emitted.append)
    return [one["text"] for one in emitted]


def test_each_new_defect_gives_one_warning():
    states = ["available", "defect", "defect", "planned downtime", "defect", "available"]
    assert warnings(EXAMPLE.new_defect, "last", "available", "state", states) == ["is defect"] * 2


def test_each_new_heat_gives_one_warning():
    degrees = [90, 91, 95, 90, 60, 92]
    assert warnings(EXAMPLE.new_heat, "hot", False, "degrees", degrees) == ["has 91 degrees", "has 92 degrees"]


def test_report_has_the_means_of_each_machine():
    values = [[1, 0.5, 0.5, 0.5, 0.125], [0, 1.0, 0.8, 0.5, 0.4], [1, 1.0, 0.5, 1.0, 0.5]]
    emitted: list[Any] = []
    EXAMPLE.add_up(60, 120_000, SimpleNamespace(values=values), emitted.append)
    assert emitted == [
        {
            "from_s": 60,
            "machine": 0,
            "pictures": 1,
            "availability": 1.0,
            "performance": 0.8,
            "quality": 0.5,
            "oee": 0.4,
        },
        {
            "from_s": 60,
            "machine": 1,
            "pictures": 2,
            "availability": 0.75,
            "performance": 0.5,
            "quality": 0.75,
            "oee": 0.3125,
        },
    ]
    assert not values, "the state of a minute that is over goes"


def test_report_is_a_pdf(tmp_path):
    means = [{"machine": one, "pictures": 6, **dict.fromkeys(EXAMPLE.PARTS, 0.5)} for one in range(12)]
    EXAMPLE.draw(tmp_path / "report.pdf", "1 May 2026, 12:00:00", means)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
