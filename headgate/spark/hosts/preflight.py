"""The preflight of a cluster: no lane runs on a host before the host has shown that it sees what the driver sees.

On a cluster, a folder that only the driver has would swallow output and state without an error: Spark's tasks write to their own disk,
and the driver commits what it cannot see. So each host that a job may use answers a nonce in every folder that the job writes to, once
when the host joins. A host that fails gets no lanes, and the jobs say why; a job without any host waits. Spark can still run other tasks
on such a host, such as exchanges of the user's own; the commit of the epoch detects their missing files.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

import headgate
from headgate.errors import StateError
from headgate.spark.hosts.host_checks import (
    HostAnswer,
    HostCheck,
    StoreCheck,
    answer_name,
    python_version,
    question_name,
)
from headgate.spark.reasons import reason_of
from headgate.spark.sinks.files import Files
from headgate.state.location import Location
from headgate.topology import Topology

AGAIN_S = 10.0
"""Time in seconds after which a host that failed or did not answer is asked again."""

Ask = Callable[[Sequence[str], HostCheck], Mapping[str, bytes]]
"""Runs the check on each host; a host that could not be asked does not answer. May raise anything."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that lanes write to."""

    path: str
    """A path or a URI."""
    what: str
    """Owner of the folder, at the start of a sentence: `the checkpoint location`."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs of each host."""

    folders: tuple[Folder, ...] = ()
    store: StoreCheck | None = None
    """None for a job without keyed state."""

    def items(self) -> tuple[Folder | StoreCheck, ...]:
        """Return each need separately: jobs with the same need share the answers."""
        return (*self.folders, *(() if self.store is None else (self.store,)))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer of a host about one need, and its time."""

    problem: str
    at_s: float

    def is_open(self, now_s: float) -> bool:
        """Whether the host is to be asked again."""
        return bool(self.problem) and now_s - self.at_s >= AGAIN_S


@dataclass(frozen=True, slots=True)
class Passed:
    """The hosts that a job may use."""

    cores: Mapping[str, float]
    problems: tuple[str, ...] = ()
    """One sentence for each host that the job may not use."""


@dataclass
class Preflight:
    """Remembers which host has passed for which need. Owner of the results: the lock; the thread that holds the lock asks the hosts."""

    ask: Ask
    clock: Callable[[], float] = time.monotonic
    _results: dict[tuple[str, Folder | StoreCheck], CheckResult] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def passed(self, cores: Mapping[str, float], needs: Needs) -> Passed:
        """The hosts that have passed for these needs; asks hosts that have not been asked.

        A thread waits for the questions of another thread only if there is no host that it could use meanwhile.
        """
        if self._missing(cores, needs) and self._lock.acquire(blocking=not self._found(cores, needs).cores):
            try:
                self._forget_others(cores)
                self._ask_missing(cores, needs)
            finally:
                self._lock.release()
        return self._found(cores, needs)

    def _found(self, cores: Mapping[str, float], needs: Needs) -> Passed:
        problems = {host: self._problem(host, needs) for host in cores}
        kept = {host: count for host, count in cores.items() if problems[host] == ""}
        return Passed(kept, tuple(problem for problem in problems.values() if problem))

    def _problem(self, host: str, needs: Needs) -> str | None:
        """The problem of a host with these needs; empty if the host has passed, None if it has not been asked."""
        verdicts = [self._results.get((host, need)) for need in needs.items()]
        known = [one.problem for one in verdicts if one is not None and one.problem]
        return known[0] if known else None if None in verdicts else ""

    def _missing(self, cores: Mapping[str, float], needs: Needs) -> list[tuple[str, Folder | StoreCheck]]:
        now_s = self.clock()
        pairs = [(host, need) for host in cores for need in needs.items()]
        return [pair for pair in pairs if (one := self._results.get(pair)) is None or one.is_open(now_s)]

    def _forget_others(self, cores: Mapping[str, float]) -> None:
        """A host that comes back is asked again: it may be another machine."""
        for pair in [pair for pair in list(self._results) if pair[0] not in cores]:
            del self._results[pair]

    def _ask_missing(self, cores: Mapping[str, float], needs: Needs) -> None:
        missing = self._missing(cores, needs)
        hosts = tuple(dict.fromkeys(host for host, _ in missing))
        asked = tuple(dict.fromkeys(need for _, need in missing))
        found = self._asked(hosts, asked) if missing else {}
        now_s = self.clock()
        for host, need in missing:
            self._results[host, need] = CheckResult(found[host, need], now_s)

    def _asked(
        self, hosts: Sequence[str], needs: Sequence[Folder | StoreCheck]
    ) -> dict[tuple[str, Folder | StoreCheck], str]:
        """The problem of each host with each need."""
        folders = [need for need in needs if isinstance(need, Folder)]
        stores = tuple(need for need in needs if isinstance(need, StoreCheck))
        nonce = uuid.uuid4().hex
        unwritten = {folder: _write(folder, nonce) for folder in folders}
        try:
            check = HostCheck(nonce, tuple(one.path for one in folders if not unwritten[one]), stores)
            answers = self._answers(hosts, check)
            found = {}
            for host in hosts:
                for need in needs:
                    of_driver = unwritten[need] if isinstance(need, Folder) else ""
                    found[host, need] = of_driver or _verdict(host, answers[host], need, nonce)
            return found
        finally:
            for folder in folders:
                _delete(folder, nonce, hosts)

    def _answers(self, hosts: Sequence[str], check: HostCheck) -> dict[str, HostAnswer | str]:
        """The answer of each host, or a sentence about why there is none."""
        try:
            found = self.ask(hosts, check)
        except (
            Exception
        ) as error:  # whatever Spark raises; each host is then asked alone, so that the sentence names it
            if len(hosts) > 1:
                return {host: self._answers((host,), check)[host] for host in hosts}
            return {hosts[0]: _cannot_run(hosts[0], error)}
        told = {host: msgspec.json.decode(text, type=HostAnswer) for host, text in found.items()}
        return {
            host: told.get(host, f"host {host} has not answered the preflight; it is asked again") for host in hosts
        }


def needs_of(topology: Topology, checkpoint: str, store: StoreCheck, local_files: bool) -> Needs:
    """What a job needs of each host: the folders that its lanes write to, and room for its slices.

    `local_files`: whether a path without a scheme is on the disks of the hosts, not in Hadoop's default file system.
    """
    folders = [
        Folder(os.path.abspath(node.dead_letter), f'the dead letters of operator "{node.name}",')
        for node in topology.nodes.values()
        if node.dead_letter is not None
    ]
    for node in topology.nodes.values():
        path = node.function.local_path if isinstance(node.function, Files) else None
        if path is not None and (local_files or node.function.is_file_uri):
            folders.append(Folder(os.path.abspath(path), f'the output of operator "{node.name}",'))
    keyed = any(node.keyed is not None for node in topology.nodes.values())
    if keyed:
        folders.append(Folder(checkpoint, "the checkpoint location"))
    return Needs(tuple(folders), store if keyed else None)


def _cannot_run(host: str, error: Exception) -> str:
    return (
        f"host {host} cannot run the tasks of Headgate ({reason_of(error)}); install Headgate {headgate.__version__} for Python"
        f" {python_version()} there, and set PYSPARK_PYTHON of the driver to its path"
    )


def _verdict(host: str, answer: HostAnswer | str, need: Folder | StoreCheck, nonce: str) -> str:
    if isinstance(answer, str):
        return answer
    if (answer.python, answer.headgate) != (python_version(), headgate.__version__):
        return (
            f"host {host} has Headgate {answer.headgate} on Python {answer.python}, the driver Headgate {headgate.__version__} on"
            f" Python {python_version()}; install the same there"
        )
    if isinstance(need, StoreCheck):
        return f"host {host}: {answer.store}" if answer.store else ""
    problem = answer.folders.get(need.path, "")
    if not problem and not _came_back(need, nonce, host):
        problem = "writes where the driver does not read, instead of to"
    if not problem:
        return ""
    return f'host {host} {problem} {need.what} "{need.path}"; {_remedy(need)}'


def _remedy(folder: Folder) -> str:
    if "://" in folder.path:
        return "give every host access to the object store, with the same credentials as the driver"
    return "mount the same storage on every host under this path, or set another one"


def _write(folder: Folder, nonce: str) -> str:
    try:
        Location.of(folder.path).write(question_name(nonce), nonce.encode())
    except StateError as error:
        return f"the driver cannot write to {folder.what}: {error}"
    return ""


def _came_back(folder: Folder, nonce: str, host: str) -> bool:
    try:
        return bool(Location.of(folder.path).read(answer_name(nonce, host)).to_pybytes() == host.encode())
    except StateError:
        return False


def _delete(folder: Folder, nonce: str, hosts: Sequence[str]) -> None:
    try:
        location = Location.of(folder.path)
        for name in (question_name(nonce), *(answer_name(nonce, host) for host in hosts)):
            location.delete(name)
    except StateError:
        return  # a folder that cannot be written has nothing to delete
