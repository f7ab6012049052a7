"""`headgate run --log-format json`: every line is one object, also those that Headgate does not write itself."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import run as run_module
from headgate.cli import run_command
from headgate.cli.json_log import JsonLog
from headgate.log_context import work_for, working_for
from headgate.ports import JobPhase
from tests.server.conftest import Bench, Notes
from tests.server.fake import FakeEngine, job_file


class Lines:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.log = JsonLog(self.texts.append)

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]

    def of(self, job: str) -> list[dict[str, Any]]:
        return [one for one in self.objects() if one.get("job") == job]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logged(bench: Bench, lines: Lines) -> Bench:
    """A service that logs there."""
    bench.notes = lines.log  # type: ignore[assignment]
    bench.start()
    return bench


def test_line_about_a_job_names_it_and_its_epoch(logged: Bench, lines: Lines) -> None:
    logged.engine.latency_s = 30.0
    logged.submit()
    logged.rounds(8)
    runs, action = lines.of("orders")[0], next(one for one in lines.of("orders") if "action" in one)
    time = "2023-11-14T22:13:30.000+00:00"
    assert runs == {"time": time, "level": "info", "message": "runs", "job": "orders", "epoch": 200}
    assert action["action"] == "reconfigure" and "latency 30 s misses 2 s" in action["message"]
    decided_s = (datetime.fromisoformat(action["time"]) - datetime.fromisoformat(time)).total_seconds()
    assert decided_s > 0 and action["epoch"] == 200 + 20 * decided_s


def test_alert_is_a_warning_with_the_job_and_the_epoch_that_failed(logged: Bench, lines: Lines) -> None:
    logged.submit()
    logged.rounds(3)
    logged.now_s += 4
    logged.engine.fail("orders", "no such column", JobPhase.FAILED)
    logged.now_s += 4
    logged.service.look()
    last = lines.objects()[-1]
    assert last.pop("time")
    assert last == {"level": "warning", "message": "failed: no such column", "job": "orders", "epoch": 20 * 34}


def test_line_about_the_service_names_no_job(logged: Bench, lines: Lines) -> None:
    logged.submit()
    logged.engine.unreadable = "Spark is gone"
    logged.rounds(1)
    found = next(one for one in lines.objects() if one["message"] == "no round: Spark is gone")
    assert {"job", "epoch"}.isdisjoint(found)


def test_rounds_are_summarised_from_time_to_time(logged: Bench, lines: Lines) -> None:
    logged.submit()
    logged.rounds(11)
    rounds = [one for one in lines.objects() if one["message"] == "round"]
    assert len(rounds) == 2
    assert (rounds[1]["jobs"], rounds[1]["met"], rounds[1]["utility"], rounds[1]["worth"]) == (1, 1, 35.0, 35.0)


def test_log_and_warnings_of_python_are_lines_too(lines: Lines) -> None:
    before = logging.getLogger().handlers
    with lines.log.taking_over(), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.getLogger("py4j").error("answer from\nJava side %s", "is empty")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert logging.getLogger().handlers == before
    error, warning = lines.objects()
    assert (error["level"], error["logger"], error["message"]) == ("error", "py4j", "answer from\nJava side is empty")
    assert warning["level"] == "warning" and "DeprecationWarning: old" in warning["message"]


def test_line_of_a_thread_names_the_job_and_the_epoch_that_the_thread_works_for(lines: Lines) -> None:
    logger = logging.getLogger("shop")

    def query() -> None:
        work_for("orders", 7)
        logger.warning("slow")

    with lines.log.taking_over():
        thread = threading.Thread(target=query)
        thread.start()
        thread.join()
        with working_for("clicks"):
            logger.warning("starts")
        logger.warning("elsewhere")
    assert [(one["message"], one.get("job"), one.get("epoch")) for one in lines.objects()] == [
        ("slow", "orders", 7),
        ("starts", "clicks", None),
        ("elsewhere", None, None),
    ]


def test_output_that_is_full_does_not_end_who_logs() -> None:
    def full(text: str) -> None:
        raise OSError(28, "No space left on device")

    log = JsonLog(full)
    with log.taking_over():
        logging.getLogger("headgate").error("lost")
    log.complain("lost too")
    with pytest.raises(OSError, match="No space"):
        log.tell(1.0, "orders", "runs")


def test_run_writes_nothing_but_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_module, "open_engine", FakeEngine)
    quick = [option for name in ("round_s=0.1", "warm_up_s=0.1", "window_s=1") for option in ("--set", name)]
    asked = ["--for", "0.5s", "--log-format", "json", "--json", "--no-restart", *quick]
    assert run_command(["run", str(job_file(tmp_path)), *asked]) == 0
    out, err = capsys.readouterr()
    *log, summary = map(json.loads, out.splitlines())
    assert err == "" and summary["rounds"] == log[-1]["rounds"] > 0
    assert all({"time", "level", "message"} <= line.keys() for line in log)
    assert [line["job"] for line in log if line["message"] == "runs"] == ["orders"]
    (dashboard,) = [line["message"] for line in log if line["message"].startswith("dashboard: ")]
    assert dashboard.endswith("; `headgate ui` opens it with a link that logs in once")
    assert "#login=" not in out


def test_text_is_still_what_people_get(bench: Bench) -> None:
    assert isinstance(bench.notes, Notes)
    assert run_command(["run", "--log-format", "yaml"]) == 2
