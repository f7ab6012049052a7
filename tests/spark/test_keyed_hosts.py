"""What keyed lanes do on the hosts of a cluster, as far as it takes no cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import EngineError
from headgate.spark.keyed_hosts import NUMBER, TendLane, awaited, folder_of, planned_anew
from headgate.spark.keyed_lanes import LABEL, _marked, here
from headgate.spark.lanes import LaneError
from headgate.state.aggregate import SLICE
from headgate.state.copies import Copies
from headgate.state.placement.targets import Duty
from tests.state.builders import SETTINGS, Driver, rows


def batch(*slices: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {SLICE: pa.array(slices, pa.int32()), LABEL: pa.array([0] * len(slices), pa.int32()), "x": list(slices)}
    )


@pytest.mark.parametrize("batches", [[batch(-3, 5, 6)], [batch(), batch(-3), batch(5), batch(6)]])
def test_a_lane_knows_its_number_by_a_mark_that_is_no_row(batches: list[pa.RecordBatch]) -> None:
    lane, found = _marked(iter(batches))
    assert lane == 2
    kept = list(found)
    assert [row for one in kept for row in one.column("x").to_pylist()] == [5, 6]
    assert all(LABEL not in one.schema.names for one in kept)


def test_a_lane_without_a_mark_fails_with_a_sentence() -> None:
    with pytest.raises(LaneError, match="does not know which one it is"):
        _marked(iter([batch(5)]))


def test_a_lane_is_on_the_host_that_spark_calls_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.12")
    assert here(("127.0.0.11", "127.0.0.12")) == "127.0.0.12"
    assert here(("somewhere", "else")) not in ("somewhere", "else")


def test_a_duty_is_done_on_its_own_host_and_nowhere_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(user, 1) for user in range(20)]))
    store = str(tmp_path / "store")
    copies = Copies(driver.operator, driver.life, store, str(tmp_path / "checkpoint"), SETTINGS)
    every = tuple(range(driver.life.slices))
    lane = TendLane(copies, {"duty-a": Duty(every, every), "duty-b": Duty((), ())}, 0)
    asked = [pa.RecordBatch.from_pydict({NUMBER: [0]})]
    monkeypatch.setenv("SPARK_LOCAL_IP", "duty-b")
    assert list(lane(asked)) == []
    here.cache_clear()
    monkeypatch.setenv("SPARK_LOCAL_IP", "duty-a")
    (answer,) = lane(asked)
    assert answer.column("host").to_pylist() == ["duty-a"]
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"duty-a"}
    own = Copies(driver.operator, driver.life, folder_of(store, "duty-a"), str(tmp_path / "checkpoint"), SETTINGS)
    assert own.versions(every) == dict.fromkeys(every, 0)


@pytest.mark.parametrize(("lost", "attempts"), [([], 1), ([True], 2), ([True, True], 3)])
def test_an_epoch_is_planned_anew_as_long_as_a_host_was_lost_and_never_for_ever(
    lost: list[bool], attempts: int
) -> None:
    tried: list[int] = []
    answers = iter([*lost, False])
    may_go_on: Callable[[Exception], bool] = lambda error: next(answers)  # noqa: E731

    def run() -> None:
        tried.append(1)
        raise OSError

    with pytest.raises(OSError):
        planned_anew(run, may_go_on)
    assert len(tried) == attempts


def test_a_driver_that_is_started_again_waits_for_the_hosts_that_have_slices() -> None:
    answers = iter([{}, {"a": 2.0}, {"a": 2.0, "b": 2.0}, {"a": 2.0, "b": 2.0, "c": 2.0}])
    assert set(awaited(lambda: next(answers), ["a", "b"], time.monotonic() + 60)) == {"a", "b"}


def test_a_host_that_does_not_come_back_is_not_waited_for_for_ever() -> None:
    assert awaited(lambda: {"a": 2.0}, ["a", "b"], time.monotonic()) == {"a": 2.0}
    with pytest.raises(EngineError, match="no host of the cluster has had a slot"):
        awaited(dict, [], time.monotonic(), patience_s=0)
