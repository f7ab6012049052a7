from __future__ import annotations

from headgate.core.hosts import HostPhase, HostType
from headgate.hosts.leases import Ledger, bill
from headgate.sim.pool import SimulatedPool

KIND = HostType("small", cores=1, memory_mb=1024, price=1.0, btu_s=600, startup_s=45)


def startup_s(seed: int) -> float:
    now = [0.0]
    pool = SimulatedPool(lambda: now[0], seed)
    pool.lease("a", KIND)
    while pool.hosts()["a"].phase is not HostPhase.READY:
        now[0] += 0.5
    return now[0]


def test_start_up_takes_30_to_60_s_and_differs_between_seeds():
    times = {startup_s(seed) for seed in range(20)}
    assert min(times) >= 30 and max(times) <= 60.5 and len(times) > 5


def test_lease_that_never_comes_up_is_reported_as_failed():
    now = [0.0]
    pool = SimulatedPool(lambda: now[0], seed=0, failures=1.0)
    pool.lease("a", KIND)
    now[0] = 179.0
    assert pool.hosts()["a"].phase is HostPhase.STARTING
    now[0] = 180.0
    assert (pool.hosts()["a"].phase, pool.hosts()["a"].reason) == (HostPhase.FAILED, "it never came up")


def test_host_is_paid_until_nothing_runs_on_it():
    now, empty = [0.0], [False]
    pool = SimulatedPool(lambda: now[0], seed=0, empty=lambda host: empty[0])
    pool.lease("a", KIND)
    pool.release("a")
    now[0] = 601.0
    assert pool.hosts()["a"].phase is HostPhase.RELEASING
    ledger = Ledger().matched(pool.hosts(), now[0])
    empty[0] = True
    assert not pool.hosts()
    assert bill(ledger.matched(pool.hosts(), now[0]), 700.0).paid_btus == 2
