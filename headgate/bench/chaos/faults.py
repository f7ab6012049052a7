"""The faults under chaos: each fault is one entry of a table, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil

from headgate.bench.chaos.service import ProcessRole, SupervisedService
from headgate.bench.chaos.store import Disk, RedisServer

FREEZE_S = 20.0
REDIS_S, FULL_S, PAUSE_S = (3.0, 10.0), (5.0, 12.0), (1.0, 5.0)
"""Shortest and longest seconds of a stopped Redis, a full disk and a paused job."""
LATENCIES = ("300ms", "800ms", "2s", "6s", "15s")
LEVERS = ({"read_limit": 200}, {"read_limit": 5000}, {"share": 1}, {"share": 3})


@dataclass(frozen=True, slots=True)
class Scene:
    """The components that faults are injected into."""

    service: SupervisedService
    redis: RedisServer
    disk: Disk
    random: random.Random

    def between(self, limits: tuple[float, float]) -> float:
        """Return a random time between two limits."""
        return self.random.uniform(*limits)


@dataclass(frozen=True, slots=True)
class Injected:
    """An injected fault; the injector ends a lasting fault, and the fault is over once `end` returns true."""

    what: str
    lasts_s: float = 0.0
    end: Callable[[], bool] = field(default=lambda: True)


Fault = Callable[[Scene], Injected | None]
"""A function that injects a fault; returns None if the fault is not possible at the moment."""


def kill(role: ProcessRole) -> Fault:
    """Return a fault that ends one process in the role with `kill -9`."""

    def inject(scene: Scene) -> Injected | None:
        process = _one(scene, role)
        return Injected(f"kill -9 of a {role.value}") if process is not None and _done(process.kill) else None

    return inject


def freeze(scene: Scene) -> Injected | None:
    """Freeze one process in a random role with SIGSTOP: the process exists, but does not answer."""
    role = scene.random.choice(list(ProcessRole))
    process = _one(scene, role)
    if process is None or not _done(process.suspend):
        return None
    return Injected(f"SIGSTOP of a {role.value}", FREEZE_S, lambda: _done(process.resume) or True)


def stop_redis(scene: Scene) -> Injected:
    """Stop Redis for a while; Redis keeps its data."""

    def start() -> bool:
        scene.redis.start()
        return True

    scene.redis.stop()
    return Injected("Redis stopped", scene.between(REDIS_S), start)


def fill_disk(scene: Scene) -> Injected | None:
    """Fill the file system of home and output to the last block."""
    if scene.disk.refusal:
        return None

    def free() -> bool:
        scene.disk.free()
        return True

    scene.disk.fill()
    return Injected("disk full", scene.between(FULL_S), free)


def pause(scene: Scene) -> Injected | None:
    """Pause the job and resume the job later; a request without an answer may still have been executed."""
    if scene.service.status() is None:
        return None
    scene.service.change("POST", "/pause")
    return Injected("pause", scene.between(PAUSE_S), lambda: scene.service.change("POST", "/resume"))


def change_intent(scene: Scene) -> Injected | None:
    """Change the latency of the intent, so that the control loop changes lanes and pace."""
    latency = scene.random.choice(LATENCIES)
    done = scene.service.change("PATCH", "", {"intent": {"latency": latency}})
    return Injected(f"intent {latency}") if done else None


def change_levers(scene: Scene) -> Injected | None:
    """Change the read limit or the share of the job."""
    lever = scene.random.choice(LEVERS)
    return Injected(f"{lever}") if scene.service.change("PATCH", "", lever) else None


FAULTS: tuple[tuple[Fault, int], ...] = (
    (kill(ProcessRole.DRIVER), 1),
    (kill(ProcessRole.JVM), 1),
    (kill(ProcessRole.LANE), 3),
    (kill(ProcessRole.EXECUTOR), 2),
    (kill(ProcessRole.WORKER), 1),
    (kill(ProcessRole.MASTER), 1),
    (freeze, 1),
    (stop_redis, 1),
    (fill_disk, 1),
    (pause, 2),
    (change_intent, 3),
    (change_levers, 2),
)
"""Faults with their number per turn; faults that cost a restart of Spark are the rarest."""


def drawn(seed: int) -> Iterator[Fault]:
    """Yield all faults turn by turn without end, each turn in a random order; the same seed yields the same faults."""
    order = random.Random(seed)
    turn = [fault for fault, times in FAULTS for _ in range(times)]
    while True:
        order.shuffle(turn)
        yield from turn


def _one(scene: Scene, role: ProcessRole) -> psutil.Process | None:
    found = scene.service.processes()[role]
    return scene.random.choice(found) if found else None


def _done(signal: Callable[[], None]) -> bool:
    try:
        signal()
    except psutil.Error:
        return False
    return True
