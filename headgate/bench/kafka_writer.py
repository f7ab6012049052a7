"""The job of `kafka_job` without Spark: the source plans epochs and a forked lane reads and writes them, in processes that may be killed.

Two files stand for Spark's logs: one has the offsets of the epoch in flight, the other says how many epochs are committed. A lane that
fails before its epoch is written is forked again, as Spark retries a task.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headgate import files
from headgate.bench.kafka_job import IN, OUT, PATIENT, SETTINGS
from headgate.errors import EngineError
from headgate.spark import sinks, sources
from headgate.spark.connections.patience import patience_of
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.sinks.kafka import Delivery, KafkaTopic, Turn, send_once, send_rest
from headgate.spark.sinks.writing import Writing, begin_start
from headgate.spark.sources import levers
from headgate.spark.sources.kafka import columns_of
from headgate.spark.sources.kafka_reader import KafkaReader
from headgate.spark.sources.levers import Levers

PLANNED, COMMITTED = "planned.json", "committed.json"
IDLE_S, AGAIN_S = 0.05, 0.3


@dataclass(frozen=True, slots=True)
class EpochRange:
    """The offsets that an epoch reads."""

    number: int
    start: dict[str, Any]
    end: dict[str, Any]

    @property
    def rows(self) -> int:
        """The number of rows that the job has copied once this epoch is committed."""
        return sum(mark["rows"] for mark in self.end.values())


def main(place: Path, servers: str, delivery: Delivery = Delivery.READ_BACK) -> None:
    """Copy rows until the process is killed."""
    patience = patience_of(SETTINGS)
    reader = _reader(place / "source", servers)
    sink = sinks.kafka(OUT, servers=servers, delivery=delivery, options=PATIENT)
    writing = Writing(begin_start(place), patience, "out")
    before, looked = _read(place / COMMITTED), 0
    while True:
        epoch = _next(place, reader, before)
        if epoch is None:
            time.sleep(IDLE_S)
            continue
        # As in the sink on Spark, only the first epoch of a process looks for all notes; a repeated epoch looks from the same offset.
        turn = Turn(f"{writing.start.life}/out", writing, epoch.number, looked)
        while (found := _in_lane(reader, sink, epoch, turn)) is None:
            time.sleep(AGAIN_S)
        looked = found
        files.replace(place / COMMITTED, msgspec.json.encode(epoch))
        before = epoch
        print(epoch.rows, flush=True)


def _reader(place: Path, servers: str) -> KafkaReader:
    place.mkdir(parents=True, exist_ok=True)
    levers.write(place, Levers(1, SETTINGS.read_limit, patience_of(SETTINGS)))
    source = sources.kafka(IN, servers=servers, options=PATIENT)
    while True:
        try:
            source.begin(place)
            return KafkaReader(source.reader_options(place), columns_of(None))
        except EngineError as error:
            print(error, file=sys.stderr, flush=True)


def _next(place: Path, reader: KafkaReader, before: EpochRange | None) -> EpochRange | None:
    """Return the epoch that was in flight, or else a new epoch; None if there is nothing to read."""
    number = 0 if before is None else before.number + 1
    planned = _read(place / PLANNED)
    if planned is not None and planned.number == number:
        return planned
    start = reader.initialOffset() if before is None else before.end
    try:
        end = reader.latestOffset(start, None)  # type: ignore[arg-type]  # the levers limit it
    except LaneError as error:
        print(error, file=sys.stderr, flush=True)
        return None
    if end == start:
        return None
    epoch = EpochRange(number, start, end)
    files.replace(place / PLANNED, msgspec.json.encode(epoch))
    return epoch


def _read(path: Path) -> EpochRange | None:
    return msgspec.json.decode(path.read_bytes(), type=EpochRange) if path.exists() else None


def _in_lane(reader: KafkaReader, sink: KafkaTopic, epoch: EpochRange, turn: Turn) -> int | None:
    """Read and write an epoch in a forked process; return the offset up to which the process looked for notes, or None if it failed."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            send = send_once if sink.delivery is Delivery.EXACTLY_ONCE else send_rest
            (done,) = send(sink, turn, _messages(reader, epoch))
            os.write(tell, str(done.column("looked")[0].as_py()).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(tell)
    with os.fdopen(told) as answer:
        looked = answer.read()
    return int(looked) if os.waitpid(child, 0)[1] == 0 else None


def _messages(reader: KafkaReader, epoch: EpochRange) -> Iterator[pa.RecordBatch]:
    for share in reader.partitions(epoch.start, epoch.end):
        for batch in reader.read(share):
            none = pa.nulls(batch.num_rows)
            columns = {"topic": pa.repeat(OUT, batch.num_rows), "key": none, "value": batch.column("value")}
            yield pa.RecordBatch.from_pydict({**columns, "headers": none})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Delivery(sys.argv[3]) if len(sys.argv) > 3 else Delivery.READ_BACK)
