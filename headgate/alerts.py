"""Sends alerts to the log, and to a webhook if one is configured.

A separate thread calls the webhook, so that an address that does not answer never delays the control loop.
"""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.request
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from headgate import clock
from headgate.core.alerts import Alert
from headgate.core.quantities import shown
from headgate.errors import InputError
from headgate.threads import WatchedThread

TIMEOUT_S = 10.0
"""Time limit, in seconds, for each step of a webhook: connection, request, and each part of the answer."""
ALERT = "alert: "
"""Start of an alert's line in the log."""
MOST_WAITING = 100
"""Alerts that wait for the webhook; if there are more, the oldest are only logged."""


def check_webhook(url: object) -> str:
    """Check the address of a webhook, and return the address.

    >>> check_webhook("ftp://nowhere")
    Traceback (most recent call last):
    headgate.errors.InputError: webhook is "ftp://nowhere"; it must be an address such as "https://example.org/alerts"
    """
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise InputError(f'webhook is {shown(url)}; it must be an address such as "https://example.org/alerts"')
    return url


class WebhookFormat(Enum):
    """Formats of webhooks."""

    PLAIN = "plain"
    """`{"at_s": ..., "text": ...}`"""
    ALERTMANAGER = "alertmanager"
    """A list of one alert, as `/api/v2/alerts` of Alertmanager takes it."""
    SLACK = "slack"
    """A message, as an incoming webhook of Slack takes it."""


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """An alert, and when it was raised."""

    at_s: float
    alert: Alert


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that alerts are posted to, and the form that it expects."""

    url: str
    format: WebhookFormat = WebhookFormat.PLAIN

    def body(self, raised: RaisedAlert) -> Any:
        """The body of the request, before its encoding as JSON."""
        match self.format:
            case WebhookFormat.ALERTMANAGER:
                return [_for_alertmanager(raised)]
            case WebhookFormat.SLACK:
                return {"text": f"Headgate: {_escaped(raised.alert.sentence)}"}
        return {"at_s": raised.at_s, "text": raised.alert.sentence}


def _for_alertmanager(raised: RaisedAlert) -> dict[str, Any]:
    """The alert in the form of Alertmanager, which merges alerts with equal labels: a digest keeps the alerts of a job apart."""
    alert = raised.alert
    digest = hashlib.sha256(alert.sentence.encode()).hexdigest()[:12]
    labels = {"alertname": "HeadgateAlert", "severity": "warning", "job_name": alert.job, "digest": digest}
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": alert.sentence},
        "startsAt": datetime.fromtimestamp(raised.at_s, UTC).isoformat(),
    }


def _escaped(text: str) -> str:
    """Escape the three characters that Slack reads as mark-up.

    >>> _escaped("a < b & c")
    'a &lt; b &amp; c'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Alerts:
    """Sends alerts to the log and to the webhook.

    The caller and the thread that posts share the waiting alerts, under the lock `_changed`.
    """

    def __init__(self, log: Callable[[float, str, str], None], webhook: Webhook | None = None) -> None:
        self._log = log
        self._webhook = webhook
        self._waiting: deque[RaisedAlert] = deque()
        self._dropped = 0
        """Alerts that were not posted because too many waited, since the last log line about dropped alerts."""
        self._closing = False
        self._changed = threading.Condition()
        self._thread = WatchedThread(
            "headgate-alerts", self._post_all, lambda text: self._tell(clock.now_s(), "", text)
        )
        if webhook is not None:
            self._thread.start()

    def __call__(self, at_s: float, alert: Alert) -> None:
        """Raise one alert; returns at once."""
        self._tell(at_s, alert.job, f"{ALERT}{alert.text}")
        if self._webhook is None:
            return
        with self._changed:
            self._waiting.append(RaisedAlert(at_s, alert))
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify()

    def close(self) -> None:
        """Wait for a limited time until all raised alerts are posted or dropped."""
        self._thread.close(2 * TIMEOUT_S, self._end)

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _post_all(self) -> None:
        while (raised := self._next()) is not None:
            try:
                self._post(raised)
            except Exception as error:  # whatever answers at the address, the next alert is posted
                self._tell(raised.at_s, "", f"the webhook did not take an alert: {type(error).__name__}: {error}")
            self._tell_dropped(raised.at_s)

    def _next(self) -> RaisedAlert | None:
        """Wait for the oldest alert, and take it; None if no alert is left and the sender closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _tell_dropped(self, at_s: float) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._tell(at_s, "", f"the webhook does not keep up: {dropped} alerts are only in the log")

    def _tell(self, at_s: float, job: str, line: str) -> None:
        with suppress(OSError, ValueError):  # a log that is full or closed must stop neither the loop nor the thread
            self._log(at_s, job, line)

    def _post(self, raised: RaisedAlert) -> None:
        assert self._webhook is not None
        body = json.dumps(self._webhook.body(raised)).encode()
        request = urllib.request.Request(self._webhook.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass
