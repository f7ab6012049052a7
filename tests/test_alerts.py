"""Alerts: a line in the log, and a webhook that may be slow, or gone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headgate.alerts import Alerts, check_webhook
from headgate.errors import InputError


class Hook(BaseHTTPRequestHandler):
    posted: list[dict[str, object]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def hook() -> Iterator[HTTPServer]:
    Hook.posted = []
    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_alert_is_logged_and_posted(hook: HTTPServer) -> None:
    lines: list[str] = []
    alerts = Alerts(lambda at_s, text: lines.append(text), f"http://127.0.0.1:{hook.server_port}/alerts")
    alerts(12.5, "words: there is not enough input")
    alerts.close()
    assert lines == ["alert: words: there is not enough input"]
    assert Hook.posted == [{"at_s": 12.5, "text": "words: there is not enough input"}]


def test_webhook_that_does_not_answer_is_told_and_holds_up_nobody() -> None:
    lines: list[str] = []
    alerts = Alerts(lambda at_s, text: lines.append(text), "http://127.0.0.1:9/closed")
    alerts(1.0, "first")
    alerts(2.0, "second")
    alerts.close()
    assert lines.count("alert: first") == lines.count("alert: second") == 1
    assert sum(line.startswith("the webhook did not take an alert") for line in lines) == 2


def test_without_a_webhook_there_is_the_log() -> None:
    lines: list[str] = []
    alerts = Alerts(lambda at_s, text: lines.append(text))
    alerts(1.0, "only here")
    alerts.close()
    assert lines == ["alert: only here"]


@pytest.mark.parametrize("url", ["", 7, "localhost", "ftp://x/y", "http://"])
def test_address_that_is_none_is_refused(url: object) -> None:
    with pytest.raises(InputError, match="webhook is"):
        check_webhook(url)
