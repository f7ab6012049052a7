"""Sources are asked side by side, and a slow one costs the others nothing. No Spark runs here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.spark.measuring.inflow import Inflow, ask_all

from .conftest import Until


@pytest.fixture
def askers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_source_that_hangs_delays_neither_the_round_nor_other_sources(askers: ThreadPoolExecutor, until: Until) -> None:
    answer, asked = threading.Event(), []

    def hang() -> float:
        asked.append(1)
        answer.wait(30)
        return 7.0

    slow, quick = Inflow(hang), Inflow(lambda: 5.0)
    began_s = time.monotonic()
    for _ in range(3):
        ask_all([slow, quick], askers, 0.05)
    assert time.monotonic() - began_s < 5
    heard = quick.answer()
    assert heard is not None and heard.rows == 5.0
    assert (slow.answer(), len(asked)) == (None, 1)
    answer.set()
    until(lambda: slow.answer() is not None, "the late answer", within_s=5)


def test_last_answer_stays_with_its_time_while_the_source_is_away(askers: ThreadPoolExecutor) -> None:
    answers: list[float | None] = [5.0, None]

    def tell() -> float | None:
        if not answers:
            raise ConnectionError("away")
        return answers.pop(0)

    source = Inflow(tell)
    ask_all([source], askers, 5)
    first = source.answer()
    assert first is not None and first.rows == 5.0
    for _ in range(2):
        ask_all([source], askers, 5)
        assert source.answer() == first
