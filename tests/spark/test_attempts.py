"""An epoch whose host falls silent is cancelled and tried again; any other failure is its own."""

from __future__ import annotations

import pytest

from headgate.spark.epochs.attempts import Attempts

STUCK = frozenset({"job-1-7-out", "job-1-7-1-out", "other-1-7-out"})


class Epoch:
    """An epoch that is stuck for so many attempts."""

    def __init__(self, stuck: int, going_on: bool = True) -> None:
        self.stuck, self.going_on = stuck, going_on
        self.tags: list[str] = []
        self.cancelled: list[str] = []
        self.attempts = Attempts(("out", "log"), self.cancelled.append)

    def run(self) -> None:
        self.attempts.run(self._attempt, lambda: self.going_on)

    def _attempt(self, number: int) -> None:
        self.tags.append(self.attempts.begin("job-1-7", number))
        self.attempts.cancel(STUCK)
        if number < self.stuck:
            raise RuntimeError(f"attempt {number} failed")


def test_cancelled_attempt_is_followed_by_another_under_another_tag() -> None:
    epoch = Epoch(stuck=2)
    epoch.run()
    assert epoch.tags == ["job-1-7", "job-1-7-1", "job-1-7-2"]
    assert epoch.cancelled == ["job-1-7-out", "job-1-7-1-out"]


def test_failure_of_an_attempt_that_was_not_cancelled_is_raised() -> None:
    epoch = Epoch(stuck=5)
    with pytest.raises(RuntimeError, match="attempt 2 failed"):
        epoch.run()


def test_failure_before_the_first_spark_job_is_raised() -> None:
    epoch = Epoch(stuck=0)
    with pytest.raises(ZeroDivisionError):
        epoch.attempts.run(lambda number: number // 0, lambda: True)


def test_cancelled_attempt_of_a_job_that_stops_is_the_last() -> None:
    epoch = Epoch(stuck=2, going_on=False)
    with pytest.raises(RuntimeError, match="attempt 0 failed"):
        epoch.run()


def test_nothing_is_cancelled_between_two_epochs() -> None:
    epoch = Epoch(stuck=0)
    epoch.run()
    epoch.cancelled.clear()
    epoch.attempts.cancel(STUCK)
    assert epoch.cancelled == []
