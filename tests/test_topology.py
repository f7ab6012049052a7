"""A topology is checked while it is written: every refusal names the job and the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate import Intent
from headgate.core.model import JobAllocation
from headgate.errors import GraphError
from headgate.spark import sinks, sources
from headgate.state.library import Map, TopK, Value
from headgate.state.operators import Batches, Changed, Events
from headgate.topology import Kind, Topology

SCHEMA = "row long"


def new(name: str = "clicks", **options: Any) -> Topology:
    return Topology(name, Intent(latency="2s", worth=35), **options)


def same(rows: Any) -> Any:
    return rows


def read(spark: Any) -> Any:
    raise AssertionError("a topology reads nothing while it is written")


def write(rows: Any, epoch: int) -> None:
    raise AssertionError("a topology writes nothing while it is written")


def diamond() -> Topology:
    job = new(tenant="shop", pace_s=0.5)
    orders = job.source("orders", sources.load(10), lanes=2)
    large = job.batches("large", same, orders, schema=SCHEMA, lanes=3, max_lanes=8)
    small = job.events("small", same, orders, schema=SCHEMA, by="row")
    both = job.merge("both", large, small)
    counted = job.transform("counted", same, both, lanes=4, by=["row", "user"])
    job.sink("alerts", write, counted)
    job.sink("archive", write, "both", lanes=1, weight=0.5)
    return job


# -- what others see


def test_graph_has_the_operators_with_who_reads_from_whom() -> None:
    graph = diamond().graph()
    assert graph.sources == ("orders",)
    assert set(graph.sinks) == {"alerts", "archive"}
    assert set(graph.children["orders"]) == {"large", "small"}
    assert graph.operators["both"].inputs == ("large", "small")
    assert set(graph.children["both"]) == {"counted", "archive"}
    assert graph.operators["archive"].weight == 0.5
    assert graph.operators["large"].max_lanes == 8


def test_job_starts_with_the_lanes_of_those_operators_that_have_their_own() -> None:
    lanes = {"orders": 2, "large": 3, "small": 1, "counted": 4, "archive": 1}
    assert diamond().allocation() == JobAllocation(lanes, 0.5)


def test_elastic_source_has_a_lane_without_being_told() -> None:
    job = new()
    job.sink("out", write, job.source("in", sources.load(10)))
    assert job.allocation().lanes == {"in": 1}


def test_source_that_is_a_function_has_no_lanes_of_its_own() -> None:
    job = new()
    job.sink("out", write, job.source("in", read, arrival="timestamp"))
    assert job.allocation().lanes == {}
    assert job.nodes["in"].function.arrival == "timestamp"


def test_job_carries_intent_and_tenant() -> None:
    job = diamond().job()
    assert (job.name, job.tenant, job.intent.worth) == ("clicks", "shop", 35)


def test_operators_may_be_written_before_those_they_read_from() -> None:
    job = new()
    job.sink("out", write, "large")
    job.transform("large", same, "in")
    job.source("in", read)
    assert tuple(job.graph().operators) == ("in", "large", "out")


def test_by_takes_one_column_or_several() -> None:
    nodes = diamond().nodes
    assert (nodes["small"].by, nodes["counted"].by) == (("row",), ("row", "user"))
    assert nodes["small"].kind is Kind.EVENTS


# -- refusals while it is written

Build = Callable[[Topology], object]


def refused(build: Build, *words: str) -> None:
    job = new()
    job.source("in", sources.load(10))
    with pytest.raises(GraphError) as refusal:
        build(job)
    sentence = str(refusal.value)
    assert sentence.startswith('job "clicks": operator "')
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_refuses_a_name_that_is_taken() -> None:
    refused(lambda job: job.source("in", read), 'operator "in"', "names must differ")


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "ä", "a,b", "a`b"])
def test_refuses_a_name_that_could_not_be_a_directory_or_a_pool(name: str) -> None:
    refused(lambda job: job.transform(name, same, "in"), f'operator "{name}"', "letters, digits")


def test_refuses_a_stream_of_another_job() -> None:
    other = Topology("views", Intent(latency="2s"))
    foreign = other.source("seen", read)
    refused(lambda job: job.transform("large", same, foreign), '"large"', '"seen" of job "views"')


def test_refuses_an_input_that_is_no_operator() -> None:
    refused(lambda job: job.transform("large", same, 7), '"large"', "its input is 7")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["transform", "merge"])
def test_refuses_an_operator_without_input(kind: str) -> None:
    builds: dict[str, Build] = {
        "transform": lambda job: job.transform("large", same),
        "merge": lambda job: job.merge("large"),
    }
    refused(builds[kind], '"large"', "needs an input")


@pytest.mark.parametrize(
    "build",
    [
        lambda job: job.transform("large", "row > 5", "in"),
        lambda job: job.batches("large", None, "in", schema=SCHEMA),
        lambda job: job.events("large", 5, "in", schema=SCHEMA),
        lambda job: job.sink("large", "out/", "in"),
        lambda job: job.source("large", "orders"),
    ],
    ids=["transform", "batches", "events", "sink", "source"],
)
def test_refuses_something_that_cannot_be_called(build: Build) -> None:
    refused(build, '"large"', "it must be given a")


@pytest.mark.parametrize("schema", ["", "  ", None, 5])
@pytest.mark.parametrize("kind", ["batches", "events"])
def test_refuses_to_put_out_columns_that_are_not_declared(kind: str, schema: Any) -> None:
    refused(lambda job: getattr(job, kind)("large", same, "in", schema=schema), '"large"', "schema", "id long")


@pytest.mark.parametrize("lanes", [0, -1, 1.5, "many", True])
@pytest.mark.parametrize("what", ["lanes", "max_lanes"])
def test_refuses_lanes_that_cannot_be_counted(what: str, lanes: Any) -> None:
    refused(lambda job: job.transform("large", same, "in", **{what: lanes}), '"large"', what, "it must be a")


def test_refuses_more_lanes_than_the_most() -> None:
    refused(
        lambda job: job.batches("large", same, "in", schema=SCHEMA, lanes=5, max_lanes=4),
        '"large"',
        "lanes is 5",
        "max_lanes, which is 4",
    )


def test_refuses_to_bring_rows_together_in_lanes_of_another_operator() -> None:
    refused(lambda job: job.transform("large", same, "in", by="user"), '"large"', "by is user", '"lanes"')


@pytest.mark.parametrize("by", [[1], [""], ["user", None]])
def test_refuses_to_bring_rows_together_by_something_that_is_no_column(by: Any) -> None:
    refused(lambda job: job.transform("large", same, "in", lanes=2, by=by), '"large"', "must name columns")


def test_refuses_lanes_for_a_source_that_decides_itself() -> None:
    refused(lambda job: job.source("rate", read, lanes=2), '"rate"', "decides itself")


@pytest.mark.parametrize("lanes", [0, -2, 1.5])
def test_refuses_lanes_of_a_source_that_cannot_be_counted(lanes: Any) -> None:
    refused(lambda job: job.source("more", sources.load(10), lanes=lanes), '"more"', "lanes is")


def test_refused_operator_is_not_part_of_the_job() -> None:
    job = new()
    with pytest.raises(GraphError):
        job.source("in", read, lanes=2)
    assert job.nodes == {}


# -- refusals of the whole


def whole(build: Build) -> str:
    job = new()
    build(job)
    with pytest.raises(GraphError) as refusal:
        job.graph()
    sentence = str(refusal.value)
    assert sentence.startswith('job "clicks": ')
    return sentence


def test_tells_which_input_does_not_exist_and_which_was_meant() -> None:
    def build(job: Topology) -> None:
        job.transform("large", same, job.source("in", read))
        job.sink("out", write, "lrage")

    sentence = whole(build)
    assert 'operator "out" reads from "lrage", which does not exist.' in sentence
    assert 'Did you mean "large"?' in sentence


def test_tells_that_nobody_reads_from_an_operator() -> None:
    def build(job: Topology) -> None:
        rows = job.source("in", read)
        job.transform("large", same, rows)
        job.sink("out", write, rows)

    assert 'no operator reads from operator "large"' in whole(build)


def test_tells_that_a_sink_puts_out_nothing() -> None:
    def build(job: Topology) -> None:
        job.sink("out", write, job.source("in", read))
        job.sink("copy", write, "out")

    assert 'operator "copy" reads from "out", which is a sink' in whole(build)


def test_tells_which_operators_form_a_cycle() -> None:
    def build(job: Topology) -> None:
        job.merge("first", job.source("in", read), "second")
        job.transform("second", same, "first")
        job.sink("out", write, "second")

    sentence = whole(build)
    assert "cycle" in sentence and '"first"' in sentence and '"second"' in sentence


def test_tells_that_an_input_is_named_twice() -> None:
    def build(job: Topology) -> None:
        rows = job.source("in", read)
        job.sink("out", write, job.merge("both", rows, rows))

    assert 'operator "both" names the same input twice' in whole(build)


def test_tells_that_a_job_has_no_operators() -> None:
    assert "at least one operator" in whole(lambda job: None)


@pytest.mark.parametrize("weight", [0, -1])
def test_tells_that_a_sink_must_count_for_something(weight: float) -> None:
    assert 'operator "out"' in whole(lambda job: job.sink("out", write, job.source("in", read), weight=weight))


# -- the job itself


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../x", 5, None])
def test_refuses_a_job_whose_name_could_not_be_a_directory(name: Any) -> None:
    with pytest.raises(GraphError, match="a job is named"):
        new(name)


def test_refuses_an_intent_that_is_none() -> None:
    with pytest.raises(GraphError, match=r'job "clicks": its intent is .2s.; write Intent'):
        Topology("clicks", "2s")  # type: ignore[arg-type]


@pytest.mark.parametrize(("option", "value"), [("pace_s", -1), ("pace_s", "soon"), ("share", 0), ("share", 1.5)])
def test_refuses_a_pace_or_a_share_that_cannot_be(option: str, value: Any) -> None:
    with pytest.raises(GraphError, match=f'job "clicks": {option}'):
        new(**{option: value})


# -- functions, before there is a row


def two(first: Any, second: Any) -> Any:
    return first


UNFIT: Any = same
"""Of one argument."""
TWO: Any = two


def count(key: Any, event: Any, state: Any, emit: Any) -> None:
    state.seen.set(1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda job: job.source("large", two),
            "two(first: 'Any', second: 'Any') -> 'Any', which cannot be called with 1",
        ),
        (lambda job: job.transform("large", two, "in"), "cannot be called with 1 argument: in"),
        (lambda job: job.transform("large", same, "in", "in"), "cannot be called with 2 arguments: in, in"),
        (lambda job: job.batches("large", two, "in", schema=SCHEMA), "cannot be called with 1 argument: batches"),
        (lambda job: job.events("large", lambda: None, "in", schema=SCHEMA), "cannot be called with 1 argument: row"),
        (lambda job: job.sink("large", same, "in"), "cannot be called with 2 arguments: rows, epoch"),
        (
            lambda job: job.sink("large", sinks.discard, "in"),
            "it is given sinks.discard itself; call it: sinks.discard(",
        ),
        (lambda job: job.sink("large", sinks.files, "in"), "it is given sinks.files itself; call it"),
        (lambda job: job.source("large", sources.load), "it is given sources.load itself; call it"),
    ],
    ids=["source", "transform", "two inputs", "batches", "events", "sink", "discard", "files", "load"],
)
def test_refuses_a_function_that_cannot_be_called_as_it_would_be(build: Build, words: str) -> None:
    refused(build, '"large"', words)


@pytest.mark.parametrize("function", [max, lambda *rows: rows[0], print], ids=["built in", "any number", "print"])
def test_takes_a_function_whose_arguments_fit_or_are_not_known(function: Any) -> None:
    job = new()
    job.transform("large", function, job.source("in", sources.load(10)))


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (Events({"seen": Value(0)}, UNFIT), "on_event is same(rows: 'Any') -> 'Any', which cannot be called with 4"),
        (Events({"seen": Value(0)}, count, on_timer=UNFIT), "on_timer is same"),
        (Events({"seen": Value(0)}, count, on_timer=count), 'name the column of event times: time="at"'),
        (Events({"seen": Value}, count), 'state field "seen" is the class Value; make one, such as Value(0)'),  # type: ignore[dict-item]
        (Events({"seen": 0}, count), 'state field "seen" is 0; it must be a kind of headgate.state.library'),  # type: ignore[dict-item]
        (Events({"flush": Map()}, count), 'a state field is named "flush"'),
        (Events({"_seen": TopK(2)}, count), 'a state field is named "_seen"'),
        (Events({}, count), "its state is {}; it must be a dict of fields"),
        (Batches({"seen": "int64"}, TWO), "on_batch is two"),
        (
            Batches({"seen": "int32"}, lambda rows: Changed({})),
            'state field "seen" is "int32"; allowed are int64, float64',
        ),
    ],
)
def test_refuses_a_processor_that_could_not_run(processor: Any, words: str) -> None:
    refused(lambda job: job.keyed("large", processor, "in", key="row", schema=SCHEMA), '"large"', words)


@pytest.mark.parametrize("pattern", ["fast", None, [1, 2], sources.Steady])
def test_refuses_a_load_that_is_no_pattern(pattern: Any) -> None:
    with pytest.raises(
        GraphError, match=r"sources\.load is given .*; give it rows per second, such as 1000, or a pattern"
    ):
        sources.load(pattern)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a" * 300, "it has 300 characters"),
        ("headgate-share-10-0", 'begin with "headgate-" are reserved'),
        ("", "use letters"),
    ],
)
def test_refuses_names_that_could_not_be_used(name: str, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        new(name)
    with pytest.raises(GraphError, match=words):
        new(tenant=name)
    refused(lambda job: job.transform(name, same, "in"), words)


def test_refuses_a_share_beyond_the_range() -> None:
    with pytest.raises(GraphError, match='job "clicks": share is 20; it must be a number of at least 1 and at most 10'):
        new(share=20)


def test_source_may_limit_its_lanes_unless_it_decides_about_them_itself() -> None:
    job = Topology("job", Intent(latency="2s"))
    rows = job.source("in", sources.load(10), max_lanes=3)
    job.sink("out", sinks.discard(), rows)
    assert job.graph().operators["in"].max_lanes == 3
    with pytest.raises(GraphError, match="decides itself how many lanes"):
        job.source("other", lambda spark: spark.readStream.format("rate").load(), max_lanes=3)
