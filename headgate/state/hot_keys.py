"""The keys of an operator with the most rows: each lane reports the fullest keys of an epoch, and the driver adds up the reports.

A key counts only in epochs in which the key is among the fullest of its lane, so the share of a key is a lower bound. Recent epochs weigh
most.
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
"""Number of keys that each lane reports in an epoch."""
KEPT = 50
"""Number of keys that the driver remembers for an operator."""
FADE = 0.98
"""Weight of an epoch compared with the next epoch."""
MOST = 80
"""Length limit of a key as text, in characters."""


def fullest_keys(schema: StateSchema, groups: RowGroups) -> dict[str, int]:
    """The keys with the most rows among grouped rows, with their number of rows."""
    rows = np.diff(groups.starts, append=len(groups.order))
    named = np.argpartition(rows, -NAMED)[-NAMED:] if len(rows) > NAMED else np.arange(len(rows))
    keys = _texts(decode_keys(schema, groups.keys.keys.take(pa.array(named))))
    return dict(zip(keys, rows[named].tolist(), strict=True))


def fullest_codes(schema: StateSchema, rows: Counter[bytes]) -> dict[str, int]:
    """The keys with the most rows among counted keys, with their number of rows."""
    named = rows.most_common(NAMED)
    keys = _texts(schema.keys_from_bytes([code for code, _ in named]))
    return dict(zip(keys, (count for _, count in named), strict=True))


def _texts(keys: pa.RecordBatch) -> list[str]:
    return [", ".join(map(str, row.values()))[:MOST] for row in keys.to_pylist()]


@dataclass(slots=True)
class HotKeys:
    """Rows by key, fading with each epoch. Owner: the thread that commits; any thread may read `shares`, which is replaced as a whole."""

    _rows: dict[str, float] = field(default_factory=dict)
    _total: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    """For each key, most rows first: the least share that the key had of all rows."""

    def add(self, lanes: Iterable[Mapping[str, int]], total: int) -> None:
        """Add the rows by key that the lanes of an epoch reported; `total` is the number of all rows of the epoch."""
        if not total:
            return
        self._total = FADE * self._total + total
        rows = {key: FADE * count for key, count in self._rows.items()}
        for key, count in (found for lane in lanes for found in lane.items()):
            rows[key] = rows.get(key, 0.0) + count
        self._rows = dict(sorted(rows.items(), key=lambda one: one[1], reverse=True)[:KEPT])
        self.shares = {key: count / self._total for key, count in self._rows.items()}
