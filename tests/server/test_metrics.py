"""What Prometheus is told: every value that is known, none that is not, and a bounded number of series."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from contextlib import closing
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headgate.cli import run_command
from headgate.config import ServiceSettings
from headgate.core.hosts import HostPhase
from headgate.core.model import Graph, HostReading, OperatorReading
from headgate.hosts.leases import NO_BILL
from headgate.ports import JobPhase
from headgate.server.app import app_of, listen, served
from headgate.server.home import Home
from headgate.server.lost_hosts import LostHosts
from headgate.server.metrics import ALL, Type, registry_of
from headgate.server.state_sizes import SPEND_S, StateSizes
from headgate.server.status import LeasesStatus, LeaseStatus
from headgate.state.inspect import checkpoint_of
from tests.server import fake
from tests.server.alerting import TroubledEngine
from tests.server.conftest import Bench
from tests.server.fake import RATE_ROWS_S, _operator


class Scrape:
    """The samples of one scrape."""

    def __init__(self, bench: Bench, **settings: Any) -> None:
        changed = dataclasses.replace(ServiceSettings(), **settings)
        self.text = generate_latest(registry_of(bench.service, changed)).decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.samples = [one for family in self.families for one in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        found = [one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()]
        assert len(found) <= 1, found
        return found[0] if found else None

    def labels(self, name: str, label: str) -> list[str]:
        return [one.labels[label] for one in self.samples if one.name == name]


def leases(*hosts: LeaseStatus) -> LeasesStatus:
    bill = dataclasses.replace(NO_BILL, leases=3, releases=1, cost=4.5, paid_btus=5, cost_by_job={"orders": 2.5})
    return LeasesStatus(hosts, bill, 6.0, ())


def lease(name: str, phase: HostPhase = HostPhase.READY) -> LeaseStatus:
    return LeaseStatus(name, "local", phase.value, "", "", 60.0)


# -- what is told


def test_job_that_runs_is_told_as_the_status_has_it(bench):
    bench.submit(tenant="shop", intent={"latency": "2s", "juice": 0.9, "worth": 35})
    bench.submit(name="late", intent={"latency": "0.1s"})
    bench.rounds(8)
    scrape, status = Scrape(bench), bench.service.status()
    job = status.jobs["orders"]
    assert job.latency is not None and job.lanes
    of = {"job_name": "orders", "tenant": "shop"}
    assert scrape.value("headgate_job_worth", **of) == 35.0
    assert scrape.value("headgate_job_utility", **of) == job.utility
    assert scrape.value("headgate_job_juice_ratio", **of) == job.juice == 1.0
    assert scrape.value("headgate_job_intent_juice_ratio", **of) == 0.9
    assert scrape.value("headgate_job_latency_seconds", percentile="99", **of) == job.latency.p99_s
    assert scrape.value("headgate_job_backlog_rows", **of) == 0.0
    assert scrape.value("headgate_job_arrival_rows_per_second", **of) == pytest.approx(RATE_ROWS_S)
    assert scrape.value("headgate_job_lanes", **of) == sum(job.lanes.values())
    assert scrape.value("headgate_job_epochs_total", **of) == job.epochs
    assert scrape.value("headgate_job_phase", phase="running", **of) == 1.0
    assert scrape.value("headgate_operator_rows_total", operator="large", **of) == RATE_ROWS_S * 80
    assert scrape.value("headgate_operator_lanes", operator="large", **of) == job.lanes["large"]
    assert scrape.value("headgate_operator_capacity_ratio", operator="large", **of) == pytest.approx(0.9)
    tally = bench.service.tally
    assert scrape.value("headgate_job_met", job_name="late") == 0.0
    assert scrape.value("headgate_job_rounds_total", job_name="late", verdict="missed") == tally.judged["late"] > 0
    assert scrape.value("headgate_job_rounds_total", verdict="met", **of) == tally.met["orders"] > 0


def test_loop_is_told_with_its_rounds_and_actions(bench):
    bench.engine.latency_s = 30.0
    bench.submit()
    bench.rounds(8)
    bench.engine.unreadable = "Spark is gone"
    bench.rounds(1)
    scrape = Scrape(bench, objective_share=0.9)
    assert scrape.value("headgate_round_duration_seconds_count") == 9
    assert scrape.value("headgate_rounds_failed_total") == 1
    assert (scrape.value("headgate_round_duration_seconds_sum") or 0) > 0
    assert scrape.value("headgate_last_round_timestamp_seconds") == bench.now_s - 10
    assert (scrape.value("headgate_actions_total", kind="reconfigure") or 0) >= 1
    assert scrape.value("headgate_actions_total", kind="reduce") == 0
    assert (scrape.value("headgate_healthy"), scrape.value("headgate_objective_ratio")) == (0.0, 0.9)
    assert scrape.value("headgate_worth") == 35.0


def test_hosts_and_the_bill_are_told(bench):
    bench.submit()
    bench.rounds(3)
    assert Scrape(bench).value("headgate_bill_cost_total") is None
    bench.service.board.leases = leases(lease("leased-1"), lease("leased-2", HostPhase.FAILED))
    scrape = Scrape(bench)
    assert scrape.value("headgate_host_cores", host="here") == 2.0
    assert scrape.value("headgate_leases", phase="failed") == 1.0
    assert scrape.value("headgate_bill_cost_total") == 4.5
    assert scrape.value("headgate_job_cost_total", job_name="orders") == 2.5
    assert scrape.value("headgate_actions_total", kind="lease") == 3.0


def test_what_is_not_known_has_no_sample(bench):
    bench.submit()
    scrape = Scrape(bench)
    assert (scrape.value("headgate_healthy"), scrape.value("headgate_jobs", phase="running")) == (0.0, 1.0)
    unknown = {"headgate_utility", "headgate_satisfaction_ratio", "headgate_last_round_timestamp_seconds"}
    unknown |= {"headgate_job_utility", "headgate_job_met", "headgate_job_juice_ratio", "headgate_job_lanes"}
    unknown |= {"headgate_job_latency_seconds", "headgate_host_cores", "headgate_operator_rows_total"}
    assert unknown.isdisjoint(one.name for one in scrape.samples)


def test_stale_job_is_marked_and_not_judged(bench):
    bench.submit()
    bench.rounds(4)
    bench.now_s += 100
    scrape = Scrape(bench)
    assert (scrape.value("headgate_job_stale"), scrape.value("headgate_job_reading_age_seconds")) == (1.0, 100.0)
    assert scrape.value("headgate_job_utility") is scrape.value("headgate_utility") is None


def test_fused_operator_has_rows_but_no_busy_time(bench, monkeypatch):
    def fused(graph: Graph, name: str, elapsed_s: float, lanes: int) -> OperatorReading:
        found = _operator(graph, name, elapsed_s, lanes)
        return dataclasses.replace(found, busy_s=()) if name == "out" else found

    monkeypatch.setattr(fake, "_operator", fused)
    bench.submit()
    bench.rounds(3)
    scrape = Scrape(bench)
    assert scrape.labels("headgate_operator_rows_total", "operator") == ["in", "large", "out"]
    assert scrape.labels("headgate_operator_busy_seconds_total", "operator") == ["in", "large"]
    assert scrape.labels("headgate_operator_capacity_ratio", "operator") == ["in", "large"]


def test_failures_are_counted_once_each(bench):
    bench.submit()
    bench.rounds(1)
    for reason in ("no disk", "no network"):
        bench.engine.fail("orders", reason, JobPhase.RETRYING)
        bench.rounds(2)
    bench.engine.fail("orders", "no network")
    bench.rounds(1)
    bench.engine.set_share("orders", 5)
    bench.rounds(1)
    scrape = Scrape(bench)
    assert scrape.value("headgate_job_failures_total") == 3.0
    assert scrape.value("headgate_job_phase", phase="failed") == scrape.value("headgate_jobs", phase="failed") == 1.0


# -- the bound on series


def test_jobs_beyond_the_limit_are_summed_where_a_sum_makes_sense(bench):
    for name, tenant in (("a", "other"), ("other", "shop"), ("b", "shop"), ("c", "shop")):
        bench.submit(name=name, tenant=tenant)
    bench.rounds(4)
    scrape = Scrape(bench, metrics_jobs=2)
    assert scrape.labels("headgate_job_worth", "job_name") == ["a", "other", "b"]
    assert scrape.labels("headgate_job_worth", "tenant") == ["other", "other", "shop"]
    assert scrape.value("headgate_job_worth", job_name="other") == 70.0
    assert scrape.value("headgate_job_phase", job_name="other", phase="running") == 2.0
    assert scrape.labels("headgate_job_juice_ratio", "job_name") == ["a", "b"]
    assert scrape.labels("headgate_job_latency_seconds", "job_name") == ["a"] * 3 + ["b"] * 3


def test_operators_and_hosts_beyond_the_limit_are_summed(bench):
    bench.submit()
    bench.rounds(3)
    scrape = Scrape(bench, metrics_operators=1, metrics_hosts=0)
    assert scrape.labels("headgate_operator_rows_total", "operator") == ["in", "other"]
    assert scrape.value("headgate_operator_rows_total", operator="other") == 2 * RATE_ROWS_S * 30
    assert scrape.labels("headgate_host_cores", "host") == ["other"]


def test_series_do_not_grow_with_jobs_beyond_the_limit(bench):
    for number in range(6):
        bench.submit(name=f"job-{number}")
    bench.rounds(4)
    few = len(Scrape(bench, metrics_jobs=2).samples)
    bench.submit(name="one-more")
    bench.rounds(3)
    assert len(Scrape(bench, metrics_jobs=2).samples) == few


# -- the format


def test_every_metric_is_declared_and_means_something(bench):
    bench.submit(intent={"juice": 0.9})
    bench.rounds(4)
    bench.service.board.leases = leases(lease("leased-1"))
    declared = {one.name for one in ALL}
    told = {f"{family.name}{'_total' * (family.type == 'counter')}" for family in Scrape(bench).families}
    assert told == declared and len(declared) == len(ALL)
    assert all(one.text.endswith(".") and one.name.endswith("_total") == (one.type is Type.COUNTER) for one in ALL)


def queued(graph: Graph, name: str, elapsed_s: float, lanes: int) -> OperatorReading:
    return dataclasses.replace(_operator(graph, name, elapsed_s, lanes), queued=(3.0,) * lanes)


@pytest.mark.parametrize("metrics_jobs", [0, 200], ids=["jobs-summed", "jobs-apart"])
def test_promtool_finds_nothing_to_complain_about(bench, monkeypatch, metrics_jobs):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing (Debian: prometheus)")
    monkeypatch.setattr(fake, "_operator", queued)
    bench.start(engine=TroubledEngine(clock=bench.clock))
    checkpoint_of(bench.directory / "jobs/orders", "count").mkdir(parents=True)
    bench.submit(intent={"latency": "2s", "juice": 0.9, "worth": 35})
    bench.rounds(8)
    bench.service.board.leases = leases(lease("leased-1"))
    scrape = Scrape(bench, metrics_jobs=metrics_jobs)
    without_samples = [family.name for family in scrape.families if not family.samples]
    assert (without_samples == []) is (metrics_jobs > 0), without_samples
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=f"{scrape.text}\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- who may ask


def test_token_of_the_metrics_opens_the_metrics_and_nothing_else(bench, tmp_path):
    home = Home(tmp_path)
    token, metrics_token = home.new_token(), home.kept_metrics_token()
    assert Home(tmp_path).kept_metrics_token() == metrics_token != token
    assert home.metrics_token.stat().st_mode & 0o077 == 0
    app = app_of(bench.service, token, metrics_token=metrics_token)
    with closing(listen()) as listening, served(app, listening) as url:

        def asked(path: str, shown: str) -> httpx.Response:
            return httpx.get(url + path, headers={"Authorization": f"Bearer {shown}"}, trust_env=False)

        codes = [asked("/metrics", one).status_code for one in (token, metrics_token, "wrong")]
        assert codes == [200, 200, 401]
        assert [asked("/status", one).status_code for one in (token, metrics_token)] == [200, 401]
        assert asked("/metrics", token).headers["content-type"].startswith("text/plain; version=0.0.4")


# -- hosts that are lost


def seen(*names: str) -> tuple[HostReading, ...]:
    return tuple(HostReading(name, 2, 1.0) for name in names)


def test_host_that_leaves_without_a_release_is_lost_once():
    lost = LostHosts()
    assert [lost.count(seen(*names), None) for names in (("a", "b"), ("a",), ("a",), (), ("a", "b"), ("b",))] == [
        *(0, 1, 0, 0, 0, 1)
    ]


def test_released_host_is_not_lost_and_a_failed_lease_is():
    lost = LostHosts()
    assert lost.count(seen("a", "b"), leases(lease("a"), lease("b"))) == 0
    assert lost.count(seen("a", "b"), leases(lease("a"), lease("b", HostPhase.RELEASING))) == 0
    assert lost.count(seen("a"), leases(lease("a"))) == 0
    assert lost.count(seen("c"), leases(lease("a"), lease("c"))) == 1
    assert lost.count(seen("c"), leases(lease("a", HostPhase.FAILED), lease("c"))) == 0
    assert lost.count(seen("c"), leases(lease("c"), lease("never-came", HostPhase.FAILED))) == 1
    assert lost.count(seen("c"), leases(lease("c"), lease("never-came", HostPhase.FAILED))) == 0
    assert lost.count(seen("c"), leases(lease("c"))) == 0


# -- sizes of state


def test_size_of_state_is_counted_again_after_a_while(tmp_path):
    checkpoint = checkpoint_of(tmp_path / "clicks", "count")
    checkpoint.mkdir(parents=True)
    (checkpoint / "delta").write_bytes(b"12345")
    clock = [0.0]
    sizes = StateSizes(tmp_path, 60.0, lambda: clock[0])
    assert sizes.of(["clicks", "stateless"]) == {"clicks": 5}
    (checkpoint / "delta-2").write_bytes(b"678")
    assert sizes.of(["clicks"]) == {"clicks": 5}
    clock[0] = 60.0
    assert sizes.of(["clicks"]) == {"clicks": 8}
    assert sizes.of([]) == {}


def test_a_job_is_not_counted_again_because_another_one_was_asked_for(tmp_path):
    for name in ("a", "b"):
        checkpoint_of(tmp_path / name, "count").mkdir(parents=True)
    sizes = StateSizes(tmp_path, 60.0, lambda: 0.0)
    assert sizes.of(["a"]) == {"a": 0}
    assert sizes.of(["b"]) == {"b": 0}
    (checkpoint_of(tmp_path / "a", "count") / "delta").write_bytes(b"12345")
    assert sizes.of(["a"]) == {"a": 0}


def test_counting_leaves_to_the_next_scrape_what_takes_too_long(tmp_path):
    names = ["a", "b", "c"]
    for name in names:
        checkpoint_of(tmp_path / name, "count").mkdir(parents=True)
    ticks = iter(range(100))
    sizes = StateSizes(tmp_path, 60.0, lambda: next(ticks) * 0.6 * SPEND_S)
    assert [set(sizes.of(names)) for _ in range(3)] == [{"a"}, {"a", "b"}, {"a", "b", "c"}]


# -- the command line


def test_metrics_of_a_running_service_are_printed(bench, tmp_path, capsys):
    home, show = Home(tmp_path), ["metrics", "show", "--home", str(tmp_path)]
    assert run_command(show) != 0
    assert "no Headgate runs" in capsys.readouterr().err
    app = app_of(bench.service, home.new_token())
    with closing(listen()) as listening, served(app, listening) as url, home.announced(url):
        assert run_command(show) == 0
    assert "\nheadgate_healthy 0.0\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command, begin", [("rules", "# Recording"), ("scrape", "# A scrape"), ("grafana", "{"), ("list", "| m")]
)
def test_shipped_files_are_printed(command, begin, capsys):
    assert run_command(["metrics", command]) == 0
    assert capsys.readouterr().out.startswith(begin)
