from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate import demo
from headgate.cli import cli
from headgate.cli.demo import INTENT, WITH, WITHOUT, chart
from headgate.spark.engine import SparkEngine


class Lent:
    """The shared engine, which outlives the demo."""

    def __init__(self, engine: SparkEngine) -> None:
        self.submit, self.remove = engine.submit, engine.remove
        self.jobs, self.observe, self.apply = engine.jobs, engine.observe, engine.apply

    def close(self) -> None:
        """Not ours."""


@pytest.mark.slow
def test_demo_ends_with_a_comparison_and_what_to_try_next(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "open_engine", lambda home, settings: Lent(engine))
    for name, seconds in (("WARM_UP_S", 4.0), ("STEP_S", 4.0), ("RUN_S", 12.0)):
        monkeypatch.setattr(demo, name, seconds)
    done = CliRunner().invoke(cli, ["demo"], catch_exceptions=False)
    assert done.exit_code == 0
    assert all(name in done.output for name in ("clicks", "fraud", "reports"))
    assert "of 3 with Headgate" in done.output
    assert "Latency of clicks in seconds" in done.output
    assert max(map(len, done.output.partition("Latency of clicks")[2].splitlines())) <= 80
    explained = CliRunner().invoke(cli, ["explain", "fraud", "--journal", ".headgate/demo/journal.sqlite"])
    assert explained.exit_code == 0
    assert explained.output.strip()


def test_chart_shows_both_latencies_the_intent_and_the_step() -> None:
    ours, theirs = [(0.0, 1.0), (50.0, 5.0), (100.0, 2.0)], [(0.0, 1.0), (50.0, 9.0), (100.0, 20.0)]
    drawn = [str(line) for line in chart(ours, theirs, 4.0, 25.0)]
    assert drawn[0].rstrip().endswith(WITHOUT)  # the highest value, at the end
    assert sum(INTENT in line for line in drawn) == 1
    assert sum(line.count(WITH) for line in drawn) == 3
    assert "load x 3" in drawn[-1] and drawn[-1].endswith("100 s")
    assert all(len(line) <= 80 for line in drawn)
