"""Epochs of the epochs model read as many rows as they need, however long their fixed cost is."""

from __future__ import annotations

from headgate.core.intents import Intent
from headgate.loads import Steady
from headgate.sim import constants
from headgate.sim.run import engine_for
from headgate.sim.spec import EpochCosts, HostSpec, JobSpec, OperatorSpec, Scenario

RATE = 500.0


def test_fixed_cost_longer_than_two_epochs_does_not_make_a_job_fall_behind() -> None:
    operators = (OperatorSpec("in", cost_s=0.00001), OperatorSpec("work", ("in",), cost_s=0.0001, lanes=2))
    job = JobSpec("job", operators, Intent(juice=0.9), {"in": Steady(RATE)})
    costs = EpochCosts(fixed_s=2.5 * constants.LONGEST_EPOCH_S)
    hosts = (HostSpec("host-1", 4, 16),)
    engine = engine_for(Scenario("fixed", "", "", "epochs", 1200.0, 0.0, hosts, (job,), epoch_costs=costs), 1)
    engine.sleep_until(1200.0)
    reading = engine.observe().jobs["job"]
    assert reading is not None and reading.backlog is not None and reading.epochs is not None
    rows = reading.operators["in"].processed["*"] / reading.epochs
    assert rows > 10 * RATE
    assert reading.backlog < 3 * costs.fixed_s * RATE
