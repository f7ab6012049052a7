"""Random kills of a job that copies a Kafka topic: of a process of the job, of the driver with all it started, of the broker.

Rows are written before each kill, and the next kill comes at a random moment. In the end, each row must be in the copy exactly once for a
reader of committed rows. The job runs on Spark, or without Spark in a process that starts in a second.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import psutil

from headgate.bench.brokers import weed_broker
from headgate.bench.kafka_job import IN, OUT
from headgate.errors import EngineError
from headgate.spark.sinks.kafka import EPOCHS

ROWS_PER_KILL = 300
LONGEST_WAIT_S, SHORT_WAIT_S = 2.0, 0.4
"""The longest wait before a kill, on Spark and without Spark: about the time that the job needs to copy the rows."""
WAKE = b"wake"
"""A row that reopens a partition: SeaweedFS closes a partition without gateway, and serves its rows only after another row is written."""
PROGRESS_S = 600.0
"""Longest time without progress."""
STUCK_S = 120.0
"""Seconds without progress after which the gateway is started again, because the gateway sometimes serves no reader."""
POLL_S = 0.05


class Broker(Protocol):
    """The broker that the job reads from and writes to."""

    @property
    def address(self) -> str: ...

    def restart_gateway(self) -> None:
        """Restart the gateway: clients lose their connections, and rows are kept."""


class Victim(StrEnum):
    """The kind of process that is killed."""

    JOB = "job"
    """A Python process of the job: its reader, or a lane."""
    DRIVER = "driver"
    """The driver, its JVM and all lanes at the same time."""
    BROKER = "broker"
    """The gateway that clients connect to, but not the server behind the gateway, which loses rows that were confirmed."""


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """The rows that a reader of committed rows finds at the end, and the kills."""

    rows: int
    lost: int
    doubled: int
    kills: dict[str, int]
    restarts: int
    """The number of times that the gateway was started again because it served no reader."""
    minutes: float


@dataclass(slots=True)
class Driver:
    """The process of the job; a thread reads its output."""

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
        """Kill all processes of the job's session."""
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        session = [one for one in psutil.process_iter() if _session_of(one) == process.pid]
        for one in session:
            with suppress(psutil.NoSuchProcess):  # a reader or lane may end by itself meanwhile
                one.kill()
        process.wait()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def python_processes(self) -> list[psutil.Process]:
        """Return the readers and lanes: the Python processes other than the driver."""
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
    """One run of kills; owned by the thread that runs it."""

    broker: Broker
    driver: Driver
    chance: random.Random
    longest_wait_s: float
    victims: Sequence[Victim] = tuple(Victim)
    written: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    restarts: int = 0

    def run(self, kills: int) -> KillOutcome:
        begun_s = time.monotonic()
        self._write()  # before the start, so that the job finds the topic at once
        self.driver.start()
        self._await(lambda: self.driver.done > 0)
        for _ in range(kills):
            self._write()
            before = self.driver.done
            time.sleep(self.chance.random() * self.longest_wait_s)
            self._kill(self.chance.choice(self.victims))
            self._await(lambda before=before: self.driver.done > before)  # type: ignore[misc]
        self._await(lambda: self.driver.done >= self.written)
        self.driver.kill()
        return self._outcome((time.monotonic() - begun_s) / 60)

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
            with suppress(psutil.NoSuchProcess):
                self.chance.choice(self._lanes()).kill()
        elif victim is Victim.DRIVER:
            self.driver.kill()
            self.driver.start()
        else:
            self._restart_broker()
        self.killed[victim] += 1

    def _lanes(self) -> list[psutil.Process]:
        """Return the processes of the job; without Spark, processes exist only while there are rows to copy."""
        until_s = time.monotonic() + PROGRESS_S
        while not (found := self.driver.python_processes()):
            if self.driver.done >= self.written:
                self._write()
            if time.monotonic() > until_s:
                raise EngineError(f"no process of the job for {PROGRESS_S:g} s; its log is {self.driver.log}")
        return sorted(found, key=lambda one: one.pid)

    def _await(self, condition: Callable[[], bool]) -> None:
        done, since_s, stuck_s = self.driver.done, time.monotonic(), STUCK_S
        while not condition():
            if self.driver.done > done:
                done, since_s, stuck_s = self.driver.done, time.monotonic(), STUCK_S
            waited_s = time.monotonic() - since_s
            if self.driver.failed or waited_s > PROGRESS_S:
                told = self.driver.failed.strip() or f"no progress for {PROGRESS_S:g} s at {done} rows"
                raise EngineError(f"after kills {dict(self.killed)}: {told}; its log is {self.driver.log}")
            if waited_s > stuck_s:
                stuck_s += STUCK_S
                self.restarts += 1
                self._restart_broker()
            time.sleep(POLL_S)

    def _restart_broker(self) -> None:
        self.broker.restart_gateway()
        self._write()
        for topic in (OUT, EPOCHS):
            self._wake(topic)

    def _wake(self, topic: str) -> None:
        from confluent_kafka import Producer

        client = Producer({"bootstrap.servers": self.broker.address, "log_level": 2})
        for number in client.list_topics(topic, timeout=PROGRESS_S).topics[topic].partitions:
            client.produce(topic, WAKE, WAKE, partition=number)
        client.flush(PROGRESS_S)

    def _outcome(self, minutes: float) -> KillOutcome:
        found = Counter(self._copies())
        del found[WAKE]
        lost = sum(1 for number in range(self.written) if not found[str(number).encode()])
        return KillOutcome(self.written, lost, found.total() - len(found), dict(self.killed), self.restarts, minutes)

    def _copies(self) -> list[bytes]:
        values = _values(self.broker.address, OUT)
        while values is None:
            self.restarts += 1
            self._restart_broker()
            values = _values(self.broker.address, OUT)
        return values


def _values(servers: str, topic: str) -> list[bytes] | None:
    """Return all values that a reader of committed rows gets; None if the reader does not reach the end."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True, "log_level": 2}
    client = Consumer(settings | {"isolation.level": "read_committed"})
    numbers = list(client.list_topics(topic, timeout=30).topics[topic].partitions)
    client.assign([TopicPartition(topic, number, 0) for number in numbers])
    values, ended = list[bytes](), set[int | None]()
    until_s = time.monotonic() + STUCK_S
    while len(ended) < len(numbers) and time.monotonic() < until_s:
        for message in client.consume(10_000, 0.1):
            if message.error() is None:
                values.append(message.value() or b"")
            else:
                ended.add(message.partition())
    client.close()
    return values if len(ended) == len(numbers) else None


def run_kills(
    place: Path, kills: int, seed: int, on_spark: bool, victims: Sequence[Victim] = tuple(Victim)
) -> KillOutcome:
    """Kill at random `kills` times; the same seed has the same victims and waits."""
    with weed_broker(place / "broker") as broker:
        driver = driver_of(place, "kafka_job" if on_spark else "kafka_writer", broker.address)
        wait_s = LONGEST_WAIT_S if on_spark else SHORT_WAIT_S
        try:
            return Kills(broker, driver, random.Random(seed), wait_s, victims).run(kills)
        finally:
            driver.kill()


def driver_of(place: Path, module: str, *arguments: str) -> Driver:
    """The job in `module`, which keeps its files in `place`."""
    command = [sys.executable, "-m", f"headgate.bench.{module}", str(place / "home"), *arguments]
    return Driver(command, place / "driver.log")
