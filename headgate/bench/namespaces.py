"""Simulated machines on this machine: network namespaces with an address, a host name, an /etc/hosts and a /tmp each.

A bridge connects the namespaces with this machine, and links can be cut. Namespaces need root. Names contain the id of this process, so
that several networks can run in parallel; a new network first removes what a killed process left behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from headgate.bench.quota import Quota, quota, remove_group
from headgate.bench.workload import ending_cleanly, wait_for
from headgate.errors import EngineError

PREFIX = "hg"
"""The prefix of names of bridges, interfaces and namespaces; the id of the process follows. Names have at most 15 characters."""
FIRST_NET, NETS = 64, 128
"""Networks are 10.N.M.0/24, with N from `FIRST_NET` on."""
GATEWAY, FIRST_MACHINE, MOST_MACHINES = 1, 11, 20
"""The last part of the address of this machine, the last part of the first machine's address, and the most machines."""
END_S = 10.0
TMP = Path("/tmp")

BOOT = """
set -eu
place=$1 name=$2; shift 2
hostname "$name"
while [ "$1" != -- ]; do
    mkdir -p "$place$1"
    mount --bind "$1" "$place$1"
    shift
done
shift
mount --bind "$place/hosts" /etc/hosts
mount --rbind "$place/tmp" /tmp
cd /tmp
"$@"
exit $?
"""
"""Runs in the namespaces of a machine: binds shared directories into its own /tmp, then runs a command as a child and reaps the child."""
ENTER = 'if [ -n "$1" ]; then echo $$ > "$1"; fi; shift; exec "$@"'
"""Enters the control group before the namespaces, because the control group is not visible in the namespaces."""


def refusal() -> str | None:
    """Return the reason why this machine can have no namespaces; None if namespaces are possible."""
    missing = [tool for tool in ("ip", "unshare", "mount", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"machines in namespaces need the commands {', '.join(missing)}"
    bridge, space = f"{PREFIX}{os.getpid()}t", f"{PREFIX}{os.getpid()}-try"
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "netns", "add", space)
        run("unshare", "--mount", "--uts", "--pid", "--fork", "true")
    except EngineError as error:
        return f"machines in namespaces need root: {error}"
    finally:
        run("ip", "netns", "del", space, check=False)
        run("ip", "link", "del", bridge, check=False)
    return None


class Network:
    """A network of machines by name, with one command per machine; `network` opens and closes a network."""

    def __init__(self, place: Path, seen: Sequence[Path] = ()) -> None:
        """Keep all files of machines below `place`; in /tmp, a machine sees only the directories in `seen`, under their paths."""
        self._place, self._prefix, self._net = place.resolve(), f"{PREFIX}{os.getpid()}", ""
        self._seen = [path.resolve() for path in seen if path.resolve().is_relative_to(TMP)]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._quotas: dict[str, Quota] = {}
        self._numbers: dict[str, int] = {}

    @property
    def gateway(self) -> str:
        """The address of this machine in the network."""
        return f"{self._net}.{GATEWAY}"

    def address(self, name: str) -> str:
        """Return the address of a machine, also before the machine starts."""
        if name not in self._numbers:
            if len(self._numbers) == MOST_MACHINES:
                raise EngineError(f"a network of namespaces has at most {MOST_MACHINES} machines; use fewer")
            self._numbers[name] = len(self._numbers)
        return f"{self._net}.{FIRST_MACHINE + self._numbers[name]}"

    def open(self) -> None:
        """Make the bridge."""
        _remove_leftovers()
        self._net = _free_net()
        self._place.mkdir(parents=True, exist_ok=True)
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")

    def close(self) -> None:
        """End every process, and remove every namespace, link and control group."""
        for name in list(self._running):
            self.kill(name)
        for one in self._quotas.values():
            one.close()
        for name in self._numbers:
            _remove_namespace(self._namespace(name))
        run("ip", "link", "del", self._bridge, check=False)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], stored: Mapping[str, str]
    ) -> None:
        """Start a machine that runs a command, with files `stored` below its /tmp; its output goes to its `log`."""
        address, place, space = self.address(name), self.place(name), self._namespace(name)
        (place / "tmp").mkdir(parents=True)
        for path, text in stored.items():
            (place / "tmp" / path).write_text(text)
        (place / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n{self.gateway} gateway\n")
        self._wire(name, address)
        self._quotas[name] = quota(space, lambda: _processes_in(space))
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [
                    "sh", "-c", ENTER, "sh", self._quotas[name].entry, "ip", "netns", "exec", space,
                    "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
                    "--propagation", "private",
                    "sh", "-c", BOOT, "sh", str(place), name, *map(str, self._seen), "--", *command,
                ],
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(TMP), **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """Kill all processes of a machine with `kill -9`: the first process dies with its parent, and all others with the first."""
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(END_S)
            wait_for(lambda: not _processes_in(self._namespace(name)), END_S)

    def cut(self, name: str) -> None:
        """Cut the link of a machine: its processes continue, but can neither send nor receive."""
        run("ip", "link", "set", self._link(name), "down")

    def mend(self, name: str) -> None:
        """Mend the link of a machine."""
        run("ip", "link", "set", self._link(name), "up")

    def slow(self, name: str, cores: float | None) -> None:
        """Limit all processes of a machine together to this number of cores; None lifts the limit."""
        self._quotas[name].limit(cores)

    def place(self, name: str) -> Path:
        """The directory that holds the files of a machine; its `tmp` is /tmp there."""
        return self._place / name

    def log(self, name: str) -> str:
        """Return the output of the command of a machine."""
        return self._log(name).read_text(errors="replace")

    # -- names and links

    def _log(self, name: str) -> Path:
        return self._place / f"{name}.log"

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}b"

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _link(self, name: str) -> str:
        return f"{self._prefix}v{self._numbers[name]}"

    def _wire(self, name: str, address: str) -> None:
        space, link = self._namespace(name), self._link(name)
        run("ip", "netns", "add", space)
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", link, "master", self._bridge, "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")


@contextmanager
def network(place: Path, seen: Sequence[Path] = ()) -> Iterator[Network]:
    """A network that is taken down afterwards, also after a failure, Ctrl-C or SIGTERM."""
    opened = Network(place, seen)
    with ending_cleanly():
        try:
            opened.open()
            yield opened
        finally:
            opened.close()


def _remove_leftovers() -> None:
    """Take down the networks of processes that were killed."""
    spaces = run("ip", "netns", "list", check=False).split()
    links = re.findall(rf"^\d+: ({PREFIX}\d+b)", run("ip", "-o", "link", "show", "type", "bridge", check=False), re.M)
    for name in (*spaces, *links):
        owner = re.match(rf"{PREFIX}(\d+)(-|b$)", name)
        if owner is None or psutil.pid_exists(int(owner[1])):
            continue
        if owner[2] == "-":
            _remove_namespace(name)
        else:
            run("ip", "link", "del", name, check=False)


def _remove_namespace(name: str) -> None:
    for process in _processes_in(name):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_for(lambda: not _processes_in(name), END_S)
    run("ip", "netns", "del", name, check=False)
    remove_group(name)


def _processes_in(namespace: str) -> list[int]:
    return [int(pid) for pid in run("ip", "netns", "pids", namespace, check=False).split()]


def _free_net() -> str:
    """Return the first three parts of the addresses of a network that no interface of this machine uses."""
    taken = run("ip", "-o", "-4", "addr")
    for step in range(NETS * 256):
        number = (os.getpid() + step) % (NETS * 256)
        net = f"10.{FIRST_NET + number // 256}.{number % 256}"
        if f" {net}." not in taken:
            return net
    raise EngineError("every network from 10.64.0.0 to 10.191.255.0 is in use; take down those that are not needed")


def run(*command: str, check: bool = True) -> str:
    """Run a command and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise EngineError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
