"""Alerts: a line in the log, and a webhook that may be slow, or gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from headgate.alerts import MOST_WAITING, Alerts, Webhook, WebhookFormat, check_webhook
from headgate.core.alerts import Alert
from headgate.errors import InputError


class Hook(BaseHTTPRequestHandler):
    posted: list[Any]
    gate = threading.Event()
    """Nothing is answered while it is closed."""
    entered = threading.Event()

    def do_POST(self) -> None:
        self.entered.set()
        self.gate.wait(10)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def hook() -> Iterator[HTTPServer]:
    Hook.posted = []
    Hook.gate.set()
    Hook.entered.clear()
    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_alert_is_logged_and_posted(hook: HTTPServer) -> None:
    lines: list[str] = []
    alerts = Alerts(lambda at_s, job, text: lines.append(text), Webhook(f"http://127.0.0.1:{hook.server_port}/alerts"))
    alerts(12.5, Alert("words: there is not enough input"))
    alerts.close()
    assert lines == ["alert: words: there is not enough input"]
    assert Hook.posted == [{"at_s": 12.5, "text": "words: there is not enough input"}]


def test_alert_about_a_job_names_it_in_the_log_and_in_what_is_posted(hook: HTTPServer) -> None:
    lines: list[tuple[str, str]] = []
    address = Webhook(f"http://127.0.0.1:{hook.server_port}/alerts")
    alerts = Alerts(lambda at_s, job, text: lines.append((job, text)), address)
    alerts(12.5, Alert("there is not enough input", job="words"))
    alerts.close()
    assert lines == [("words", "alert: there is not enough input")]
    assert Hook.posted == [{"at_s": 12.5, "text": "words: there is not enough input"}]


def test_slack_is_sent_a_message(hook: HTTPServer) -> None:
    address = Webhook(f"http://127.0.0.1:{hook.server_port}/alerts", WebhookFormat.SLACK)
    alerts = Alerts(lambda at_s, job, text: None, address)
    alerts(12.5, Alert("rows < 5 & falling", job="words"))
    alerts.close()
    assert Hook.posted == [{"text": "Headgate: words: rows &lt; 5 &amp; falling"}]


def test_alertmanager_is_sent_alerts_that_it_can_tell_apart(hook: HTTPServer) -> None:
    address = Webhook(f"http://127.0.0.1:{hook.server_port}/alerts", WebhookFormat.ALERTMANAGER)
    alerts = Alerts(lambda at_s, job, text: None, address)
    alerts(0.0, Alert("there is not enough input", job="words"))
    alerts(0.0, Alert("there is no host"))
    alerts.close()
    first, second = (posted[0] for posted in Hook.posted)
    assert first["annotations"] == {"summary": "words: there is not enough input"}
    assert first["startsAt"] == "1970-01-01T00:00:00+00:00"
    assert (first["labels"]["alertname"], first["labels"]["job_name"]) == ("HeadgateAlert", "words")
    assert "job_name" not in second["labels"] and first["labels"]["digest"] != second["labels"]["digest"]


def test_webhook_that_does_not_answer_is_told_and_holds_up_nobody() -> None:
    lines: list[str] = []
    alerts = Alerts(lambda at_s, job, text: lines.append(text), Webhook("http://127.0.0.1:9/closed"))
    alerts(1.0, Alert("first"))
    alerts(2.0, Alert("second"))
    alerts.close()
    assert lines.count("alert: first") == lines.count("alert: second") == 1
    assert sum(line.startswith("the webhook did not take an alert") for line in lines) == 2


def test_thread_survives_a_webhook_that_speaks_no_http() -> None:
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_nonsense, args=(server, 2), daemon=True).start()
        alerts = Alerts(
            lambda at_s, job, text: lines.append(text), Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/x")
        )
        alerts(1.0, Alert("first"))
        alerts(2.0, Alert("second"))
        alerts.close()
    assert not alerts._thread.is_alive()
    assert sum(line.startswith("the webhook did not take an alert: BadStatusLine") for line in lines) == 2


def answer_nonsense(server: socket.socket, times: int) -> None:
    for _ in range(times):
        connection, _ = server.accept()
        with connection:
            connection.recv(9999)
            connection.sendall(b"hello, no HTTP here\r\n\r\n")


def test_oldest_alerts_are_dropped_and_counted_while_the_webhook_hangs(hook: HTTPServer) -> None:
    lines: list[str] = []
    Hook.gate.clear()
    alerts = Alerts(lambda at_s, job, text: lines.append(text), Webhook(f"http://127.0.0.1:{hook.server_port}/alerts"))
    alerts(0.0, Alert("in flight"))
    assert Hook.entered.wait(10)
    for number in range(MOST_WAITING + 5):
        alerts(float(number), Alert(f"alert {number}"))
    Hook.gate.set()
    alerts.close()
    posted = [one["text"] for one in Hook.posted]
    assert posted == ["in flight", *(f"alert {number}" for number in range(5, MOST_WAITING + 5))]
    assert lines.count("the webhook does not keep up: 5 alerts are only in the log") == 1


def test_log_that_is_full_stops_neither_caller_nor_thread(hook: HTTPServer) -> None:
    def full(at_s: float, job: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    alerts = Alerts(full, Webhook(f"http://127.0.0.1:{hook.server_port}/alerts"))
    alerts(1.0, Alert("first"))
    alerts(2.0, Alert("second"))
    alerts.close()
    assert [one["text"] for one in Hook.posted] == ["first", "second"]


def test_without_a_webhook_there_is_the_log() -> None:
    lines: list[str] = []
    alerts = Alerts(lambda at_s, job, text: lines.append(text))
    alerts(1.0, Alert("only here"))
    alerts.close()
    assert lines == ["alert: only here"]


@pytest.mark.parametrize("url", ["", 7, "localhost", "ftp://x/y", "http://"])
def test_address_that_is_none_is_refused(url: object) -> None:
    with pytest.raises(InputError, match="webhook is"):
        check_webhook(url)
