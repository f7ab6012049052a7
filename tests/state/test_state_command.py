"""`headgate state`: what a keyed operator remembers, for a person and for a script."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from headgate.cli import run_command
from headgate.state.inspect import OPENS, Opens, place_of

from .builders import Driver, rows
from .test_hosting import Cluster


@pytest.fixture
def home(tmp_path: Path) -> Path:
    driver = Driver(place_of(tmp_path / "jobs" / "shop", "visits"))
    driver.epoch_of(rows([(user, 10 * user) for user in range(30)]))
    driver.epoch_of(rows([(7, 1)]))
    return tmp_path


def test_state_of_one_key_is_shown_as_of_the_last_epoch(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["state", "shop", "visits", "--key", "7", "--home", str(home), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert entry["key"] == {"user": 7}
    assert entry["state"] == {":count": 2, "amount:count": 2, "amount:sum": 71}


def test_of_many_keys_some_are_shown_and_the_rest_counted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["state", "shop", "visits", "--most", "4", "--home", str(home)]) == 0
    assert "26 keys more" in capsys.readouterr().out


def test_slices_are_shown_by_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(place_of(tmp_path / "jobs" / "shop", "visits"), "ab")
    cluster.go_on(3)
    opens = Opens(2, {"local": 6}, {"new": 6, "local": 9, "caught up": 3})
    (place_of(tmp_path / "jobs" / "shop", "visits") / OPENS).write_bytes(msgspec.json.encode(opens))
    assert run_command(["state", "shop", "visits", "--hosts", "--home", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    assert "75.0 % of the slices were opened on the host of their lane." in out
    each = {"slices": 3, "backups": 3, "coming": 0}
    assert json.loads(out.splitlines()[-1]) == {"hosts": {"a": each, "b": each}, "local": 0.75}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("shp", "visits"), 'no job "shp" has keyed state in'),
        (("shop", "visit"), 'operator "visit" of job "shop" has no keyed state; there is state of visits.'),
        (("shop", "visits", "--key", "99"), 'operator "visits" of job "shop" has no state of 99'),
        (("shop", "visits", "--hosts"), 'operator "visits" of job "shop" does not run on a cluster'),
        (("shop", "visits", "--key", "x"), 'is no key of operator "visits"'),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert run_command(["state", *arguments, "--home", str(home)]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
