"""Small batches of rows, put together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.pipeline.source.tasks import BYTES_MAX, ROWS_MIN, put_together


def numbered(sizes: list[int]) -> list[pa.RecordBatch]:
    batches, first = [], 0
    for size in sizes:
        batches.append(
            pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + size), pa.int64())})
        )
        first += size
    return batches


@given(st.lists(st.sampled_from([0, 1, 10, ROWS_MIN - 1, ROWS_MIN, 3 * ROWS_MIN]), max_size=12))
def test_same_rows_in_the_same_order_and_all_batches_but_the_last_are_large(
    sizes: list[int],
) -> None:
    made = list(put_together(numbered(sizes)))
    assert [i for batch in made for i in batch.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows >= ROWS_MIN for batch in made[:-1])
    assert len(made) <= len(sizes)


def test_few_large_rows_are_let_go() -> None:
    large = pa.RecordBatch.from_pydict({"payload": [bytes(BYTES_MAX // 2)]})
    assert [batch.num_rows for batch in put_together([large] * 5)] == [2, 2, 1]


@pytest.mark.parametrize("rows", [0, 7])
def test_rows_without_columns_are_counted(rows: int) -> None:
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    assert [batch.num_rows for batch in put_together([empty, empty])] == [2 * rows]
