"""Turns the queries of a script into jobs: checks all queries first, then takes over their checkpoints and writes their job files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate import files
from headgate.core.quantities import about, show_seconds
from headgate.errors import InputError, JobFileError
from headgate.spark.adoption import checkpoint
from headgate.spark.adoption.checkpoint import SOURCE, OldCheckpoint, TakeOver
from headgate.spark.adoption.recording import ENDING, RecordedQuery, TriggerKind
from headgate.spark.adoption.writers import RecordedSink, sink_of
from headgate.topology import name_trouble

SUFFIX = "-job.py"
UNSUPPORTED = (TriggerKind.CONTINUOUS, TriggerKind.REAL_TIME)
FILE_MODE = 0o644
LATENCY_S = 60.0


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the options that a person gave for the adoption of its queries."""

    path: Path
    directory: Path
    """The working directory of the script; relative paths in the script begin here."""
    home: Path
    arguments: tuple[str, ...] = ()
    name: str | None = None
    latency: str | None = None
    worth: float = 1.0
    arrival: str | None = None
    quiet_s: float = 0.0
    """Least age in seconds of an uncommitted batch before its query counts as ended."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """One query of a script and the job that it is to become."""

    script: Script
    query: RecordedQuery
    sink: RecordedSink
    take_over: TakeOver

    @property
    def job(self) -> str:
        return self.take_over.job

    @property
    def file(self) -> Path:
        """The job file."""
        return self.script.directory / f"{self.job}{SUFFIX}"

    def check(self) -> None:
        """Refuse a query whose adoption could not be finished; change nothing."""
        self.take_over.check()
        for number, read in self.query.kafka.items():
            starts = self.take_over.old.starts
            read.check(starts[number] if number < len(starts) else None)
        if self.file.exists() and self.file.read_text() != self.text():
            raise InputError(f'"{self.file}" exists with another content; move it away, or give another --name')

    def run(self) -> OldCheckpoint:
        """Turn the query into a job; return the checkpoint that the job continues."""
        old = self.take_over.run()
        files.replace(self.file, self.text().encode(), mode=FILE_MODE)
        return old

    def text(self) -> str:
        """The content of the job file."""
        script, old = self.script, self.take_over.old
        pace_s = self.query.trigger.interval_s
        pace = f", pace_s={pace_s:g}" if pace_s else ""
        given = [_quoted(script.path), f"checkpoint={_quoted(old.path)}", f"directory={_quoted(script.directory)}"]
        given += [f"arguments=[{', '.join(map(_quoted, script.arguments))}]"] if script.arguments else []
        given += [f"arrival={_quoted(script.arrival)}"] if script.arrival is not None else []
        lines = "".join(f"        {one},\n" for one in given)
        return (
            f'"""Job {self.job}: a query of {script.path.name}, which continues where the query stopped."""\n\n'
            "from headgate import Intent, Topology, adopted\n\n\n"
            "def topology() -> Topology:\n"
            f'    """The rows of the query, written as the query wrote them."""\n'
            f"    intent = Intent(latency={_quoted(self._latency())}, worth={script.worth:g})\n"
            f"    job = Topology({_quoted(self.job)}, intent{pace}, mode={_quoted(self.query.mode)})\n"
            f"    query = adopted(\n{lines}    )\n"
            f'    job.sink("sink", query, job.source({_quoted(SOURCE)}, query))\n'
            "    return job\n"
        )

    def _latency(self) -> str:
        """Return the latency of the intent: as given, else a default that is at least twice the interval of the trigger."""
        return self.script.latency or f"{max(LATENCY_S, 2 * self.query.trigger.interval_s):g}s"


def _quoted(text: object) -> str:
    """Return a text as a Python literal in double quotes."""
    return json.dumps(str(text), ensure_ascii=False)


def adoptions(script: Script, queries: Sequence[RecordedQuery]) -> list[Adoption]:
    """Return an adoption for each query of a script; refuse all queries if one of them cannot become a job."""
    with about(str(script.path), JobFileError):
        names = _names(script, queries)
        paths = [_checkpoint(query, name) for query, name in zip(queries, names, strict=True)]
        shared = next((path for path, count in Counter(paths).items() if count > 1), None)
        if shared is not None:
            raise JobFileError(f'two queries use the checkpoint "{shared}"; give each query a checkpoint of its own')
        found = [_adoption(script, *one) for one in zip(queries, names, paths, strict=True)]
        for one in found:
            one.check()
    return found


def _names(script: Script, queries: Sequence[RecordedQuery]) -> list[str]:
    """Return a job name for each query: the option `--name`, the name of the query, or one made from the name of the script."""
    if script.name is not None and len(queries) > 1:
        raise InputError(f"--name is for one query, and there are {len(queries)}; give them names with queryName()")
    stem = script.path.stem
    unnamed = [stem, *(f"{stem}-{number}" for number in range(2, len(queries) + 1))]
    names = [script.name or query.name or other for query, other in zip(queries, unnamed, strict=True)]
    for name in names:
        if trouble := name_trouble(name):
            raise InputError(f'a query is named "{name}"; {trouble}, or give a name with --name')
        if names.count(name) > 1:
            raise InputError(f'two queries are named "{name}"; their names must differ')
    return names


def _checkpoint(query: RecordedQuery, name: str) -> Path:
    if query.checkpoint is None:
        raise JobFileError(
            f'query "{name}" has no checkpointLocation, so there are no offsets to continue from;'
            " write a job for it (see docs/jobs.md)"
        )
    if query.trigger.kind in UNSUPPORTED:
        raise JobFileError(
            f'query "{name}" has the trigger {query.trigger.kind.value}, which has no micro-batches; use processingTime'
        )
    return checkpoint.local_path(query.checkpoint)


def _adoption(script: Script, query: RecordedQuery, name: str, path: Path) -> Adoption:
    with about(f'query "{name}"', JobFileError):
        take_over = TakeOver(checkpoint.read(path), name, script.home, script.quiet_s)
        return Adoption(script, query, sink_of(query), take_over)


# -- what a person is told


def found(one: Adoption) -> dict[str, str]:
    """Return what the adoption found about a query, by label, for the report to a person."""
    old, trigger = one.take_over.old, one.query.trigger
    return {
        "reads": ", ".join(one.query.sources),
        "writes": f"{one.sink.target} ({one.query.mode}); {one.sink.guarantee}",
        "trigger": f"every {show_seconds(trigger.interval_s)}" if trigger.interval_s else _trigger(trigger.kind),
        "state": _state(old),
        "offsets": " ".join(old.offsets),
    }


def _trigger(kind: TriggerKind) -> str:
    ends = f"{kind.value}; the query ended when its rows were processed; the job runs until it is removed"
    return ends if kind in ENDING else "none; the pace of the job follows from its intent"


def _state(old: OldCheckpoint) -> str:
    if not old.state:
        return "none"
    names = (f"{one.name} in {'unknown' if one.partitions is None else one.partitions} partitions" for one in old.state)
    return f"{', '.join(names)}; copied with the checkpoint, as the job runs the same plan"


def beginning(old: OldCheckpoint) -> str:
    """Say in a sentence where the job begins."""
    if old.is_committed:
        return f"the job begins after batch {old.batch}, the last one that the query committed"
    return (
        f"the job runs batch {old.batch} again, with the same rows: the query planned the batch and did not commit it"
    )
