"""When the next epoch of a job begins: by its pace, apart from the epochs of other jobs. No Spark runs here."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from headgate.spark.epochs.pace import Moment, Pace
from headgate.spark.epochs.phases import Phases

PACE_S = 0.6
SLACK = 0.25


def waited_s(pace: Pace, started: Moment) -> float:
    pace.wait(started, lambda: PACE_S)
    return time.monotonic() - started.at_s


def test_epoch_of_a_job_alone_starts_when_it_is_due() -> None:
    assert waited_s(Pace("job", Phases(SLACK)), Moment.now()) >= PACE_S - 0.01


def test_jobs_whose_epochs_are_due_at_once_choose_different_starts_within_their_slack() -> None:
    phases = Phases(SLACK)
    due_s = 100.0
    for number in range(4):
        phases.note_start(f"job-{number}", due_s - 10.0, 10.0)
    starts = sorted(phases.chosen_s(f"job-{number}", due_s, 10.0) for number in range(4))
    assert min(after - before for before, after in pairwise(starts)) > 0.5
    assert due_s - 10.0 * SLACK <= starts[0] and starts[-1] <= due_s


def test_start_that_another_job_has_chosen_is_avoided_and_is_free_again_when_it_stops() -> None:
    phases = Phases(SLACK)
    assert phases.chosen_s("first", 50.0, 10.0) == 50.0
    assert phases.chosen_s("second", 50.0, 10.0) != 50.0
    phases.forget("first")
    phases.forget("second")
    assert phases.chosen_s("third", 50.0, 10.0) == 50.0


def test_overdue_epoch_starts_at_once() -> None:
    long_ago = Moment(time.time() - 60, time.monotonic() - 60)
    begun_s = time.monotonic()
    Pace("job", Phases(SLACK)).wait(long_ago, lambda: PACE_S)
    assert time.monotonic() - begun_s < PACE_S / 2


def test_shorter_pace_ends_a_wait_that_is_under_way() -> None:
    pace, paces = Pace("job", Phases(SLACK)), [600.0]
    waiting = threading.Thread(target=lambda: pace.wait(Moment.now(), lambda: paces[0]))
    waiting.start()
    paces[0] = 0.0
    pace.wake()
    waiting.join(20)
    assert not waiting.is_alive()
