"""Rows of the table `corrupt`: the damaged places that reading another table meets.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ackgate.pipeline.tables import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.storage.damage import Damage
    from ackgate.pipeline.tables import Column


def damage_rows(damages: Sequence[Damage], columns: Sequence[Column]) -> pa.RecordBatch:
    """These places, as rows of the table. A record that no place is to blame for has no bookie."""
    names = [column.name for column in columns]
    rows = [{name: getattr(damage, name) for name in names} for damage in damages]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(columns))
