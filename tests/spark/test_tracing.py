"""Traces of epochs: one span each, whose parts lie one after another inside it."""

from __future__ import annotations

import dataclasses
import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from headgate.config import SparkSettings
from headgate.core.model import EpochPart, EpochSpan, EpochTiming
from headgate.errors import InputError
from headgate.spark.engine import SparkEngine
from headgate.spark.measuring.tracing import NO_TRACES, OtelTraces, open_traces

from .builders import burst, copied, epochs, put_in, topology
from .conftest import Until

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is missing: pip install 'headgate[otel]'")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
otlp = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Collected:
    """Traces, and the spans that came of them."""

    def __init__(self) -> None:
        self.exporter = in_memory.InMemorySpanExporter()
        provider = sdk.TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.traces = OtelTraces(provider)

    def spans(self):
        return self.exporter.get_finished_spans()

    def epochs(self):
        return [span for span in self.spans() if span.parent is None]

    def parts(self, epoch):
        inside = [span for span in self.spans() if span.parent is not None]
        return [span for span in inside if span.parent.span_id == epoch.context.span_id]


@pytest.fixture
def collected() -> Collected:
    return Collected()


def assert_whole(collected: Collected) -> None:
    """The parts of each epoch follow one another, from its begin to its end."""
    for epoch in collected.epochs():
        parts = collected.parts(epoch)
        assert (parts[0].start_time, parts[-1].end_time) == (epoch.start_time, epoch.end_time)
        assert all(before.end_time == after.start_time for before, after in pairwise(parts))


def test_epoch_is_one_span_with_a_child_for_each_part(collected: Collected) -> None:
    spans = (
        EpochSpan(EpochPart.PLAN, 0.25),
        EpochSpan(EpochPart.SINK, 1.25, "out"),
        EpochSpan(EpochPart.SINK, 1.0, "alerts"),
        EpochSpan(EpochPart.STATE, 0.25),
    )
    collected.traces.epoch("orders", "shop", EpochTiming(7, 10.0, 1000, spans))
    (epoch,) = collected.epochs()
    assert epoch.name == "epoch of orders"
    assert dict(epoch.attributes) == {
        "headgate.job": "orders", "headgate.tenant": "shop", "headgate.epoch": 7, "headgate.rows": 1000,
    }  # fmt: skip
    assert [one.name for one in collected.parts(epoch)] == ["plan", "sink out", "sink alerts", "state"]
    assert_whole(collected)


def test_epochs_of_a_job_on_spark_are_traced(
    engine: SparkEngine, until: Until, out: Path, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_shared", dataclasses.replace(engine._shared, traces=collected.traces))
    engine.submit(copied("traced", out, 100))
    until(lambda: epochs(engine, "traced") >= 1 and collected.epochs(), "an epoch")
    first = collected.epochs()[0]
    assert (first.attributes["headgate.job"], first.attributes["headgate.epoch"]) == ("traced", 0)
    assert [one.name for one in collected.parts(first)] == ["log", "plan", "sink out", "count", "wait", "commit"]
    assert_whole(collected)


def test_trace_of_an_epoch_ends_when_spark_has_committed_the_epoch(
    engine: SparkEngine, until: Until, out: Path, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_shared", dataclasses.replace(engine._shared, traces=collected.traces))
    engine.submit(copied("traced", out, burst(100)))
    until(lambda: put_in(engine, name="traced") == 100, "the end of the load")
    until(lambda: len(collected.epochs()) >= epochs(engine, "traced"), "the last epoch, although no other follows")
    for epoch in collected.epochs():
        commit = collected.parts(epoch)[-1]
        log = engine.place_of("traced") / f"checkpoint/commits/{epoch.attributes['headgate.epoch']}"
        assert commit.name == "commit"
        assert abs(commit.end_time - max(log.stat().st_mtime_ns, commit.start_time)) < 1e6


def test_epoch_that_fails_is_a_span_with_the_error(
    engine: SparkEngine, until: Until, out: Path, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(rows: DataFrame, epoch: int) -> None:
        raise LookupError("no such tier")

    monkeypatch.setattr(engine, "_shared", dataclasses.replace(engine._shared, traces=collected.traces))
    job = topology("traced")
    job.sink("out", write, job.source("in", burst(100)))
    engine.submit(job)
    until(lambda: len(collected.epochs()) >= 2, "two attempts")
    for epoch in collected.epochs():
        assert (epoch.status.status_code.name, epoch.attributes["headgate.epoch"]) == ("ERROR", 0)
        assert epoch.status.description == 'operator "out": LookupError: no such tier'
        assert "headgate.rows" not in epoch.attributes
        assert [one.name for one in collected.parts(epoch)][-2:] == ["plan", "failed"]
    assert_whole(collected)
    engine.remove("traced")
    assert all(epoch.attributes["headgate.epoch"] == 0 for epoch in collected.epochs())


class Collector:
    """Takes spans by OTLP over HTTP, as a collector of OpenTelemetry does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service = ""
        spans, collector = self.spans, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                request = otlp.ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
                    collector.service = attributes["service.name"]
                    spans.extend(span for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(otlp.ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_spans_reach_a_collector_over_http(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    traces = open_traces(dataclasses.replace(SparkSettings(), traces="otlp"))
    spans = (EpochSpan(EpochPart.PLAN, 0.25), EpochSpan(EpochPart.SINK, 1.25, "out"))
    traces.epoch("orders", "shop", EpochTiming(7, 1_700_000_000.0, 1000, spans))
    traces.close()
    assert collector.service == "headgate"
    named = {span.name: span for span in collector.spans}
    assert set(named) == {"epoch of orders", "plan", "sink out"}
    epoch = named["epoch of orders"]
    assert {one.key for one in epoch.attributes} == {
        "headgate.job", "headgate.tenant", "headgate.epoch", "headgate.rows",
    }  # fmt: skip
    assert epoch.end_time_unix_nano - epoch.start_time_unix_nano == 1_500_000_000
    assert {named[name].parent_span_id for name in ("plan", "sink out")} == {epoch.span_id}


def test_traces_are_off_unless_asked_for() -> None:
    assert open_traces(SparkSettings()) is NO_TRACES


def test_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InputError, match=r"pip install 'headgate\[otel\]'"):
        open_traces(dataclasses.replace(SparkSettings(), traces="otlp"))
