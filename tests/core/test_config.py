from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from headgate.config import Settings
from headgate.config.settings import KINDS, RENAMED, all_settings_from, describe, reference, settings_from
from headgate.errors import SettingError


def test_defaults_are_the_figures_of_the_paper() -> None:
    settings = Settings()
    assert (settings.round_s, settings.window_s) == (10, 60)
    assert settings.capacity_threshold == 0.3
    assert settings.improvement == settings.drop == 0.05
    assert settings.reduction == 0.8
    assert settings.skip_s == 3600
    assert settings.outage_data_s == 300


EVERY = [row for kind in KINDS.values() for row in describe(kind)]


def test_no_two_settings_have_the_same_name() -> None:
    names = [row["name"] for row in EVERY]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row["name"])
def test_every_setting_has_a_sentence_and_a_default_that_is_allowed(row: dict[str, Any]) -> None:
    assert row["text"].endswith(".") and len(row["text"].split()) > 3
    assert row["unit"] or row["choices"]
    if isinstance(row["default"], str) and not row["choices"]:
        assert row["default"] == ""  # a path: nobody's directory is everyone's default
        return
    allowed = row["default"] in row["choices"] if row["choices"] else row["low"] <= row["default"] <= row["high"]
    assert allowed


def test_reference_has_a_line_for_every_setting() -> None:
    for row in EVERY:
        assert f"| `{row['name']}` |" in reference()


def test_values_are_converted_to_the_type_of_the_setting() -> None:
    settings = settings_from({"round_s": "5", "stable_rounds": "3", "sizing": "paper"})
    assert settings.round_s == 5.0
    assert settings.stable_rounds == 3 and isinstance(settings.stable_rounds, int)
    assert settings.sizing == "paper"


def test_what_is_not_named_stays_as_it_was() -> None:
    base = settings_from({"round_s": 5})
    assert settings_from({"skip_s": 60}, base) == dataclasses.replace(base, skip_s=60)
    assert settings_from({}) == Settings()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rounds_s": 5}, r'there is no setting "rounds_s". Did you mean "round_s"\?'),
        ({"brink": 0.8}, 'setting "brink" is now named "close_to_miss"; write the new name'),
        ({"qqq": 5}, 'there is no setting "qqq". `headgate settings` lists them'),
        ({"round_s": 0}, 'setting "round_s" is 0; it must be at least 0.1'),
        ({"round_s": "soon"}, "setting \"round_s\" is 'soon'; it must be a number"),
        ({"round_s": None}, 'setting "round_s" is None; it must be a number'),
        ({"round_s": True}, 'setting "round_s" is True; it must be a number'),
        ({"round_s": math.nan}, 'setting "round_s" is nan; it must be'),
        ({"stable_rounds": 2.5}, 'setting "stable_rounds" is 2.5; it must be a whole number'),
        ({"stable_rounds": math.inf}, 'setting "stable_rounds" is inf; it must be a whole number'),
        ({"reduction": 1.5}, 'setting "reduction" is 1.5; it must be at least 0 and at most 1'),
        ({"sizing": "modle"}, "setting \"sizing\" is 'modle'; allowed are model, paper"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        settings_from(values)


def test_renamed_settings_lead_to_settings_that_exist() -> None:
    names = {row["name"] for row in EVERY}
    assert set(RENAMED.values()) <= names and not set(RENAMED) & names


def test_settings_of_keyed_state_go_with_those_of_spark() -> None:
    run = all_settings_from({"merge_epochs": "7", "slots": 4, "round_s": 5, "point_price": "3", "btu_s": 60})
    assert (run.loop.round_s, run.spark.slots, run.spark.state.merge_epochs) == (5, 4, 7)
    assert (run.hosts.point_price, run.pool.btu_s) == (3, 60)


def test_setting_that_no_kind_has_is_refused_also_among_many_kinds() -> None:
    with pytest.raises(SettingError, match=r'there is no setting "btu". Did you mean "btu_s"\?'):
        all_settings_from({"btu": 60})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("tenant_environment", "LAKE KEY", "it must be names separated by commas"),
        ("state_dir", "state", "it must be an absolute path"),
        ("state_dir", "s3://bucket/state", "it must be an absolute path"),
        ("state_dir", 7, "it must be a text"),
        ("checkpoint", "state", "it must be an absolute path or URI"),
        ("checkpoint", "s3://key:hush@bucket/state", "contains a secret"),
    ],
)
def test_a_place_is_absolute_and_without_secrets(name: str, value: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says) as told:
        all_settings_from({name: value})
    assert "hush" not in str(told.value)


def test_a_place_is_a_path_or_a_uri() -> None:
    found = all_settings_from({"checkpoint": "s3://bucket/state", "state_dir": "/mnt/disk"}).spark.state
    assert (found.checkpoint, found.state_dir) == ("s3://bucket/state", "/mnt/disk")
