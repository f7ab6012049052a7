"""Where alerts go besides the journal: a line in the log, and a webhook if there is one.

A webhook is called by a thread of its own: an address that does not answer must not hold up the loop.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from headgate import clock
from headgate.core.quantities import shown
from headgate.errors import InputError
from headgate.threads import WatchedThread

TIMEOUT_S = 10.0
"""How long a webhook may take to accept a connection, a request, or to say the next word."""
MOST_WAITING = 100
"""Alerts that wait for the webhook; if there are more, the oldest are only logged."""


def check_webhook(url: object) -> str:
    """The address of a webhook.

    >>> check_webhook("ftp://nowhere")
    Traceback (most recent call last):
    headgate.errors.InputError: webhook is "ftp://nowhere"; it must be an address such as "https://example.org/alerts"
    """
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise InputError(f'webhook is {shown(url)}; it must be an address such as "https://example.org/alerts"')
    return url


class Alerts:
    """Tells everybody who wants to know.

    Alerts that wait are shared with the thread that posts them, under `_changed`.
    """

    def __init__(self, log: Callable[[float, str], None], webhook: str | None = None) -> None:
        self._log = log
        self._webhook = webhook
        self._waiting: deque[tuple[float, str]] = deque()
        self._dropped = 0
        """Alerts that were not posted because too many waited, since the last line about it."""
        self._closing = False
        self._changed = threading.Condition()
        self._thread = WatchedThread("headgate-alerts", self._post_all, lambda text: self._tell(clock.now_s(), text))
        if webhook is not None:
            self._thread.start()

    def __call__(self, at_s: float, text: str) -> None:
        """Raise one alert; returns at once."""
        self._tell(at_s, f"alert: {text}")
        if self._webhook is None:
            return
        with self._changed:
            self._waiting.append((at_s, text))
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify()

    def close(self) -> None:
        """Wait until all that were raised are posted or given up, but not for ever."""
        self._thread.close(2 * TIMEOUT_S, self._end)

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _post_all(self) -> None:
        while (alert := self._next()) is not None:
            try:
                self._post(*alert)
            except Exception as error:  # whatever answers at the address, the next alert is posted
                self._tell(alert[0], f"the webhook did not take an alert: {type(error).__name__}: {error}")
            self._tell_dropped(alert[0])

    def _next(self) -> tuple[float, str] | None:
        """The oldest alert, once there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _tell_dropped(self, at_s: float) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._tell(at_s, f"the webhook does not keep up: {dropped} alerts are only in the log")

    def _tell(self, at_s: float, line: str) -> None:
        with suppress(OSError, ValueError):  # a log that is full or closed must stop neither the loop nor the thread
            self._log(at_s, line)

    def _post(self, at_s: float, text: str) -> None:
        assert self._webhook is not None
        body = json.dumps({"at_s": at_s, "text": text}).encode()
        request = urllib.request.Request(self._webhook, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass
