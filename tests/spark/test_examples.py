"""Every example builds, runs on a real Spark, and puts out what its input makes."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headgate import Topology, jobfile, sinks, sources
from headgate.core.model import OUTSIDE
from headgate.jobfile import JobRequest
from headgate.spark.engine import SparkEngine
from headgate.spark.jobs.loading import imported, load

from .builders import start

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NEEDS_TESSERACT = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
JOBS = (
    "delta_totals",
    "diamond",
    "existing_query",
    "kafka",
    "kafka_to_delta",
    "linear",
    pytest.param("manufacturing", marks=NEEDS_TESSERACT),
    "orders_to_delta",
    "pageload",
    "star",
    "topk",
    "tweets",
    "wordcount",
    "ysb",
)
PATIENCE_S = 180.0

ROWS = 600
POINTS = [(0, 300), (2, 0)]
"""Rows that come in two seconds, and then no more."""
TABLE = {"pattern": "steps", "points": POINTS}

Until = Callable[..., None]
Run = Callable[..., None]
Written = Callable[..., DataFrame]


def built(example: str, **parameters: Any) -> Topology:
    return load(JobRequest(str(EXAMPLES / f"{example}.py"), parameters=parameters))


def names_in(example: str) -> dict[str, Any]:
    with imported(EXAMPLES / f"{example}.py") as module:
        return vars(module)


def processed(engine: SparkEngine, name: str) -> list[float]:
    """Rows that are done, of each source."""
    state = engine.states()[name]
    assert not state.reason, state.reason
    reading = engine.observe().jobs.get(name)
    operators = reading.operators.values() if reading is not None else ()
    return [operator.processed[OUTSIDE] for operator in operators if OUTSIDE in operator.processed]


@pytest.fixture
def run(engine: SparkEngine, out: Path, until: Until) -> Run:
    """Runs an example until every source has done all of its rows."""

    def run(example: str, **parameters: Any) -> None:
        topology = built(example, out=str(out), **parameters)
        engine.submit(topology)
        until(lambda: {*processed(engine, topology.name)} == {ROWS}, f"{ROWS} rows of {example}", PATIENCE_S)
        engine.pause(topology.name)

    return run


@pytest.fixture
def written(spark: SparkSession, out: Path) -> Written:
    return lambda below="", format="parquet": sinks.read_files(spark, out / below, format)


def numbers(rows: DataFrame) -> Counter[int]:
    """How often each row came out."""
    return Counter(row["row"] for row in rows.select("row").collect())


# -- one by one


@pytest.mark.parametrize("example", JOBS)
def test_is_a_job(example):
    graph = built(example).graph()
    assert graph.sources and graph.sinks


def test_wordcount_counts_every_word(run, written):
    run("wordcount", rate=sources.Steps(POINTS))
    found = written(format="json").groupBy("word").sum("count").collect()
    lines = names_in("wordcount")["LINES"]
    assert dict(found) == Counter(word for row in range(ROWS) for word in lines[row % len(lines)].split())


def test_linear_passes_every_row_on_once(run, written):
    run("linear", load=TABLE, cost_us=10)
    assert numbers(written()) == dict.fromkeys(range(ROWS), 1)


def test_diamond_passes_every_row_on_in_three_ways(run, written):
    run("diamond", load=TABLE, cost_us=10)
    assert numbers(written()) == dict.fromkeys(range(ROWS), 3)


def test_star_passes_the_rows_of_both_sources_to_both_sinks(run, written):
    run("star", load=TABLE, cost_us=10)
    assert numbers(written("left")) == numbers(written("right")) == dict.fromkeys(range(ROWS), 2)


def test_pageload_bills_long_views_by_people_to_the_advertiser_of_the_page(run, written, redis_url):
    names_in("pageload")["fill"](redis_url)
    run("pageload", load=TABLE, redis=redis_url)
    views, seen_ms = Counter[str](), Counter[str]()
    for row in range(ROWS):
        page, seen = row * 31 % 1000, row % 11 * 400
        if row % 7 > 0 and page % 5 > 0 and seen >= 1000:
            views[f"advertiser-{page % 20}"] += 1
            seen_ms[f"advertiser-{page % 20}"] += seen
    found = written().groupBy("advertiser").sum("views", "seen_ms").collect()
    assert {row[0]: (row[1], row[2]) for row in found} == {name: (views[name], seen_ms[name]) for name in views}


def test_ysb_counts_the_views_of_each_campaign_in_the_window_they_came_in(run, written):
    run("ysb", rate=sources.Steps(POINTS))
    found = written().groupBy("campaign").sum("views").collect()
    assert dict(found) == Counter(f"campaign-{row * 31 % 1000 // 10}" for row in range(0, ROWS, 3))
    assert not written().where("arrived < window OR arrived >= window + INTERVAL 10 SECONDS").count()


@pytest.mark.slow
def test_existing_query_puts_out_whole_windows_once(engine, written, until, out):
    engine.submit(built("existing_query", rate=30, window="2 seconds", late="1 second", out=str(out)))
    until(lambda: sum(processed(engine, "orders")) >= 9, "three windows of three shops", PATIENCE_S)
    engine.pause("orders")
    rows = written().orderBy("window").collect()
    first = rows[0]["window"]
    assert len({(row["window"], row["shop"]) for row in rows}) == len(rows)
    assert {row["orders"] for row in rows if row["window"] != first} == {20}


@pytest.mark.slow
def test_topk_shows_the_most_frequent_words_of_the_window(run, spark, written):
    run("topk", rate=sources.Steps(POINTS), categories=7, window=100, best=3)
    found = {row["category"]: row for row in sorted(written().collect(), key=lambda row: row["arrived"])}
    texts = names_in("topk")["written"](7)(spark.range(ROWS).selectExpr("id AS row", "now() AS arrived")).collect()
    windows: dict[int, list[str]] = {category: [] for category in range(7)}
    for row in texts:
        windows[row["category"]] += [word for word in row["text"].split() if word.startswith("word")]
    for category, words in windows.items():
        counts = Counter(words[-100:])
        assert found[category]["counts"] == sorted(counts.values(), reverse=True)[:3]
        assert [counts[word] for word in found[category]["words"]] == found[category]["counts"]


@pytest.mark.slow
def test_tweets_are_paired_with_the_most_similar_of_the_recent_ones(run, spark, written):
    run("tweets", rate=sources.Steps(POINTS), places=5, window=20)
    tweets = names_in("tweets")["written"](5)(spark.range(ROWS).selectExpr("id AS row", "now() AS arrived")).collect()
    pairs = {}
    for row in tweets:
        recent = [other for other in tweets[: row["tweet"]] if other["place"] == row["place"]][-20:]
        ranked = [(len({*row["words"]} & {*other["words"]}), other["tweet"]) for other in recent]
        if ranked and max(ranked)[0]:
            pairs[row["tweet"]] = max(ranked)
    assert {row["tweet"]: (row["shared"], row["similar"]) for row in written().collect()} == pairs


@pytest.mark.slow
@NEEDS_TESSERACT
def test_manufacturing_reads_pictures_reckons_effectiveness_warns_once_and_reports(engine, written, until, out):
    machines, rows, display = 1, 14, names_in("manufacturing")["display"]
    load = {"pattern": "steps", "points": [(0, rows / 2), (2, 0)]}
    topology = built("manufacturing", machines=machines, load=load, report_s=1, out=str(out))
    topology.pace_s = 0.0
    start(engine, topology, read_limit=6)
    until(lambda: processed(engine, "manufacturing") == [rows] * 3, f"{rows} rows of each source", PATIENCE_S)
    values = written("oee").collect()
    assert {row["row"]: row["oee"] for row in values} == pytest.approx(
        {row: effectiveness(**display(row, machines)) for row in range(rows)}, rel=1e-12
    )
    warnings = Counter((row["machine"], row["text"]) for row in written("warnings", "json").collect())
    assert warnings == {(0, "has 95 degrees"): 1, (0, "is defect"): 1}
    # The timer of the last second fires after the last row, in an epoch without rows.
    seconds = {row["arrived"].strftime("%Y-%m-%dT%H-%M-%S") for row in values}
    until(lambda: reported(out) == seconds, f"a report of each of {sorted(seconds)}", PATIENCE_S)
    engine.pause("manufacturing")
    reports = {path.stem: path.read_bytes() for path in (out / "reports").iterdir()}
    assert reports.keys() == seconds
    assert all(content.startswith(b"%PDF") for content in reports.values())
    assert not (out / "unreadable").exists()


@pytest.mark.slow
def test_totals_of_a_delta_table_are_those_of_its_orders(engine, run, out, until):
    deltalake = pytest.importorskip("deltalake", reason='needs pip install "headgate[delta]"')
    run("orders_to_delta", rate=sources.Steps(POINTS))
    totals = out.with_name("totals")
    engine.submit(built("delta_totals", orders=str(out), out=str(totals)))
    until(lambda: processed(engine, "delta-totals") == [ROWS], f"{ROWS} orders", PATIENCE_S)
    engine.pause("delta-totals")
    found = {row["customer"]: row for row in deltalake.DeltaTable(totals).to_pyarrow_table().to_pylist()}
    assert {customer: row["orders"] for customer, row in found.items()} == dict.fromkeys(range(10), ROWS / 10)
    assert sum(row["spent"] for row in found.values()) == sum(row * 37 % 1000 for row in range(ROWS))


def reported(out: Path) -> set[str]:
    place = out / "reports"
    return {path.stem for path in place.iterdir()} if place.exists() else set()


def effectiveness(
    machine: int, cycle: int, produced: int, total: int, defective: int, planned: int, unplanned: int
) -> float:
    availability = (10 * cycle - planned - unplanned) / (10 * cycle)
    return availability * (produced * 0.1 / 10) * ((total - defective) / total)


# -- together


def test_three_tenants_of_the_cluster_file_run(engine, until, out):
    for request in jobfile.read(EXAMPLES / "cluster.toml").jobs:
        parameters = {**request.parameters, "out": str(out / str(request.name))}
        engine.submit(load(dataclasses.replace(request, parameters=parameters)))
    assert {job.tenant for job in engine.jobs().values()} == {"shop", "ads", "news"}
    for name in ("checkout", "campaigns", "words"):
        until(lambda name=name: sum(processed(engine, name)), f"an epoch of {name}", PATIENCE_S)


def test_cluster_file_in_the_guide_is_one(tmp_path):
    (entry,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/jobs.md").read_text(), re.DOTALL)
    path = EXAMPLES / "cluster.toml"
    beside = tmp_path / "cluster.toml"
    beside.write_text(re.sub(r'file = "', f'file = "{path.parent}/', entry))
    assert [load(request).tenant for request in jobfile.read(beside).jobs] == ["shop", "ads"]


def test_every_example_is_in_the_table():
    listed = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in sorted(EXAMPLES.iterdir()) if path.is_file() and f"`{path.name}`" not in listed] == [
        "README.md"
    ]


def test_first_job_of_the_guide_is_the_example():
    assert (EXAMPLES / "wordcount.py").read_text() in (ROOT / "docs/jobs.md").read_text()
