"""Keyed state on a real cluster: lanes run where their slices are, slices leave a host that goes, and come up again if one is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .builders import written
from .on_cluster_state import ROWS
from .processes import told_by
from .test_keyed import expected, newest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def told(place: Path) -> Any:
    return told_by("tests.spark.on_cluster_state", place)


def test_in_steady_state_slices_are_opened_where_they_are(told: dict[str, Any]) -> None:
    opened = told["steady"]["opened"]
    assert opened["local"] >= 0.95 * sum(opened.values()) > 0


@pytest.mark.parametrize("chapter", ["left", "returned"])
def test_slices_are_there_before_their_lanes(told: dict[str, Any], chapter: str) -> None:
    opened = told[chapter]["opened"]
    assert opened.get("rebuilt", 0) == 0 and opened["local"] > 0


def test_backups_take_over_from_a_host_that_is_killed(told: dict[str, Any]) -> None:
    opened = told["lost"]["opened"]
    assert opened.get("rebuilt", 0) == 0 and opened.get("caught up", 0) + opened["local"] > 0
    assert (told["phase"], told["reason"]) == ("running", "")


@pytest.mark.parametrize("chapter", ["steady", "left", "returned", "lost"])
def test_counts_are_exact_whatever_becomes_of_hosts(told: dict[str, Any], place: Path, chapter: str) -> None:
    epochs = written(place / "out")
    rows = [row for number in sorted(epochs) if number <= told[chapter]["epoch"] for row in epochs[number].to_pylist()]
    counted = {row["user"]: row for row in rows}
    assert counted == expected(sum(row["n"] for row in counted.values()))


def test_no_row_is_lost_or_doubled_in_the_end(told: dict[str, Any], place: Path) -> None:
    assert told["phase"] == "running"
    assert newest(place / "out") == expected(ROWS)
