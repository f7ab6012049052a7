"""The guide to adoption, followed as a new user would: its scripts and commands, in an empty directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from .conftest import Start, Until
from .old_kafka import compact, old_checkpoint
from .processes import Run

pytestmark = pytest.mark.slow
GUIDE = (Path(__file__).parents[2] / "docs" / "adopting.md").read_text()


@dataclass
class NewUser:
    """Someone who copies scripts and commands from the guide."""

    place: Path
    start: Start
    address: str = "host:9092"

    def save(self, script: str, name: str) -> None:
        (script,) = (one for one in re.findall(r"```py\n(.*?)```", GUIDE, re.DOTALL) if f'appName("{script}")' in one)
        (self.place / name).write_text(script.replace("host:9092", self.address))

    def begin(self, command: str) -> Run:
        assert f"$ {command}\n" in GUIDE, "the guide says so"
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        return self.start(["env", "-C", str(self.place), f"PATH={path}", "bash", "-c", f"exec {command}"])

    def run(self, command: str) -> str:
        run = self.begin(command)
        told = "".join(run.lines())
        assert run.wait() == 0, run.errors()
        return told

    def shell(self, command: str) -> None:
        assert f"$ {command}\n" in GUIDE, "the guide says so"
        assert os.waitstatus_to_exitcode(os.system(f"cd {self.place} && {command}")) == 0

    def expected(self, command: str) -> str:
        """What the guide shows below a command."""
        shown = re.search(rf"\$ {re.escape(command)}\n(.*?)(?=\$ |```)", GUIDE, re.DOTALL)
        assert shown is not None
        return shown[1].replace("host:9092", self.address)

    def rows(self, out: str) -> list[int]:
        """Of the files that are finished, as Spark's log of them says."""
        logs = (self.place / out / "_spark_metadata").glob("[0-9]*")
        entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
        files = sorted({entry["path"].removeprefix("file://") for entry in entries})
        return sorted(ds.dataset(files).to_table()["id"].to_pylist()) if files else []


@pytest.fixture
def user(tmp_path: Path, start: Start) -> Iterator[NewUser]:
    place = tmp_path / "empty"
    (place / "bin").mkdir(parents=True)
    for name, arguments in (("python", ""), ("headgate", " -m headgate.cli")):
        program = place / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
        program.chmod(0o755)
    yield NewUser(place, start)
    shutil.rmtree(place, ignore_errors=True)


def finish(run: Run) -> None:
    """With Ctrl-C."""
    run.signal(signal.SIGINT)
    list(run.lines())
    run.wait()


def test_guide_adopts_a_query_that_reads_files(user: NewUser, until: Until) -> None:
    user.save("orders", "orders.py")
    user.shell("mkdir -p in/orders")
    user.shell("""echo '{"id": 1, "amount": 900}' > in/orders/1.json""")
    plain = user.begin("python orders.py")
    until((user.place / "checkpoint/large/commits/0").exists, "the first batch")
    finish(plain)
    command = "headgate adopt orders.py --dry-run"
    assert user.run(command) == user.expected(command)
    user.run("headgate adopt orders.py --latency 10s --worth 20")
    run = user.begin("headgate run large-orders-job.py")
    (user.place / "in/orders/2.json").write_text('{"id": 2, "amount": 901}\n{"id": 3, "amount": 1}')
    until(lambda: user.rows("out/large") == [1, 2], "the new order")
    finish(run)
    written = (user.place / "large-orders-job.py").read_text()
    (shown,) = (one for one in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "adopted(" in one)
    shown = shown.replace('"/data', f'"{user.place}')
    assert written.partition('"""\n\n')[2] == shown


def test_guide_adopts_a_query_that_reads_kafka(user: NewUser, kafka_servers: str, until: Until) -> None:
    from tests.kafka import write

    user.address = kafka_servers
    user.save("payments", "payments.py")
    payments = [compact({"id": number, "amount": 501}).encode() for number in range(40)]
    write(kafka_servers, "payments", payments, partitions=2)
    ends = [{"payments": {"0": 5 * batch + 2, "1": 4 * batch}} for batch in range(4)]
    old_checkpoint(user.place / "checkpoint/payments", {"payments": {"0": 0, "1": 0}}, ends)
    command = "headgate adopt payments.py --dry-run"
    assert user.run(command) == user.expected(command)
    user.run("headgate adopt payments.py --latency 10s --worth 20")
    run = user.begin("headgate run large-payments-job.py")
    wanted = sorted([*range(2 * 17, 40, 2), *range(2 * 12 + 1, 40, 2)])
    until(lambda: len(user.rows("out/payments")) >= len(wanted), "the new payments")
    finish(run)
    assert user.rows("out/payments") == wanted
