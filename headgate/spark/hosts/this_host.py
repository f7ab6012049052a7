"""Which host of the cluster a Python worker runs on, and where that host keeps what lanes need on its local disk.

Spark names a host by the address or name with which its executors were started (`--hostname`). The machine's own name is no
proof: Debian's installer maps it to 127.0.1.1. A worker therefore uses the name in the command line of its executor, or else the only
name that fits an interface of the machine. A host that cannot be identified is an error: state in the wrong folder would be no backup.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

import psutil

from headgate.spark.epochs.lanes import LaneError

EXECUTOR, HOSTNAME = "CoarseGrainedExecutorBackend", "--hostname"
"""Part of the name of the class that every kind of cluster runs as executor, and the option with Spark's name for the host."""
OF_SPARK = ("blockmgr-", "executor-", "spark-")
"""Prefixes of the folders that Spark makes in its local directories, and removes with the executor."""


def here(hosts: Collection[str]) -> str:
    """Return Spark's name for the host of this process; without a known executor, the name is chosen from `hosts`."""
    return _executor_host() or _named(tuple(hosts))


@lru_cache
def _executor_host() -> str:
    """The host name in the command line of this process's executor; empty if no parent process is an executor."""
    try:
        commands = [parent.cmdline() for parent in psutil.Process().parents()]
    except psutil.Error:
        return ""
    return next((found for command in commands if (found := executor_name(command))), "")


def executor_name(command: list[str]) -> str:
    """Return the host of the executor that a command line starts; empty if the command starts something else.

    >>> executor_name(["java", "org.apache.spark.executor.CoarseGrainedExecutorBackend", "--hostname", "10.0.0.7"])
    '10.0.0.7'
    """
    if not any(EXECUTOR in word for word in command) or HOSTNAME not in command[:-1]:
        return ""
    return command[command.index(HOSTNAME) + 1]


@lru_cache
def _named(hosts: tuple[str, ...]) -> str:
    told = [name for variable in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME") if (name := os.environ.get(variable))]
    for names in (told, list(own_names())):
        fitting = list(dict.fromkeys(name for name in names if name in hosts))
        if len(fitting) == 1:
            return fitting[0]
    raise LaneError(
        f'the machine "{socket.gethostname()}" cannot tell which host of the cluster it is: none or several of {", ".join(hosts)}'
        " fit its addresses; set SPARK_LOCAL_IP on each worker to the address that Spark has for it"
    )


def own_names() -> Iterator[str]:
    """The names of this machine, and the addresses of its interfaces."""
    yield from (socket.gethostname(), socket.getfqdn())
    for addresses in psutil.net_if_addrs().values():
        yield from (one.address for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6))


# -- its disk ----------------------------------------------------------------------------------------------------------


def store_folder(store: str, host: str) -> str:
    """Return the folder of a host's copies of slices: no other host uses this folder, even if hosts share a disk.

    A relative `store` lies in the host's local directory of Spark.
    """
    return f"{store}/{host}" if os.path.isabs(store) else f"{local_root()}/{store}/{host}"


def local_root() -> Path:
    """The first local directory of Spark on this host, without the folders that Spark removes with the executor."""
    told = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not told:
        raise LaneError(
            "Spark has not named its local directory (SPARK_LOCAL_DIRS); set state_dir to a local directory"
        )
    path = Path(told)
    while path.name.startswith(OF_SPARK):
        path = path.parent
    return path
