"""Random kills of a job that copies a Kafka topic: of a process of the job, of the driver with all it started, of the broker.

Rows are written before each kill, and the next kill comes at a random moment. In the end, each row must be in the copy exactly once for a
reader of committed rows.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil

from headgate.bench.brokers import WeedBroker, weed_broker
from headgate.bench.kafka_job import IN, OUT
from headgate.errors import EngineError

ROWS_PER_KILL = 300
LONGEST_WAIT_S = 2.0
PROGRESS_S = 120.0
"""Longest time without progress."""
POLL_S = 0.05


class Victim(StrEnum):
    """What is killed."""

    JOB = "job"
    """A Python process of the job: its reader, or a lane."""
    DRIVER = "driver"
    """The driver, its JVM and all lanes, at once."""
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """What a reader of committed rows finds in the end."""

    rows: int
    lost: int
    doubled: int
    kills: dict[str, int]


@dataclass(slots=True)
class Driver:
    """The process of the job; what it prints is read by a thread."""

    command: list[str]
    log: Path
    done: int = 0
    failed: str = ""
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("failed"):
                self.failed = line
            elif line.strip().isdigit():
                self.done = max(self.done, int(line))

    def kill(self) -> None:
        """All of it, at once."""
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        session = [one for one in psutil.process_iter() if _session_of(one) == process.pid]
        for one in session:
            one.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def python_processes(self) -> list[psutil.Process]:
        """Readers and lanes: Python processes other than the driver itself."""
        assert self._process is not None
        pid = self._process.pid
        found = [one for one in psutil.process_iter(["name"]) if _session_of(one) == pid and one.pid != pid]
        return [one for one in found if one.info["name"].startswith("python")]


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


@dataclass(slots=True)
class Kills:
    """One run. Owner: the thread that runs it."""

    broker: WeedBroker
    driver: Driver
    chance: random.Random
    written: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> KillOutcome:
        self.driver.start()
        self._write()
        self._await(lambda: self.driver.done > 0)
        for _ in range(kills):
            self._write()
            before = self.driver.done
            time.sleep(self.chance.random() * LONGEST_WAIT_S)
            self._kill(self.chance.choice(list(Victim)))
            self._await(lambda before=before: self.driver.done > before)  # type: ignore[misc]
        self._await(lambda: self.driver.done >= self.written)
        self.driver.kill()
        return self._outcome()

    def _write(self) -> None:
        from confluent_kafka import Producer

        client = Producer({"bootstrap.servers": self.broker.address, "log_level": 2})
        for number in range(self.written, self.written + ROWS_PER_KILL):
            client.produce(IN, str(number).encode(), partition=number % 2)
        if client.flush(PROGRESS_S):
            raise EngineError("the broker takes no rows")
        self.written += ROWS_PER_KILL

    def _kill(self, victim: Victim) -> None:
        if victim is Victim.JOB:
            processes = self.driver.python_processes()
            if not processes:
                return
            self.chance.choice(sorted(processes, key=lambda one: one.pid)).kill()
        elif victim is Victim.DRIVER:
            self.driver.kill()
            self.driver.start()
        else:
            self.broker.kill_gateway()
            self.broker.start_gateway()
        self.killed[victim] += 1

    def _await(self, condition: Callable[[], bool]) -> None:
        done, until_s = self.driver.done, time.monotonic() + PROGRESS_S
        while not condition():
            if self.driver.done > done:
                done, until_s = self.driver.done, time.monotonic() + PROGRESS_S
            if self.driver.failed or time.monotonic() > until_s:
                told = self.driver.failed.strip() or f"no progress for {PROGRESS_S:g} s at {done} rows"
                raise EngineError(f"after kills {dict(self.killed)}: {told}; its log is {self.driver.log}")
            time.sleep(POLL_S)

    def _outcome(self) -> KillOutcome:
        found = Counter(_values(self.broker.address, OUT))
        lost = sum(1 for number in range(self.written) if not found[str(number).encode()])
        return KillOutcome(self.written, lost, found.total() - len(found), dict(self.killed))


def _values(servers: str, topic: str) -> list[bytes]:
    """Every value that a reader of committed rows gets."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True, "log_level": 2}
    client = Consumer(settings | {"isolation.level": "read_committed"})
    numbers = list(client.list_topics(topic, timeout=30).topics[topic].partitions)
    client.assign([TopicPartition(topic, number, 0) for number in numbers])
    values, ended = list[bytes](), set[int | None]()
    until_s = time.monotonic() + PROGRESS_S
    while len(ended) < len(numbers):
        for message in client.consume(10_000, 0.1):
            if message.error() is None:
                values.append(message.value() or b"")
            else:
                ended.add(message.partition())
        if time.monotonic() > until_s:
            raise EngineError(f"topic {topic} could not be read to its end")
    client.close()
    return values


def run_kills(place: Path, kills: int, seed: int) -> KillOutcome:
    """So many random kills; the same seed has the same victims and waits."""
    with weed_broker(place / "broker") as broker:
        command = [sys.executable, "-m", "headgate.bench.kafka_job", str(place / "home"), broker.address, "read-back"]
        driver = Driver(command, place / "driver.log")
        try:
            return Kills(broker, driver, random.Random(seed)).run(kills)
        finally:
            driver.kill()
