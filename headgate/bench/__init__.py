"""Benchmarks: what Headgate costs and what it is worth, beside what it is compared with. Never run as tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headgate.core.quantities import choice
from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.sim.bars import Bar

NAMES = (
    "simulator",
    "controller",
    "sizing",
    "tenants",
    "overhead",
    "reconfigure",
    "fidelity",
    "slices",
    "checkpoint",
    "state",
    "rescale",
    "migrate",
    "recovery",
    "health",
    "hosts",
)


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


def bench(name: str, plot: Path | None = None) -> Result:
    """Run the benchmark of that name."""
    module = import_module(f"headgate.bench.{choice(name, 'benchmark', NAMES)}")
    if plot is None:
        return cast(Callable[[], Result], module.measure)()
    if "plot" not in signature(module.measure).parameters:
        raise InputError(f'benchmark "{name}" has nothing to draw; leave out --plot')
    return cast(Callable[[Path], Result], module.measure)(plot)
