"""The docs are true: generated parts are fresh, and the code in them runs."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.config.settings import describe
from headgate.scheduler.rules import TRANSITIONS
from headgate.sim.run import run
from headgate.sim.scenario import built_in, load_scenario, read_scenario
from headgate.spark import sinks, sources

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_generated_pages_are_fresh():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_navigation_lists_each_page_once():
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - ")[2])
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("row", describe(), ids=lambda row: row["name"])
def test_every_setting_has_a_sentence_that_ends(row):
    assert len(row["text"]) > 20
    assert row["text"].endswith(".")


def test_every_rule_says_when_it_happens():
    assert all(rule.happens.startswith(("when", "for", "while", "once", "as long")) for rule in TRANSITIONS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_docs_runs(page):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        defined: dict[str, Any] = {}
        exec(compile(code, str(page), "exec"), defined)
        if "topology" in defined:
            assert defined["topology"]().graph().sinks


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/0*.md")), ids=lambda page: page.stem)
def test_decisions_are_listed_by_their_titles(page):
    title = page.read_text().splitlines()[0].removeprefix("# ")
    assert f"- [{title}]({page.name})\n" in (ROOT / "docs/decisions/index.md").read_text()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize(
    "link, complaint",
    [("[nowhere](no-such-page.md)", "'no-such-page.md'"), ("[nowhere](jobs.md#no-such-part)", "'#no-such-part'")],
    ids=["page", "anchor"],
)
def test_site_is_refused_over_a_broken_link(tmp_path, link, complaint):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs/health.md"
    page.write_text(f"{page.read_text()}\n{link}\n")
    built = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(built, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert complaint in done.stderr and done.stderr.count("WARNING -") == 1, done.stderr


def test_site_loads_nothing_from_the_network(tmp_path):
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path], cwd=ROOT, check=True)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", page.read_text())
        assert loaded == [], page.name


def test_scenario_in_the_guide_runs(tmp_path):
    text = (ROOT / "docs/scenarios.md").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    scenario = read_scenario(path)
    assert [variant.value for variant in scenario.sweep] == [1, 2, 3, 4]
    found = run(dataclasses.replace(scenario, duration_s=300), "headgate", 0)
    assert found.final is not None and len(found.final.jobs) == 4


@pytest.mark.parametrize("name", built_in())
def test_every_built_in_scenario_names_what_it_shows(name):
    scenario = load_scenario(name)
    assert scenario.title and scenario.figure


TABLED = ("core", "hosts", "scheduler", "server", "spark")


def named_modules() -> set[str]:
    """The modules that the tables of docs/architecture.md name; a name without a folder belongs to the folder before it."""
    base, folder, tabled, named = "", "", False, set()
    for line in (ROOT / "docs/architecture.md").read_text().splitlines():
        cell = line.split("|")[1] if line.startswith("|") else ""
        if head := re.fullmatch(r" (?:file|(?:file of|in) `(\w+/)`) ", cell):
            base, folder, tabled = head[1] or "", "", True
        tabled = tabled and line.startswith("|")
        if heading := re.match(r" \*\*`(\w+/)`\*\*", cell):
            folder = heading[1]
        inside = folder
        for place, name in re.findall(r"`([\w/]*/)?(\w+\.py)`", cell):
            inside = place or inside
            named |= {f"{base}{inside}{name}"} if tabled else set()
    return named


@pytest.mark.parametrize("package", TABLED)
def test_architecture_names_every_module(package):
    modules = {str(path.relative_to(ROOT / "headgate")) for path in (ROOT / "headgate" / package).rglob("*.py")}
    assert {name for name in modules if not name.endswith("__init__.py")} - named_modules() == set()


def test_architecture_names_no_module_that_is_gone():
    assert [name for name in sorted(named_modules()) if not (ROOT / "headgate" / name).exists()] == []


def test_guide_to_jobs_names_every_source_and_sink():
    text = (ROOT / "docs/jobs.md").read_text()
    assert [name for name in sources.__all__ if not re.search(rf"`(?:sources\.)?{name}\b", text)] == []
    assert [name for name in sinks.__all__ if f"`sinks.{name}" not in text] == []
