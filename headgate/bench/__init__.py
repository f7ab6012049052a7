"""Benchmarks of the costs and gains of Headgate, compared with other ways. Benchmarks never run as tests.

The default form of a benchmark takes at most five minutes, and all default forms together less than an hour; some have a full form.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.core.quantities import choice
from headgate.errors import InputError

if TYPE_CHECKING:
    from headgate.sim.reports.bars import Bar

PLANNED_MIN: Mapping[str, float] = {
    "simulator": 1.0,
    "controller": 0.7,
    "sizing": 1.0,
    "tenants": 4.0,
    "many": 4.0,
    "overhead": 3.0,
    "epochs": 2.1,
    "reconfigure": 1.1,
    "fidelity": 3.0,
    "what-if": 4.3,
    "slices": 0.8,
    "checkpoint": 0.9,
    "state": 2.8,
    "rescale": 3.0,
    "migrate": 3.4,
    "recovery": 3.4,
    "health": 4.3,
    "hosts": 4.5,
    "kafka": 3.0,
    "chaos": 2.7,
    "tables": 2.5,
    "dashboard": 2.9,
}
"""Minutes that the default form of each benchmark should take on two quiet cores."""
ALONE_MIN: Mapping[str, float] = {"billing": 4.8, "cluster": 4.0, "metrics": 0.5}
"""Minutes of benchmarks that `make bench` leaves out, because its benchmarks together take less than an hour; run them by name.

The benchmark `dashboard` also measures what `metrics` measures.
"""
NAMES = (*PLANNED_MIN, *ALONE_MIN)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value with a name and a unit."""

    name: str
    value: float
    unit: str
    low: float | None = None
    """The least of several measurements; `value` is then the median."""
    high: float | None = None


def repeated(name: str, values: Sequence[float], unit: str) -> Figure:
    """Return a figure with the median of several measurements, and their spread."""
    return Figure(name, statistics.median(values), unit, min(values), max(values))


def ratio(above: float, below: float) -> float | None:
    """Return a ratio; None if the divisor is 0, which fails a bar on the ratio."""
    return above / below if below else None


@dataclass(frozen=True, slots=True)
class Result:
    """The figures and bars of a benchmark."""

    figures: tuple[Figure, ...]
    bars: tuple[Bar, ...]
    notes: tuple[str, ...] = ()
    """Sentences about unexpected events in the benchmark."""


def bench(name: str, plot: Path | None = None, full: bool = False, **options: Any) -> Result:
    """Run the benchmark with this name; `full` asks for its long form, if there is one. Options that are None keep their defaults."""
    module = choice(name, "benchmark", NAMES).replace("-", "_")
    measure = import_module(f"headgate.bench.{module}").measure
    takes = signature(measure).parameters
    given = {option: value for option, value in {"plot": plot, **options}.items() if value is not None}
    unknown = given.keys() - takes.keys()
    if unknown:
        raise InputError(f'benchmark "{name}" has no --{min(unknown)}; leave it out')
    found: Result = measure(**given, **({"full": True} if full and "full" in takes else {}))
    return found
