from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.model import Graph, Operator
from headgate.errors import GraphError


def diamond() -> Graph:
    return Graph.of(
        Operator("join", ("left", "right")),
        Operator("left", ("clicks",)),
        Operator("right", ("clicks", "orders")),
        Operator("clicks"),
        Operator("orders"),
        Operator("alerts", ("left",)),
    )


def test_sources_and_sinks_follow_from_the_inputs() -> None:
    assert set(diamond().sources) == {"clicks", "orders"}
    assert set(diamond().sinks) == {"join", "alerts"}


def test_children_mirror_the_inputs() -> None:
    graph = diamond()
    edges = {(parent, operator.name) for operator in graph.operators.values() for parent in operator.inputs}
    assert {(parent, child) for parent, below in graph.children.items() for child in below} == edges


def test_operators_come_after_all_their_inputs() -> None:
    order = list(diamond().operators)
    for operator in diamond().operators.values():
        assert all(order.index(parent) < order.index(operator.name) for parent in operator.inputs)


def test_single_operator_is_source_and_sink() -> None:
    graph = Graph.of(Operator("only"))
    assert graph.sources == graph.sinks == ("only",)


@pytest.mark.parametrize(
    ("operators", "sentence"),
    [
        ([], "a job needs at least one operator"),
        ([Operator("words"), Operator("words")], 'two operators named "words"'),
        ([Operator("words"), Operator("count", ("wrods",))], r'"count" reads from "wrods".*Did you mean "words"\?'),
        ([Operator("words"), Operator("count", ("xyz",))], '"count" reads from "xyz", which does not exist.$'),
        ([Operator("words"), Operator("count", ("words", "words"))], '"count" names the same input twice'),
        ([Operator("self", ("self",))], 'cycle: "self" -> "self"'),
        ([Operator("a", ("b",)), Operator("b", ("a",))], 'cycle: "[ab]" -> "[ab]" -> "[ab]"'),
    ],
)
def test_operators_that_form_no_job_are_named(operators: list[Operator], sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        Graph.of(*operators)


@st.composite
def shuffled_operators(draw: st.DrawFn) -> list[Operator]:
    size = draw(st.integers(1, 12))
    parents = [draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set() for index in range(size)]
    operators = [Operator(str(index), tuple(str(parent) for parent in above)) for index, above in enumerate(parents)]
    return draw(st.permutations(operators))


@given(shuffled_operators())
def test_any_acyclic_operators_in_any_order_form_a_graph(operators: list[Operator]) -> None:
    graph = Graph.of(*operators)
    seen: set[str] = set()
    for operator in graph.operators.values():
        assert seen.issuperset(operator.inputs)
        seen.add(operator.name)
    assert seen == {operator.name for operator in operators}
    assert graph.sources and graph.sinks
