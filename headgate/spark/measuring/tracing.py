"""Traces of epochs by OpenTelemetry, the extra `otel`: one span per epoch, and its parts as children.

Spans are made when an epoch has ended, from the times that were taken on the way: an epoch waits for no exporter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headgate.config import OTLP, SparkSettings
from headgate.core.model import EpochPart, EpochTiming
from headgate.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NS = 1e9
SERVICE = "headgate"


class Traces(Protocol):
    """The exporter of spans."""

    def epoch(self, job: str, tenant: str, timing: EpochTiming) -> None:
        """An epoch has ended."""

    def close(self) -> None:
        """Send what waits."""


class NoTraces:
    """For those who want none."""

    def epoch(self, job: str, tenant: str, timing: EpochTiming) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


NO_TRACES = NoTraces()


class OtelTraces:
    """Spans for the exporter of a provider, on a thread of the provider's."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    def epoch(self, job: str, tenant: str, timing: EpochTiming) -> None:
        """One span, with a child for each part."""
        from opentelemetry.trace import set_span_in_context

        about: dict[str, str | float] = {
            "headgate.job": job,
            "headgate.tenant": tenant,
            "headgate.epoch": timing.number,
            "headgate.rows": timing.rows,
        }
        at_s = timing.started_s
        span = self._tracer.start_span(f"epoch of {job}", attributes=about, start_time=_ns(at_s))
        inside = set_span_in_context(span)
        for one in timing.spans:
            if one.part is EpochPart.WAIT:
                continue
            name = f"{one.part.value} {one.operator}".rstrip()
            part = self._tracer.start_span(name, inside, start_time=_ns(at_s))
            at_s += one.took_s
            part.end(_ns(at_s))
        span.end(_ns(at_s))

    def close(self) -> None:
        """Send what waits, and end the thread."""
        self._provider.shutdown()


def _ns(at_s: float) -> int:
    return int(at_s * NS)


def open_traces(settings: SparkSettings) -> Traces:
    """As the setting `traces` says; the exporter is configured by OpenTelemetry's own environment variables."""
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
