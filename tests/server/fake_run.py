"""`python -m tests.server.fake_run COMMAND...`: the command line on the engine without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headgate.cli import run as run_module
from headgate.cli import run_command
from tests.server.fake import FakeEngine


class SlowEngine(FakeEngine):
    """Takes its time to close, as epochs do."""

    def lost(self) -> str:
        """As long as a file named `lost` is there, which whoever finds it takes away: the next engine is a new one."""
        lost = Path("lost")
        if not self.gone and lost.exists():
            self.gone = lost.read_text()
            lost.unlink()
        return self.gone

    def close(self) -> None:
        time.sleep(float(os.environ.get("CLOSE_S", "0")))
        super().close()
        print("engine closed", flush=True)


def open_engine(home: Path, settings: Any, master: str | None, extra: Any = None) -> FakeEngine:
    engine = SlowEngine()
    if "HELPER" in os.environ:
        subprocess.Popen(["sleep", os.environ["HELPER"]])
    if "HOPELESS" in os.environ:
        engine.latency_s = 30.0
    return engine


run_module.open_engine = open_engine

if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
