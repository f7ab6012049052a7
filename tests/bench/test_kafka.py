"""How the benchmark of Kafka judges the lag that a job reports."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason='tests of Kafka need pip install "headgate[kafka]"')

from headgate.bench.kafka import Lag
from headgate.core.model import EpochTiming


def epochs(*numbers: int, rows: float = 100.0) -> list[EpochTiming]:
    return [EpochTiming(number, 0.0, rows, ()) for number in numbers]


def test_several_epochs_between_two_samples_do_not_count_as_one_long_epoch() -> None:
    lag = Lag()
    for processed, finished in ((0.0, epochs(7)), (1000.0, epochs(*range(7, 18)))):
        lag.note(reported=250.0, watermarks=processed + 100.0, processed=processed)
        lag.note_epochs(finished, after=7)
    assert (lag.samples, lag.difference, lag.epoch, len(lag.epochs)) == (2, 150.0, 100.0, 10)


def test_epochs_before_the_measurement_do_not_count() -> None:
    lag = Lag()
    lag.note_epochs([*epochs(3, rows=9000.0), *epochs(4)], after=3)
    assert lag.epoch == 100.0
