"""The shipped alert rules and the Grafana dashboard: on real Prometheus and Alertmanager, and over simulated hours by promtool."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headgate.alerts import Alerts, Webhook, WebhookFormat
from headgate.config import ServiceSettings, Settings
from headgate.core.alerts import Alert
from headgate.hosts.leases import NO_BILL
from headgate.journal import MemoryJournal
from headgate.ports import JobPhase
from headgate.server.metrics import registry_of
from headgate.server.registry import Registry
from headgate.server.service import Loop, Service
from headgate.server.status import LeasesStatus, LeaseStatus
from headgate.state.inspect import checkpoint_of
from tests.server.alerting import (
    GRAFANA,
    RULES,
    Monitoring,
    TroubledEngine,
    answering,
    awaited,
    monitoring,
    program,
    turning,
)
from tests.server.conftest import Bench, Notes
from tests.server.fake import job_file

pytestmark = pytest.mark.slow

QUICK = Settings(round_s=0.5, window_s=3.0, warm_up_s=1.0)
INTENT = {"latency": "2s", "juice": 0.9, "worth": 35}

# -- real servers


def started(place: Path, *jobs: str) -> Service:
    place.mkdir()
    service = Service(TroubledEngine(), Registry(place / "jobs.json"), MemoryJournal(), Loop(QUICK), Notes())
    service.prepare([])
    service.jobs.starts.run()
    for name in jobs:
        service.jobs.submit({"file": str(job_file(place)), "name": name, "intent": INTENT})
    return service


@dataclasses.dataclass(frozen=True, slots=True)
class Shop:
    """Services with and without trouble, by address, and what watches them."""

    monitoring: Monitoring
    troubled: str
    calm: str
    stalled: str
    gone: str
    engine: TroubledEngine
    stall: Callable[[], None]
    """Ends the loop of the stalled service."""
    go: Callable[[], None]
    """Ends the service that is gone."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    place = tmp_path_factory.mktemp("shop")
    with ExitStack() as stack:
        services = {
            "troubled": started(place / "troubled", "fine", "late", "broken", "unread"),
            "calm": started(place / "calm", "fine"),
            "stalled": started(place / "stalled", "fine"),
            "gone": started(place / "gone", "fine"),
        }
        loop, ends = stack.enter_context(ExitStack()), stack.enter_context(ExitStack())
        troubled, calm, stalled = (stack.enter_context(answering(services[name])) for name in list(services)[:3])
        gone = ends.enter_context(answering(services["gone"]))
        for name, service in services.items():
            (loop if name == "stalled" else stack).enter_context(turning(service))
        checkpoint_of(place / "troubled/jobs/fine", "count").mkdir(parents=True)
        lease = LeaseStatus("leased-1", "local", "ready", "", "here", 60.0)
        bill = dataclasses.replace(NO_BILL, cost=1.0, cost_by_job={"fine": 1.0})
        services["troubled"].board.leases = LeasesStatus((lease,), bill, 6.0, ())
        watched = stack.enter_context(monitoring([troubled, calm, stalled, gone], place))
        engine = services["troubled"].engine
        assert isinstance(engine, TroubledEngine)
        yield Shop(watched, troubled, calm, stalled, gone, engine, stall=loop.close, go=ends.close)


@pytest.fixture(scope="module")
def trouble(shop: Shop) -> Shop:
    """All services were well, and some no longer are."""
    lost = f'headgate_hosts_lost_total{{instance="{shop.troubled}"}}'
    judged = f'headgate_job_met{{instance="{shop.troubled}", job_name=~"late|unread"}}'
    well = 'count(headgate_healthy{job="headgate"} == 1) == 4'
    first = lambda: shop.monitoring.query(lost) and len(shop.monitoring.query(judged)) == 2  # noqa: E731
    awaited(lambda: first() and shop.monitoring.query(well), "the first rounds")
    assert not shop.monitoring.firing()
    shop.stall()
    shop.go()
    shop.engine.latencies_s["late"] = 30.0
    shop.engine.fail("broken", "no such column")
    shop.engine.unread.add("unread")
    shop.engine.hosts.remove("there")
    return shop


def test_alerts_reach_the_receiver_within_two_minutes_and_only_those_in_trouble(trouble: Shop) -> None:
    shop = trouble
    expected = {
        ("HeadgateIntentBurnsFast", shop.troubled, "late"),
        ("HeadgateJobFailed", shop.troubled, "broken"),
        ("HeadgateReadingsStale", shop.troubled, "unread"),
        ("HeadgateHostLost", shop.troubled, ""),
        ("HeadgateLoopStalled", shop.stalled, ""),
        ("HeadgateDown", shop.gone, ""),
    }
    awaited(lambda: shop.monitoring.firing() >= expected, f"all of {expected}")
    assert shop.monitoring.firing() == expected


def with_values(query: str, shop: Shop) -> str:
    """A query of the dashboard with the variables that Grafana fills in."""
    values = {"$__rate_interval": "1m", "$instance": shop.troubled, "$tenant": ".*", "$job_name": ".*"}
    for name, value in values.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def test_every_query_of_the_grafana_dashboard_returns_data(trouble: Shop) -> None:
    dashboard, watched = json.loads(GRAFANA.read_text()), trouble.monitoring
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    annotations = [one["expr"] for one in dashboard["annotations"]["list"]]
    assert len(queries) > 25 and len(annotations) == 1
    for query in (*queries, *annotations):
        awaited(partial(watched.values, with_values(query, trouble)), query)


def _has_values(watched: Monitoring, metric: str, label: str, values: set[str]) -> bool:
    return values <= set(watched.label_values(metric, label))


def test_every_variable_of_the_grafana_dashboard_has_values(shop: Shop) -> None:
    variables = {one["name"]: one["query"] for one in json.loads(GRAFANA.read_text())["templating"]["list"]}
    assert variables.pop("datasource") == "prometheus"
    expected = {"instance": {shop.troubled, shop.calm}, "tenant": {"default"}, "job_name": {"fine", "late", "broken"}}
    assert variables.keys() == expected.keys()
    for name, query in variables.items():
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query["query"])
        assert asked is not None and asked[2] == name, query
        metric = with_values(asked[1], shop)
        awaited(partial(_has_values, shop.monitoring, metric, name, expected[name]), query["query"])


def test_alert_of_the_service_is_posted_to_alertmanager(shop: Shop) -> None:
    address = f"{shop.monitoring.alertmanager}/api/v2/alerts"
    lines: list[str] = []
    alerts = Alerts(lambda at_s, job, text: lines.append(text), Webhook(address, WebhookFormat.ALERTMANAGER))
    alerts(1.0, Alert('there is not enough input: "clicks" is empty', job="words"))
    alerts.close()
    assert lines == ['alert: there is not enough input: "clicks" is empty']

    def found() -> list[dict[str, dict[str, str]]]:
        every = httpx.get(address, trust_env=False).json()
        return [one for one in every if one["labels"]["alertname"] == "HeadgateAlert"]

    (alert,) = awaited(found, "the alert")
    assert alert["labels"]["job_name"] == "words"
    assert alert["annotations"]["summary"] == 'words: there is not enough input: "clicks" is empty'


# -- simulated hours

SCRAPE_S, HOUR_S = 15, 3600
START_S, TROUBLE_S, WITHIN_S = 45, 600, 120
INSTANCE = "127.0.0.1:8421"


class Course:
    """Scrapes of a service by virtual time; the series of promtool are made of them."""

    def __init__(self, bench: Bench) -> None:
        self.engine = TroubledEngine(clock=bench.clock)
        self.bench = bench
        bench.start(engine=self.engine)
        for name in ("fine", "late"):
            bench.submit(name=name, intent=INTENT)
        self.turns = True
        self.scrapes: list[dict[str, float]] = []
        self.registry = registry_of(bench.service, ServiceSettings())

    def restart(self, down_s: int) -> None:
        """The service ends, does not answer for a while, and starts again with the jobs that it had."""
        until_s = len(self.scrapes) * SCRAPE_S + down_s
        while len(self.scrapes) * SCRAPE_S < until_s:
            self.scrapes.append({series("up", {}): 0.0})
            self.bench.now_s += SCRAPE_S
        self.engine = TroubledEngine(clock=self.bench.clock)
        self.registry = registry_of(self.bench.start(engine=self.engine), ServiceSettings())

    def run(self, until_s: int) -> None:
        for second in range(len(self.scrapes) * SCRAPE_S, until_s, 5):
            if second % 10 == 0 and self.turns:
                self.bench.service.look()
                self.bench.service.round()
            if second % SCRAPE_S == 0:
                self.scrapes.append(self.scraped())
            self.bench.now_s += 5

    def scraped(self) -> dict[str, float]:
        text = generate_latest(self.registry).decode()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return {series(one.name, one.labels): one.value for one in samples} | {series("up", {}): 1.0}

    def input_series(self) -> list[dict[str, str]]:
        names = sorted({name for scrape in self.scrapes for name in scrape})
        return [{"series": name, "values": " ".join(self._values(name))} for name in names]

    def _values(self, name: str) -> Iterator[str]:
        """Each scrape; as Prometheus does, a series that ends is marked as stale, and is absent after that."""
        known = False
        for scrape in self.scrapes:
            yield f"{scrape[name]!r}" if name in scrape else "stale" if known else "_"
            known = name in scrape

    def showed(self, *parts: str) -> bool:
        """Whether a scrape had a series with all of these in its name, and another value than 0."""
        return any(
            value and all(one in key for one in parts) for scrape in self.scrapes for key, value in scrape.items()
        )


def series(name: str, labels: dict[str, str]) -> str:
    every = {**labels, "job": "headgate", "instance": INSTANCE}
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in every.items())}}}"


def fired(course: Course, expected: dict[int, list[str]], place: Path) -> None:
    """Promtool agrees on the alerts that fired until each of these times."""
    expression = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))'
    tests = [
        {
            "expr": expression,
            "eval_time": f"{at_s}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
        }
        for at_s, names in expected.items()
    ]
    test = {"interval": f"{SCRAPE_S}s", "input_series": course.input_series(), "promql_expr_test": tests}
    path = place / "rules-test.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))
    promtool = program("promtool", "prometheus")
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_valid() -> None:
    command = [program("promtool", "prometheus"), "check", "rules", "--lint-fatal", str(RULES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_fires_in_an_hour_without_trouble(bench: Bench, tmp_path: Path) -> None:
    course = Course(bench)
    course.run(HOUR_S + SCRAPE_S)
    assert len(course.scrapes) == HOUR_S // SCRAPE_S + 1
    fired(course, {HOUR_S: []}, tmp_path)


def test_no_alert_fires_in_an_hour_of_ordinary_events(bench: Bench, tmp_path: Path) -> None:
    course = Course(bench)
    bench.submit(name="extra", intent=INTENT)
    course.run(600)
    bench.service.jobs.pause("fine")
    course.run(900)
    bench.service.jobs.resume("fine")
    course.run(1200)
    course.engine.latencies_s["late"] = 30.0
    course.run(1215)
    del course.engine.latencies_s["late"]
    course.run(1800)
    bench.service.jobs.remove("extra")
    course.run(2100)
    course.engine.fail("fine", "the source refuses connections", JobPhase.RETRYING)
    course.run(2160)
    course.engine.resume("fine")
    course.run(2700)
    course.restart(down_s=45)
    course.run(HOUR_S + SCRAPE_S)
    assert len(course.scrapes) == HOUR_S // SCRAPE_S + 1
    assert course.showed("headgate_job_rounds_total", 'job_name="late"', 'verdict="missed"')
    assert all(course.showed('job_name="fine"', f'phase="{phase}"') for phase in ("paused", "retrying"))
    assert bench.service.tally.judged["fine"] > 0 and "extra" not in bench.registry_names()
    fired(course, {HOUR_S: []}, tmp_path)


def test_job_that_is_started_again_and_again_fires_after_five_minutes(bench: Bench, tmp_path: Path) -> None:
    course = Course(bench)
    course.run(TROUBLE_S)
    for begin_s in range(TROUBLE_S, TROUBLE_S + 420, 60):
        course.engine.fail("late", "the source refuses connections", JobPhase.RETRYING)
        course.run(begin_s + 30)
        course.engine.resume("late")
        course.run(begin_s + 60)
    fired(course, {TROUBLE_S + 285: [], TROUBLE_S + 345: ["HeadgateJobRetries"]}, tmp_path)


def test_job_that_misses_its_intent_now_and_then_burns_slowly(bench: Bench, tmp_path: Path) -> None:
    course = Course(bench)
    for begin_s in range(0, HOUR_S // 2, 240):
        course.run(begin_s + 225)
        course.engine.latencies_s["late"] = 300.0
        course.run(begin_s + 240)
        del course.engine.latencies_s["late"]
    fired(course, {HOUR_S // 2 - SCRAPE_S: ["HeadgateIntentBurnsFast", "HeadgateIntentBurnsSlowly"]}, tmp_path)


def test_slow_start_of_a_job_fires_nothing(bench: Bench, tmp_path: Path) -> None:
    course = Course(bench)
    course.engine.latencies_s["late"] = 30.0
    course.run(START_S)
    del course.engine.latencies_s["late"]
    course.run(TROUBLE_S + SCRAPE_S)
    assert bench.service.tally.judged["late"] > bench.service.tally.met["late"] > 0
    fired(course, {TROUBLE_S: []}, tmp_path)


def late(course: Course) -> None:
    course.engine.latencies_s["late"] = 30.0


def failed(course: Course) -> None:
    course.engine.fail("late", "no such column", JobPhase.FAILED)


def unread(course: Course) -> None:
    course.engine.unread.add("late")


def without_host(course: Course) -> None:
    course.engine.hosts.remove("there")


def without_rounds(course: Course) -> None:
    course.turns = False


def without_engine(course: Course) -> None:
    course.engine.unreadable = "Spark does not answer"


def without_service(course: Course) -> None:
    course.scraped = lambda: {series("up", {}): 0.0}  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "trouble, alerts",
    [
        (late, ["HeadgateIntentBurnsFast"]),
        (failed, ["HeadgateJobFailed"]),
        (unread, ["HeadgateReadingsStale"]),
        (without_host, ["HeadgateHostLost"]),
        (without_rounds, ["HeadgateLoopStalled"]),
        (without_engine, ["HeadgateLoopStalled"]),
        (without_service, ["HeadgateDown"]),
    ],
    ids=["late", "failed", "unread", "host", "rounds", "engine", "service"],
)
def test_alert_fires_within_two_minutes_of_trouble(
    bench: Bench, tmp_path: Path, trouble: Callable[[Course], None], alerts: list[str]
) -> None:
    course = Course(bench)
    course.run(TROUBLE_S)
    trouble(course)
    course.run(TROUBLE_S + WITHIN_S + SCRAPE_S)
    fired(course, {TROUBLE_S - SCRAPE_S: [], TROUBLE_S + WITHIN_S: alerts}, tmp_path)
