"""The dashboard of 200 jobs with a week of journal, in Debian's chromium: how soon it is drawn, how long an update takes, what it costs.

The service is a process without Spark, whose jobs follow formulas; its rounds, its journal and its API are real. Its core time is
measured with the page open and without, in turns.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil

from headgate.bench import Figure, Result, repeated
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
TURNS, TURN_S = 3, 12.0
"""How often the page is opened and closed, and for how long."""
OPENINGS = 5
MOST_CORE, MOST_DRAWN_MS, MOST_UPDATE_MS = 0.02, 2000.0, 1000.0
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
WATCH = """
window.changed = 0; window.drawn = 0;
new MutationObserver(() => {
  window.changed = performance.now();
  if (!window.drawn && document.querySelector("table.jobs")) requestAnimationFrame(() => { window.drawn = performance.now(); });
}).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
"""
"""Notes when the page last changed, and when the jobs were drawn first."""
UPDATES = """
() => performance.getEntriesByType("resource").filter((one) => one.name.includes("/api/v1/cluster")).map((one) => one.startTime)
"""
ASK = f"""
async (path) => {{
  const begun = performance.now();
  await (await fetch(`/api/v1/${{path}}?range_s={WEEK_S}`)).json();
  return performance.now() - begun;
}}
"""


def measure() -> Result:
    """Times in milliseconds, and shares of a core."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise InputError("this benchmark needs chromium; install the Debian package chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError("this benchmark needs playwright; `pip install playwright` installs it") from None
    with TemporaryDirectory() as home, _service(Path(home)) as service, sync_playwright() as started:
        size_mb = (Path(home) / "journal.sqlite").stat().st_size / 1e6
        browser = started.chromium.launch(executable_path=chromium, args=list(FLAGS))
        try:
            return _result(_Visit(browser, service), size_mb)
        finally:
            browser.close()


def _result(visit: _Visit, size_mb: float) -> Result:
    drawn_ms = [visit.drawn_ms() for _ in range(OPENINGS)]
    quiet, loud, updates_ms = [], [], []
    for _ in range(TURNS):
        quiet.append(visit.core_share())
        with visit.opened() as page:
            visit.settle()
            loud.append(visit.core_share())
            updates_ms += visit.updates_ms(page)
    more = [with_page - without for with_page, without in zip(loud, quiet, strict=True)]
    answers_ms = visit.answers_ms()
    extra = repeated("core of the service more with the page open", more, "share")
    first = repeated(f"until {JOBS} jobs are drawn after the page is asked for", drawn_ms, "ms")
    update = repeated("from the news of a round until the page has changed", updates_ms or [float("nan")], "ms")
    return Result(
        (
            Figure("journal of a week", size_mb, "MB"),
            *answers_ms,
            first,
            update,
            repeated("core of the service without a page", quiet, "share"),
            extra,
        ),
        (
            Bar(name="core more with the page open", value=extra.value, op="<=", bar=MOST_CORE),
            Bar(name="milliseconds until the jobs are drawn", value=first.value, op="<=", bar=MOST_DRAWN_MS),
            Bar(name="milliseconds of an update", value=update.value, op="<=", bar=MOST_UPDATE_MS),
        ),
    )


class _Visit:
    """A person with a browser, who comes and goes."""

    def __init__(self, browser: Any, service: subprocess.Popen[str]) -> None:
        self._browser, self._service = browser, psutil.Process(service.pid)
        self._process = service

    def drawn_ms(self) -> float:
        """Until the jobs are on the screen, for a browser that has seen nothing before."""
        with self.opened() as page:
            page.wait_for_function("() => window.drawn > 0")
            return float(page.evaluate("window.drawn"))

    def answers_ms(self) -> list[Figure]:
        """How long the service takes for questions about the whole week."""
        with self.opened() as page:
            paths = {
                "all jobs together": "cluster",
                "all jobs": "jobs",
                "one job": "jobs/page-load",
                "its story": "jobs/page-load/story",
            }
            return [
                repeated(
                    f"answer about a week of {what}", [float(page.evaluate(ASK, path)) for _ in range(OPENINGS)], "ms"
                )
                for what, path in paths.items()
            ]

    @contextmanager
    def opened(self) -> Iterator[Page]:
        """The page, logged in."""
        context = self._browser.new_context(viewport={"width": 1440, "height": 1000})
        try:
            context.set_default_timeout(60_000)
            page = context.new_page()
            page.add_init_script(WATCH)
            page.goto(self._link())
            page.wait_for_selector("table.jobs")
            yield page
        finally:
            context.close()

    def _link(self) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def settle(self) -> None:
        """What the opening of a page costs is not part of what it costs to keep it open."""
        time.sleep(2.0)

    def core_share(self) -> float:
        """Core time of the service as a share of the time that passes."""
        begun_s, before = time.monotonic(), self._service.cpu_times()
        time.sleep(TURN_S)
        after = self._service.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        return used_s / (time.monotonic() - begun_s)

    def updates_ms(self, page: Page) -> list[float]:
        """How long the last update took, from its request until the page had changed for good."""
        known = len(page.evaluate(UPDATES))
        page.wait_for_function(f"(known) => ({UPDATES})().length > known", arg=known, timeout=3000 * ROUND_S)
        page.wait_for_timeout(2000)
        return [float(page.evaluate("window.changed")) - float(page.evaluate(UPDATES)[-1])]


@contextmanager
def _service(home: Path) -> Iterator[subprocess.Popen[str]]:
    """The service as a process; each line that it is sent is answered by a link that logs in."""
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
    """Write the journal, then serve: a round at its time, a link for every line of input."""
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
