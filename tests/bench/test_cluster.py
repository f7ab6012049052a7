"""What `headgate bench cluster` makes of what it has seen: lost and doubled rows, actions during the cut, utility outside faults."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.bench.cluster import (
    CUT_S,
    JOBS,
    MACHINES,
    ClusterCourse,
    Kept,
    Look,
    OutputFaults,
    bars_of,
    cluster_tables,
    output_faults,
)
from headgate.bench.cluster_job import KEYS, OPERATOR, topology

ROWS = 3 * KEYS + 7
Output = tuple[int, int, int]


def counted(rows: Sequence[int]) -> list[Output]:
    """The output for these rows, one epoch per row."""
    found, counts, totals = [], [0] * KEYS, [0] * KEYS
    for row in rows:
        key = row % KEYS
        counts[key], totals[key] = counts[key] + 1, totals[key] + row
        found.append((key, counts[key], totals[key]))
    return found


def written(place: Path, output: Sequence[Output]) -> Path:
    (place / "epoch=0").mkdir(parents=True)
    columns = dict(zip(("key", "n", "total"), map(list, zip(*output, strict=True)), strict=True))
    pq.write_table(pa.table(columns), place / "epoch=0" / "part.parquet")
    return place


def test_exact_output_has_no_faults(tmp_path: Path) -> None:
    assert output_faults(written(tmp_path / "out", counted(range(ROWS)))) == OutputFaults(ROWS, 0, 0)


def test_lost_row_shows_in_the_total_of_its_key(tmp_path: Path) -> None:
    """A row in the middle: the count of its key is too small."""
    rows = [row for row in range(ROWS) if row != KEYS + 30]
    assert output_faults(written(tmp_path / "out", counted(rows))).wrong_keys > 0


def test_row_that_counts_twice_shows_in_the_total_of_its_key(tmp_path: Path) -> None:
    assert output_faults(written(tmp_path / "out", counted([*range(ROWS), 30]))).wrong_keys > 0


def test_output_that_is_written_twice_is_doubled(tmp_path: Path) -> None:
    output = counted(range(ROWS))
    assert output_faults(written(tmp_path / "out", [*output, output[5]])) == OutputFaults(ROWS, 0, 1)


def course() -> ClusterCourse:
    """All went well; utility was low only shortly after the cut."""
    seen = [(0.0, 1.0), (99.0, 1.0), (105.0, 0.2), (125.0, 1.0), (139.0, 1.0)]
    return ClusterCourse(
        looks=[Look(at_s, utility, {}, len(JOBS)) for at_s, utility in seen],
        faults=[(100.0, "m2 is cut off"), (100.0 + CUT_S, "m2 is back")],
        actions={(50.0, "visits", "more lanes"): "before", (150.0, "visits", "more lanes"): "after"},
        cut_s=(100.0, 100.0 + CUT_S),
        used_s=12.0,
        left_s=30.0,
        ended=True,
        kept=Kept(20, 0, MACHINES),
        due_rows=dict.fromkeys(JOBS, 900.0),
        outputs=dict.fromkeys(JOBS, OutputFaults(1000, 0, 0)),
    )


def failed(found: ClusterCourse) -> list[str]:
    return [bar.name for bar in bars_of(found) if not bar.holds]


def test_all_bars_hold_when_all_went_well() -> None:
    assert failed(course()) == []


def test_action_during_the_cut_fails_its_bar() -> None:
    found = course()
    found.actions[(110.0, "visits", "more lanes")] = "during"
    assert failed(found) == ["actions during the cut"]


def test_low_utility_counts_from_20_s_after_a_fault() -> None:
    found = course()
    found.looks.append(Look(121.0, 0.2, {}, len(JOBS)))
    assert failed(found) == ["utility, mean outside 20 s after each fault"]


@pytest.mark.parametrize(
    ("name", "bar"),
    [("used_s", "the new machine is used after, s"), ("left_s", "jobs with lanes on the slow machine in the end")],
)
def test_what_did_not_happen_fails_its_bar(name: str, bar: str) -> None:
    found = course()
    setattr(found, name, None)
    assert failed(found) == [bar]


def test_unjudged_jobs_have_no_utility_but_for_the_cut() -> None:
    found = course()
    found.looks.append(Look(130.0, None, {}, len(JOBS)))
    assert failed(found) == []
    found.looks.append(Look(165.0, None, {}, len(JOBS)))
    assert failed(found) == ["utility, mean outside 20 s after each fault"]


def test_job_without_output_fails_its_bars() -> None:
    found = course()
    found.outputs["visits"] = OutputFaults(0, 0, 0)
    assert failed(found) == ["jobs with output", "jobs whose output lacks rows that were due"]


@pytest.mark.parametrize(
    ("kept", "bar"),
    [
        (Kept(0, 0, MACHINES), "files of the checkpoint on S3"),
        (Kept(20, 3, MACHINES), "files of keyed state in the home"),
        (Kept(20, 0, MACHINES - 1), "machines with slices on their own disk"),
    ],
)
def test_state_in_another_place_fails_its_bar(kept: Kept, bar: str) -> None:
    found = course()
    found.kept = kept
    assert failed(found) == [bar]


def test_cluster_file_has_five_jobs_with_state_that_can_be_built(tmp_path: Path) -> None:
    tables = tomllib.loads("".join(cluster_tables(tmp_path)))["job"]
    built = [topology(**table["parameters"]) for table in tables]
    assert [one.name for one in built] == [*JOBS] == [table["name"] for table in tables]
    assert all(OPERATOR in one.graph().operators for one in built)
