"""Another user of this machine, as far as tests can be one: what a stranger's process says to a port, and what it hears."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import psutil
import pytest

NOBODY = 65534
_CALL = f"""
import encodings.idna, os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})  # now, because others may not even read the Python that runs this
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as line:
    line.settimeout(10)
    try:
        line.sendall(bytes.fromhex(sys.argv[2]))
        heard = b""
        while piece := line.recv(4096):
            heard += piece
            if len(heard) >= int(sys.argv[3]):
                break
    except (ConnectionError, TimeoutError):
        pass
sys.stdout.write(heard.hex())
"""


def heard_by_stranger(port: int, said: bytes, enough: int = 1) -> bytes:
    """What user `nobody` hears on a port of this machine, up to so many bytes; nothing if the line is cut."""
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    command = [sys.executable, "-I", "-S", "-c", _CALL, str(port), said.hex(), str(enough)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return bytes.fromhex(done.stdout)


def listening(processes: Iterable[psutil.Process] | None = None) -> dict[tuple[str, int], str]:
    """Addresses on which these processes listen, and which process does; by default this process and all that it started."""
    this = psutil.Process()
    found = {}
    for process in processes or (this, *this.children(recursive=True)):
        try:
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    found[one.laddr.ip.removeprefix("::ffff:"), one.laddr.port] = " ".join(process.cmdline())[:200]
        except psutil.Error:
            continue  # it ended while we looked
    return found


def beyond_loopback() -> dict[tuple[str, int], str]:
    """Those of them that other machines can reach."""
    return {one: who for one, who in listening().items() if not one[0].startswith("127.") and one[0] != "::1"}


def arguments_with(text: str) -> list[str]:
    """Processes of this machine that anybody can see the text in the arguments of."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in argument for argument in process.cmdline()):
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found
