"""The answer of one host of a cluster to the preflight; runs in a Python worker of that host.

The driver has written a file with a nonce to each folder. The host reads the nonce and writes an answer beside it, which the driver
reads. Both steps fail for a folder of the same name on another disk.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

import headgate
from headgate.errors import StateError
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.hosts.this_host import local_root, store_folder
from headgate.state.location import Location

NETWORK_DISKS = frozenset(
    ("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "afs")
)
"""File systems that keep files on another machine; file systems that begin with `fuse.` also count, except for local ones."""
LOCAL_FUSE = frozenset(("fuse.overlayfs", "fuse.fuse-overlayfs", "fuse.ntfs-3g"))


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What the disk of the slice stores must have."""

    store: str
    """The folder as the driver names it; a relative path lies in the host's local directory of Spark."""
    least_free_mb: int


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The jobs and the folder by which a host finds stores of jobs that have ended."""

    stores: str
    """The folder with one folder per job; a relative path lies in the host's local directory of Spark."""
    jobs: frozenset[str]
    """The jobs whose stores are kept."""

    def remove(self) -> None:
        """Delete the stores of all other jobs; a store that cannot be deleted stays."""
        root = Path(self.stores) if os.path.isabs(self.stores) else local_root() / self.stores
        for path in root.glob("*"):
            if path.name not in self.jobs:
                shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The answer of a host to a check."""

    python: str
    headgate: str
    folders: Mapping[str, str] = field(default_factory=dict)
    """The problem with each folder; empty for a folder without a problem."""
    store: str = ""
    """The problem with the disk of the slice stores; empty if there is none."""


@dataclass(frozen=True)
class HostCheck:
    """The preflight, as each host runs it."""

    nonce: str
    folders: tuple[str, ...]
    stores: tuple[StoreCheck, ...] = ()
    leftovers: Leftovers | None = None

    def __call__(self, host: str) -> bytes:
        if self.leftovers is not None:
            self.leftovers.remove()
        folders = {folder: folder_problem(folder, self.nonce, host) for folder in self.folders}
        problems = (problem for check in self.stores if (problem := store_problem(check, host)))
        answer = HostAnswer(python_version(), headgate.__version__, folders, next(problems, ""))
        return msgspec.json.encode(answer)


def python_version() -> str:
    """Return the version of Python without its last number: pickled functions can be sent between Pythons that differ only there."""
    return platform.python_version().rpartition(".")[0]


def question_name(nonce: str) -> str:
    """Return the name of the file with the nonce; Spark's readers ignore names with this prefix."""
    return f"_headgate-{nonce}"


def answer_name(nonce: str, host: str) -> str:
    """Return the name of the file that a host writes beside the file with the nonce."""
    return f"{question_name(nonce)}-{host.replace(':', '.')}"


def folder_problem(folder: str, nonce: str, host: str) -> str:
    """Why this host cannot use a folder; empty if it read the nonce there and wrote its answer."""
    try:
        location = Location.of(folder)
        found = location.read(question_name(nonce)).to_pybytes().decode(errors="replace")
    except StateError:
        return "does not have the files that the driver wrote to"
    if found != nonce:
        return "has other files than the driver in"
    try:
        location.write(answer_name(nonce, host), host.encode())
    except StateError:
        return "cannot write to"
    return ""


def store_problem(check: StoreCheck, host: str) -> str:
    """Say why the slices of this host should not be in their folder; empty if there is no problem."""
    try:
        folder = Path(store_folder(check.store, host))
    except LaneError as error:
        return str(error)
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    kind = file_system(nearest)
    if is_network_disk(kind):
        return (
            f'the stores of its slices would be on {kind} ("{nearest}"); set state_dir to a directory on a local disk'
        )
    if not os.access(nearest, os.W_OK):
        return f'the stores of its slices cannot be written to "{nearest}"; set state_dir to a directory that can be'
    free_mb = shutil.disk_usage(nearest).free >> 20
    if free_mb < check.least_free_mb:
        return (
            f'the disk of "{nearest}" has {free_mb} MB of free space, less than least_free_mb = {check.least_free_mb};'
            " free some, or set state_dir to another disk"
        )
    return ""


def is_network_disk(kind: str) -> bool:
    """Whether a file system is on another machine.

    >>> [is_network_disk(kind) for kind in ("ext4", "tmpfs", "nfs4", "fuse.sshfs")]
    [False, False, True, True]
    """
    return kind in NETWORK_DISKS or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path; empty if the type is not known."""
    real = os.path.realpath(path)
    mounts = [one for one in psutil.disk_partitions(all=True) if _is_below(real, one.mountpoint)]
    return max(mounts, key=lambda one: len(one.mountpoint)).fstype if mounts else ""


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
