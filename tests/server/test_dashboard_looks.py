"""How the dashboard looks: nothing is cut at any width, axe finds nothing, and the pictures of the docs show the page as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

from headgate.bench.showcase import NAMED, parts
from headgate.ports import JobPhase
from headgate.server.tenants import Quota, Tenant
from tests.server.browsing import BROWSED, HOUR_S, WHAT_IF, Stage, chromium, go_to, opened, playwright, predict

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs axe: pip install axe-playwright-python"
)
pytestmark = BROWSED
WIDTHS = (360, 768, 1440, 3840)
IMAGES = Path(__file__).parents[2] / "docs/images"
MOST_DIFFERENCE = 0.5
"""Mean difference between the pixels of a picture in the docs and of the page, of 255."""
LONG = replace(
    NAMED[3], name="recommendations-for-returning-customers-of-all-shops-in-europe", tenant="personalisation-and-search"
)
CHANGES = (
    ("ada", "checkout-alerts", {"share": 3}),
    ("grace", "page-load", {"intent": {"worth": 60}}),
    ("ada", "click-joins", {"read_limit": 50_000}),
)
"""Who changes what before the pictures are taken."""
TRACE = 'Traceback (most recent call last):\n  File "export.py", line 12, in write\nOSError: ' + "no space left " * 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Iterator[Stage]:
    """As the docs show it, with quotas and a few changes by people; no test changes anything."""
    with ExitStack() as stack:
        stage = Stage(tmp_path_factory.mktemp("stage"), stack)
        stage.service.tenants.put(
            Tenant("shop", Quota(jobs=5, lanes=32, memory_mb=4000, state_mb=1000, worth=250), weight=2.0),
            Tenant("risk", Quota(jobs=2, lanes=32, memory_mb=4000, state_mb=1000, worth=150)),
        )
        for who, job, table in CHANGES:
            answer = stage.request(who, "PATCH", f"/api/v1/jobs/{job}", table)
            assert answer.status_code == 200, answer.text
        stage.rounds(1)
        yield stage


@pytest.fixture(scope="module")
def crowd(tmp_path_factory) -> Iterator[Stage]:
    """Sixty jobs, one of them with a long name and one that failed, and tenants with quotas."""
    with ExitStack() as stack:
        crowd = Stage(tmp_path_factory.mktemp("crowd"), stack, [LONG, *parts(59)], HOUR_S)
        limits = Quota(jobs=30, lanes=200, share=60, memory_mb=64_000, state_mb=1000, worth=1500)
        crowd.service.tenants.put(Tenant("risk", limits, weight=2.5), Tenant(LONG.tenant, limits))
        crowd.engine.set(
            "partner-export", phase=JobPhase.FAILED, reason="the disk of the archive is full", since_s=crowd.now_s, trace=TRACE
        )  # fmt: skip
        crowd.rounds(1)
        yield crowd


# -- for everybody


def cluster(page: Any, stage: Stage) -> None:
    page.goto(stage.link())
    page.wait_for_selector("table.jobs")


def login(page: Any, stage: Stage) -> None:
    page.goto(stage.url)
    page.get_by_label("Login code or token").wait_for()


def tenant(page: Any, stage: Stage) -> None:
    page.goto(stage.url)
    page.get_by_label("Login code or token").fill(stage.service.tenants.new_token(LONG.tenant, "editor", 1)[0])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("table.jobs")


def job(page: Any, stage: Stage) -> None:
    cluster(page, stage)
    go_to(page, stage, f"/#/jobs/{LONG.name}")
    page.locator("summary").first.click()


def failure(page: Any, stage: Stage) -> None:
    cluster(page, stage)
    go_to(page, stage, "/#/jobs/partner-export")
    page.get_by_text("Stack trace").first.click()


def change(page: Any, stage: Stage) -> None:
    job(page, stage)
    page.get_by_role("button", name="Change …").click()
    page.get_by_role("dialog").wait_for()


def remove(page: Any, stage: Stage) -> None:
    job(page, stage)
    page.get_by_role("button", name="Remove …").click()
    page.get_by_role("dialog").wait_for()


def what_if(page: Any, stage: Stage) -> None:
    cluster(page, stage)
    page.goto(stage.url + WHAT_IF)
    page.get_by_role("button", name="Twice the load", exact=True).click()
    predict(page)


PLACES: tuple[Callable[[Any, Stage], None], ...] = (login, cluster, tenant, job, failure, change, remove, what_if)
CUT = """
() => [...document.querySelectorAll("html, main, header, dialog, .card")]
  .filter((one) => one.scrollWidth > innerWidth || one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => `${one.tagName} ${one.className}`)
"""
"""Parts of the page that stick out of the window."""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_nothing_is_wider_than_the_window_and_axe_finds_nothing(browser, crowd, place):
    """A page is laid out again at each width; axe looks at a phone and a screen, in light and dark."""
    found: dict[str, list[str]] = {}
    with opened(browser) as page:
        place(page, crowd)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            page.wait_for_function("width => innerWidth === width", arg=width)
            found[f"{width} wide"] = cut(page)
        for width, scheme in ((360, "light"), (1440, "dark"), (1440, "light")):
            page.set_viewport_size({"width": width, "height": 1000})
            page.emulate_media(color_scheme=scheme)
            found[f"axe, {width}, {scheme}"] = broken_rules(page)
    assert found == {where: [] for where in found}


def cut(page: Any) -> list[str]:
    """What sticks out of the window, once the charts have their new width."""
    with suppress(playwright.TimeoutError):
        page.wait_for_function(f"() => ({CUT})().length === 0", timeout=5000)
    return list(page.evaluate(CUT))


def broken_rules(page: Any) -> list[str]:
    return [
        f"{rule['id']}: {node['html'][:120]}"
        for rule in axe.Axe().run(page).response["violations"]
        for node in rule["nodes"]
    ]


# -- pictures


SCROLL = """
(shown) => {
  const covered = document.querySelector("header").offsetHeight + 16;
  scrollTo(0, document.querySelector(shown).getBoundingClientRect().top + scrollY - covered);
}
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the docs: a page, at a width, in light or dark."""

    page: str
    scheme: str
    width: int
    whole: bool = True
    """Otherwise its first 1000 pixels."""

    @property
    def name(self) -> str:
        return f"dashboard-{self.page}-{self.scheme}-{self.width}.png"

    def take(self, page: Any, stage: Stage) -> None:
        cluster(page, stage)
        if self.page == "cluster" and self.width == WIDTHS[2]:
            page.locator(".mark").nth(2).hover()
        if self.page == "job":
            go_to(page, stage)
            page.locator("details", has_text="5 → 8 lanes").locator("summary").click()
        if self.page == "what-if":
            what_if(page, stage)
        if self.page != "cluster":
            page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur()")
        page.evaluate(SCROLL, "#jobs" if self.page == "cluster" and not self.whole else "main")


PICTURES = (
    Picture("cluster", "light", 1440),
    Picture("job", "light", 1440),
    Picture("what-if", "light", 1440),
    Picture("job", "dark", 1440),
    Picture("cluster", "dark", 360, whole=False),
    Picture("job", "light", 360, whole=False),
)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_picture_of_the_docs_shows_the_page_as_it_is(browser, stage, tmp_path, picture):
    """`HEADGATE_SCREENSHOTS=1 pytest tests/server/test_dashboard_looks.py -k picture` renews the pictures."""
    with opened(browser, picture.width, picture.scheme) as page:
        picture.take(page, stage)
        photograph(page, tmp_path / picture.name, picture.whole)
    if "HEADGATE_SCREENSHOTS" in os.environ:
        shutil.copy(tmp_path / picture.name, IMAGES)
    with Image.open(tmp_path / picture.name) as now, Image.open(IMAGES / picture.name) as kept:
        assert now.size == kept.size
        difference = ImageChops.difference(now.convert("L"), kept.convert("L"))
        assert ImageStat.Stat(difference).mean[0] <= MOST_DIFFERENCE


def photograph(page: Any, path: Path, whole: bool) -> None:
    """A picture of few colours, which takes a third of the space."""
    page.screenshot(path=path, full_page=whole)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def test_every_picture_of_the_dashboard_is_taken_by_a_test_and_shown():
    root = IMAGES.parents[1]
    shown = "".join(page.read_text() for page in (root / "README.md", root / "docs/dashboard.md"))
    names = {picture.name for picture in PICTURES}
    assert {path.name for path in IMAGES.glob("dashboard-*.png")} == names
    assert all(name in shown for name in names)
