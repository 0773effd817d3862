"""Encodes a snapshot as ledger entries: segment by segment, then the metadata before them.

Pure. The caller decides how much is done at a time::

    encoding = SnapshotEncoding(snapshot_id, first, last, settings)
    for columns, summary in ...: encoding.add(columns, summary)     a segment
    while encoding.describe(): ...                                  a part of the metadata
    encoding.payloads                                               all of it, in order
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from ackgate.persistence.buckets.codec import (
    SnapshotMetadata,
    check_summary,
    cut_snapshot,
    encode_metadata,
    encode_segment,
)
from ackgate.persistence.records.limits import packing

if TYPE_CHECKING:
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import Position, SegmentMetadata, SnapshotSegment

PART_SEGMENTS: Final = 500
"""Segments whose metadata makes one record."""


class SnapshotEncoding:
    """Encodes one snapshot; see the module."""

    __slots__ = (
        "_entry_bytes_max",
        "_heads",
        "_packing",
        "_segments",
        "_snapshot_id",
        "_span",
        "_summaries",
    )

    def __init__(
        self, snapshot_id: int, first: Position, last: Position, settings: PersistenceSettings
    ) -> None:
        """`first` and `last`: the lowest and the highest position that its entries may have."""
        self._snapshot_id = snapshot_id
        self._span = (first, last)
        self._packing = packing(settings)
        self._entry_bytes_max = settings.cursor_record_chunk_bytes
        self._summaries: list[SegmentMetadata] = []
        self._segments: list[list[bytes]] = []
        self._heads: list[list[bytes]] = []

    def add(self, columns: SnapshotSegment, summary: SegmentMetadata) -> None:
        """The next segment. Raises `CallerError` for one that cannot be, or another's summary."""
        encoded = encode_segment(
            columns,
            snapshot_id=self._snapshot_id,
            segment_number=len(self._segments),
            packing=self._packing,
        )
        check_summary(columns, summary)
        # Cut later: a chunk names its record by how many parts of the metadata lie before it.
        self._segments.append([encoded])
        self._summaries.append(summary)

    def describe(self) -> bool:
        """Make one more part of the metadata; False when there is none left."""
        part = len(self._heads)
        if part == 0:
            self._cut_segments()
        mine = slice(part * PART_SEGMENTS, (part + 1) * PART_SEGMENTS)
        metadata = SnapshotMetadata(
            part,
            self.part_count,
            *self._span,
            tuple(self._summaries[mine]),
            self.segment_entries[mine],
        )
        encoded = encode_metadata(metadata, snapshot_id=self._snapshot_id, packing=self._packing)
        self._heads.append(self._cut(encoded, part))
        return len(self._heads) < self.part_count

    def _cut_segments(self) -> None:
        for number, (encoded,) in enumerate(self._segments):
            self._segments[number] = self._cut(encoded, self.part_count + number)

    def _cut(self, encoded: bytes, record_number: int) -> list[bytes]:
        return cut_snapshot(
            encoded,
            snapshot_id=self._snapshot_id,
            record_number=record_number,
            entry_bytes_max=self._entry_bytes_max,
        )

    @property
    def part_count(self) -> int:
        return max(1, -(-len(self._segments) // PART_SEGMENTS))

    @property
    def segment_entries(self) -> tuple[int, ...]:
        """Ledger entries that each segment takes."""
        return tuple(map(len, self._segments))

    @property
    def head_entries(self) -> int:
        """Ledger entries of the metadata."""
        return sum(map(len, self._heads))

    @property
    def payloads(self) -> list[bytes]:
        """The ledger entries, when all is described."""
        assert len(self._heads) == self.part_count
        return list(chain(*self._heads, *self._segments))
