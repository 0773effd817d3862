"""A cursor ledger from its first entry to its last: each record whole, with its place.

Pure. A record that takes several entries is put together; one whose last chunk never came was not
committed and counts for nothing, as at recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import CorruptRecordError
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import ChunkRecord, CursorRecord
from ackgate.pipeline.readers.damaged_records import FAILING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackgate.persistence.ports import LedgerEntry
    from ackgate.pipeline.readers.damaged_records import DamagedRecords


class StoredRecord(NamedTuple):
    """A record, and where it lies."""

    entry_id: int
    """Its (first) entry."""
    record: CursorRecord
    stored_bytes: int
    chunk_count: int


def stored_records(
    ledger_id: int, entries: Iterable[LedgerEntry], damaged: DamagedRecords = FAILING
) -> Iterator[StoredRecord]:
    """The records of these entries, which ascend.

    Raises `CorruptRecordError` naming ledger and entry, as `damaged` wants it.
    """
    chunks: list[tuple[int, ChunkRecord, int]] = []
    for entry_id, payload in entries:
        try:
            record = decode_record(payload)
            if not isinstance(record, ChunkRecord):
                chunks.clear()
                yield StoredRecord(entry_id, record, len(payload), 1)
                continue
            if not _continues(chunks, record):
                chunks.clear()
            if record.chunk_index == len(chunks):
                chunks.append((entry_id, record, len(payload)))
            if chunks and len(chunks) == record.chunk_count:
                joined = _joined(chunks)
                chunks.clear()
                yield joined
        except CorruptRecordError as error:
            chunks.clear()
            damaged.meet("cursor", ledger_id, entry_id, error)


def _continues(chunks: list[tuple[int, ChunkRecord, int]], chunk: ChunkRecord) -> bool:
    if not chunks:
        return chunk.chunk_index == 0
    before = chunks[-1][1]
    return (chunk.stamp, chunk.chunk_count, chunk.chunk_index) == (
        before.stamp,
        before.chunk_count,
        before.chunk_index + 1,
    )


def _joined(chunks: list[tuple[int, ChunkRecord, int]]) -> StoredRecord:
    first_entry_id, first, _ = chunks[0]
    record = decode_record(b"".join(chunk.piece for _, chunk, _ in chunks))
    if isinstance(record, ChunkRecord) or record.stamp != first.stamp:
        raise CorruptRecordError(f"the chunks of {first.stamp} hold something else")
    return StoredRecord(first_entry_id, record, sum(size for *_, size in chunks), len(chunks))
