"""The durable folder of a job, which must outlive the driver: the job's directory in the home, or a folder of the checkpoint location.

    CHECKPOINT/jobs/orders.json      the current folder of the job "orders"
    CHECKPOINT/orders-5f0c…/         its state, the records of its epochs, its life

The home of the driver remembers the folder, so that a job that was removed and restored has its own folder again. A driver with an empty
home finds the folder by the name of the job. A job that is submitted again after its removal begins with a new folder.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate import files
from headgate.errors import StateDamagedError, StateError
from headgate.state.location import Location, below

FILE = "durable.json"
LIFE = "life.json"
"""A file of every job that has started."""


@dataclass(frozen=True, slots=True)
class _Pointer:
    """The content of the file that names the folder of a job."""

    folder: str


def durable_of(job: Path) -> str:
    """The durable folder of a job, as a path or a URI; the directory of the job itself if no other folder is recorded."""
    try:
        return msgspec.json.decode((job / FILE).read_bytes(), type=_Pointer).folder
    except FileNotFoundError:
        return str(job)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateDamagedError(
            f'"{job / FILE}" is damaged ({error}); remove the file to look the folder up again'
        ) from None


def open_durable(job: Path, checkpoint: str) -> str:
    """Return and record the durable folder of a job that starts; without `checkpoint`, the directory of the job."""
    if (job / FILE).exists() or not checkpoint:
        found = durable_of(job)
    elif (job / LIFE).exists():
        raise StateError(
            f'job "{job.name}" keeps its state in "{job}", which the setting checkpoint would leave behind; unset checkpoint,'
            " or remove the job and submit it again to begin without state"
        )
    else:
        found = _known(job.name, checkpoint) or below(checkpoint, f"{job.name}-{uuid.uuid4().hex[:8]}")
    if checkpoint:
        files.replace(job / FILE, msgspec.json.encode(_Pointer(found)))
        pointer = msgspec.json.encode(_Pointer(found))
        if _known(job.name, checkpoint) != found:
            _pointers(checkpoint).write(f"{job.name}.json", pointer)
    return found


def close_durable(job: Path, checkpoint: str, keep: bool) -> None:
    """Forget the folder of a removed job, so that another job of its name gets a new folder; delete the folder unless `keep`."""
    if checkpoint and (job / FILE).exists():
        folder = durable_of(job)
        if _known(job.name, checkpoint) == folder:
            _pointers(checkpoint).delete(f"{job.name}.json")
        if not keep:
            Location.of(folder).delete_all()


def delete_durable(job: Path) -> None:
    """Delete the folder of a job outside of the job's directory, if there is one."""
    if (job / FILE).exists():
        Location.of(durable_of(job)).delete_all()


def _known(name: str, checkpoint: str) -> str | None:
    location = _pointers(checkpoint)
    if not location.exists(f"{name}.json"):
        return None
    try:
        content = location.read(f"{name}.json").to_pybytes()
        return msgspec.json.decode(content, type=_Pointer).folder
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateDamagedError(f'"{location.base}/{name}.json" is damaged ({error}); correct or remove it') from None


def _pointers(checkpoint: str) -> Location:
    return Location.of(below(checkpoint, "jobs"))
