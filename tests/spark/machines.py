"""Machines on one: network namespaces with an address each, on a switch in a namespace of its own. Needs root.

Nothing of it can be reached from outside, and `close` takes everything away again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

SPARK = Path(pyspark.__file__).parent
MASTER, DRIVER = "m", "d"
ADDRESSES = {MASTER: "10.203.0.2", DRIVER: "10.203.0.3", "a": "10.203.0.11", "b": "10.203.0.12"}


def refused() -> str:
    """Why there can be no machines here; empty if there can."""
    name = f"hgt{os.getpid()}"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces are not permitted here: {error}"
    return ""


class Machines:
    """A standalone master and two workers with two slots each; each machine has one link to the switch."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.master_url = f"spark://{ADDRESSES[MASTER]}:7077"
        self._switch = f"hgs{os.getpid()}"
        self._made: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._namespace(self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for machine in ADDRESSES:
            self._wire(machine)
        port = ("--port", "7077", "--webui-port", "8080")
        self._spark(MASTER, "master.Master", "--host", ADDRESSES[MASTER], *port)
        for worker in ("a", "b"):
            slots = ("--cores", "2", "--memory", "700m", "--work-dir", str(place / f"work-{worker}"))
            self._spark(worker, "worker.Worker", "--host", ADDRESSES[worker], *slots, self.master_url)

    def on_driver(self, command: Sequence[str]) -> list[str]:
        """The command as it runs on the machine of the driver."""
        return ["ip", "netns", "exec", self._name(DRIVER), *command]

    def application(self) -> dict[str, str]:
        """What a Spark application on these machines is configured with."""
        driver = ADDRESSES[DRIVER]
        return {
            "spark.driver.host": driver,
            "spark.driver.bindAddress": driver,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }

    def cut(self, machine: str) -> None:
        _ip("-n", self._switch, "link", "set", f"to-{machine}", "down")

    def mend(self, machine: str) -> None:
        _ip("-n", self._switch, "link", "set", f"to-{machine}", "up")

    def close(self) -> None:
        for name in self._made:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                psutil.Process(int(pid)).kill() if psutil.pid_exists(int(pid)) else None
        for process in self._processes:
            process.wait(30)
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _name(self, machine: str) -> str:
        return f"{self._switch}-{machine}"

    def _namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")

    def _wire(self, machine: str) -> None:
        name, port = self._name(machine), f"to-{machine}"
        self._namespace(name)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", name, "addr", "add", f"{ADDRESSES[machine]}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")

    def _spark(self, machine: str, main: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": ADDRESSES[machine],
            "SPARK_LOCAL_DIRS": str(self.place / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [*("ip", "netns", "exec", self._name(machine)), f"{SPARK}/bin/spark-class"]
        with (self.place / f"{machine}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, f"org.apache.spark.deploy.{main}", *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
