"""Threads that end before they are closed run again; items are worked on in parallel."""

from __future__ import annotations

import threading

from headgate.threads import WatchedThread, in_parallel


def test_work_that_ends_is_reported_and_run_again_until_it_is_closed() -> None:
    told: list[str] = []
    runs, enough = iter([ValueError("odd"), SystemExit(3), None]), threading.Event()

    def work() -> None:
        error = next(runs, "enough")
        if error == "enough":
            enough.wait(10)
        elif isinstance(error, BaseException):
            raise error

    thread = WatchedThread("headgate-test", work, told.append, pause_s=0.001)
    thread.start()
    while len(told) < 3:
        assert thread.is_alive()
    thread.close(10, enough.set)
    assert not thread.is_alive()
    assert told == [
        "thread headgate-test ended (ValueError: odd); it is started again",
        "thread headgate-test ended (SystemExit: 3); it is started again",
        "thread headgate-test ended (without an error); it is started again",
    ]


def test_report_that_fails_does_not_end_the_thread() -> None:
    runs, twice = [], threading.Event()

    def work() -> None:
        runs.append(1)
        if len(runs) == 2:
            twice.set()

    def tell(text: str) -> None:
        raise OSError("no space left")

    thread = WatchedThread("headgate-test", work, tell, pause_s=0.001)
    thread.start()
    assert twice.wait(10)
    thread.close(10)
    assert not thread.is_alive()


def test_items_are_worked_on_at_the_same_time_and_results_keep_their_order() -> None:
    everyone = threading.Barrier(3)

    def meet(item: int) -> int:
        everyone.wait(10)
        return item * 2

    assert in_parallel(meet, [1, 2, 3]) == [2, 4, 6]
    assert in_parallel(meet, []) == []
