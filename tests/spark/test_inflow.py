"""Sources are asked side by side, and a slow one costs the others nothing. No Spark runs here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.measuring.inflow import Inflow, Inflows, ask_all

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


def test_removed_job_asks_no_source_any_more_and_awaits_the_question_under_way(
    askers: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """A question notes its answer in the directory of the source, which a removed job no longer has."""
    begun, ended = threading.Event(), []

    def arrived(place: Path) -> float:
        begun.set()
        time.sleep(0.3)
        ended.append(place)
        return 1.0

    context: Any = SimpleNamespace(
        name="job",
        graph=SimpleNamespace(sources=["in"]),
        shared=SimpleNamespace(askers=askers),
        settings=SimpleNamespace(ask_s=0.01, stop_s=10.0),
        source=lambda name: SimpleNamespace(arrived=arrived),
        place_of=lambda name: tmp_path,
    )
    inflows = Inflows(context, lambda name: None)
    inflows.ask(["in"])
    begun.wait(10)
    inflows.close()
    assert len(ended) == 1
    inflows.ask(["in"])
    inflows.close()
    assert len(ended) == 1
