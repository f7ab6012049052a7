"""Logical plans of Spark, read from their text: which rows stay in their partitions, and which plans run twice.

The names of Spark's logical operators are no promise of Spark: a new version changes this module and `jvm.py`, or none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NARROW = frozenset(
    ("Project", "Filter", "Generate", "SubqueryAlias", "CollectMetrics", "MapInArrow", "Union", "View", "Sample")
)
"""Logical operators that leave rows in their partitions."""
LEAVES = frozenset(("LogicalRDD", "LocalRelation"))
KEEPING = frozenset(("Project", "SubqueryAlias", "View", "Repartition", "RepartitionByExpression"))
"""Logical operators that put out a row for every row."""


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """The nodes of a DataFrame's analyzed plan: the kind of each node, and the rest of its text.

    >>> plan = LogicalPlan.of_text("Sort [id#0L ASC NULLS FIRST], true\\n+- Filter (id#0L > 1)\\n   +- LogicalRDD [id#0L], false")
    >>> plan.orders_across_partitions, plan.is_narrow(exchanges=0)
    (True, False)
    """

    nodes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, rows: DataFrame) -> LogicalPlan:
        """Return the analyzed plan of a DataFrame."""
        return cls.of_text(jvm.analyzed_plan(rows))

    @classmethod
    def of_text(cls, text: str) -> LogicalPlan:
        """Parse a plan that Spark printed with one node per line."""
        nodes = (line.lstrip(" :+-").partition(" ") for line in text.splitlines())
        return cls(tuple((kind, rest) for kind, _, rest in nodes))

    @property
    def kinds(self) -> Counter[str]:
        """Number of nodes of each kind."""
        return Counter(kind for kind, _ in self.nodes)

    @property
    def orders_across_partitions(self) -> bool:
        """Whether Spark orders rows across partitions: Spark then runs the plan below twice, to sample its rows."""
        return any(
            (kind == "Sort" and rest.endswith(", true")) or (kind == "RepartitionByExpression" and " NULLS " in rest)
            for kind, rest in self.nodes
        )

    def is_narrow(self, exchanges: int) -> bool:
        """Whether rows stay in their partitions, except for at most `exchanges` planned exchanges."""
        kinds = self.kinds
        found = sum(count for kind, count in kinds.items() if kind.startswith("Repartition"))
        others = {kind for kind in kinds if not kind.startswith("Repartition")}
        return others - LEAVES <= NARROW and found <= exchanges

    def keeps_rows_of(self, before: LogicalPlan) -> bool:
        """Whether this plan adds to `before` nothing that can drop or add rows; a meter of Headgate is one filter."""
        mine, others = self.kinds, before.kinds
        return not others - mine and set(mine - others - Counter(Filter=1)) <= KEEPING
