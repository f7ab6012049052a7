"""Checks whether Spark's JVM answers, and kills a silent JVM, so that no call into it waits forever."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from subprocess import Popen
from typing import TYPE_CHECKING

from headgate.core.quantities import show_seconds
from headgate.spark import jvm
from headgate.threads import WatchedThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ASK_S = 1.0
"""Pause in seconds before each question to the JVM."""
QUESTIONS = 4
"""Unanswered questions in a row after which the JVM counts as lost."""


class Pulse:
    """Asks the JVM over a separate connection. Owner of the result: its own thread; `lost` reads one reference."""

    def __init__(self, patience_s: float) -> None:
        self._process: Popen[bytes] | None = getattr(jvm.gateway(), "proc", None)
        self._patience_s = patience_s
        self._gateway = jvm.another_gateway(patience_s / QUESTIONS - ASK_S)
        self._silent = ""
        _silence_logs()
        self._closing = threading.Event()
        self._thread = WatchedThread("headgate-pulse", self._watch, logging.getLogger(__name__).warning)
        self._thread.start()

    def lost(self) -> str:
        """Say in a sentence why the JVM is lost; empty while the JVM answers."""
        if self._silent:
            return self._silent
        if self._process is not None and self._process.poll() is not None:
            return f"the Java process of Spark ended (exit code {self._process.returncode})"
        return ""

    def close(self) -> None:
        self._thread.close(None, self._closing.set)
        with suppress(Exception):  # the connection of a JVM that is gone cannot be closed in order
            self._gateway.close()

    def _watch(self) -> None:
        """Ask the JVM repeatedly; silence is counted in questions, not in seconds, because a machine that slept has lost nothing."""
        unanswered = 0
        while not self._closing.wait(ASK_S) and not self.lost():
            unanswered = 0 if self._answers() else unanswered + 1
            if unanswered == QUESTIONS:
                self._give_up()
        self._closing.wait()  # a lost JVM stays lost

    def _answers(self) -> bool:
        try:
            self._gateway.jvm.java.lang.System.nanoTime()
        except Exception:  # whatever the gateway raises, there was no answer
            return False
        return True

    def _give_up(self) -> None:
        self._silent = f"the Java process of Spark did not answer for {show_seconds(self._patience_s)} and was ended"
        if self._process is not None:
            self._process.kill()


def _silence_logs() -> None:
    """Report the end of a JVM in one sentence; Py4J and PySpark would print a stack trace for each broken connection."""
    logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)
    if _is_worth_logging not in logging.getLogger().filters:
        logging.getLogger().addFilter(_is_worth_logging)
    jvm.silence_accumulator_server()


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


def abandon(spark: SparkSession) -> None:
    """Forget a session after its JVM was lost, without a call into the JVM; another session may be started."""
    gateway = jvm.gateway()
    jvm.forget_session(spark)
    if gateway is not None:
        jvm.close_gateway(gateway)
        process = getattr(gateway, "proc", None)
        if process is not None:
            with suppress(OSError):
                process.stdin.close()
            process.wait()
    jvm.forget_gateway()
