from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate import demo
from headgate.cli import cli
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
    assert "without control" in done.output
    explained = CliRunner().invoke(cli, ["explain", "fraud", "--journal", ".headgate/demo/journal.sqlite"])
    assert explained.exit_code == 0
    assert explained.output.strip()
