from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.sim.pool import SimulatedPool
from tests.contract.pool_promises import PoolPromises, World


class TestSimulatedPool(PoolPromises):
    @pytest.fixture
    def world(self) -> World:
        now = [0.0]

        def wait_until(holds: Callable[[], bool]) -> None:
            for _ in range(600):
                if holds():
                    return
                now[0] += 1.0
            raise AssertionError("it did not happen within 10 minutes")

        return World(SimulatedPool(lambda: now[0], seed=0), wait_until)
