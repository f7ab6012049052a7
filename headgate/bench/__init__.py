"""Benchmarks: how fast the simulator is, and what a round of the control loop costs. Never run as tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from headgate.core.quantities import choice
from headgate.sim.bars import Bar

NAMES = ("simulator", "controller", "sizing")


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found, and what it has to find."""

    figures: tuple[Figure, ...]
    bars: tuple[Bar, ...]


def bench(name: str) -> Result:
    """Run the benchmark of that name; takes up to a few minutes."""
    module = import_module(f"headgate.bench.{choice(name, 'benchmark', NAMES)}")
    return cast(Callable[[], Result], module.measure)()
