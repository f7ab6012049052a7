"""Traces of epochs: one span each, whose parts lie one after another inside it."""

from __future__ import annotations

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.config import SparkSettings
from headgate.errors import InputError
from headgate.spark.engine import SparkEngine
from headgate.spark.tracing import NO_TRACES, EpochTimes, OtelTraces, opened

from .builders import copied, epochs
from .conftest import Until

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is missing: pip install 'headgate[otel]'")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
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
    times = EpochTimes(10.0, 10.5, 10.75, {"out": 12.0, "alerts": 13.0}, 13.25)
    collected.traces.epoch("orders", "shop", 7, 1000, times)
    (epoch,) = collected.epochs()
    assert epoch.name == "epoch of orders"
    assert dict(epoch.attributes) == {
        "headgate.job": "orders", "headgate.tenant": "shop", "headgate.epoch": 7, "headgate.rows": 1000,
    }  # fmt: skip
    assert [one.name for one in collected.parts(epoch)] == ["read", "plan", "sink out", "sink alerts", "commit"]
    assert_whole(collected)


def test_epochs_of_a_job_on_spark_are_traced(
    engine: SparkEngine, until: Until, out: Path, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_shared", dataclasses.replace(engine._shared, traces=collected.traces))
    engine.submit(copied("traced", out, 100))
    until(lambda: epochs(engine, "traced") >= 1 and collected.epochs(), "an epoch")
    first = collected.epochs()[0]
    assert (first.attributes["headgate.job"], first.attributes["headgate.epoch"]) == ("traced", 0)
    assert [one.name for one in collected.parts(first)] == ["read", "plan", "sink out", "commit"]
    assert_whole(collected)


def test_traces_are_off_unless_asked_for() -> None:
    assert opened(SparkSettings()) is NO_TRACES


def test_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InputError, match=r"pip install 'headgate\[otel\]'"):
        opened(dataclasses.replace(SparkSettings(), traces="otlp"))
