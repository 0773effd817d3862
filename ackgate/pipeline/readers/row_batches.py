"""Small batches of rows put together before they go to Spark. Pure.

Each batch costs Spark some tenths of a millisecond on both sides, however few rows it has, and of a
small ledger, cursor or journal there are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROWS_MIN: Final = 2048
"""A batch with fewer is joined to the next. Those of one entry with many rows (`ack_state`) are as large
as they are made: nothing is cut here."""

BYTES_MAX: Final = 4 * 1024 * 1024
"""With payloads or bitmaps few rows can be large: so much is let go, however few they are."""


def put_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order; all batches have one schema."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_MIN or size >= BYTES_MAX:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    return joined
