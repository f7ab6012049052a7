"""A Spark standalone cluster for fault injection: the master and the workers run on machines of their own, in network namespaces."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

import headgate
from headgate.bench.namespaces import TMP, Network, network
from headgate.bench.workload import wait_for
from headgate.spark import security
from headgate.spark.hosts.pool import MASTER, WORKER, daemon_command, daemon_environment, same_code

MASTER_NAME, MASTER_PORT, MASTER_PAGE, WORKER_PAGE = "master", 7077, 8080, 8081
PATIENCE_S = 120.0
ASK_S = 2.0
BESIDE_HEAP_MB = 400
"""Memory of a machine besides the heap of its executor."""
PROPERTIES = "spark.conf"
CONFIGURATION = "spark.master.rest.enabled false\n"


@dataclass(frozen=True, slots=True)
class MachineKind:
    """The resources that each machine offers to executors."""

    cores: int = 2
    memory_mb: int = 1100


class SparkMachines:
    """Workers m1, m2 and so on; `spark_machines` opens and closes them."""

    def __init__(self, machines: Network, kind: MachineKind) -> None:
        self.machines, self.kind = machines, kind
        self._java = security.java()
        self._workers = 0

    @property
    def master_url(self) -> str:
        """Return the address that an application connects to."""
        return f"spark://{self.machines.address(MASTER_NAME)}:{MASTER_PORT}"

    def application(self) -> dict[str, str]:
        """Return the configuration of an application on this cluster."""
        return {
            "spark.driver.host": self.machines.gateway,
            "spark.driver.bindAddress": self.machines.gateway,
            "spark.executor.memory": f"{self.kind.memory_mb - BESIDE_HEAP_MB}m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            **same_code(),
        }

    def open(self, count: int) -> None:
        """Start the master and `count` workers; return when all workers have registered."""
        page = ("--port", str(MASTER_PORT), "--webui-port", str(MASTER_PAGE))
        self._start(MASTER_NAME, MASTER, *page)
        added = [self.add() for _ in range(count)]
        wait_for(lambda: {self.address(name) for name in added} <= self.registered(), PATIENCE_S)

    def add(self) -> str:
        """Start one more worker and return its name; `registered` shows when the master has registered the worker."""
        self._workers += 1
        name = f"m{self._workers}"
        self._start(
            name, WORKER, "--cores", str(self.kind.cores), "--memory", f"{self.kind.memory_mb}m",
            "--webui-port", str(WORKER_PAGE), "--work-dir", "/tmp/work", self.master_url,
        )  # fmt: skip
        return name

    def address(self, name: str) -> str:
        """Return the address of a worker, which is also Spark's name for its host."""
        return self.machines.address(name)

    def registered(self) -> frozenset[str]:
        """Return the addresses of the workers that the master considers alive."""
        page = f"http://{self.machines.address(MASTER_NAME)}:{MASTER_PAGE}/json/"
        try:
            workers = httpx.get(page, timeout=ASK_S, trust_env=False).raise_for_status().json().get("workers", [])
        except (httpx.HTTPError, ValueError):
            return frozenset()
        return frozenset(worker["host"] for worker in workers if worker.get("state") == "ALIVE")

    def _start(self, name: str, main: str, *arguments: str) -> None:
        command = daemon_command(self._java, main, self.machines.address(name), TMP / PROPERTIES)
        self.machines.start(name, [*command, *arguments], _environment(), {PROPERTIES: CONFIGURATION})


def _environment() -> Mapping[str, str]:
    java_home = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    return {
        "SPARK_LOCAL_DIRS": str(TMP / "local"),
        "PYSPARK_PYTHON": sys.executable,
        **java_home,
        **daemon_environment(),
    }


@contextmanager
def spark_machines(
    place: Path, count: int, shared: Sequence[Path] = (), kind: MachineKind | None = None
) -> Iterator[SparkMachines]:
    """Yield a cluster of `count` workers that see the directories in `shared` under the same paths; always close the cluster."""
    code = (Path(sys.prefix), Path(headgate.__file__).resolve().parents[1])
    with network(place, (*code, *shared)) as machines:
        opened = SparkMachines(machines, kind or MachineKind())
        opened.open(count)
        yield opened
