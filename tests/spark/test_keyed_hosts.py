"""What keyed lanes do on the hosts of a cluster, as far as it takes no cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import OutageError
from headgate.spark.epochs.lanes import LaneError
from headgate.spark.epochs.places import AvailableHosts
from headgate.spark.hosts.asking import NUMBER, HostTask
from headgate.spark.hosts.this_host import _named, store_folder
from headgate.spark.keyed.hosts import ReachTarget, await_hosts, run_or_plan_again
from headgate.spark.keyed.lanes import LABEL, _marked
from headgate.state.aggregate import SLICE
from headgate.state.copies import Copies
from headgate.state.placement.targets import HostTarget
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


def test_a_target_is_reached_on_its_own_host_and_nowhere_else(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    driver.epoch_of(rows([(user, 1) for user in range(20)]))
    store = str(tmp_path / "store")
    copies = Copies(driver.operator, driver.life, store, str(tmp_path / "checkpoint"), SETTINGS)
    every = tuple(range(driver.life.slices))
    targets = {"host-a": HostTarget(every, every), "host-b": HostTarget((), ())}
    lane = HostTask(("host-a", "host-b"), ReachTarget(copies, targets, 0))
    asked = [pa.RecordBatch.from_pydict({NUMBER: [0]})]
    monkeypatch.setenv("SPARK_LOCAL_IP", "host-b")
    assert list(lane(asked)) == []
    _named.cache_clear()
    monkeypatch.setenv("SPARK_LOCAL_IP", "host-a")
    (answer,) = lane(asked)
    assert answer.column("host").to_pylist() == ["host-a"]
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"host-a"}
    own = Copies(driver.operator, driver.life, store_folder(store, "host-a"), str(tmp_path / "checkpoint"), SETTINGS)
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
        run_or_plan_again(run, may_go_on)
    assert len(tried) == attempts


def test_a_driver_that_is_started_again_waits_for_the_hosts_that_have_slices() -> None:
    answers = iter(AvailableHosts(dict.fromkeys(hosts, 2.0)) for hosts in ("", "a", "ab", "abc"))
    assert set(await_hosts(lambda: next(answers), ["a", "b"], time.monotonic() + 60)) == {"a", "b"}


def test_a_host_that_does_not_come_back_is_not_waited_for_for_ever() -> None:
    one = AvailableHosts({"a": 2.0})
    assert await_hosts(lambda: one, ["a", "b"], time.monotonic()) == {"a": 2.0}
    with pytest.raises(OutageError, match="no host of the cluster has had a slot"):
        await_hosts(AvailableHosts, [], time.monotonic(), patience_s=0)


def test_known_hosts_are_waited_for_longer_than_for_a_first_host() -> None:
    """Before, the wait for the second host ended with the sentence that there is no host at all."""
    one = AvailableHosts({"a": 2.0})
    assert await_hosts(lambda: one, ["a", "b"], time.monotonic() + 0.2, patience_s=0) == {"a": 2.0}


def test_a_job_that_can_use_no_host_says_why_at_once() -> None:
    refused = AvailableHosts(problems=("host a does not see it; mount it",))
    with pytest.raises(OutageError, match="host a does not see it; mount it"):
        await_hosts(lambda: refused, [], time.monotonic() + 60)
