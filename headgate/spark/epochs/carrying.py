"""Runs epochs: each epoch with a plan that was built for it, or with a copy of a plan that was built for an earlier epoch.

Building a plan, and having Spark analyze and optimize the plan, takes most of the core time of an epoch with few rows. A plan that depends
on nothing but the rows of its epoch is used while allocation, hosts and routing stay the same, but no longer than `plan_s` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from headgate.core.model import Graph
from headgate.errors import EngineError
from headgate.spark import jvm
from headgate.spark.epochs.plan import Blueprint, EpochPlan, EpochSpec, Stage, build, lanes_of, named, named_source
from headgate.spark.keyed.operator import KeyedStates
from headgate.spark.measuring import metering
from headgate.spark.measuring.metering import Counted, OperatorPlan
from headgate.spark.measuring.sent import SentRows
from headgate.spark.reasons import comes_from_source, reason_of
from headgate.spark.sinks.writing import CountsRows, Writing
from headgate.topology import Kind, reads_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class Epoch:
    """One epoch while it runs. Owner: the thread of the job's query."""

    plan: EpochPlan
    spec: EpochSpec
    batch: DataFrame
    kept: list[DataFrame] = field(default_factory=list)
    stages: dict[str, tuple[Stage, ...]] = field(default_factory=dict)
    """The stages that each sink's action is expected to have."""
    finished_s: dict[str, float] = field(default_factory=dict)
    """Wall time at which each sink was written, in seconds."""
    sent: dict[str, SentRows] = field(default_factory=dict)
    """The rows that were sent to sinks on a cluster, to be compared with the rows that readers find."""
    _carried: dict[str, OperatorPlan] = field(default_factory=dict)

    @property
    def blueprint(self) -> Blueprint:
        return self.plan.blueprint

    def rows(self, operator: str) -> DataFrame:
        """The output of the operator in this epoch."""
        found = self._carried[operator] = self.plan.of(operator)
        return found.carry(self.batch)

    def counted(self) -> Counted:
        """The counts of all operators; complete once the sinks are written."""
        return reduce(or_, (one.counted(self.batch) for one in self._carried.values()))


PLANS = 3
"""Number of plans that are kept: for epochs that observe all arrival times, a sample, or none."""


class Plans:
    """The plans of the last epochs of one start. Owner: the thread of the job's query."""

    def __init__(self, blueprint: Blueprint, plan_s: float) -> None:
        """`plan_s` is the longest use of a plan in seconds: afterwards, functions on DataFrames are called again."""
        self._blueprint = blueprint
        self._plan_s = plan_s
        self._known: list[tuple[Any, float, EpochPlan]] = []
        """For each plan, newest first: the conditions that the plan was built for, the time of the build, and the plan."""

    def epoch(self, spec: EpochSpec, batch: DataFrame) -> Epoch:
        """Prepare the epoch with this input, with a known plan or a new one; nothing runs yet."""
        partitions, now_s = self._blueprint.gateway.partitions(batch), time.monotonic()
        for node in self._blueprint.topology.nodes.values():
            if node.kind is Kind.KEYED and self._blueprint.keyed is not None:
                with named(node.name):
                    self._blueprint.keyed.begin(node, spec.number, spec.wanted(node.name, lanes_of(node, spec)))
        batch = _on_hosts(batch, partitions, spec)
        routed = None if self._blueprint.keyed is None else self._blueprint.keyed.routed()
        wanted = (partitions, spec.allocation, spec.observing, replace(spec.cluster, started_s=0.0), routed)
        for built_for, built_s, plan in self._known:
            if built_for == wanted and now_s - built_s < self._plan_s:
                return Epoch(plan, spec, batch)
        made = build(self._blueprint, spec, batch)
        if self._plan_s and made.is_lasting():
            others = [one for one in self._known if one[0] != wanted]
            self._known = [(wanted, now_s, made), *others][:PLANS]
        return Epoch(made, spec, batch)


# -- sinks and state -------------------------------------------------------------------------------------------------------------


@contextmanager
def written(sink: str, graph: Graph) -> Iterator[None]:
    """Attribute an error while a sink is written: to the operator that it names, to the source if reading failed, or else to the sink."""
    try:
        yield
    except Exception as error:
        reason = reason_of(error)
        if reason.startswith('operator "'):
            raise EngineError(reason) from error
        who = named_source(graph) if comes_from_source(error) else f'operator "{sink}"'
        raise EngineError(f"{who}: {reason}") from error


def write(epoch: Epoch, sink: str, writing: Writing) -> None:
    """Write one sink on behalf of this start of the job."""
    blueprint, frame = epoch.blueprint, epoch.plan.frames[sink]
    epoch.stages[sink] = (*frame.before, frame.stage)
    tagged = metering.tag_jobs(epoch.batch.sparkSession, sink_tag(epoch.spec.tag, sink))
    with tagged, written(sink, blueprint.graph), writing.by(sink):
        function, rows = blueprint.topology.nodes[sink].function, epoch.rows(sink)
        if isinstance(function, CountsRows) and epoch.spec.cluster.places is not None:
            rows, epoch.sent[sink] = SentRows.of(rows)
        function(rows if reads_once(function) else _compute(rows, epoch), epoch.spec.number)
    epoch.finished_s[sink] = time.time()


def commit_state(epoch: Epoch, keyed: KeyedStates) -> None:
    """Run the lanes that no sink has read to the end, then commit the epoch's state; to be called once the sinks are written."""
    number = epoch.spec.number
    for name in keyed.missing(number):
        with named(name):
            jvm.compute(epoch.rows(name))
    keyed.commit(number)


def check_written(epoch: Epoch, writing: Writing) -> None:
    """Check that sinks that can count their rows have every row sent on a cluster; to be called before Spark's commit."""
    for sink, counted in epoch.sent.items():
        sent = counted.read()
        function = epoch.blueprint.topology.nodes[sink].function
        if sent is not None and isinstance(function, CountsRows):
            with named(sink):
                function.check_rows(writing, epoch.spec.number, sent)


def _compute(rows: DataFrame, epoch: Epoch) -> DataFrame:
    """Persist and compute rows, so that a writer may read the rows any number of times and each row is counted once."""
    epoch.kept.append(rows.persist())
    jvm.compute(rows)
    return rows


def sink_tag(tag: str, sink: str) -> str:
    """The tag of the Spark jobs that write one sink."""
    return f"{tag}-{sink}"


def release(epoch: Epoch) -> None:
    """Release the DataFrames that were persisted for the epoch."""
    for rows in (*epoch.kept, *epoch.plan.kept):
        rows.unpersist()


def _on_hosts(batch: DataFrame, partitions: int, spec: EpochSpec) -> DataFrame:
    """The batch, with each of its partitions on the host of its lane."""
    hosts = spec.cluster.hosts(partitions, spec.allocation.avoided)
    if not hosts or spec.cluster.places is None:
        return batch
    return spec.cluster.places.source(batch, hosts)
