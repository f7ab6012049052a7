"""An engine notices that its JVM is gone, says so, and lets nothing wait for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .conftest import Start


@pytest.mark.slow
def test_engine_without_its_jvm_says_so_and_holds_up_no_call(tmp_path: Path, start: Start) -> None:
    run = start([sys.executable, "-m", "tests.spark.on_lost", str(tmp_path)])
    lines = list(run.lines())
    assert run.wait() == 0, run.errors()
    told = json.loads(lines[-1])
    sentences = {"killed": "ended (exit code -9)", "held": "did not answer for 8 s and was ended"}
    for name, sentence in sentences.items():
        lost = told[name]
        assert sentence in lost["lost"], told
        assert lost["lost_s"] < (10 if name == "killed" else 40), told
        for took_s, refusal in lost["refusals"].values():
            assert refusal == lost["lost"] and took_s < 2, told
        assert lost["supervised"] and lost["ended"] and lost["close_s"] < 15, told
        assert lost["phase"] == "running", told
    for words in ("Connection refused", "Traceback", "Unable to cleanly shutdown"):
        assert words not in run.errors() + "".join(lines), run.errors()
