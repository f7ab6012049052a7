"""A job as its author writes it: operators with their functions, and an intent. A topology is checked when it is built, without Spark."""

from headgate.topology.nodes import (
    Keyed,
    Kind,
    Lossy,
    Node,
    Row,
    Source,
    Writer,
    name_trouble,
    once,
    reads_once,
)
from headgate.topology.topology import Stream, Topology

__all__ = [
    "Keyed",
    "Kind",
    "Lossy",
    "Node",
    "Row",
    "Source",
    "Stream",
    "Topology",
    "Writer",
    "name_trouble",
    "once",
    "reads_once",
]
