"""Background threads that must not end by themselves: a thread that ends before it is closed is reported and restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

PAUSE_S = 1.0
"""Wait before work that ended is run again, in seconds."""


def in_parallel(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """The results of the function for these items, in their order; every item has a thread of its own."""
    with ThreadPoolExecutor(max(1, len(items))) as pool:
        return list(pool.map(function, items))


class WatchedThread:
    """Runs `work` on its own thread until `close`; work that ends early is reported and run again.

    `work` must return soon after `close` was called; until then, `work` may run any number of times, one run after another.
    """

    def __init__(
        self, name: str, work: Callable[[], None], tell: Callable[[str], None], pause_s: float = PAUSE_S
    ) -> None:
        self._work, self._tell, self._pause_s = work, tell, pause_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def close(self, wait_s: float | None, wake: Callable[[], None] = lambda: None) -> None:
        """End the thread: `wake` makes the work return; `wait_s=None` waits without a limit."""
        self._closing.set()
        wake()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            reason = self._ended()
            if self._closing.is_set():
                return
            with suppress(Exception):  # a log that cannot be written must not end the thread that reports
                self._tell(f"thread {self._thread.name} ended ({reason}); it is started again")
            self._closing.wait(self._pause_s)

    def _ended(self) -> str:
        try:
            self._work()
        except BaseException as error:  # whatever ends a thread, SystemExit included
            return f"{type(error).__name__}: {error}"
        return "without an error"
