"""What a lane puts out is held to the columns that its operator declared; no Spark is needed for it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headgate.spark.epochs.lanes import BatchLane, EventLane, LaneError

SCHEMA = pa.schema([("id", pa.int64()), ("tier", pa.string())])
INPUT = pa.RecordBatch.from_pydict({"id": [1, 2]})


def put_out(lane):
    return [row for batch in lane([INPUT]) for row in batch.to_pylist()]


def events(function, dead_letter=None):
    return EventLane("price", function, SCHEMA, dead_letter)


MISFITS = [
    (
        lambda row: {"id": row["id"]},
        'operator "price": it put out a row without the column "tier", which its schema declares',
    ),
    (lambda row: {"id": 1, "teir": "a"}, 'the column "teir", which its schema does not declare.* Did you mean "tier"?'),
    (
        lambda row: [{"id": 1, "tier": "a", "more": 2}],
        'the column "more", which its schema does not declare; leave it out',
    ),
]


@pytest.mark.parametrize(("function", "told"), MISFITS)
def test_a_column_that_is_missing_or_unknown_is_an_error(function, told):
    with pytest.raises(LaneError, match=told):
        put_out(events(function))


def test_a_column_may_be_null_if_that_is_said():
    assert put_out(events(lambda row: {"tier": None, **row})) == [{"id": 1, "tier": None}, {"id": 2, "tier": None}]


def test_a_row_without_a_column_goes_aside_with_its_reason(tmp_path):
    lane = events(lambda row: row if row["id"] == 1 else {**row, "tier": "b"}, str(tmp_path))
    assert put_out(lane) == [{"id": 2, "tier": "b"}]
    [line] = (tmp_path / "epoch=0" / "price-0.jsonl").read_text().splitlines()
    aside = json.loads(line)
    assert aside["row"] == {"id": 1}
    assert aside["reason"].startswith('it put out a row without the column "tier"')


def test_a_batch_with_an_unknown_column_is_an_error():
    wide = pa.RecordBatch.from_pydict({"id": [1], "tier": ["a"], "more": [2]})
    lane = BatchLane("price", lambda batches: iter([wide]), SCHEMA)
    with pytest.raises(
        LaneError, match='operator "price": it put out the column "more", which its schema does not declare'
    ):
        put_out(lane)


def test_columns_of_a_batch_may_come_in_any_order():
    turned = pa.RecordBatch.from_pydict({"tier": ["a"], "id": [1]})
    assert put_out(BatchLane("price", lambda batches: iter([turned]), SCHEMA)) == [{"id": 1, "tier": "a"}]
