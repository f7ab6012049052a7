"""The dashboard as a person uses it: Debian's chromium, a real service, an engine without Spark."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headgate.bench.showcase import NAMED, ROUND_S, Show, show
from headgate.hosts.leases import Bill
from headgate.ports import JobPhase
from headgate.server.app import app_of, listen, served
from headgate.server.login_routes import login_path
from headgate.server.sessions import Identity
from headgate.server.status import LeasesStatus, LeaseStatus
from headgate.server.tenants import Tenant

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs axe: pip install axe-playwright-python"
)
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: chromium)"),
]

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
WIDTHS = (360, 768, 1440, 3840)
HOUR_S = 3600.0
START_S = 1_780_000_000.0
PATIENCE_MS = 20_000
LONG_LINE = re.compile(r".{500}")
"""A line with many points."""
JOB = "/#/jobs/fraud-score"
IMAGES = Path(__file__).parents[2] / "docs/images"
DOCUMENTED = {
    "dashboard-cluster-light-1440.png", "dashboard-cluster-dark-360.png", "dashboard-job-dark-1440.png", "dashboard-job-light-360.png",
    "dashboard-what-if-light-1440.png",
}  # fmt: skip


class Stage:
    """A service on show, its address, and a clock that only rounds move."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.now_s = START_S
        self.show: Show = stack.enter_context(show(home, NAMED, 6 * HOUR_S, lambda: self.now_s))
        self.service, self.engine = self.show.service, self.show.engine
        self.rounds(6)
        self.service.board.leases = leases()
        self.app = app_of(self.service, "the-token")
        listening = stack.enter_context(closing(listen()))
        self.url = stack.enter_context(served(self.app, listening))

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.now_s += ROUND_S
            self.service.look()
            self.service.round()

    def link(self, who: str = "ada") -> str:
        return self.url + login_path(self.app.state.sessions, Identity(who))


def leases() -> LeasesStatus:
    held = tuple(LeaseStatus(f"host-{n}", "local", "ready", "", f"127.0.0.{n + 2}", 1500.0 + 600 * n) for n in range(3))
    bill = Bill(14, 5, 9, 2, 0, 840.0, 3.64, {"fraud-score": 1.42, "page-load": 1.10, "bid-floor": 0.86})
    return LeasesStatus(held, bill, 0.78, ())


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path_factory.mktemp("stage"), stack)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser, stage) -> Iterator[Any]:
    """A browser that is logged in and shows the cluster; nothing that it does may be an error."""
    with opened(browser) as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        yield page


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


# -- getting in


def test_login_link_logs_in_once_and_leaves_no_trace_in_the_address(browser, stage):
    link = stage.link()
    with opened(browser) as page:
        page.goto(link)
        page.wait_for_selector("table.jobs")
        page.wait_for_function("!location.href.includes('login')")
        cookies = page.context.cookies()
        assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    with opened(browser, expected="401") as page:
        page.goto(link)
        expect(page.get_by_role("alert")).to_contain_text("was used before")
        assert page.locator("table").count() == 0


def test_person_with_the_token_gets_in_and_one_with_a_wrong_code_does_not(browser, stage):
    with opened(browser, expected="401") as page:
        page.goto(stage.url)
        page.get_by_label("Login code or token").fill("guess")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("headgate ui")
        page.get_by_label("Login code or token").fill("the-token")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("table.jobs")).to_be_visible()


def test_log_out_ends_the_session(browser, stage):
    with opened(browser, expected="401") as page:
        page.goto(stage.link())
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Login code or token")).to_be_visible()
        assert page.evaluate("fetch('/status').then((answer) => answer.status)") == 401


# -- the cluster


def test_cluster_shows_utility_against_its_maximum_and_every_job(page):
    expect(page.locator(".stat", has_text="Utility")).to_contain_text("of 415")
    expect(page.locator("table.jobs tbody tr")).to_have_count(len(NAMED))
    expect(page.locator(".line.main").first).to_have_attribute("d", LONG_LINE)
    missed = row(page, "fraud-score")
    expect(missed.locator("td .verdict")).to_have_text("missed")
    expect(missed.locator(".late")).to_have_text(re.compile(r"1\.\d s"))


def test_action_on_the_line_tells_cause_and_effect_on_hover(page):
    mark = page.locator("#utility >> xpath=ancestor::section >> css=.mark").first
    mark.hover()
    expect(page.locator(".tip")).to_contain_text("too few lanes")
    expect(page.locator(".tip")).to_contain_text("bid-floor look-up 3 → 6 lanes")
    expect(page.locator(".tip .effect")).to_contain_text("kept")


def test_actions_on_the_line_are_reached_by_keyboard(page):
    marks = page.locator(".mark")
    marks.first.focus()
    first = page.locator(".tip").inner_text()
    page.keyboard.press("ArrowRight")
    expect(marks.nth(1)).to_be_focused()
    expect(page.locator(".tip")).not_to_have_text(first, use_inner_text=True)
    assert "Effect:" in marks.nth(1).get_attribute("aria-label")


def test_jobs_are_filtered_by_tenant_state_attention_and_name(page):
    rows = page.locator("table.jobs tbody tr")
    page.get_by_label("Tenant").select_option("risk")
    expect(rows).to_have_count(2)
    page.get_by_label("State").select_option("met")
    expect(rows).to_have_count(1)
    page.get_by_label("Tenant").select_option("")
    page.get_by_label("State").select_option("")
    page.get_by_label("Needs attention").check()
    expect(rows).to_have_count(1)
    page.get_by_label("Needs attention").uncheck()
    page.get_by_label("Find a job").fill("load")
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)
    page.get_by_label("Find a job").fill("nothing like it")
    expect(page.get_by_text("No job fits these filters.")).to_be_visible()


def test_other_range_shows_other_times_and_stays_in_the_address(page):
    before = page.locator(".line.main").first.get_attribute("d")
    page.get_by_role("button", name="6 h").click()
    page.wait_for_function("(before) => document.querySelector('.line.main').getAttribute('d') !== before", arg=before)
    assert "range=21600" in page.url
    expect(page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")


def test_hosts_and_bill_are_shown(page):
    hosts = page.get_by_role("region", name="Hosts")
    expect(hosts).to_contain_text("host-2")
    expect(hosts).to_contain_text("45 min")
    expect(hosts.locator(".late")).to_have_text("8.6")
    expect(page.get_by_role("region", name="Bill")).to_contain_text("3.64")


def test_next_round_appears_without_a_reload(page, stage):
    page.evaluate("window.same = true")
    before = page.locator(".line.main").first.get_attribute("d")
    stage.rounds(1)
    page.wait_for_function("(before) => document.querySelector('.line.main').getAttribute('d') !== before", arg=before)
    assert page.evaluate("window.same")


# -- one job


def test_job_is_opened_from_its_row_with_its_operators_and_figures(page):
    page.get_by_role("link", name="fraud-score", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("fraud-score")
    graph = page.locator("svg.graph")
    expect(graph.locator(".node")).to_have_count(5)
    expect(graph.locator(".node.hot .name")).to_have_text("look-up")
    expect(graph.locator(".edge").first).to_contain_text("4,480/s")
    expect(graph.locator(".waits")).to_contain_text("rows wait")
    page.get_by_role("link", name="Cluster").click()
    expect(page.locator("table.jobs")).to_be_visible()


def test_skewed_lanes_hot_slices_and_hot_keys_stand_out(page, stage):
    go_to(page, stage)
    lanes = page.get_by_role("region", name="Lanes")
    expect(lanes.locator(".tag")).to_contain_text("skewed")
    expect(lanes.locator(".meter.bad")).to_have_count(1)
    state = page.get_by_role("region", name="Keyed state")
    expect(state.locator(".cell")).to_have_count(32)
    expect(state.locator(".hot")).to_contain_text("Slice 0 is hot")
    expect(state).to_contain_text(re.compile(r"32 slices, 25\d MB"))
    expect(state.locator(".hot-keys li").first).to_contain_text("customer-1042")
    expect(state.locator(".hot-keys li").first).to_contain_text("19.0 %")


def test_latency_percentiles_and_epochs_are_drawn(page, stage):
    go_to(page, stage)
    for name in ("p50", "p95", "p99"):
        expect(page.locator(f".line.{name}").first).to_have_attribute("d", LONG_LINE)
    falls = page.get_by_role("region", name="Epochs").locator(".fall")
    expect(falls.nth(3)).to_be_visible()
    assert "sink archive" in falls.first.get_attribute("aria-label")


def test_story_expands_to_symptom_diagnosis_remedy_and_effect(page, stage):
    go_to(page, stage)
    story = page.get_by_role("region", name="Story")
    entry = story.locator("details", has_text="5 → 8 lanes")
    expect(entry.locator("dl")).to_be_hidden()
    entry.locator("summary").press("Enter")
    for word in ("Symptom", "Diagnosis", "Remedy", "Effect"):
        expect(entry.get_by_text(word, exact=True)).to_be_visible()
    expect(entry).to_contain_text("look-up holds back its input 31 % of the time")
    expect(story).to_contain_text("Input rose from")


def test_failed_job_shows_its_reason_and_stack_trace(page, stage):
    trace = (
        'Traceback (most recent call last):\n  File "export.py", line 12, in write\nOSError: No space left on device'
    )
    reason = "the disk of the archive is full"
    stage.engine.set("partner-export", phase=JobPhase.FAILED, reason=reason, since_s=stage.now_s, trace=trace)
    stage.rounds(1)
    expect(row(page, "partner-export").locator("td .verdict")).to_have_text("failed")
    expect(page.get_by_role("alert")).to_contain_text("partner-export is failed")
    go_to(page, stage, "/#/jobs/partner-export")
    expect(page.locator(".banner")).to_contain_text("the disk of the archive is full")
    expect(page.get_by_role("region", name="Failures")).to_contain_text("the disk of the archive is full")
    shown = page.get_by_role("region", name="Failures").locator("pre")
    expect(shown).to_be_hidden()
    page.get_by_text("Stack trace").first.press("Enter")
    expect(shown).to_contain_text('File "export.py", line 12')
    stage.engine.set("partner-export", phase=JobPhase.RUNNING, reason="", trace="")
    stage.rounds(1)
    expect(page.locator(".title .verdict")).not_to_have_text("failed")


def test_job_that_does_not_exist_is_told_in_a_sentence(browser, stage):
    with opened(browser, expected="404") as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        page.goto(stage.url + "/#/jobs/nothing")
        expect(page.get_by_role("alert")).to_have_text('there is no job "nothing"')


# -- changes


def test_person_changes_intent_and_share_under_their_name(page, stage):
    go_to(page, stage, "/#/jobs/click-joins")
    page.get_by_role("button", name="Change …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Latency goal").fill("20s")
    dialog.get_by_label("Share").fill("3")
    expect(dialog).to_contain_text("under the name ada")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".title .note")).to_contain_text("intent 20 s")
    expect(page.get_by_role("region", name="Story")).to_contain_text("ada intent latency 20s; share 3")
    assert stage.service.status().jobs["click-joins"].share == 3


def test_refused_change_says_why_and_changes_nothing(browser, stage):
    with opened(browser, expected="400") as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        go_to(page, stage, "/#/jobs/page-load")
        page.get_by_role("button", name="Change …").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Share").fill("99")
        dialog.get_by_role("button", name="Apply").click()
        expect(dialog.get_by_role("alert")).to_contain_text("it must be at most 10")
        assert stage.service.status().jobs["page-load"].share == 1


def test_pause_asks_first_and_resume_continues(page, stage):
    go_to(page, stage, "/#/jobs/stock-levels")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert stage.service.status().jobs["stock-levels"].state == "running"
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".title .verdict")).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.locator(".title .verdict")).not_to_have_text("paused")
    page.get_by_role("link", name="Cluster").click()
    expect(page.get_by_role("region", name="Changes by people")).to_contain_text("stock-levels pause")
    expect(page.get_by_role("region", name="Changes by people")).to_contain_text("ada, dashboard")


def test_theme_is_chosen_and_kept(page):
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    bright = page.evaluate(ground)
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme: light").click()
    page.get_by_role("button", name="Theme: dark").wait_for()
    page.wait_for_function(f"before => {ground} !== before", arg=bright)
    page.reload()
    page.wait_for_selector("table.jobs")
    page.wait_for_function(f"before => {ground} !== before", arg=bright)


# -- predictions


def predict(page, wait_ms: int = 300_000):
    page.get_by_role("button", name="Predict").click()
    page.locator("table.outlook").wait_for(timeout=wait_ms)


def test_person_asks_what_twice_the_load_would_do(page, stage):
    page.get_by_role("link", name="What if?").click()
    expect(page.get_by_role("button", name="Predict")).to_be_disabled()
    page.get_by_role("button", name="Twice the load", exact=True).click()
    predict(page)
    expect(page.locator(".stat", has_text="Utility predicted")).to_contain_text("measured now")
    expect(page.get_by_role("region", name="Utility after the change").locator(".line.main")).to_have_attribute(
        "d", re.compile(r".{50}")
    )
    expect(page.locator("table.outlook tbody tr")).to_have_count(len(stage.service.status().jobs))
    expect(page.locator("table.outlook")).to_contain_text("→")


def test_person_asks_about_one_job_from_its_page(page, stage):
    go_to(page, stage, "/#/jobs/page-load")
    page.get_by_role("link", name="What if?").last.click()
    expect(page.get_by_label("Job", exact=True)).to_have_value("page-load")
    page.get_by_label("Latency goal").fill("10s")
    predict(page)
    expect(page.locator("table.outlook tr", has_text="page-load")).to_contain_text("10 s")


def test_question_that_cannot_be_answered_is_refused_in_a_sentence(browser, stage):
    with opened(browser, expected="400") as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        page.goto(stage.url + "/#/what-if")
        page.get_by_label("Times the input").fill("-1")
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("alert")).to_contain_text("must be between 0 and 1000 times")


# -- for everybody


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(browser, stage, width):
    with opened(browser, width) as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        go_to(page, stage)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto(stage.url + "/#/what-if")
        page.get_by_label("Times the input").fill("2")
        predict(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, stage, scheme):
    with opened(browser, scheme=scheme) as page:
        page.goto(stage.url)
        page.get_by_label("Login code or token").wait_for()
        found = {"login": broken_rules(page)}
        page.goto(stage.link())
        page.reload()
        page.wait_for_selector("table.jobs")
        found["cluster"] = broken_rules(page)
        go_to(page, stage)
        page.locator("summary").first.click()
        found["job"] = broken_rules(page)
        page.get_by_role("button", name="Change …").click()
        page.get_by_role("dialog").wait_for()
        found["dialog"] = broken_rules(page)
        page.keyboard.press("Escape")
        page.goto(stage.url + "/#/what-if")
        page.get_by_role("button", name="Twice the load", exact=True).click()
        predict(page)
        found["what if"] = broken_rules(page)
    assert found == {place: [] for place in found}


def broken_rules(page) -> list[str]:
    return [
        f"{rule['id']}: {node['html'][:120]}"
        for rule in axe.Axe().run(page).response["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_screenshots_for_the_docs(browser, stage, tmp_path, scheme, width):
    """`HEADGATE_SCREENSHOTS=1 pytest -k screenshots tests/server/test_dashboard.py` renews those that the docs show."""
    with opened(browser, width, scheme) as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        if width == WIDTHS[2]:
            page.locator(".mark").nth(2).hover()
        photograph(page, tmp_path / f"dashboard-cluster-{scheme}-{width}.png")
        go_to(page, stage)
        page.locator("details", has_text="5 → 8 lanes").locator("summary").click()
        page.mouse.move(0, 0)
        page.evaluate("scrollTo(0, 0)")
        photograph(page, tmp_path / f"dashboard-job-{scheme}-{width}.png", full_page=width == WIDTHS[2])
        page.goto(stage.url + "/#/what-if")
        page.get_by_role("button", name="Twice the load", exact=True).click()
        predict(page)
        page.evaluate("scrollTo(0, 0)")
        photograph(page, tmp_path / f"dashboard-what-if-{scheme}-{width}.png", full_page=width == WIDTHS[2])
    for path in tmp_path.glob("*.png"):
        if path.name in DOCUMENTED:
            assert (IMAGES / path.name).exists() or "HEADGATE_SCREENSHOTS" in os.environ
            if "HEADGATE_SCREENSHOTS" in os.environ:
                shutil.copy(path, IMAGES)


def photograph(page, path: Path, full_page: bool = False) -> None:
    """A picture of few colours, which takes a third of the space."""
    page.screenshot(path=path, full_page=full_page)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def test_tenant_sees_its_own_jobs_and_a_viewer_has_nothing_to_change(browser, stage):
    tenant = stage.service.status().jobs["fraud-score"].tenant
    stage.service.tenants.put(Tenant(tenant))
    for role, buttons in (("viewer", 0), ("editor", 3)):
        token = stage.service.tenants.new_token(tenant, role, 1)[0]
        with opened(browser) as page:
            page.goto(stage.url)
            page.get_by_label("Login code or token").fill(token)
            page.get_by_role("button", name="Log in").click()
            page.wait_for_selector("table.jobs")
            own = {name for name, job in stage.service.status().jobs.items() if job.tenant == tenant}
            assert set(page.locator("table.jobs th a").all_inner_texts()) == own
            assert page.get_by_role("link", name="What if?").count() == 0
            assert page.locator("#hosts").count() == 0
            page.goto(stage.url + JOB)
            page.wait_for_selector("#story")
            assert page.locator(".title .buttons button").count() == buttons
            assert page.get_by_role("link", name="What if?").count() == 0


def test_removed_job_needs_its_name_typed_and_leaves_the_list(page, stage):
    go_to(page, stage, "/#/jobs/campaign-reach")
    page.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Remove")).to_be_disabled()
    dialog.get_by_label("Type the name").fill("campaign-reach")
    dialog.get_by_role("button", name="Remove").click()
    expect(page.locator("table.jobs")).to_be_visible()
    expect(page.locator("table.jobs")).not_to_contain_text("campaign-reach")
    assert "campaign-reach" not in stage.service.status().jobs
