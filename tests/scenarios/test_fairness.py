"""The objective `fair` in the simulator: which jobs a cluster serves that is too small for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.journal import MemoryJournal
from headgate.sim.run import run
from headgate.sim.scenario import read_scenario

LAST_ROUNDS = 60
SCENARIO = """
title = "Two tenants on a cluster that is too small"
duration = "40m"

[settings]
objective = "{objective}"

[cluster]
hosts = 2
cores = 2

[[job]]
name = "shop#"
count = 4
tenant = "shop"
topology = "pageload"
intent = {{ latency = "60ms", worth = 50 }}
load = {{ pattern = "steady", rate = 530 }}
lanes = {{ join = 1 }}

[[job]]
name = "ads"
tenant = "ads"
tenant_weight = 2
topology = "pageload"
intent = {{ latency = "60ms", worth = 5 }}
load = {{ pattern = "steady", rate = 530 }}
lanes = {{ join = 1 }}
"""


def satisfactions(place: Path, objective: str) -> dict[str, float]:
    """By tenant, in the last ten minutes."""
    file = place / f"{objective}.toml"
    file.write_text(SCENARIO.format(objective=objective))
    journal = MemoryJournal()
    run(read_scenario(file), "headgate", 1, journal)
    last = list(journal.rounds())[-LAST_ROUNDS:]
    found = {}
    for tenant in ("shop", "ads"):
        jobs = [job for round_ in last for name, job in round_.jobs.items() if name.startswith(tenant)]
        found[tenant] = sum(job.utility or 0.0 for job in jobs) / sum(job.worth for job in jobs)
    return found


def test_tenant_of_little_worth_is_given_up_for_the_total_and_not_for_fairness(tmp_path: Path) -> None:
    total, fair = satisfactions(tmp_path, "total"), satisfactions(tmp_path, "fair")
    assert total == pytest.approx({"shop": 1.0, "ads": 0.0}, abs=0.05)
    assert fair == pytest.approx({"shop": 0.75, "ads": 1.0}, abs=0.05)


def test_weight_of_a_tenant_is_known_to_the_scheduler(tmp_path: Path) -> None:
    file = tmp_path / "fair.toml"
    file.write_text(SCENARIO.format(objective="fair"))
    assert {one.job().tenant: one.job().weight for one in read_scenario(file).jobs} == {"shop": 1.0, "ads": 2.0}
