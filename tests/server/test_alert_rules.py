"""The shipped alert rules and the Grafana dashboard: on real Prometheus and Alertmanager, and over simulated hours by promtool."""

from __future__ import annotations

import dataclasses
import json
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
    engine: TroubledEngine


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    place = tmp_path_factory.mktemp("shop")
    with ExitStack() as stack:
        services = {
            "troubled": started(place / "troubled", "fine", "late", "broken", "unread"),
            "calm": started(place / "calm", "fine"),
            "stalled": started(place / "stalled", "fine"),
        }
        troubled, calm, stalled = (stack.enter_context(answering(one)) for one in services.values())
        for name in ("troubled", "calm"):
            stack.enter_context(turning(services[name]))
        checkpoint_of(place / "troubled/jobs/fine", "count").mkdir(parents=True)
        lease = LeaseStatus("leased-1", "local", "ready", "", "here", 60.0)
        bill = dataclasses.replace(NO_BILL, cost=1.0, cost_by_job={"fine": 1.0})
        services["troubled"].board.leases = LeasesStatus((lease,), bill, 6.0, ())
        watched = stack.enter_context(monitoring([troubled, calm, stalled], place))
        engine = services["troubled"].engine
        assert isinstance(engine, TroubledEngine)
        yield Shop(watched, troubled, calm, stalled, engine)


def test_alerts_reach_the_receiver_within_two_minutes_and_only_those_in_trouble(shop: Shop) -> None:
    lost = f'headgate_hosts_lost_total{{instance="{shop.troubled}"}}'
    judged = f'headgate_job_met{{instance="{shop.troubled}", job_name=~"late|unread"}}'
    awaited(lambda: shop.monitoring.query(lost) and len(shop.monitoring.query(judged)) == 2, "the first rounds")
    shop.engine.latencies_s["late"] = 30.0
    shop.engine.fail("broken", "no such column")
    shop.engine.unread.add("unread")
    shop.engine.hosts.remove("there")
    expected = {
        ("HeadgateIntentBurnsFast", shop.troubled, "late"),
        ("HeadgateJobFailed", shop.troubled, "broken"),
        ("HeadgateReadingsStale", shop.troubled, "unread"),
        ("HeadgateHostLost", shop.troubled, ""),
        ("HeadgateLoopStalled", shop.stalled, ""),
    }
    awaited(lambda: shop.monitoring.firing() >= expected, f"all of {expected}")
    assert shop.monitoring.firing() == expected


def test_every_query_of_the_grafana_dashboard_returns_data(shop: Shop) -> None:
    panels = [panel for panel in json.loads(GRAFANA.read_text())["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 25
    values = {"$__rate_interval": "1m", "$instance": shop.troubled, "$tenant": ".*", "$job_name": ".*"}
    for query in queries:
        for name, value in values.items():
            query = query.replace(name, value)
        assert "$" not in query
        awaited(partial(shop.monitoring.query, query), query)


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
        """Each scrape; `_` where the series has no sample."""
        for scrape in self.scrapes:
            yield f"{scrape[name]!r}" if name in scrape else "_"


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
