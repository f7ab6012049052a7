"""Headgate shares one cluster among many streaming jobs, by intent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headgate.core.intents import Intent

if TYPE_CHECKING:
    from headgate.spark import sinks, sources
    from headgate.spark.adoption.query import adopted
    from headgate.topology import Topology

__all__ = ["Intent", "Topology", "__version__", "adopted", "sinks", "sources"]

__version__ = "0.1.0"

_LATER = {
    "Topology": "headgate.topology",
    "adopted": "headgate.spark.adoption.query",
    "sinks": "headgate.spark.sinks",
    "sources": "headgate.spark.sources",
}


def __getattr__(name: str) -> Any:
    """Import names that need Spark on first access, so that the simulator works without Spark."""
    if name not in _LATER:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    module = import_module(_LATER[name])
    return getattr(module, name, module)
