"""A pool of hosts on this machine: a Spark standalone master, and one worker process per host on a loopback address of its own.

The pool writes a small file per leased host before it starts a worker, and removes the file after the worker has ended. It finds running
workers in the table of processes, by their working directories. A pool that is opened again after its service was killed therefore
finds every host, starts the workers that were leased but not started, and completes pending releases.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pyspark

import headgate
from headgate import files
from headgate.core.hosts import Host, HostPhase, HostType
from headgate.errors import EngineError, HostError
from headgate.hosts.provision import Terms
from headgate.spark import security, session
from headgate.spark.hosts.executors import GRACEFUL
from headgate.spark.logs import Logs, prune

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
MASTER_HOST = "127.0.0.1"
PORTS = "master.json"
MASTER_LOG, WORKER_LOG = "master.log", "worker.log"
DEFAULT_LOGS, RELEASED_LOGS = Logs(), 10
"""Size limit of logs, and the number of released hosts with logs that are kept, unless the settings say otherwise."""
FIRST_ADDRESS, LAST_ADDRESS = 11, 250
"""Last parts of the addresses of hosts: from 127.0.0.11 to 127.0.0.250."""
PATIENCE_S = 120.0
"""Time in seconds after which a worker that has not registered counts as failed."""
DRAIN_S = 20.0
"""Time in seconds that executors of a released worker have to finish, unless the caller says otherwise."""
KILL_S = 10.0
"""Time in seconds after which a process that was asked to end is killed."""
ASK_S = 2.0
"""Time limit in seconds for an answer of the master."""

DAEMON_MEMORY_MB = 256
"""Memory of the master, and of each worker in addition to the memory of its executors."""
_LEAN = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a fast start of masters and workers, which do almost nothing once they run."""

_CONFIGURATION = {
    "spark.decommission.enabled": "true",
    "spark.worker.cleanup.enabled": "true",
    "spark.deploy.recoveryMode": "FILESYSTEM",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.worker.timeout": "20",
    "spark.port.maxRetries": "0",
    "spark.master.rest.enabled": "false",
}
# Without maxExecutorRetries, ten executors that are lost in a row would end the application and all its jobs. A master whose port is
# taken would listen on the next port, where no worker looks for it; without retries, the master ends and is started again. Only Headgate
# submits to the master: its REST server, which has the same port for all masters of a machine, stays off.


_STARTED: list[subprocess.Popen[bytes]] = []
"""Child processes: they survive a pool that was not closed, and this process must reap them when they end."""


@dataclass(frozen=True, slots=True)
class _Lease:
    """The file about one leased host."""

    name: str
    number: int
    address: str
    kind: HostType
    leased_s: float
    started: bool = False
    releasing_s: float | None = None
    asked_s: float | None = None
    """Time at which the worker process was asked to end; None before that."""


@dataclass(frozen=True, slots=True)
class _Master:
    """The master as stored on disk, so that the next service finds it and can log in."""

    port: int
    page: int
    secret: str


def left_behind(home: Path) -> bool:
    """Whether an earlier pool in this home was not closed."""
    return (home / PORTS).exists()


class LocalPool:
    """A `HostPool` of worker processes on this machine; `close` ends all its processes."""

    def __init__(
        self,
        home: Path,
        clock: Callable[[], float] = time.time,
        patience_s: float = PATIENCE_S,
        drain_s: float = DRAIN_S,
        logs: Logs = DEFAULT_LOGS,
        released_logs: int = RELEASED_LOGS,
    ) -> None:
        """A worker has `patience_s` to register; executors of a released worker have `drain_s` to finish."""
        self._java = security.java()
        self._home = home.resolve()
        self._clock, self._patience_s, self._drain_s = clock, patience_s, drain_s
        self._seen_s: dict[str, float] = {}
        """Time at which each host was last registered with the master."""
        self._opened_s = clock()
        self._leases_dir = self._home / "leases"
        self._leases_dir.mkdir(parents=True, exist_ok=True)
        self._logs, self._released_logs = logs, released_logs
        self._master = self._known_master()
        self._page = httpx.Headers({"Authorization": f"Bearer {security.page_token(self._master.secret)}"})
        _replace_file(
            self._home / "spark.conf", "".join(f"{key} {value}\n" for key, value in self._configuration().items())
        )
        self.hosts()

    @property
    def master_url(self) -> str:
        """The master URL that an application connects to."""
        return f"spark://{MASTER_HOST}:{self._master.port}"

    def access(self) -> dict[str, str]:
        """Return the settings with which an application may connect to the master."""
        return {**session.ON_THIS_MACHINE, **security.encrypted(self._master.secret)}

    def application(self, terms: Terms) -> dict[str, str]:
        """Return the settings of a Spark application on this pool: one executor per host, which ends with its host."""
        kinds = terms.kinds
        slots = max(kind.cores for kind in kinds) * (terms.budget.most_hosts or 1)
        return {
            **self.access(),
            "spark.executor.memory": f"{round(min(kind.memory_mb for kind in kinds))}m",
            "spark.executor.extraJavaOptions": shlex.join(session.shared_classes()),
            **same_code(),
            "spark.sql.shuffle.partitions": str(round(slots)),
            **GRACEFUL,
        }

    # -- the port

    def lease(self, name: str, kind: HostType) -> None:
        """Write the lease to disk, then start the process: after a crash, the file shows that the host is leased."""
        leases = self._leases()
        if name in leases:
            return
        number = 1 + max((lease.number for lease in leases.values()), default=0)
        # The master may still believe in a worker that is gone: a new one at its address would seem to be ready at once.
        taken = {lease.address for lease in leases.values()} | (self._registered() or frozenset())
        lease = _Lease(name, number, _free_address(taken), kind, self._clock())
        self._write(lease)
        self._start(lease)

    def release(self, name: str) -> None:
        """Tell the worker to accept no more tasks; `hosts` completes the release."""
        lease = self._leases().get(name)
        if lease is None or lease.releasing_s is not None:
            return
        self._write(replace(lease, releasing_s=self._clock()))
        for process in self._workers().get(name, []):
            _signal(process, signal.SIGPWR)

    def hosts(self) -> Mapping[str, Host]:
        """Return the hosts as they are now; this call also completes pending leases and releases."""
        _reap()
        masters, workers = self._running()
        self._keep_master(masters)
        leases = self._leases()
        for name in workers.keys() - leases.keys():
            self._end(workers[name])  # it is not leased
        registered = self._registered()
        found = (self._host(lease, workers.get(lease.name, []), registered) for lease in leases.values())
        self._keep_logs(leases)
        return {host.name: host for host in found if host is not None}

    def _keep_logs(self, leases: Mapping[str, _Lease]) -> None:
        self._logs.rotate(self._home / MASTER_LOG)
        for name in leases:
            self._logs.rotate(self._work(name) / WORKER_LOG)
        prune(self._home / "work", set(leases), self._released_logs)

    def close(self) -> None:
        """End every process and forget every lease."""
        for name in self._leases():
            self.release(name)
        self._end([process for group in self._workers().values() for process in group])
        self._end(self._masters())
        for path in (*self._leases_dir.glob("*.json"), self._home / PORTS, self._home / "spark.conf"):
            path.unlink(missing_ok=True)
        # A master that finds the recovery files of an earlier master waits for that master's workers before it assigns any.
        shutil.rmtree(self._home / "recovery", ignore_errors=True)
        _reap()

    # -- one host

    def _host(self, lease: _Lease, processes: list[psutil.Process], registered: frozenset[str] | None) -> Host | None:
        if lease.releasing_s is not None:
            return self._going(lease, lease.releasing_s, processes)
        host = Host(lease.name, lease.kind, lease.leased_s, address=lease.address)
        if not processes and not lease.started:
            self._start(lease)  # leased, but the service ended before it started the worker
            return host
        if not processes:
            return replace(host, phase=HostPhase.FAILED, reason="its worker died")
        self._end(processes[1:])  # two services started a worker for the same lease
        if registered is not None and lease.address in registered:
            self._seen_s[lease.name] = self._clock()
        seen_s = self._seen_s.get(lease.name)
        waited_s = self._clock() - max(lease.leased_s, self._opened_s, seen_s or 0.0)
        if registered is not None and waited_s > self._patience_s:
            return replace(host, phase=HostPhase.FAILED, reason="its worker does not register")
        # While the master restarts, workers and applications go on without it.
        return replace(host, phase=HostPhase.READY) if seen_s is not None else host

    def _going(self, lease: _Lease, releasing_s: float, processes: list[psutil.Process]) -> Host | None:
        """Drain a worker, then ask it to end, then kill it; delete the file of its lease last."""
        if not processes:
            self._path(lease.name).unlink(missing_ok=True)
            self._seen_s.pop(lease.name, None)
            return None
        now_s = self._clock()
        drained = not any(_children(process) for process in processes) or now_s - releasing_s > self._drain_s
        if lease.asked_s is None and drained:
            for process in processes:
                _signal(process, signal.SIGTERM)
            self._write(replace(lease, asked_s=now_s))
        elif lease.asked_s is not None and now_s - lease.asked_s > KILL_S:
            self._end(processes)
        return Host(lease.name, lease.kind, lease.leased_s, HostPhase.RELEASING, address=lease.address)

    def _start(self, lease: _Lease) -> None:
        work = self._work(lease.name)
        work.mkdir(parents=True, exist_ok=True)
        self._launch(
            WORKER, lease.address, work / WORKER_LOG,
            "--cores", str(max(1, round(lease.kind.cores))), "--memory", f"{round(lease.kind.memory_mb)}m",
            "--webui-port", "0", "--work-dir", str(work), self.master_url,
        )  # fmt: skip
        self._write(replace(lease, started=True))

    # -- processes

    def _launch(self, main: str, address: str, log: Path, *arguments: str) -> None:
        command = daemon_command(self._java, main, address, self._home / "spark.conf")
        environment = {**os.environ, "SPARK_LOCAL_IP": address, **daemon_environment()}
        try:
            with files.open_private(log, "ab") as output:
                _STARTED.append(
                    subprocess.Popen(
                        [*command, *arguments],
                        env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    )
                )  # fmt: skip
        except OSError as error:
            raise EngineError(f"{self._java} cannot be started: {error.strerror or error}") from None

    def _running(self) -> tuple[list[psutil.Process], dict[str, list[psutil.Process]]]:
        """Masters of this pool that run, and its workers by the name of their host."""
        ours, masters = str(self._home / "spark.conf"), []
        workers: dict[str, list[psutil.Process]] = {}
        for process, arguments in _processes(ours):
            if MASTER in arguments:
                masters.append(process)
            elif WORKER in arguments:
                workers.setdefault(Path(arguments[arguments.index("--work-dir") + 1]).name, []).append(process)
        return masters, workers

    def _workers(self) -> dict[str, list[psutil.Process]]:
        return self._running()[1]

    def _masters(self) -> list[psutil.Process]:
        return self._running()[0]

    def _keep_master(self, running: Sequence[psutil.Process]) -> None:
        """Restart a master that died, on the same port: its workers connect to it again."""
        if not running:
            self._launch(
                MASTER, MASTER_HOST, self._home / MASTER_LOG,
                "--port", str(self._master.port), "--webui-port", str(self._master.page),
            )  # fmt: skip

    def _end(self, processes: list[psutil.Process]) -> None:
        """Kill processes together with their children: executors must not outlive their worker."""
        everyone = [*processes, *(child for process in processes for child in _children(process))]
        for process in everyone:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(everyone, timeout=KILL_S)

    def _registered(self) -> frozenset[str] | None:
        """Addresses of the workers that the master lists as alive; None if the master does not answer."""
        try:
            answer = httpx.get(f"http://{MASTER_HOST}:{self._master.page}/json/", headers=self._page, timeout=ASK_S)
            page = answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return None
        return frozenset(worker["host"] for worker in page.get("workers", []) if worker.get("state") == "ALIVE")

    # -- files

    def _configuration(self) -> dict[str, str]:
        """The Spark configuration of the master and its workers."""
        return {
            **_CONFIGURATION,
            "spark.deploy.recoveryDirectory": str(self._home / "recovery"),
            **security.encrypted(self._master.secret),
            **security.guarded_pages(self._master.secret),
            **self._logs.executors(),
        }

    def _known_master(self) -> _Master:
        path = self._home / PORTS
        if not path.exists():
            self._end_strangers()
            _write_file(path, asdict(_Master(_free_port(), _free_port(), security.new_secret())))
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Master)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EngineError(
                f'"{path}" is damaged ({error}), and with it the secret of the hosts that still run; remove the file:'
                " the next start ends these hosts and leases others"
            ) from None

    def _end_strangers(self) -> None:
        """End running processes of this home if the file with their secret is gone: no application can connect to them any more."""
        masters, workers = self._running()
        self._end([*masters, *(process for group in workers.values() for process in group)])
        shutil.rmtree(self._home / "recovery", ignore_errors=True)

    def _leases(self) -> dict[str, _Lease]:
        """The leases in the order of their numbers."""
        leases = [lease for path in self._leases_dir.glob("*.json") if (lease := _lease_in(path)) is not None]
        return {lease.name: lease for lease in sorted(leases, key=lambda lease: lease.number)}

    def _write(self, lease: _Lease) -> None:
        _write_file(self._path(lease.name), asdict(lease))

    def _path(self, name: str) -> Path:
        return self._leases_dir / f"{name}.json"

    def _work(self, name: str) -> Path:
        return self._home / "work" / name


def _lease_in(path: Path) -> _Lease | None:
    """Read a lease; set a damaged file aside and return None, after which `hosts` ends the worker."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Lease)
    except (msgspec.MsgspecError, UnicodeDecodeError, HostError) as error:
        aside = files.set_aside(path)
        print(f'headgate: host "{path.stem}" ends: its lease is damaged ({error}) and kept as {aside}', file=sys.stderr)
        return None


def _reap() -> None:
    _STARTED[:] = [child for child in _STARTED if child.poll() is None]


def _processes(argument: str) -> Iterator[tuple[psutil.Process, list[str]]]:
    """Processes that were given this argument, and all their arguments."""
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            if argument in arguments and process.status() != psutil.STATUS_ZOMBIE:
                yield process, arguments
        except psutil.Error:
            continue  # it ended while we looked


def same_code() -> dict[str, str]:
    """Settings with which lanes on hosts of this machine import the same code as the driver, wherever the driver was started."""
    given = [os.path.abspath(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(Path(headgate.__file__).resolve().parents[1]), *given])
    }


def daemon_command(java: str, main: str, address: str, properties: Path) -> list[str]:
    """The command of a master or a worker; avoids the script `spark-class`, which starts another Java to compute the command."""
    memory = f"-Xmx{DAEMON_MEMORY_MB}m"
    return [
        java, *_LEAN, *session.shared_classes(), memory, "-cp", session.class_path(), main,
        "--host", address, "--properties-file", str(properties),
    ]  # fmt: skip


def daemon_environment() -> dict[str, str]:
    """The environment in which a master, a worker and its executors find Spark."""
    spark = Path(pyspark.__file__).parent
    return {"SPARK_HOME": str(spark), "SPARK_SCALA_VERSION": _scala(spark)}


def _scala(spark: Path) -> str:
    """The Scala version of Spark, which workers need as a variable."""
    (core,) = (spark / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").split("-")[0]


def _children(process: psutil.Process) -> list[psutil.Process]:
    """The running child processes of a worker, which are its executors."""
    try:
        return [child for child in process.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return  # it is gone already


def _write_file(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file as a whole, even if the machine stops meanwhile; a full disk must not end running jobs."""
    _replace_file(path, json.dumps(content))


def _replace_file(path: Path, text: str) -> None:
    try:
        files.replace(path, text.encode())
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror or error}") from None


def _free_address(taken: set[str]) -> str:
    for last in range(FIRST_ADDRESS, LAST_ADDRESS + 1):
        if f"127.0.0.{last}" not in taken:
            return f"127.0.0.{last}"
    raise EngineError(f"this machine has {len(taken)} hosts already; no loopback address is left for another")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((MASTER_HOST, 0))
        return int(found.getsockname()[1])
