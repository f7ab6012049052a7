"""The example `wordcount.py` with a load step: what five of the jobs of the benchmark `many` run."""

from __future__ import annotations

import runpy

from headgate.spark import sources
from headgate.topology import Topology


def topology(example: str, rate: float, step_s: float, stepped: float, out: str) -> Topology:
    """The job of the example file, whose input changes from `rate` to `stepped` rows per second `step_s` after its start."""
    found: Topology = runpy.run_path(example)["topology"](sources.Steps([(0, rate), (step_s, stepped)]), out)
    return found
