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


def satisfactions(place: Path, scenario: str, seed: int = 1) -> dict[str, float]:
    """By tenant, in the last ten minutes."""
    file = place / "scenario.toml"
    file.write_text(scenario)
    journal = MemoryJournal()
    run(read_scenario(file), "headgate", seed, journal)
    last = list(journal.rounds())[-LAST_ROUNDS:]
    found = {}
    for tenant in ("shop", "ads"):
        jobs = [job for round_ in last for name, job in round_.jobs.items() if name.startswith(tenant)]
        found[tenant] = sum(job.utility or 0.0 for job in jobs) / sum(job.worth for job in jobs)
    return found


def test_tenant_of_little_worth_is_given_up_for_the_total_and_not_for_fairness(tmp_path: Path) -> None:
    total, fair = (satisfactions(tmp_path, SCENARIO.format(objective=objective)) for objective in ("total", "fair"))
    assert total == pytest.approx({"shop": 1.0, "ads": 0.0}, abs=0.05)
    assert fair == pytest.approx({"shop": 0.75, "ads": 1.0}, abs=0.05)


TWINS = """
title = "Two equal tenants on a cluster that is too small for the last of their eight jobs"
duration = "40m"

[settings]
objective = "fair"

[cluster]
hosts = 3
cores = 2
"""
TWIN = """
[[job]]
name = "{tenant}#"
count = 4
tenant = "{tenant}"
tenant_weight = {weight}
topology = "pageload"
intent = {{ latency = "60ms", worth = 10 }}
load = {{ pattern = "steady", rate = 480 }}
lanes = {{ join = 1 }}
"""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("heavy", "light"), [("shop", "ads"), ("ads", "shop")])
def test_tenant_with_more_weight_is_served_in_full_and_swapped_weights_swap_who_is(
    tmp_path: Path, heavy: str, light: str, seed: int
) -> None:
    weights = {"shop": 1, "ads": 1, heavy: 4}
    tenants = "".join(TWIN.format(tenant=tenant, weight=weight) for tenant, weight in weights.items())
    assert satisfactions(tmp_path, TWINS + tenants, seed) == pytest.approx({heavy: 1.0, light: 0.85}, abs=0.05)
