"""Benchmark of the simulator: simulated seconds per second of both execution models, for two days of forty jobs on forty hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headgate.bench import Figure, Result
from headgate.core.intents import Intent
from headgate.loads import Diurnal
from headgate.sim.reports.bars import Bar
from headgate.sim.run import run
from headgate.sim.spec import HostSpec, JobSpec, OperatorSpec, Scenario

HOUR_S = 3600.0
LIMIT_S = 60.0
OPERATORS = (
    OperatorSpec("spout", cost_s=0.00005, lanes=2),
    OperatorSpec("filter", ("spout",), cost_s=0.0002, selectivity=0.8, lanes=2),
    OperatorSpec("transform", ("filter",), cost_s=0.0004, lanes=2),
    OperatorSpec("join", ("transform",), cost_s=0.0003, wait_s=0.004, lanes=4),
    OperatorSpec("select", ("join",), cost_s=0.0002, selectivity=0.6, lanes=2),
    OperatorSpec("aggregate", ("select",), cost_s=0.0005, lanes=2),
    OperatorSpec("sink", ("aggregate",), cost_s=0.0001),
)


def measure() -> Result:
    """Measure the seconds that two days take to simulate, and the simulated seconds per second of both models."""
    long_s = _seconds_for(_scenario("continuous", 48))
    figures = [Figure("48 h, 40 jobs, 40 hosts: simulated seconds per second", 48 * HOUR_S / long_s, "s/s")]
    figures += _models(hours=6)
    return Result(tuple(figures), (Bar(name="48 h, 40 jobs, 40 hosts: seconds", value=long_s, op="<=", bar=LIMIT_S),))


def _models(hours: float) -> Iterator[Figure]:
    for engine in ("continuous", "epochs"):
        spent_s = _seconds_for(_scenario(engine, hours))
        yield Figure(f"{hours:g} h, {engine}: simulated seconds per second", hours * HOUR_S / spent_s, "s/s")


def _seconds_for(scenario: Scenario) -> float:
    begun_s = time.perf_counter()
    run(scenario, "headgate", seed=0)
    return time.perf_counter() - begun_s


def _scenario(engine: str, hours: float) -> Scenario:
    return Scenario(
        name=f"bench-{engine}",
        title="Forty jobs on forty hosts, with the loads of two web servers",
        figure="",
        engine=engine,
        duration_s=hours * HOUR_S,
        control_after_s=0.0,
        hosts=tuple(HostSpec(f"host-{index + 1}", 4, 16) for index in range(40)),
        jobs=tuple(_job(index, engine) for index in range(40)),
    )


def _job(index: int, engine: str) -> JobSpec:
    load = Diurnal(peak=1500, shape=("epa", "sdsc")[index % 2], offset_hours=index % 8)
    intent = Intent(latency="80ms" if engine == "continuous" else "5s", worth=35)
    return JobSpec(f"page-load-{index + 1}", OPERATORS, intent, {"spout": load})
