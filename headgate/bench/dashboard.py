"""Benchmark of the dashboard with 200 jobs and a week of journal, in Debian's chromium: time to draw, time of an update, and core time.

The service is a process without Spark, whose jobs follow formulas; its rounds, its journal and its API are real. The core time of the
service is measured with and without an open page of the whole week, in turns. The benchmark also measures a prediction and a scrape of
`/metrics`.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil

from headgate.bench import Figure, Result, metrics, repeated
from headgate.bench.showcase import ROUND_S, parts, show
from headgate.config import ServiceSettings
from headgate.errors import EngineError, InputError
from headgate.server.app import app_of, listen, served
from headgate.server.login_routes import login_path
from headgate.server.sessions import Identity
from headgate.sim.reports.bars import Bar

if TYPE_CHECKING:
    from playwright.sync_api import Page

JOBS, WEEK_S = 200, 604_800.0
TURNS, TURN_S = 3, ROUND_S
"""How many times the page is opened and closed, and for how many seconds: each turn holds one round."""
OPENINGS = 5
MOST_CORE, MOST_DRAWN_MS, MOST_UPDATE_MS, MOST_ANSWER_MS, MOST_PREDICTED_S = 0.02, 2000.0, 1000.0, 1000.0, 10.0
SETTLED_MS, UPDATE_LIMIT_MS = 2000.0, 20_000.0
"""Milliseconds without a change after which an update is complete, and the longest wait for the first change."""
HOUR, WEEK = "#/", f"#/?range={WEEK_S:.0f}"
JOB_WEEK = f"#/jobs/page-load?range={WEEK_S:.0f}"
PAGES = {"all jobs, an hour": HOUR, "all jobs, the week": WEEK, "one job, the week": JOB_WEEK}
ANSWERS = {
    "all jobs together": "cluster",
    "all jobs": "jobs",
    "one job": "jobs/page-load",
    "its story": "jobs/page-load/story",
}
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DRAWN = "table.jobs, #story"
"""CSS selectors of elements with data, for the page of all jobs and the page of one job."""
WATCH = f"""
window.changed = 0; window.drawn = 0;
new MutationObserver(() => {{
  window.changed = performance.now();
  if (!window.drawn && document.querySelector("{DRAWN}")) requestAnimationFrame(() => {{ window.drawn = performance.now(); }});
}}).observe(document, {{ subtree: true, childList: true, attributes: true, characterData: true }});
"""
"""Script that records when the page last changed, and when data were first drawn."""
UPDATES = r"""
() => performance.getEntriesByType("resource")
  .filter((one) => /\/api\/v1\/(cluster|jobs\/[^\/]+)\?/.test(one.name)).map((one) => one.startTime)
"""
"""Script that returns when the page began each update: the time of each update's first request."""
ASK = f"""
async (path) => {{
  const begun = performance.now();
  await (await fetch(`/api/v1/${{path}}?range_s={WEEK_S}`)).json();
  return performance.now() - begun;
}}
"""


def measure() -> Result:
    """Measure times in milliseconds, and shares of a core."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise InputError("this benchmark needs chromium; install the Debian package chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError("this benchmark needs playwright; `pip install playwright` installs it") from None
    scraped = metrics.measured((metrics.FEW,))
    with TemporaryDirectory() as home, _service(Path(home)) as service, sync_playwright() as started:
        size_mb = (Path(home) / "journal.sqlite").stat().st_size / 1e6
        browser = started.chromium.launch(executable_path=chromium, args=list(FLAGS))
        try:
            found = _result(_Visit(browser, service))
        finally:
            browser.close()
    figures = (Figure("journal of a week", size_mb, "MB"), *found.figures, *scraped.figures)
    return Result(figures, (*found.bars, *scraped.bars))


def _result(visit: _Visit) -> Result:
    drawn_ms = {what: [visit.drawn_ms(place) for _ in range(OPENINGS)] for what, place in PAGES.items()}
    shares, updates_ms = visit.turns(WEEK)
    with visit.opened(JOB_WEEK) as page:
        job_updates_ms = [update_ms(page) for _ in range(TURNS)]
    answers = {what: visit.answers_ms(path) for what, path in ANSWERS.items()}
    extra = repeated("core of the service more with the page open", [more - less for less, more in shares], "share")
    drawn = [_measured(f"until the page is drawn: {what}", values, "ms") for what, values in drawn_ms.items()]
    updates = [
        _measured("from the news of a round until the page of all jobs has changed", updates_ms, "ms"),
        _measured("from the news of a round until the page of one job has changed", job_updates_ms, "ms"),
    ]
    answered = [_measured(f"answer about a week of {what}", values, "ms") for what, values in answers.items()]
    predicted = Figure(f"prediction of {JOBS} jobs with twice the load", visit.predicted_s(), "s")
    without = repeated("core of the service without a page", [less for less, _ in shares], "share")
    return Result(
        (*answered, *drawn, *updates, without, extra, predicted),
        (
            Bar(name="core more with the page open", value=extra.value, op="<=", bar=MOST_CORE),
            Bar(name="milliseconds until a page is drawn", value=_longest(drawn), op="<=", bar=MOST_DRAWN_MS),
            Bar(name="milliseconds of an update", value=_longest(updates), op="<=", bar=MOST_UPDATE_MS),
            Bar(name="milliseconds of an answer about a week", value=_longest(answered), op="<=", bar=MOST_ANSWER_MS),
            Bar(name="seconds of a prediction", value=predicted.value, op="<=", bar=MOST_PREDICTED_S),
        ),
    )


def _measured(name: str, values: Sequence[float], unit: str) -> Figure:
    """Return a figure of the values; not a number if one value is not a number, so that no bar on the figure holds."""
    return Figure(name, math.nan, unit) if any(map(math.isnan, values)) else repeated(name, values, unit)


def _longest(figures: Sequence[Figure]) -> float:
    values = [one.value for one in figures]
    return math.nan if any(map(math.isnan, values)) else max(values)


class _Visit:
    """Browser visits to the service."""

    def __init__(self, browser: Any, service: subprocess.Popen[str]) -> None:
        self._browser, self._service = browser, psutil.Process(service.pid)
        self._process = service

    def drawn_ms(self, place: str) -> float:
        """Return the milliseconds until data are drawn, in a browser without a cache."""
        with self.opened(place) as page:
            page.wait_for_function("() => window.drawn > 0")
            return float(page.evaluate("window.drawn"))

    def turns(self, place: str) -> tuple[list[tuple[float, float]], list[float]]:
        """Return the core shares of the service without and with an open page, and the milliseconds of updates."""
        shares, updates_ms = [], []
        for _ in range(TURNS):
            quiet = self.core_share()
            with self.opened(place) as page:
                self.settle()
                shares.append((quiet, self.core_share()))
                updates_ms.append(update_ms(page))
        return shares, updates_ms

    def answers_ms(self, path: str) -> list[float]:
        """Return the milliseconds that the service takes to answer a request about the whole week."""
        with self.opened(HOUR) as page:
            return [float(page.evaluate(ASK, path)) for _ in range(OPENINGS)]

    def predicted_s(self) -> float:
        """Return the seconds that a prediction about all jobs takes in the browser."""
        with self.opened("#/what-if") as page:
            page.get_by_role("button", name="Twice the load", exact=True).click()
            begun_s = time.monotonic()
            page.get_by_role("button", name="Predict").click()
            page.wait_for_selector("table.outlook")
            return time.monotonic() - begun_s

    @contextmanager
    def opened(self, place: str) -> Iterator[Page]:
        """Open a place of the page in a new browser context that is logged in."""
        context = self._browser.new_context(viewport={"width": 1440, "height": 1000})
        try:
            context.set_default_timeout(60_000)
            url, _, code = self._link().partition("#login=")
            context.request.post(f"{url}api/v1/session", data={"secret": code})
            page = context.new_page()
            page.add_init_script(WATCH)
            page.goto(url + place)
            page.wait_for_selector(f"{DRAWN}, #question")
            yield page
        finally:
            context.close()

    def _link(self) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def settle(self) -> None:
        """Wait until the costs of opening a page are over, so that only the costs of an open page are measured."""
        time.sleep(2.0)

    def core_share(self) -> float:
        """Measure the core time of the service as a share of the time that passes."""
        begun_s, before = time.monotonic(), self._service.cpu_times()
        time.sleep(TURN_S)
        after = self._service.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        return used_s / (time.monotonic() - begun_s)


def update_ms(page: Page) -> float:
    """Return the milliseconds from the request of the next update to the last change of the page; not a number if no change comes."""
    known = len(page.evaluate(UPDATES))
    page.wait_for_function(f"(known) => ({UPDATES})().length > known", arg=known, timeout=3000 * ROUND_S)
    begun_ms = float(page.evaluate(UPDATES)[known])
    deadline_s = time.monotonic() + UPDATE_LIMIT_MS / 1000
    while time.monotonic() < deadline_s:
        if page.evaluate(
            "([begun, settled]) => changed > begun && performance.now() > changed + settled", [begun_ms, SETTLED_MS]
        ):
            return float(page.evaluate("window.changed")) - begun_ms
        page.wait_for_timeout(50)
    return math.nan


@contextmanager
def _service(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield the service as a process, which answers each line of input with a login link."""
    command = [sys.executable, "-m", "headgate.bench.dashboard", str(home)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise EngineError("the service of the benchmark did not start")
        yield process
    finally:
        process.kill()
        process.communicate()


def serve(home: Path) -> None:
    """Write the journal, then serve: run a round every `ROUND_S`, and print a login link for every line of input."""
    import threading

    with show(home, parts(JOBS), WEEK_S) as staged, closing(listen()) as listening:
        app = app_of(staged.service, home.name, ServiceSettings())
        with served(app, listening) as url:
            threading.Thread(target=_answer, args=(app, url), daemon=True).start()
            print("ready", flush=True)
            while True:
                staged.service.look()
                staged.service.round()
                time.sleep(ROUND_S)


def _answer(app: Any, url: str) -> None:
    for _ in sys.stdin:
        print(url + login_path(app.state.sessions, Identity("bench")), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
