"""A host of the epochs model is cut off for 40 s: no action, epochs elsewhere, full utility afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import FAST, Settings
from headgate.controller import Controller
from headgate.errors import ScenarioError
from headgate.scheduler.policies import Headgate
from headgate.sim.run import engine_for
from headgate.sim.scenario import read_scenario
from headgate.sim.spec import Scenario

SCENARIO = """
title = "A link is cut"
engine = "{engine}"
duration = "10m"
cluster = {{ hosts = 3, cores = 2, slots = 2 }}
event = [{{ at = "{cut}s", kind = "cut-host", host = "host-2" }}, {{ at = "{mend}s", kind = "mend-host", host = "host-2" }}]

[[job]]
name = "page-load"
intent = {{ latency = "2s", worth = 100 }}
load = {{ pattern = "steady", rate = 1000 }}
operators = [{{ name = "events", cost = "0.02ms" }}, {{ name = "look-up", cost = "0.5ms", lanes = {lanes} }}]

[[job]]
name = "topk"
intent = {{ latency = "4s", worth = 35 }}
load = {{ pattern = "steady", rate = 500 }}
operators = [{{ name = "events", cost = "0.02ms" }}, {{ name = "aggregate", cost = "0.3ms", lanes = {lanes} }}]
"""
CUT_S, MEND_S, SUSPECT_S = 100.0, 140.0, 7.5
QUICK = Settings(**FAST)  # type: ignore[arg-type]


def scenario(
    folder: Path, engine: str = "epochs", lanes: int = 3, cut_s: float = CUT_S, mend_s: float = MEND_S
) -> Scenario:
    file = folder / "cut.toml"
    file.write_text(SCENARIO.format(engine=engine, lanes=lanes, cut=cut_s, mend=mend_s))
    return read_scenario(file)


@pytest.mark.parametrize("seed", range(5))
def test_no_action_while_a_host_is_cut_off_and_full_utility_afterwards(tmp_path: Path, seed: int) -> None:
    engine = engine_for(scenario(tmp_path), seed)
    policy = Headgate(QUICK)
    controller = Controller(engine, policy, None, QUICK)
    acted: list[float] = []
    suspect: list[tuple[float, float | None]] = []
    done: dict[tuple[float, str], int] = {}
    while engine.now_s() < 300:
        engine.sleep_until(engine.now_s() + QUICK.round_s)
        view, decision = controller.round()
        acted += [view.at_s] if decision.action is not None else []
        silent = {name for name, found in policy.state.quarantined.items() if found.host == "host-2"}
        assert silent == (set(view.jobs) if CUT_S + SUSPECT_S <= view.at_s < MEND_S + QUICK.warm_up_s - 2 else set())
        suspect += [(view.at_s, host.silent_s) for host in view.suspects.values()]
        done |= {
            (view.at_s, name): job.samples[-1].reading.epochs or 0 for name, job in view.jobs.items() if job.samples
        }
    assert not [at_s for at_s in acted if CUT_S < at_s <= MEND_S + QUICK.warm_up_s]
    assert suspect == [(at_s, at_s - CUT_S) for at_s, _ in suspect]
    assert {at_s for at_s, _ in suspect} == {at_s for at_s, _ in done if CUT_S + SUSPECT_S <= at_s < MEND_S}
    assert all(done[(138.0, name)] > done[(110.0, name)] + 5 for name in view.jobs), "epochs ran on the other hosts"
    assert all(job.met for job in view.jobs.values())
    for job in view.jobs.values():
        reading = job.samples[-1].reading
        sunk = reading.operators[job.job.graph.sinks[0]].processed["events"]
        assert sunk == reading.operators["events"].processed["*"] == pytest.approx(reading.arrived["events"], rel=0.02)


@pytest.mark.parametrize("engine", ["continuous", "lanes"])
def test_only_epochs_know_silent_hosts(tmp_path: Path, engine: str) -> None:
    with pytest.raises(ScenarioError, match='event cut-host needs engine = "epochs"'):
        scenario(tmp_path, engine)


def test_tasks_wait_when_lanes_exceed_slots_and_only_then(tmp_path: Path) -> None:
    few, many = (engine_for(scenario(tmp_path, lanes=lanes, cut_s=9000, mend_s=9001), 0) for lanes in (2, 18))
    for engine in (few, many):
        engine.sleep_until(60.0)
    assert all((host.waiting or 0) > 0.01 and (host.running or 0) > 0 for host in many.observe().hosts)
    for host in few.observe().hosts:
        assert host.slots == 2 and host.running is not None and 0 < host.running <= 2 and host.waiting == 0
