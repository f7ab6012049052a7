"""Traces of epochs by OpenTelemetry, the extra `otel`: one span per epoch, and its parts as children.

Spans are made when an epoch has ended, from the times that were taken on the way: an epoch waits for no exporter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from headgate.config import OTLP, SparkSettings
from headgate.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NS = 1e9
SERVICE = "headgate"


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """When the parts of an epoch ended, in wall time."""

    asked_s: float
    """When Spark began to ask the sources what there is to read."""
    begun_s: float
    """When the rows were known, and the plan was begun."""
    planned_s: float
    sinks_s: Mapping[str, float]
    """When each sink was written, in their order; reading and all stages are part of the sink that needs them."""
    committed_s: float
    """When keyed state was committed."""

    def parts(self) -> Iterator[tuple[str, float, float]]:
        """Name, begin and end of each part, one after another."""
        ends = {"read": self.begun_s, "plan": self.planned_s}
        ends |= {f"sink {name}": end_s for name, end_s in self.sinks_s.items()}
        ends["commit"] = self.committed_s
        for name, (begin_s, end_s) in zip(ends, pairwise((self.asked_s, *ends.values())), strict=True):
            yield name, begin_s, end_s


class Traces(Protocol):
    """Where epochs are told to."""

    def epoch(self, job: str, tenant: str, number: int, rows: int, times: EpochTimes) -> None:
        """An epoch has ended."""

    def close(self) -> None:
        """Send what waits."""


class NoTraces:
    """For those who want none."""

    def epoch(self, job: str, tenant: str, number: int, rows: int, times: EpochTimes) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


NO_TRACES = NoTraces()


class OtelTraces:
    """Spans for the exporter of a provider, on a thread of the provider's."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    def epoch(self, job: str, tenant: str, number: int, rows: int, times: EpochTimes) -> None:
        """One span, with a child for each part."""
        from opentelemetry.trace import set_span_in_context

        about: dict[str, str | int] = {
            "headgate.job": job,
            "headgate.tenant": tenant,
            "headgate.epoch": number,
            "headgate.rows": rows,
        }
        span = self._tracer.start_span(f"epoch of {job}", attributes=about, start_time=_ns(times.asked_s))
        inside = set_span_in_context(span)
        for name, begin_s, end_s in times.parts():
            part = self._tracer.start_span(name, inside, start_time=_ns(begin_s))
            part.end(_ns(max(begin_s, end_s)))
        span.end(_ns(times.committed_s))

    def close(self) -> None:
        """Send what waits, and end the thread."""
        self._provider.shutdown()


def _ns(at_s: float) -> int:
    return int(at_s * NS)


def opened(settings: SparkSettings) -> Traces:
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
