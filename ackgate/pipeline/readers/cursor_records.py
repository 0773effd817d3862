"""Rows of the table `cursor_records`: the records of one cursor that still exist.

Pure: from decoded records to Arrow.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ackgate.persistence.records.values import DeltaRecord, SnapshotRecord
from ackgate.pipeline.schema.tables import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.cursor import Position
    from ackgate.persistence.records.values import CursorRecord
    from ackgate.pipeline.readers.stored_records import StoredRecord
    from ackgate.pipeline.schema.tables import Column

BATCH_RECORDS: Final = 256
"""Records of one Arrow batch: with their bitmaps they may be large."""


def record_rows(
    records: Iterable[StoredRecord],
    columns: Sequence[Column],
    *,
    topic: str,
    subscription: str,
    cursor_ledger_id: int | None,
) -> Iterator[pa.RecordBatch]:
    """A row for each record; `cursor_ledger_id` is None for the one in the node."""
    schema = arrow_schema(columns)
    names = [column.name for column in columns]
    remaining = iter(records)
    while group := list(islice(remaining, BATCH_RECORDS)):
        rows = [
            {
                "topic": topic,
                "subscription": subscription,
                "place": "node" if cursor_ledger_id is None else "ledger",
                "cursor_ledger_id": cursor_ledger_id,
                "entry_id": None if cursor_ledger_id is None else stored.entry_id,
                "record_bytes": stored.stored_bytes,
                "chunk_count": stored.chunk_count,
                **_fields(stored.record, names),
            }
            for stored in group
        ]
        arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fields(record: CursorRecord, names: Sequence[str]) -> dict[str, Any]:
    is_delta = isinstance(record, DeltaRecord)
    if isinstance(record, SnapshotRecord):
        acked, partly = record.snapshot.acked, record.snapshot.unacked_indexes
        version, range_count = record.snapshot.version, record.snapshot.range_count
        in_memory, dropped = record.ranges_in_memory, record.entries_dropped
    else:
        # A delta is written only of a state that is kept whole.
        acked, partly = record.growth.acked, record.growth.unacked_indexes
        version, range_count = record.growth.version, record.growth.range_count
        in_memory, dropped = range_count, 0
    fields: dict[str, Any] = {
        "kind": "delta" if is_delta else "snapshot",
        "owner_epoch": record.owner_epoch,
        "version": version,
        "base_version": record.base.version if isinstance(record, DeltaRecord) else None,
        "base_snapshot_version": record.base_snapshot_version,
        "written_ms": record.written_ms,
        "mark_delete_ledger_id": record.mark_delete.ledger_id,
        "mark_delete_entry_id": record.mark_delete.entry_id,
        "range_count": range_count,
        "ranges_in_memory": in_memory,
        "entries_dropped": dropped,
        "partly_acked_count": len(partly),
        "batch_indexes_in_memory": (
            record.batch_indexes_in_memory if isinstance(record, SnapshotRecord) else None
        ),
        "acked_entries": sum(map(len, acked.values())),
        "held_nacks": None if record.nacks is None else record.nacks.entry_count,
    }
    if "acked" in names:
        fields["acked"] = _bitmaps(acked)
    if "unacked_indexes" in names:
        fields["unacked_indexes"] = partly_acked(partly)
    return fields


def _bitmaps(acked: Mapping[int, BitMap]) -> list[dict[str, Any]]:
    return [
        {"ledger_id": ledger_id, "entry_ids": acked[ledger_id].serialize()}
        for ledger_id in sorted(acked)
    ]


def partly_acked(unacked_indexes: Mapping[Position, int]) -> list[dict[str, Any]]:
    """Partly acked entries by position, each with the bytes of its set."""
    return [
        {"ledger_id": ledger_id, "entry_id": entry_id, "unacked_indexes": mask_bytes(mask)}
        for (ledger_id, entry_id), mask in sorted(unacked_indexes.items())
    ]


def mask_bytes(mask: int) -> bytes:
    """A set of batch indexes as bytes, the lowest first."""
    return mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
