"""`headgate state`: what a keyed operator remembers, for a person and for a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.cli import run_command
from headgate.state.inspect import place_of

from .builders import Driver, rows


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("shp", "visits"), 'no job "shp" has keyed state in'),
        (("shop", "visit"), 'operator "visit" of job "shop" has no keyed state; there is state of visits.'),
        (("shop", "visits", "--key", "99"), 'operator "visits" of job "shop" has no state of 99'),
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
