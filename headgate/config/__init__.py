"""Every number that a person may want to change: name, default, unit, range and a sentence that stands alone in a table.

`docs/settings.md` is generated from this package; a test fails when the page is stale or when a setting lacks its sentence.
"""

from headgate.config.declaring import UNLIMITED, setting
from headgate.config.hosts import FAST_HOSTS, HostSettings, PoolSettings
from headgate.config.loop import FAST, AllowedRemedies, Objective, Settings, SizingMethod, snapshots_needed
from headgate.config.service import ServiceSettings
from headgate.config.spark import FAST_SPARK, OTLP, SparkSettings
from headgate.config.state import StateSettings

__all__ = [
    "FAST",
    "FAST_HOSTS",
    "FAST_SPARK",
    "OTLP",
    "UNLIMITED",
    "AllowedRemedies",
    "HostSettings",
    "Objective",
    "PoolSettings",
    "ServiceSettings",
    "Settings",
    "SizingMethod",
    "SparkSettings",
    "StateSettings",
    "setting",
    "snapshots_needed",
]
