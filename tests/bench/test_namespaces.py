"""Machines in namespaces: they are apart, reach one another, and leave nothing behind. No Spark."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headgate.bench.namespaces import PREFIX, Network, network, refusal, run
from headgate.bench.quota import Brake

SLEEP = ("sh", "-c", "hostname; cat /etc/hosts; ls /tmp; sleep 600 & wait")
BURN = (sys.executable, "-c", "while True: pass")
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def permitted() -> None:
    reason = refusal()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def machines(permitted: None, tmp_path: Path) -> Iterator[Network]:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "seen").touch()
    with network(tmp_path / "machines", [shared, Path(sys.prefix)]) as opened:
        yield opened


def eventually(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def answers(machines: Network, name: str) -> bool:
    """Whether a machine can be reached: it refuses the connection."""
    try:
        socket.create_connection((machines.address(name), 9), timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def left(owner: int) -> list[str]:
    """Namespaces, links and control groups of a process."""
    named = re.compile(rf"{PREFIX}{owner}\D\w*")
    groups = " ".join(path.name for path in Path("/sys/fs/cgroup").glob(f"*/{PREFIX}*"))
    return named.findall(" ".join((run("ip", "netns", "list"), run("ip", "-o", "link"), groups)))


def test_machine_has_a_host_name_and_a_tmp_of_its_own(machines: Network) -> None:
    machines.start("m1", SLEEP, {}, {"stored": "text"})
    eventually(lambda: "stored" in machines.log("m1"))
    name, *hosts = machines.log("m1").splitlines()
    assert name == "m1"
    assert f"{machines.address('m1')} m1" in hosts
    assert str(machines.place("m1").name) not in hosts[3:]


def test_machine_sees_what_is_shared_under_the_same_path(machines: Network, tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    private.touch()
    machines.start("m1", ("sh", "-c", f"ls {shared}; ls {private}; touch {shared}/written"), {}, {})
    eventually((shared / "written").exists)
    assert machines.log("m1").splitlines()[0] == "seen"
    assert "No such file" in machines.log("m1")


def test_cut_machine_is_not_reached_until_its_link_is_mended(machines: Network) -> None:
    machines.start("m1", SLEEP, {}, {})
    eventually(lambda: answers(machines, "m1"))
    machines.cut("m1")
    assert not answers(machines, "m1")
    machines.mend("m1")
    eventually(lambda: answers(machines, "m1"))


def test_killed_machine_has_no_process_left(machines: Network) -> None:
    machines.start("m1", SLEEP, {}, {})
    eventually(lambda: "localhost" in machines.log("m1"))
    machines.kill("m1")
    assert not run("ip", "netns", "pids", f"{PREFIX}{os.getpid()}-m1")


def test_slow_machine_gets_a_part_of_a_core(machines: Network) -> None:
    machines.start("m1", BURN, {}, {})
    space = f"{PREFIX}{os.getpid()}-m1"

    def burner() -> psutil.Process | None:
        for pid in run("ip", "netns", "pids", space).split():
            with suppress(psutil.NoSuchProcess):  # a command that the machine starts with has ended
                if psutil.Process(int(pid)).cmdline() == list(BURN):
                    return psutil.Process(int(pid))
        return None

    eventually(burner)
    machines.slow("m1", 0.1)
    process = burner()
    assert process is not None
    eventually(lambda: _cores(process) < 0.25)


def test_processes_without_a_control_group_are_slowed_by_stopping_them() -> None:
    with subprocess.Popen(BURN) as child:
        brake = Brake(lambda: [child.pid], cores=1)
        try:
            brake.limit(0.2)
            eventually(lambda: _cores(psutil.Process(child.pid)) < 0.5)
        finally:
            brake.close()
            child.kill()


def _cores(process: psutil.Process) -> float:
    """Cores that a process uses over a second."""
    before, begun_s = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(1.0)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begun_s)


def test_network_is_taken_down_after_a_failure(permitted: None, tmp_path: Path) -> None:
    def fails() -> None:
        with network(tmp_path / "machines") as machines:
            machines.start("m1", SLEEP, {}, {})
            assert left(os.getpid())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert left(os.getpid()) == []


KILLED = """
import os, sys
from pathlib import Path
from headgate.bench.namespaces import network
with network(Path(sys.argv[1])) as machines:
    machines.start("m1", ("sleep", "600"), {}, {})
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_network_of_a_killed_process_is_taken_down_by_the_next(permitted: None, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    owner = int(killed.stdout)
    assert {f"{PREFIX}{owner}-m1", f"{PREFIX}{owner}b"} <= {*left(owner)}
    with network(tmp_path / "next"):
        assert left(owner) == []
