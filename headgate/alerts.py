"""Where alerts go besides the journal: a line in the log, and a webhook if there is one.

A webhook is called by a thread of its own: an address that does not answer must not hold up the loop.
"""

from __future__ import annotations

import json
import queue
import threading
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from headgate.core.quantities import shown
from headgate.errors import InputError

TIMEOUT_S = 10.0
MOST_WAITING = 100
"""Alerts that wait for the webhook; if there are more, the newest are only logged."""


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
    """Tells everybody who wants to know."""

    def __init__(self, log: Callable[[float, str], None], webhook: str | None = None) -> None:
        self._log = log
        self._webhook = webhook
        self._waiting: queue.Queue[tuple[float, str] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._post_all, name="headgate-alerts", daemon=True)
        if webhook is not None:
            self._thread.start()

    def __call__(self, at_s: float, text: str) -> None:
        """Raise one alert; returns at once."""
        self._log(at_s, f"alert: {text}")
        if self._webhook is None:
            return
        try:
            self._waiting.put_nowait((at_s, text))
        except queue.Full:
            self._log(at_s, "the webhook does not keep up; this alert is only in the log")

    def close(self) -> None:
        """Wait until all that were raised are posted, or given up."""
        if self._webhook is not None and self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(2 * TIMEOUT_S)

    def _post_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            try:
                self._post(*alert)
            except OSError as error:
                self._log(alert[0], f"the webhook did not take an alert: {error}")

    def _post(self, at_s: float, text: str) -> None:
        assert self._webhook is not None
        body = json.dumps({"at_s": at_s, "text": text}).encode()
        request = urllib.request.Request(self._webhook, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass
