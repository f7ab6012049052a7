"""A browser on a service without Spark, for tests of the dashboard: Debian's chromium, and jobs that follow formulas."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.bench.showcase import NAMED, ROUND_S, Show, ShownJob, show
from headgate.hosts.leases import Bill
from headgate.server.app import app_of, listen, served
from headgate.server.login_routes import login_path
from headgate.server.sessions import Identity
from headgate.server.status import LeasesStatus, LeaseStatus

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = shutil.which("chromium")
BROWSED = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)"),
]
"""Marks of tests that use a browser."""
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOUR_S = 3600.0
TOKEN = "the-token"
START_S = 1_780_000_000.0
PATIENCE_MS = 20_000
LONG_LINE = re.compile(r".{500}")
"""A line with many points."""
JOB = "/#/jobs/fraud-score"
WHAT_IF = "/#/what-if"


class Stage:
    """A service on show, its address, and a clock that only rounds move."""

    def __init__(
        self, home: Path, stack: ExitStack, shown: Sequence[ShownJob] = NAMED, length_s: float = 6 * HOUR_S
    ) -> None:
        self.now_s = START_S
        self.show: Show = stack.enter_context(show(home, shown, length_s, lambda: self.now_s))
        self.service, self.engine = self.show.service, self.show.engine
        self.rounds(6)
        self.service.board.leases = leases()
        self.service.changes._kept = ()  # the submissions of all jobs at the start would fill the list of changes
        self.app = app_of(self.service, TOKEN)
        listening = stack.enter_context(closing(listen()))
        self.url = stack.enter_context(served(self.app, listening))

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.now_s += ROUND_S
            self.service.look()
            self.service.round()

    def request(self, who: str, method: str, path: str, table: Any) -> httpx.Response:
        """What the command line asks."""
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Headgate-User": who}
        return httpx.request(method, self.url + path, json=table, headers=headers, trust_env=False)

    def link(self, who: str = "ada") -> str:
        return self.url + login_path(self.app.state.sessions, Identity(who))


def leases() -> LeasesStatus:
    held = tuple(LeaseStatus(f"host-{n}", "local", "ready", "", f"127.0.0.{n + 2}", 1500.0 + 600 * n) for n in range(3))
    by_job = {"fraud-score": 1.42, "page-load": 1.10, "bid-floor": 0.86}
    bill = Bill(14, 5, 9, 2, 0, 840.0, 3.64, by_job, {"risk": 1.42, "shop": 1.10, "ads": 0.86})
    return LeasesStatus(held, bill, 0.78, ())


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's chromium, without a window."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class opened:  # used like a function
    """A browser of its own, whose complaints fail the test."""

    def __init__(self, browser, width: int = 1440, scheme: str = "light", expected: str = "") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=scheme, timezone_id="UTC", locale="en-GB"
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.expected = expected

    def __enter__(self):
        page = self.context.new_page()
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def __exit__(self, kind, *_) -> None:
        self.context.close()
        if kind is None:
            found = [one for one in self.complaints if not (self.expected and self.expected in one)]
            assert found == []


def expect(found):
    playwright.expect.set_options(timeout=PATIENCE_MS)
    return playwright.expect(found)


def row(page, name: str):
    return page.locator("table.jobs tbody tr", has=page.get_by_role("link", name=name, exact=True))


def go_to(page, stage: Stage, place: str = JOB):
    page.goto(stage.url + place)
    page.wait_for_selector("#story")


def predict(page, wait_ms: int = 300_000):
    page.get_by_role("button", name="Predict").click()
    page.locator("table.outlook").wait_for(timeout=wait_ms)
