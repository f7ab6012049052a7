"""Turns a request into a topology in this process: imports the job file, calls its function, and applies the changes of the request.

A service loads files in a separate process (`jobloader`), unless the file needs the Spark session of the service.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from headgate.core.intents import intent_from
from headgate.core.quantities import about, did_you_mean, show_seconds, shown
from headgate.errors import InputError, JobFileError
from headgate.jobfile import JobRequest, check_texts
from headgate.topology import Kind, Node, Topology

FUNCTION = "topology"


def load(request: JobRequest, wait_s: float | None = None) -> Topology:
    """Load the job file, call its function and apply the request's changes; wait at most `wait_s` for other files, or forever if None."""
    topology = _topology(Path(request.file), request.parameters, wait_s)
    with about(request.file, JobFileError):
        _check_name(request)
        topology.name = request.name or topology.name
        topology.tenant = request.tenant or topology.tenant
        _change(topology, request)
        topology.graph()
    return topology


def _check_name(request: JobRequest) -> None:
    check_texts({what: value for what in ("name", "tenant") if (value := getattr(request, what)) is not None})


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


def _topology(path: Path, parameters: Mapping[str, Any], wait_s: float | None) -> Topology:
    with imported(path, wait_s) as module:
        function = _function(module, path)
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

_NUMBERS = count(1)


def late(file: str | Path, limit_s: float) -> str:
    """Say that a job file was too slow to load."""
    return (
        f"{file}: it was not loaded within {show_seconds(limit_s)}; make topology() build the graph only,"
        " or raise the setting load_job_s"
    )


class _Loading:
    """Gives `sys.modules` and `sys.path`, which belong to the whole process, to one job file at a time. Owner: its lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: tuple[Path, threading.Thread] | None = None
        """The file that is being loaded, and the thread that loads it."""

    @contextmanager
    def of(self, path: Path, wait_s: float | None) -> Iterator[None]:
        """Wait for earlier files, then hold the turn during the block."""
        if not self._lock.acquire(timeout=-1 if wait_s is None else wait_s):
            raise JobFileError(self.late(path, wait_s or 0.0, threading.current_thread()))
        before, self._holder = self._holder, (path, threading.current_thread())
        try:
            yield
        finally:
            self._holder = before
            self._lock.release()

    def late(self, file: str | Path, limit_s: float, thread: threading.Thread) -> str:
        """Why the file of this thread was not loaded in time: the file itself is slow, or another file blocks it."""
        holder = self._holder
        if holder is None or holder[1] is thread:
            return late(file, limit_s)
        return (
            f"{file}: it was not loaded within {show_seconds(limit_s)}, because the service still loads {holder[0]};"
            " correct that file and restart the service"
        )


LOADING = _Loading()


@contextmanager
def imported(path: Path, wait_s: float | None = None) -> Iterator[ModuleType]:
    """Import a job file and yield its module; an error in its code becomes one sentence."""
    with LOADING.of(path, wait_s), _errors_as_sentences(path), _as_script(path) as module:
        # Compiled here, because a cached byte code may be older than an edit of the same second.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
        yield module


def run_script(path: Path, arguments: Sequence[str], end: type[BaseException]) -> None:
    """Run a file as `python FILE ARGUMENTS` does, but in this process; an `end` that the file raises ends the run."""
    with LOADING.of(path, None), _errors_as_sentences(path), _as_script(path) as module, suppress(end):
        before, sys.argv = sys.argv, [str(path), *arguments]
        try:
            names = {**vars(module), "__name__": "__main__", "__file__": str(path)}
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), names)
        finally:
            sys.argv = before


@contextmanager
def _as_script(path: Path) -> Iterator[ModuleType]:
    """Yield a module with a unique name for the file; the file can import modules beside it, which belong to this job alone."""
    module = _new_module(path)
    sys.modules[module.__name__] = module
    before, wrote = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(path.parent))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        _pickle_by_value(module)
        yield module
    except BaseException:
        del sys.modules[module.__name__]
        raise
    finally:
        sys.dont_write_bytecode = wrote
        sys.path.remove(str(path.parent))
        _take_away(_beside(path.parent, before), module.__name__)


def _new_module(path: Path) -> ModuleType:
    name = f"headgate_job_{next(_NUMBERS)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def _pickle_by_value(module: ModuleType) -> None:
    """Pickle functions of the module and its submodules by value, because other processes cannot import the module."""
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _take_away(names: set[str], job: str) -> None:
    """Remove modules from `sys.modules` and rename them, so that other jobs neither find these modules nor confuse them in pickles."""
    for name in names:
        sys.modules.pop(name).__name__ = f"{job}.{name}"


def _beside(directory: Path, before: set[str]) -> set[str]:
    """New modules that lie in the directory itself; packages that are installed somewhere below the directory do not count."""
    new = {name for name in sys.modules if name not in before and name.partition(".")[0] not in before}
    return {name for name in new if _lies_in(directory, sys.modules.get(name.partition(".")[0]))}


def _lies_in(directory: Path, module: ModuleType | None) -> bool:
    places = [Path(place).parent for place in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return directory in (places or ([Path(file).parent] if file else []))


@contextmanager
def _errors_as_sentences(path: Path) -> Iterator[None]:
    """Turn an error of user code into one sentence with the file and the line."""
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
    """Return the file and line of the last frame in the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    return (own[-1].filename, own[-1].lineno) if own else (str(path), None)


def wants_spark(error: JobFileError) -> bool:
    """Whether user code failed inside pyspark, as column expressions do as long as no Spark runs."""
    frames = traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ is not None else []
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts
