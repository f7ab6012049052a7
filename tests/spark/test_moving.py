"""Lanes on a real cluster of several hosts: each has its own, and leaves it from one epoch to the next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .builders import column, written
from .on_cluster import HOSTS, ROWS
from .processes import told_by
from .test_keyed import expected, newest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def told(place: Path) -> Any:
    return told_by("tests.spark.on_cluster", place)


@pytest.mark.parametrize("job", ["copied", "counted"])
def test_every_host_has_its_share_of_the_lanes(told: dict[str, Any], job: str) -> None:
    lanes = Counter(told[job]["before"])
    assert len(lanes) == HOSTS and set(lanes.values()) == {2 if job == "copied" else 1}


@pytest.mark.parametrize("job", ["copied", "counted"])
def test_lanes_leave_a_host_live(told: dict[str, Any], job: str) -> None:
    found = told[job]
    assert found["applied"] and not found["restarted"]
    assert set(found["after"]) == set(found["before"]) - {found["left"]}


@pytest.mark.parametrize("job", ["copied", "counted"])
def test_only_lane_keeps_off_the_host_as_well(told: dict[str, Any], job: str) -> None:
    (host,) = told[job]["alone"]
    assert host in told[job]["after"]


def test_rows_are_where_their_lanes_are(told: dict[str, Any], place: Path) -> None:
    hosts = {number: set(table.column("host").to_pylist()) for number, table in written(place / "copied").items()}
    found = told["copied"]
    assert hosts[found["epochs"] - 2] == set(found["before"])
    assert all(found["left"] not in there for number, there in hosts.items() if number > found["epochs"])


def test_lanes_in_turn_get_as_many_rows_as_each_other(told: dict[str, Any]) -> None:
    rows = told["copied"]["lane_rows"]
    assert min(rows) > 0 and max(rows) <= 1.25 * min(rows)


def test_no_row_is_lost_or_doubled_when_lanes_move(told: dict[str, Any], place: Path) -> None:
    assert column(place / "copied") == list(range(ROWS))
    assert newest(place / "counted") == expected(ROWS)


def test_lanes_must_run_somewhere(told: dict[str, Any]) -> None:
    assert "there is no host besides 127.0.0.11, 127.0.0.12, 127.0.0.13 that its lanes could run on" in told["refused"]
