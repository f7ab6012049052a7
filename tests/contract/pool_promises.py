"""What every pool of hosts promises, whatever its hosts are. A suite inherits `PoolPromises` and gives it a `world`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.core.hosts import HostPhase, HostType
from headgate.ports import HostPool

KIND = HostType("small", cores=1, memory_mb=1024, price=1.0, btu_s=600, startup_s=45)


@dataclass
class World:
    """A pool, and how to let time pass until something holds."""

    pool: HostPool
    wait_until: Callable[[Callable[[], bool]], None]


def phase(world: World, name: str) -> HostPhase | None:
    return phase_of(world.pool, name)


def phase_of(pool: HostPool, name: str) -> HostPhase | None:
    host = pool.hosts().get(name)
    return host.phase if host is not None else None


class PoolPromises:
    """The contract."""

    def test_host_is_there_from_its_lease_on_and_ready_after_a_while(self, world: World) -> None:
        world.pool.lease("a", KIND)
        assert phase(world, "a") is HostPhase.STARTING
        world.wait_until(lambda: phase(world, "a") is HostPhase.READY)
        assert world.pool.hosts()["a"].kind == KIND

    def test_same_lease_twice_is_one_host(self, world: World) -> None:
        world.pool.lease("a", KIND)
        first = world.pool.hosts()["a"].leased_s
        world.wait_until(lambda: phase(world, "a") is HostPhase.READY)
        world.pool.lease("a", KIND)
        assert list(world.pool.hosts()) == ["a"]
        assert world.pool.hosts()["a"].leased_s == first

    def test_released_host_is_gone_after_a_while_and_the_others_stay(self, world: World) -> None:
        world.pool.lease("a", KIND)
        world.pool.lease("b", KIND)
        world.wait_until(lambda: {phase(world, name) for name in "ab"} == {HostPhase.READY})
        world.pool.release("a")
        assert phase(world, "a") in (HostPhase.RELEASING, None)
        world.wait_until(lambda: list(world.pool.hosts()) == ["b"])
        assert phase(world, "b") is HostPhase.READY

    def test_host_may_be_released_before_it_is_ready(self, world: World) -> None:
        world.pool.lease("a", KIND)
        world.pool.release("a")
        world.wait_until(lambda: not world.pool.hosts())

    def test_releasing_twice_or_what_is_not_there_changes_nothing(self, world: World) -> None:
        world.pool.lease("a", KIND)
        world.pool.release("nobody")
        world.pool.release("a")
        world.pool.release("a")
        world.wait_until(lambda: not world.pool.hosts())
        world.pool.release("a")
        assert not world.pool.hosts()

    def test_hosts_are_listed_in_the_order_of_their_leases(self, world: World) -> None:
        for name in "ba":
            world.pool.lease(name, KIND)
        assert list(world.pool.hosts()) == ["b", "a"]
        for name in "ba":
            world.pool.release(name)
        world.wait_until(lambda: not world.pool.hosts())
