"""The keys of an operator with the most rows: each lane names its fullest keys of an epoch, the driver adds them up.

A key counts only in epochs in which it is among the fullest of its lane, so its share is a lower bound. Recent epochs weigh most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headgate.state.groups import RowGroups, decode_keys
from headgate.state.schema import StateSchema

NAMED = 3
"""Keys that each lane names in an epoch."""
KEPT = 50
"""Keys that the driver remembers for an operator."""
FADE = 0.98
"""Weight of an epoch compared with the epoch after it."""
MOST = 80
"""Characters of a key that are kept."""


def fullest_keys(schema: StateSchema, groups: RowGroups) -> dict[str, int]:
    """Rows of the fullest keys among grouped rows."""
    rows = np.diff(groups.starts, append=len(groups.order))
    named = np.argpartition(rows, -NAMED)[-NAMED:] if len(rows) > NAMED else np.arange(len(rows))
    keys = _texts(decode_keys(schema, groups.keys.keys.take(pa.array(named))))
    return dict(zip(keys, rows[named].tolist(), strict=True))


def fullest_codes(schema: StateSchema, rows: Counter[bytes]) -> dict[str, int]:
    """Rows of the fullest keys among counted ones."""
    named = rows.most_common(NAMED)
    keys = _texts(schema.keys_from_bytes([code for code, _ in named]))
    return dict(zip(keys, (count for _, count in named), strict=True))


def _texts(keys: pa.RecordBatch) -> list[str]:
    return [", ".join(map(str, row.values()))[:MOST] for row in keys.to_pylist()]


@dataclass(slots=True)
class HotKeys:
    """Rows by key, fading with each epoch. Owner: the thread that commits; readers get a copy of the last result."""

    _rows: dict[str, float] = field(default_factory=dict)
    _total: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    """By key, the fullest first: the share of all rows that it had at least."""

    def add(self, lanes: Iterable[Mapping[str, int]], total: int) -> None:
        """Add what the lanes of an epoch named; `total` is the number of all its rows."""
        if not total:
            return
        self._total = FADE * self._total + total
        rows = {key: FADE * count for key, count in self._rows.items()}
        for key, count in (found for lane in lanes for found in lane.items()):
            rows[key] = rows.get(key, 0.0) + count
        self._rows = dict(sorted(rows.items(), key=lambda one: one[1], reverse=True)[:KEPT])
        self.shares = {key: count / self._total for key, count in self._rows.items()}
