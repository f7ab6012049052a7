"""The dashboard as a person uses it: Debian's chromium, a real service, an engine without Spark."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate.bench import dashboard
from headgate.bench.showcase import NAMED
from headgate.ports import JobPhase
from headgate.server import api
from headgate.server.tenants import Quota, Tenant
from headgate.sim.reports.bars import Bar
from tests.server.browsing import (
    BROWSED,
    JOB,
    LONG_LINE,
    PATIENCE_MS,
    Stage,
    chromium,
    expect,
    go_to,
    opened,
    predict,
    row,
)

pytestmark = BROWSED


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path_factory.mktemp("stage"), stack)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser, stage) -> Iterator[Any]:
    """A browser that is logged in and shows the cluster; nothing that it does may be an error."""
    with opened(browser) as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        yield page


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
    page.get_by_label("Tenant", exact=True).select_option("risk")
    expect(rows).to_have_count(2)
    page.get_by_label("State").select_option("met")
    expect(rows).to_have_count(1)
    page.get_by_label("Tenant", exact=True).select_option("")
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


def test_rows_draw_latency_juice_utility_lanes_and_pace_over_time(page):
    lines = row(page, "fraud-score").locator(".spark .line")
    expect(lines).to_have_count(5)
    for line in lines.all():
        expect(line).to_have_attribute("d", re.compile(r".{200}"))


def test_phone_shows_all_figures_of_a_job(browser, stage):
    with opened(browser, 360) as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        cells = row(page, "fraud-score").locator("td")
        for label in ("Latency", "Juice", "Utility", "Lanes", "Pace"):
            expect(cells.and_(page.locator(f'[data-label="{label}"]'))).to_be_visible()


def test_actions_that_are_left_out_are_counted(browser, stage, monkeypatch):
    monkeypatch.setattr(api, "SHOWN_ACTIONS", 4)
    with opened(browser) as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        expect(page.get_by_role("region", name="Actions")).to_contain_text("newest 4 of 6 actions")
        expect(page.get_by_role("region", name="Utility")).to_contain_text("newest 4 of 6 actions")
        monkeypatch.setattr(api, "SHOWN_ACTIONS", 1)
        go_to(page, stage)
        expect(page.get_by_role("region", name="Latency")).to_contain_text("newest 1 of 2 actions")


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
    expect(page.get_by_role("region", name="Epochs")).to_contain_text("holds the Spark stages that the sink needs")


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
    expect(page.get_by_role("region", name="Changes by people")).to_contain_text("ada, dashboard, from 127.0.0.1")


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


def test_person_asks_how_many_hosts_twice_the_load_needs(page, stage):
    page.get_by_role("link", name="What if?").click()
    page.get_by_role("button", name="How many hosts for twice the load?").click()
    expect(page.get_by_label("Hosts", exact=True)).to_be_disabled()
    predict(page)
    sizes = page.get_by_role("region", name="Sizes tried").locator("li")
    expect(sizes.first).to_contain_text(re.compile(r"^\d+ hosts?"))
    met = sizes.locator(".verdict.met").count()
    least = page.locator(".stat", has_text="Least that meets all")
    expect(least).to_contain_text(f"{sizes.count()} sizes tried")
    expect(least.locator("strong")).to_have_text("none" if met == 0 else re.compile(r"^\d+$"))


def test_question_that_cannot_be_answered_is_refused_in_a_sentence(browser, stage):
    with opened(browser, expected="400") as page:
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        page.goto(stage.url + "/#/what-if")
        page.get_by_label("Times the input").fill("-1")
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("alert")).to_contain_text("must be between 0 and 1000 times")


# -- tenants, removal


def test_tenants_are_shown_with_what_they_earn_take_and_cost(page, stage):
    stage.service.tenants.put(Tenant("risk", Quota(jobs=4, worth=135), weight=2.0))
    stage.rounds(1)
    tenants = page.get_by_role("region", name="Tenants")
    risk = tenants.locator("tbody tr", has=page.get_by_role("rowheader", name="risk"))
    expect(risk).to_contain_text("weight 2")
    expect(risk).to_contain_text("of 2 jobs")
    expect(risk.locator('[data-label="Budget of worth"]')).to_have_text("135 of 135, used up")
    expect(risk.locator(".quotas")).to_contain_text("jobs 2 of 4")
    expect(risk.locator('[data-label="Cost"]')).to_have_text("1.42")
    expect(risk.locator(".utility .meter")).to_have_attribute("aria-label", re.compile(r"of 135 points"))
    assert [name.split()[0] for name in tenants.locator("tbody th").all_inner_texts()] == ["shop", "risk", "ads"]


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
            expect(page.get_by_role("region", name="Tenants").locator("tbody th")).to_have_count(1)
            expect(page.get_by_role("region", name="Tenants").locator("tbody th")).to_contain_text(tenant)
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


# -- what the benchmark measures


SLOW = """
const fast = window.fetch;
window.fetch = async (...what) => {
  const answer = await fast(...what);
  await new Promise((done) => setTimeout(done, window.slow || 0));
  return answer;
};
"""
"""Answers come late once the page has a number of milliseconds."""


@pytest.mark.parametrize("place", ["/#/?range=604800", JOB])
def test_update_that_changes_the_page_late_is_measured_as_late(browser, stage, monkeypatch, place):
    monkeypatch.setattr(dashboard, "SETTLED_MS", 100.0)
    with opened(browser) as page:
        page.add_init_script(dashboard.WATCH + SLOW)
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        page.goto(stage.url + place)
        page.wait_for_selector(dashboard.DRAWN)
        page.wait_for_load_state("networkidle")
        page.evaluate("window.slow = 400")
        threading.Timer(0.2, stage.rounds, (1,)).start()
        assert 400 <= dashboard.update_ms(page) <= PATIENCE_MS


def test_update_that_never_changes_the_page_holds_no_bar(browser, stage, monkeypatch):
    monkeypatch.setattr(dashboard, "UPDATE_LIMIT_MS", 300.0)
    with opened(browser) as page:
        page.add_init_script(dashboard.WATCH)
        page.goto(stage.link())
        page.wait_for_selector("table.jobs")
        page.wait_for_load_state("networkidle")
        page.evaluate("Object.defineProperty(window, 'changed', { get: () => 0, set: () => {} })")
        threading.Timer(0.2, stage.rounds, (1,)).start()
        assert math.isnan(dashboard.update_ms(page))
    assert not Bar(name="an update", value=math.nan, op="<=", bar=1000.0).holds
