"""Rows of the table `corrupt`: the damaged places that reading a range of entries meets.

Edge: reads the range, as any other table's reader would, and keeps only what was wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ackgate.pipeline.storage.reading import read_range
from ackgate.pipeline.tables import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.pipeline.storage.bookie_files import OpenBookies
    from ackgate.pipeline.storage.damage import Damage
    from ackgate.pipeline.storage.places import BookiePlaces
    from ackgate.pipeline.storage.ranges import EntryRange
    from ackgate.pipeline.tables import Column


def read_corrupt(
    bookies: BookiePlaces | OpenBookies, entry_range: EntryRange, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """A row for each damaged place; nothing when all is well. Raises `StorageError`."""
    damages: list[Damage] = []
    for _ in read_range(bookies, entry_range, on_corrupt="tell", damages=damages):
        pass
    if damages:
        yield damage_rows(damages, columns)


def damage_rows(damages: Sequence[Damage], columns: Sequence[Column]) -> pa.RecordBatch:
    """These places, as rows of the table."""
    names = [column.name for column in columns]
    rows = [{name: getattr(damage, name) for name in names} for damage in damages]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(columns))
