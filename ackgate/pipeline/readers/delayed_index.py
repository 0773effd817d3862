"""Rows of the table `delayed_index`: the segments of one stored bucket.

Pure: from a snapshot ledger's entries to Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ackgate.errors import CorruptRecordError
from ackgate.persistence.buckets.codec import NumberedSegment, SnapshotChunk, decode_entry
from ackgate.pipeline.readers.damaged_records import FAILING
from ackgate.pipeline.schema.tables import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ackgate.persistence.buckets.codec import SnapshotMetadata
    from ackgate.persistence.ports import LedgerEntry
    from ackgate.pipeline.readers.damaged_records import DamagedRecords
    from ackgate.pipeline.schema.tables import Column


def stored_segments(
    snapshot_id: int, entries: Iterable[LedgerEntry], damaged: DamagedRecords = FAILING
) -> Iterator[NumberedSegment]:
    """The segments of a snapshot ledger, whose entries ascend.

    Raises `CorruptRecordError` naming ledger and entry, as `damaged` wants it.
    """
    chunks: list[SnapshotChunk] = []
    for entry_id, payload in entries:
        try:
            found = _whole(decode_entry(payload, snapshot_id=snapshot_id), chunks, snapshot_id)
        except CorruptRecordError as error:
            chunks.clear()
            damaged.meet("snapshot", snapshot_id, entry_id, error)
            continue
        if isinstance(found, NumberedSegment):
            yield found


def _whole(
    found: SnapshotMetadata | NumberedSegment | SnapshotChunk,
    chunks: list[SnapshotChunk],
    snapshot_id: int,
) -> SnapshotMetadata | NumberedSegment | None:
    """The record that this completes; None as long as chunks of it are to come."""
    if not isinstance(found, SnapshotChunk):
        if chunks:
            raise CorruptRecordError(f"chunk {len(chunks)} of record {chunks[0][0]} is missing")
        return found
    wanted = (chunks[0].record_number if chunks else found.record_number, len(chunks))
    if (found.record_number, found.chunk_index) != wanted:
        raise CorruptRecordError(f"chunk {wanted[1]} of record {wanted[0]} is missing")
    chunks.append(found)
    if len(chunks) < found.chunk_count:
        return None
    joined = decode_entry(b"".join(chunk.piece for chunk in chunks), snapshot_id=snapshot_id)
    chunks.clear()
    if isinstance(joined, SnapshotChunk):
        raise CorruptRecordError("a chunk lies within a chunk")
    return joined


def segment_rows(
    segments: Iterable[NumberedSegment],
    columns: Sequence[Column],
    *,
    topic: str,
    subscription: str | None,
    snapshot_id: int,
) -> Iterator[pa.RecordBatch]:
    """A row for each delayed entry, a batch for each segment."""
    schema = arrow_schema(columns)
    for number, (keys_ms, ledger_ids, entry_ids) in segments:
        constants = {
            "topic": topic,
            "subscription": subscription,
            "snapshot_id": snapshot_id,
            "segment": number,
        }
        varying = {"ledger_id": ledger_ids, "entry_id": entry_ids, "key_ms": keys_ms}
        arrays = [
            pa.array(varying[field.name], type=field.type)
            if field.name in varying
            else pa.repeat(pa.scalar(constants[field.name], field.type), keys_ms.size)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
