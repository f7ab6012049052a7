"""Takes the place of Python where Spark starts processes: the nursery forks known modules, and Python runs all others.

Spark starts a Python process for every source of a query and gives it 10 s to connect. `nursery.launcher` writes this file into the home
with a first line that names Python. It imports next to nothing, because each process that Spark starts pays for it.
"""

from __future__ import annotations

import _socket
import marshal
import os
import sys

ADDRESS = "HEADGATE_NURSERY"
"""The variable that holds the name of the nursery's socket."""
FORKED = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
"""Modules that the nursery runs: the process that reads a source, and the daemon whose processes plan reads."""
LENGTH = 8
"""Bytes that hold the length of a request."""


def main() -> None:
    """Have the nursery fork the process and wait for its end, or become Python if the nursery cannot."""
    name = os.environ.get(ADDRESS)
    if name and sys.argv[1:2] == ["-m"] and sys.argv[2] in FORKED:
        try:
            _fork("\0" + name)
        except OSError:
            pass  # the nursery has ended: Python starts instead, more slowly
        else:
            return
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def _fork(address: str) -> None:
    nursery = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    nursery.connect(address)
    request = marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ)))
    standard = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    length = len(request).to_bytes(LENGTH, "big")
    nursery.sendmsg([length], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, standard)])
    nursery.sendall(request)
    if not nursery.recv(1):
        raise OSError("the nursery ended before it forked")
    nursery.recv(1)  # until the forked process ends


if __name__ == "__main__":
    main()
