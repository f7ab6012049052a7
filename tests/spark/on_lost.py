"""An engine whose JVM is killed, then one whose JVM is stopped; tells how long each call took, in its last line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from headgate.config import SparkSettings
from headgate.errors import EngineError
from headgate.spark.engine import SparkEngine, open_engine

from .builders import copied

SETTINGS = SparkSettings(slots=2, answer_s=8.0, stop_s=30.0)
PATIENCE_S = 90.0
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


def main(place: Path) -> None:
    told = {name: lose(place / name, number) for name, number in (("killed", signal.SIGKILL), ("held", signal.SIGSTOP))}
    print(json.dumps(told), flush=True)


def lose(place: Path, number: signal.Signals) -> dict[str, Any]:
    engine = open_engine(place / "home", SETTINGS)
    engine.submit(copied("job", place / "out", 100))
    wait_for(lambda: (engine.observe().jobs["job"].epochs or 0) >= 1)  # type: ignore[union-attr]
    os.kill(SparkContext._gateway.proc.pid, number)  # type: ignore[union-attr]
    began_s = time.monotonic()
    wait_for(engine.lost)
    told = {"lost_s": time.monotonic() - began_s, "lost": engine.lost()}
    calls = {"observe": engine.observe, "pause": lambda: engine.pause("job"), "remove": lambda: engine.remove("job")}
    refusals = {name: refusal(call) for name, call in calls.items()}
    supervised = engine._supervisor.is_alive()
    began_s = time.monotonic()
    engine.close()
    return {
        **told,
        "refusals": refusals,
        "supervised": supervised,
        "close_s": time.monotonic() - began_s,
        "phase": phase(engine),
        "ended": SparkContext._gateway is None,
    }


def phase(engine: SparkEngine) -> str:
    return engine.states()["job"].phase.value


def refusal(call: Callable[[], object]) -> tuple[float, str]:
    began_s = time.monotonic()
    try:
        call()
    except EngineError as error:
        return time.monotonic() - began_s, str(error)
    return time.monotonic() - began_s, "none"


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
