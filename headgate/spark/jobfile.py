"""Job files (Python) and cluster files (TOML): from what a person wrote to a topology; every mistake names its file.

Nothing here needs Spark until a job file is loaded, so that a client can read and check them as well.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import math
import sys
import threading
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from headgate.alerts import check_webhook
from headgate.core.health.policies import user_policies_from
from headgate.core.intents import intent_from
from headgate.core.quantities import about, check_fields, did_you_mean, number, shown
from headgate.errors import InputError, JobFileError
from headgate.spark.topology import NAME, Kind, Node, Topology

FUNCTION = "topology"
JOB_SUFFIX, CLUSTER_SUFFIX = ".py", ".toml"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job that somebody wants to run: its file, and what differs from what the file says; None: nothing."""

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
    """Jobs that share a cluster, and the settings they share it with."""

    settings: Mapping[str, Any]
    jobs: tuple[JobRequest, ...]
    user_policies: Mapping[str, str] = field(default_factory=dict)
    """By name, the import path or the entry point of a policy of the user's."""
    webhook: str | None = None
    """Where alerts are posted."""
    directory: Path = Path()
    """Where import paths are looked for first."""


# -- cluster files -----------------------------------------------------------------------------------------------------


def read(path: Path | str, parameters: Mapping[str, Any] | None = None) -> ClusterFile:
    """The jobs of a file of either kind; parameters are for a job file: `read("pageload.py", {"rate": 500})`."""
    path = Path(path)
    if path.suffix == CLUSTER_SUFFIX:
        return read_cluster(path)
    if path.suffix != JOB_SUFFIX:
        raise JobFileError(f"{path}: a job file ends in {JOB_SUFFIX}, a cluster file in {CLUSTER_SUFFIX}")
    with about(str(path), JobFileError):
        return ClusterFile({}, (JobRequest(_existing(path), parameters=_parameters(parameters or {})),))


def read_cluster(path: Path) -> ClusterFile:
    """A cluster file: `[settings]` and any number of `[[job]]`."""
    with about(str(path), JobFileError):
        table = _toml(path)
        check_fields(table, ("settings", "job", "user_policies", "alerts"), JobFileError)
        settings, entries = table.get("settings", {}), table.get("job", [])
        if not isinstance(settings, dict):
            raise JobFileError(f"settings is {shown(settings)}; it must be a table")
        if not isinstance(entries, list) or not entries:
            raise JobFileError("there is no job in it; begin each one with [[job]]")
        jobs = tuple(_entry(entry, at, path.parent) for at, entry in enumerate(entries, 1))
        policies = user_policies_from(table.get("user_policies", {}), JobFileError)
        return ClusterFile(settings, jobs, policies, _webhook(table.get("alerts", {})), path.parent.resolve())


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
    """A request from a table of a cluster file or of the API; a relative file is looked for in `directory`.

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
    _check_texts(given)
    if "intent" in given:
        intent_from(given["intent"], "intent")
    if "share" in given:
        given["share"] = whole(given["share"], "share")
    if "pace_s" in given:
        given["pace_s"] = number(given["pace_s"], "pace_s", low=0, error=JobFileError)
    given["lanes"] = _lanes(given.get("lanes", {}))
    given["parameters"] = _parameters(given.get("parameters", {}))
    given["file"] = _existing((directory or Path()) / given["file"])
    return JobRequest(**given)


def _check_texts(given: Mapping[str, Any]) -> None:
    for what in ("name", "tenant"):
        if what in given and (not isinstance(given[what], str) or NAME.fullmatch(given[what]) is None):
            raise JobFileError(
                f"{what} is {shown(given[what])}; use letters, digits, dots, dashes and underscores, no dash or dot first"
            )


def _existing(path: Path) -> str:
    """The absolute path, because the one who asks and the one who runs may be in different directories."""
    if not path.is_file():
        raise JobFileError(f"there is no file {shown(str(path))}")
    return str(path.resolve())


def whole(value: Any, what: str, error: type[InputError] = JobFileError) -> int:
    """A whole number of at least 1."""
    amount = number(value, what, low=1, error=error)
    if amount != int(amount):
        raise error(f"{what} is {shown(value)}; it must be a whole number")
    return int(amount)


def _lanes(table: Any) -> dict[str, int]:
    if not isinstance(table, dict):
        raise JobFileError(f"lanes is {shown(table)}; it must be a table such as {{look-up = 4}}")
    return {name: whole(lanes, f"lanes of {name}") for name, lanes in table.items()}


def _parameters(table: Any) -> dict[str, Any]:
    """They must survive being written down as JSON."""
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


# -- from a request to a topology --------------------------------------------------------------------------------------


def build(request: JobRequest) -> Topology:
    """Load the job file, call its function, and put in what the request changes."""
    topology = _topology(Path(request.file), request.parameters)
    with about(request.file, JobFileError):
        _check_name(request)
        topology.name = request.name or topology.name
        topology.tenant = request.tenant or topology.tenant
        _change(topology, request)
        topology.graph()
    return topology


def _check_name(request: JobRequest) -> None:
    _check_texts({what: value for what in ("name", "tenant") if (value := getattr(request, what)) is not None})


def _change(topology: Topology, request: JobRequest) -> None:
    if request.intent is not None:
        topology.intent = intent_from(request.intent, f'job "{topology.name}": intent')
    topology.share = request.share if request.share is not None else topology.share
    topology.pace_s = request.pace_s if request.pace_s is not None else topology.pace_s
    for operator, lanes in request.lanes.items():
        with about(f'job "{topology.name}": lanes', JobFileError):
            topology.nodes[operator] = _with_lanes(topology, operator, lanes)


def _with_lanes(topology: Topology, operator: str, lanes: int) -> Node:
    node = topology.nodes.get(operator)
    if node is None:
        known = ", ".join(topology.nodes)
        raise JobFileError(
            f"there is no operator {shown(operator)}; there are {known}.{did_you_mean(operator, topology.nodes)}"
        )
    if node.kind is Kind.SOURCE and node.lanes is None:
        raise JobFileError(f'the source "{operator}" decides itself how many lanes it has; leave it out')
    if node.max_lanes is not None and lanes > node.max_lanes:
        raise JobFileError(f'"{operator}" is to have {lanes}, above its max_lanes, which is {node.max_lanes}')
    return dataclasses.replace(node, lanes=lanes)


def _topology(path: Path, parameters: Mapping[str, Any]) -> Topology:
    with _LOADING, _told(path):
        function = _function(_loaded(path), path)
        _check_parameters(function, parameters, path)
        topology = function(**parameters)
    if not isinstance(topology, Topology):
        raise JobFileError(f"{path}: {FUNCTION}() returned {shown(topology)}; it must return its Topology")
    return topology


def _function(module: ModuleType, path: Path) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(module, FUNCTION, None)
    if not callable(function):
        hint = did_you_mean(FUNCTION, [name for name, value in vars(module).items() if inspect.isfunction(value)])
        raise JobFileError(f"{path}: a job file needs a function `def {FUNCTION}() -> Topology`.{hint}")
    return function


def _check_parameters(function: Callable[..., Any], parameters: Mapping[str, Any], path: Path) -> None:
    known = inspect.signature(function).parameters
    named = {name: one for name, one in known.items() if one.kind not in _VARIABLE}
    for name in parameters:
        if name not in named and not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
            has = f"it has {', '.join(named)}" if named else "it has none"
            raise JobFileError(
                f"{path}: {FUNCTION}() has no parameter {shown(name)}; {has}.{did_you_mean(name, named)}"
            )
    for name, one in named.items():
        if one.default is one.empty and name not in parameters:
            raise JobFileError(
                f'{path}: {FUNCTION}() needs the parameter "{name}"; give it with --param {name}=VALUE,'
                " or in parameters of the cluster file"
            )


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# -- user code ---------------------------------------------------------------------------------------------------------

_LOADING = threading.RLock()
"""What is loaded is seen in `sys.modules`, which everybody shares."""
_NUMBERS = count(1)
_siblings: set[str] = set()
"""Modules beside a job file that were imported by it; each load imports them anew."""


def _loaded(path: Path) -> ModuleType:
    """The file as a module under a name of its own, so that it can be loaded again, for another job or after an edit."""
    module = _new_module(path)
    _forget_siblings()
    sys.modules[module.__name__] = module
    before = set(sys.modules)
    with _importable(path.parent):
        try:
            # Compiled here, because a cached byte code may be older than an edit of the same second.
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
        except BaseException:
            del sys.modules[module.__name__]
            raise
        finally:
            _siblings.update(_beside(path.parent, before))
    _pickle_by_value(module.__name__, *_siblings)
    return module


def _new_module(path: Path) -> ModuleType:
    name = f"headgate_job_{next(_NUMBERS)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def _forget_siblings() -> None:
    for name in _siblings:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """First of all places while the file is loaded, as for a script; last of all afterwards, for imports inside functions."""
    place, wrote = str(directory), sys.dont_write_bytecode
    sys.path.insert(0, place)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = wrote
        sys.path.remove(place)
        if place not in sys.path:
            sys.path.append(place)


def _beside(directory: Path, before: set[str]) -> set[str]:
    """New modules that lie in the directory itself; what is installed somewhere below it does not count."""
    new = {name for name in sys.modules if name not in before and name.partition(".")[0] not in before}
    return {name for name in new if _lies_in(directory, sys.modules.get(name.partition(".")[0]))}


def _lies_in(directory: Path, module: ModuleType | None) -> bool:
    places = [Path(place).parent for place in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return directory in (places or ([Path(file).parent] if file else []))


def _pickle_by_value(*names: str) -> None:
    """Spark's workers cannot import these modules, so their functions travel as a whole."""
    from pyspark.cloudpickle import register_pickle_by_value

    for name in names:
        if name in sys.modules:
            register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever user code raises is told in one sentence, with the file and the line."""
    try:
        yield
    except JobFileError:
        raise
    except OSError as error:
        if error.filename == str(path):
            raise JobFileError(f"{path}: cannot be read: {error.strerror}") from None
        raise _sentence(path, error) from error
    # The code is the user's: it may raise anything, or call exit().
    except (Exception, SystemExit) as error:
        raise _sentence(path, error) from error


def _sentence(path: Path, error: BaseException) -> JobFileError:
    if isinstance(error, SyntaxError) and error.filename:
        return JobFileError(f"{error.filename}: line {error.lineno}: {error.msg}")
    file, line = _place(path, error)
    what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}".rstrip(": ")
    return JobFileError(f"{file}: line {line}: {' '.join(what.split())}")


def _place(path: Path, error: BaseException) -> tuple[str, int | None]:
    """The last line of the user's own that was on the way."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    return (own[-1].filename, own[-1].lineno) if own else (str(path), None)


def wants_spark(error: JobFileError) -> bool:
    """Whether user code failed inside pyspark, as column expressions do as long as no Spark runs."""
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ is not None else []
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts
