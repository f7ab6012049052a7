"""Checks the output of a chaos run against the input: no row lost or doubled, no gap in a sequence, and exact totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
from redis import Redis

from headgate.bench.chaos.feeder import Fed

PAGE = 5000


@dataclass(frozen=True, slots=True)
class OutputFaults:
    """The number of rows of the output, and the numbers of its faults, which are zero if the output is right."""

    rows: int
    lost: int
    doubled: int
    sequence_errors: int
    """Keys with events that were not counted 1, 2, 3, …, and events that were taken for repeated events."""
    wrong_totals: int
    """Keys whose last count and sum in the files differ from the input."""


def verdict(client: Redis, out: Path, fed: Fed) -> OutputFaults:
    """Compare the stream and the files with the input."""
    rows: Counter[tuple[str, int]] = Counter()
    numbers: dict[str, list[int]] = {}
    repeated = 0
    for row in _stream(client, "out"):
        rows[row["key"], int(row["seq"])] += 1
        numbers.setdefault(row["key"], []).append(int(row["n"]))
        repeated += int(row["repeated"])
    expected = {(key, seq) for key, count in fed.counts.items() for seq in range(count)}
    broken = sum(sorted(numbers.get(key, [])) != list(range(1, count + 1)) for key, count in fed.counts.items())
    return OutputFaults(
        rows=rows.total(),
        lost=len(expected - rows.keys()),
        doubled=rows.total() - len(rows) + len(rows.keys() - expected),
        sequence_errors=broken + repeated,
        wrong_totals=_wrong_totals(out, fed),
    )


def _wrong_totals(out: Path, fed: Fed) -> int:
    last: dict[str, tuple[int, int]] = {}
    shrunk = 0
    for _, folder in sorted((int(path.name.removeprefix("epoch=")), path) for path in out.glob("totals/epoch=*")):
        for part in folder.glob("*.parquet"):
            for row in pq.ParquetFile(part).read().to_pylist():
                shrunk += row["n"] <= last.get(row["key"], (0, 0))[0]
                last[row["key"]] = (row["n"], round(row["total"]))
    expected = {key: (count, fed.sums[key]) for key, count in fed.counts.items()}
    return shrunk + sum(last.get(key) != value for key, value in expected.items()) + len(last.keys() - expected.keys())


def _stream(client: Redis, name: str) -> Iterator[dict[str, str]]:
    after = "-"
    while page := cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(name, after, "+", count=PAGE)):
        for _, fields in page:
            yield {key.decode(): value.decode() for key, value in fields.items()}
        after = f"({page[-1][0].decode()}"
