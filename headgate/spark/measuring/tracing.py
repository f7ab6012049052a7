"""Traces of epochs by OpenTelemetry, the extra `otel`: one span per epoch, and its parts as children.

Spans are made when Spark has committed an epoch, or the epoch has failed, from the times that were taken on the way: an epoch waits for no
exporter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headgate.config import OTLP, SparkSettings
from headgate.core.model import EpochPart, EpochSpan, EpochTiming
from headgate.errors import InputError
from headgate.spark.reasons import reason_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NS = 1e9
SERVICE = "headgate"


class Traces(Protocol):
    """Port to an exporter of spans."""

    def epoch(self, job: str, tenant: str, timing: EpochTiming, error: BaseException | None = None) -> None:
        """Export an epoch that has ended, or has failed with this error."""

    def close(self) -> None:
        """Send the remaining spans."""


class NoTraces:
    """An exporter that drops all spans."""

    def epoch(self, job: str, tenant: str, timing: EpochTiming, error: BaseException | None = None) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


NO_TRACES = NoTraces()


class OtelTraces:
    """An exporter that uses an OpenTelemetry provider; spans are sent on the provider's thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    def epoch(self, job: str, tenant: str, timing: EpochTiming, error: BaseException | None = None) -> None:
        """Export one span with a child for each part; the rows of a failed epoch are not known."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        about: dict[str, str | float] = {
            "headgate.job": job,
            "headgate.tenant": tenant,
            "headgate.epoch": timing.number,
        }
        if error is None:
            about["headgate.rows"] = timing.rows
        at_s = timing.started_s
        span = self._tracer.start_span(f"epoch of {job}", attributes=about, start_time=_ns(at_s))
        inside = set_span_in_context(span)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, reason_of(error)))
        for one in timing.spans:
            name = f"{one.part.value} {one.operator}".rstrip()
            part = self._tracer.start_span(name, inside, start_time=_ns(at_s))
            at_s += one.took_s
            part.end(_ns(at_s))
        span.end(_ns(at_s))

    def close(self) -> None:
        """Send the remaining spans and end the thread."""
        self._provider.shutdown()


class EpochTraces:
    """Sends the epochs of one start, each after Spark has committed it. Owner of the waiting epoch: the lock."""

    def __init__(self, traces: Traces, job: str, tenant: str, committed_s: Callable[[int], float | None]) -> None:
        """`committed_s` returns the wall time at which Spark committed an epoch; None if it has not."""
        self._traces, self._job, self._tenant, self._committed_s = traces, job, tenant, committed_s
        self._lock = threading.Lock()
        self._waiting: EpochTiming | None = None

    def ended(self, timing: EpochTiming) -> None:
        """Keep an epoch until Spark has committed it."""
        with self._lock:
            self._waiting = timing

    def failed(self, timing: EpochTiming, error: BaseException) -> None:
        """Send an epoch that has failed."""
        self._traces.epoch(self._job, self._tenant, timing, error)

    def send(self, at_end: bool = False) -> None:
        """Send the waiting epoch if Spark has committed it; with `at_end`, send it without its commit."""
        with self._lock:
            timing = self._waiting
            committed_s = None if timing is None else self._committed_s(timing.number)
            if timing is None or (committed_s is None and not at_end):
                return
            self._waiting = None
        if committed_s is not None:
            commit = EpochSpan(EpochPart.COMMIT, max(0.0, committed_s - timing.started_s - timing.took_s))
            timing = replace(timing, spans=(*timing.spans, commit))
        self._traces.epoch(self._job, self._tenant, timing)


def _ns(at_s: float) -> int:
    return int(at_s * NS)


def open_traces(settings: SparkSettings) -> Traces:
    """Open the exporter of the setting `traces`; OpenTelemetry's own environment variables configure it."""
    if settings.traces != OTLP:
        return NO_TRACES
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InputError(
            f"setting \"traces\" is {OTLP}, which needs {error.name}; install it with `pip install 'headgate[otel]'`"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTraces(provider)
