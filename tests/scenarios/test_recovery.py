"""Jobs that work off the backlog of an outage keep their lanes: the most valuable one is never throttled."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from headgate.config import FAST
from headgate.sim.run import Run, run
from headgate.sim.scenario import read_scenario

SCENARIO = """
title = "An outage leaves three jobs with a backlog on a small cluster"
engine = "epochs"
duration = "6m"
cluster = {{ hosts = 1, cores = 2, slots = 16 }}
settings = {{ {settings} }}
event = [
  {{ at = "30s", kind = "fail-link" }}, {{ at = "30s", kind = "fail-host" }},
  {{ at = "{back}s", kind = "restore-host" }}, {{ at = "{back}s", kind = "restore-link" }},
]

[[job]]
name = "page-load"
intent = {{ latency = "1.5s", worth = 100 }}
load = {{ pattern = "steady", rate = {urgent} }}
operators = [{{ name = "events", cost = "0.02ms" }}, {{ name = "look-up", cost = "0.42ms", wait = "0.2ms", lanes = 4 }}]

[[job]]
name = "checkout"
intent = {{ latency = "{others}", worth = 36 }}
load = {{ pattern = "steady", rate = 900 }}
operators = [{{ name = "events", cost = "0.02ms" }}, {{ name = "look-up", cost = "0.42ms", wait = "0.2ms" }}]

[[job]]
name = "topk"
intent = {{ latency = "{others}", worth = 35 }}
load = {{ pattern = "steady", rate = 600 }}
operators = [{{ name = "events", cost = "0.02ms" }}, {{ name = "aggregate", cost = "0.3ms" }}]
"""


def recovered(folder: Path, urgent: int, others: str, back: int, seed: int) -> Run:
    settings = ", ".join(f"{name} = {value}" for name, value in FAST.items())
    file = folder / "outage.toml"
    file.write_text(SCENARIO.format(settings=settings, urgent=urgent, others=others, back=back))
    return run(read_scenario(file), "headgate", seed)


@pytest.mark.parametrize(
    ("urgent", "others", "back", "seed"),
    [(1500, "10s", 80, 0), (1500, "2s", 110, 1), (1800, "2s", 110, 1), (2100, "2s", 110, 1), (2100, "2s", 110, 0)],
)
def test_most_valuable_job_keeps_its_lanes_while_it_recovers(
    tmp_path: Path, urgent: int, others: str, back: int, seed: int
) -> None:
    found = recovered(tmp_path, urgent, others, back, seed)
    lanes = [count["look-up"] for _, count in found.lanes["page-load"]]
    assert not [entry for entry in found.log if entry.kind == "throttle" and entry.job == "page-load"]
    assert min(lanes) == 4
    assert sum(after < before for before, after in pairwise(lanes)) <= 1


def test_outage_is_worked_off(tmp_path: Path) -> None:
    found = recovered(tmp_path, 1500, "10s", 80, 0)
    assert found.final is not None
    assert all(job.met for job in found.final.jobs.values())
