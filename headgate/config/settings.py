"""Checks settings given as names and values, and describes all settings for people."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeVar

from headgate.config import (
    FAST,
    FAST_HOSTS,
    FAST_SPARK,
    UNLIMITED,
    HostSettings,
    PoolSettings,
    ServiceSettings,
    Settings,
    SparkSettings,
    StateSettings,
)
from headgate.errors import SettingError

KINDS: Mapping[str, type] = {
    "The control loop": Settings,
    "The service": ServiceSettings,
    "Jobs on Spark": SparkSettings,
    "Keyed state": StateSettings,
    "Hosts": HostSettings,
    "Hosts of `headgate run --hosts`": PoolSettings,
}

RENAMED: Mapping[str, str] = {"brink": "close_to_miss"}
"""New names of renamed settings, by old name: an old name is refused with a hint at the new name, but read from old journals."""


def describe(kind: type = Settings) -> list[dict[str, Any]]:
    """All settings of a kind as rows: name, default, unit, text, range."""
    return [{"name": f.name, "default": f.default, **f.metadata} for f in dataclasses.fields(kind) if f.metadata]


def settings_from(values: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Settings with `values` in place of the defaults; text is converted to the setting's type.

    >>> settings_from({"round_s": "5"}).round_s
    5.0
    """
    return _consistent(_replace(base or Settings(), values, describe()))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings of `headgate run`, by kind."""

    loop: Settings
    spark: SparkSettings
    hosts: HostSettings
    pool: PoolSettings
    service: ServiceSettings


def all_settings_from(values: Mapping[str, Any]) -> RunSettings:
    """Settings of every kind from one list of names.

    >>> all_settings_from({"slots": "4", "round_s": 5}).spark.slots
    4
    """
    rows = [row for kind in KINDS.values() for row in describe(kind)]
    for name in values:
        _check_name(name, {row["name"]: row for row in rows})
    kept = _replace(StateSettings(), _among(values, StateSettings), rows)
    return RunSettings(
        _consistent(_replace(Settings(), _among(values, Settings), rows)),
        dataclasses.replace(_replace(SparkSettings(), _among(values, SparkSettings), rows), state=kept),
        _replace(HostSettings(), _among(values, HostSettings), rows),
        _replace(PoolSettings(), _among(values, PoolSettings), rows),
        _replace(ServiceSettings(), _among(values, ServiceSettings), rows),
    )


def _among(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    names = {row["name"] for row in describe(kind)}
    return {name: value for name, value in values.items() if name in names}


def host_settings_from(values: Mapping[str, Any], base: HostSettings | None = None) -> HostSettings:
    """Settings of hosts with `values` in place of the defaults; text is converted to the setting's type.

    >>> host_settings_from({"trend": "7"}).trend
    7
    """
    return _replace(base or HostSettings(), values, describe(HostSettings))


Kind = TypeVar("Kind", Settings, SparkSettings, StateSettings, HostSettings, PoolSettings, ServiceSettings)


def _replace(base: Kind, values: Mapping[str, Any], rows: list[dict[str, Any]]) -> Kind:
    by_name = {row["name"]: row for row in rows}
    return dataclasses.replace(base, **{name: _check_value(name, value, by_name) for name, value in values.items()})


def _consistent(settings: Settings) -> Settings:
    """Refuse settings that are valid alone but contradict each other."""
    order = ("round_s", "warm_up_s", "window_s")
    for shorter, longer in pairwise(order):
        if getattr(settings, shorter) > getattr(settings, longer):
            raise SettingError(
                f'setting "{shorter}" is {getattr(settings, shorter):g} and "{longer}" {getattr(settings, longer):g};'
                f" {' <= '.join(order)} must hold, or no job could ever be judged"
            )
    if settings.settle_min_s > settings.settle_max_s:
        raise SettingError(
            f'setting "settle_min_s" is {settings.settle_min_s:g}, above "settle_max_s" ({settings.settle_max_s:g})'
        )
    if settings.health_least_s > settings.health_window_s:
        raise SettingError(
            f'setting "health_least_s" is {settings.health_least_s:g},'
            f' above "health_window_s" ({settings.health_window_s:g})'
        )
    return settings


def _check_name(name: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    if name in RENAMED:
        raise SettingError(f'setting "{name}" is now named "{RENAMED[name]}"; write the new name')
    if name not in rows:
        close = get_close_matches(name, rows, 1)
        hint = f' Did you mean "{close[0]}"?' if close else " `headgate settings` lists them."
        raise SettingError(f'there is no setting "{name}".{hint}')


def _check_value(name: str, value: Any, rows: Mapping[str, Mapping[str, Any]]) -> Any:
    _check_name(name, rows)
    row = rows[name]
    if row["choices"]:
        if value not in row["choices"]:
            raise SettingError(f'setting "{name}" is {value!r}; allowed are {", ".join(row["choices"])}')
        return value
    return _text(name, value, row) if isinstance(row["default"], str) else _number(name, value, row)


def names_in(value: str) -> tuple[str, ...]:
    """The names in the text of a setting that holds a list of names.

    >>> names_in("LAKE, SHOP")
    ('LAKE', 'SHOP')
    """
    return tuple(one.strip() for one in value.split(",") if one.strip())


def _text(name: str, value: Any, row: Mapping[str, Any]) -> str:
    """Check a text; a path must be absolute, because a relative path would differ between the processes that read the setting."""
    if not isinstance(value, str):
        raise SettingError(f'setting "{name}" is {value!r}; it must be a text')
    if row["unit"] == "names":
        if not all(re.fullmatch(r"[A-Za-z_]\w*", one) for one in names_in(value)):
            raise SettingError(f'setting "{name}" is {value!r}; it must be names separated by commas')
        return value
    if value and not (value.startswith("/") or "://" in value):
        raise SettingError(f'setting "{name}" is {value!r}; it must be an absolute {row["unit"]}')
    if ":" in value.partition("://")[2].rpartition("@")[0]:
        raise SettingError(
            f'setting "{name}" contains a secret, which everyone would see who may see the settings; set the variables of its store'
            " instead, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for the driver and on each host"
        )
    if "://" in value and "URI" not in row["unit"]:
        raise SettingError(f'setting "{name}" is {value!r}; it must be an absolute {row["unit"]}')
    return value


def _number(name: str, value: Any, row: Mapping[str, Any]) -> float | int:
    whole = isinstance(row["default"], int)
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or (whole and number != int(number)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f'setting "{name}" is {value!r}; it must be a {"whole " if whole else ""}number') from None
    if not row["low"] <= number <= row["high"]:
        upper = "" if row["high"] == UNLIMITED else f" and at most {row['high']:g}"
        raise SettingError(f'setting "{name}" is {value!r}; it must be at least {row["low"]:g}{upper}')
    return int(number) if whole else number


def reference() -> str:
    """The settings reference as Markdown."""
    parts = [f"## {title}\n\n{_table(kind)}" for title, kind in KINDS.items()]
    return "\n".join(parts)


def _table(kind: type) -> str:
    fast = {**FAST, **FAST_HOSTS, **FAST_SPARK}
    lines = ["| setting | default | unit | meaning | `--fast` |", "|---|---|---|---|---|"]
    for row in describe(kind):
        choices = f" One of {', '.join(row['choices'])}." if row["choices"] else ""
        lines.append(
            f"| `{row['name']}` | {row['default']} | {row['unit']} | {row['text']}{choices} | {fast.get(row['name'], '')} |"
        )
    return "\n".join(lines) + "\n"
