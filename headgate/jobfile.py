"""Reads job files (Python) and cluster files (TOML) into requests to add jobs; every error names its file.

The module neither needs Spark nor loads job files, so that a client can check requests as well; `spark/jobs/loading.py` loads job files.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.alerts import check_webhook
from headgate.core.intents import intent_from
from headgate.core.model import MOST_SHARE
from headgate.core.quantities import about, check_fields, number, shown
from headgate.errors import InputError, JobFileError
from headgate.health.policies import user_policies_from
from headgate.topology import name_trouble

JOB_SUFFIX, CLUSTER_SUFFIX = ".py", ".toml"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request to run one job: its file, and values that replace those of the file; None: no replacement."""

    file: str
    name: str | None = None
    tenant: str | None = None
    intent: dict[str, Any] | None = None
    share: int | None = None
    pace_s: float | None = None
    lanes: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)


FIELDS = tuple(one.name for one in dataclasses.fields(JobRequest))


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The content of a cluster file: jobs that share a cluster, settings, user policies, webhook and tenants."""

    settings: Mapping[str, Any]
    jobs: tuple[JobRequest, ...]
    user_policies: Mapping[str, str] = field(default_factory=dict)
    """Import paths or entry points of user policies, by name."""
    webhook: str | None = None
    """Address that alerts are posted to; None: no webhook."""
    directory: Path = Path()
    """Directory that is searched first for import paths."""
    tenants: tuple[Mapping[str, Any], ...] = ()
    """The tenants of the service, with their quotas."""


# -- cluster files -----------------------------------------------------------------------------------------------------


def read(path: Path | str, parameters: Mapping[str, Any] | None = None) -> ClusterFile:
    """Read a job file or a cluster file; parameters apply only to a job file: `read("pageload.py", {"rate": 500})`."""
    path = Path(path)
    if path.suffix == CLUSTER_SUFFIX:
        return read_cluster(path)
    if path.suffix != JOB_SUFFIX:
        raise JobFileError(f"{path}: a job file ends in {JOB_SUFFIX}, a cluster file in {CLUSTER_SUFFIX}")
    with about(str(path), JobFileError):
        return ClusterFile({}, (JobRequest(_existing(path), parameters=_parameters(parameters or {})),))


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster file: `[settings]` and any number of `[[job]]`."""
    with about(str(path), JobFileError):
        table = _toml(path)
        check_fields(table, ("settings", "job", "user_policies", "alerts", "tenant"), JobFileError)
        settings, entries = table.get("settings", {}), table.get("job", [])
        if not isinstance(settings, dict):
            raise JobFileError(f"settings is {shown(settings)}; it must be a table")
        tenants = table.get("tenant", [])
        if not isinstance(tenants, list) or not all(isinstance(one, dict) for one in tenants):
            raise JobFileError(f"tenant is {shown(tenants)}; begin each one with [[tenant]]")
        if not isinstance(entries, list) or not (entries or tenants):
            raise JobFileError("there is no job in it; begin each one with [[job]]")
        jobs = tuple(_entry(entry, at, path.parent) for at, entry in enumerate(entries, 1))
        policies = user_policies_from(table.get("user_policies", {}), JobFileError)
        webhook = _webhook(table.get("alerts", {}))
        return ClusterFile(settings, jobs, policies, webhook, path.parent.resolve(), tuple(tenants))


def _webhook(table: Any) -> str | None:
    with about("alerts", JobFileError):
        if not isinstance(table, dict):
            raise JobFileError(f"it is {shown(table)}; it must be a table")
        check_fields(table, ("webhook",), JobFileError)
        return check_webhook(table["webhook"]) if "webhook" in table else None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise JobFileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobFileError("is not a text file") from None
    except tomllib.TOMLDecodeError as error:
        raise JobFileError(f"is not valid TOML: {error}") from None


def _entry(entry: Any, position: int, directory: Path) -> JobRequest:
    named = isinstance(entry, dict) and isinstance(entry.get("name"), str)
    with about(f'job "{entry["name"]}"' if named else f"job number {position}", JobFileError):
        return request_from(entry, directory)


def request_from(table: Any, directory: Path | None = None) -> JobRequest:
    """A request from a table of a cluster file or of the API; a relative `file` is resolved in `directory`.

    >>> request_from({"file": "nothing.py"})
    Traceback (most recent call last):
    headgate.errors.JobFileError: there is no file "nothing.py"
    """
    if not isinstance(table, dict):
        raise JobFileError(f"it is {shown(table)}; it must be a table")
    check_fields(table, FIELDS, JobFileError)
    given = {name: value for name, value in table.items() if value is not None}
    if not isinstance(given.get("file"), str):
        raise JobFileError(f"file is {shown(table.get('file'))}; it must name a job file, such as pageload.py")
    if not given["file"].endswith(JOB_SUFFIX):  # checked before any access to the file, which may be any file
        raise JobFileError(f"file is {shown(given['file'])}; a job file ends in {JOB_SUFFIX}")
    check_texts(given)
    if "intent" in given:
        intent_from(given["intent"], "intent")
    if "share" in given:
        given["share"] = whole(given["share"], "share", high=MOST_SHARE)
    if "pace_s" in given:
        given["pace_s"] = number(given["pace_s"], "pace_s", low=0, error=JobFileError)
    given["lanes"] = _lanes(given.get("lanes", {}))
    given["parameters"] = _parameters(given.get("parameters", {}))
    given["file"] = _existing((directory or Path()) / given["file"])
    return JobRequest(**given)


def check_texts(given: Mapping[str, Any]) -> None:
    """Refuse invalid names of jobs and tenants."""
    for what in ("name", "tenant"):
        if what in given and (trouble := name_trouble(given[what])):
            raise JobFileError(f"{what} is {shown(given[what])}; {trouble}")


def _existing(path: Path) -> str:
    """The absolute path of an existing file, because client and service may run in different directories."""
    if not path.is_file():
        raise JobFileError(f"there is no file {shown(str(path))}")
    return str(path.resolve())


def whole(value: Any, what: str, error: type[InputError] = JobFileError, high: int | None = None) -> int:
    """Check for a whole number of at least 1."""
    amount = number(value, what, low=1, high=high, error=error)
    if amount != int(amount):
        raise error(f"{what} is {shown(value)}; it must be a whole number")
    return int(amount)


def _lanes(table: Any) -> dict[str, int]:
    if not isinstance(table, dict):
        raise JobFileError(f"lanes is {shown(table)}; it must be a table such as {{look-up = 4}}")
    return {name: whole(lanes, f"lanes of {name}") for name, lanes in table.items()}


def _parameters(table: Any) -> dict[str, Any]:
    """Check that JSON can represent the parameters."""
    if not isinstance(table, Mapping):
        raise JobFileError(f"parameters is {shown(table)}; it must be a table such as {{rate = 500}}")
    for name, value in table.items():
        if not _plain(value):
            raise JobFileError(
                f"parameter {shown(name)} is {shown(value)}; use text, finite numbers, true, false, lists and tables"
            )
    return dict(table)


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
