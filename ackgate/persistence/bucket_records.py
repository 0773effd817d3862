"""What is stored of a bucket of delayed entries: its snapshot's metadata and segments.

Pure values. A snapshot is a ledger of its own, written once and never changed::

    ledger entry   0            1            2            3
                   +----------+ +----------+ +----------+ +----------+
                   | metadata | | segment 0| | segment 1| | segment 2|   closed
                   +----------+ +----------+ +----------+ +----------+
                                 10:00-10:05  10:05-10:10  10:11-10:14   by time of delivery

Metadata of very many segments comes in parts, a record each, so that nothing takes long. A record
that is larger than one entry may be takes several, one chunk each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor.position import Position


class SegmentColumns(NamedTuple):
    """A segment: columns of one length, sorted by (key, ledger, entry), each position once."""

    keys_ms: NDArray[np.int64]
    """When to deliver, as the tracker has rounded it."""
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]


class NumberedSegment(NamedTuple):
    """A segment, and which one it is."""

    number: int
    columns: SegmentColumns


class SegmentSummary(NamedTuple):
    """What is known of a segment without reading it."""

    first_key_ms: int
    last_key_ms: int
    entry_count: int
    positions: Mapping[int, BitMap]
    """Entry ids by message ledger."""


class SnapshotMetadata(NamedTuple):
    """What a snapshot holds, or one part of it."""

    part_number: int
    part_count: int
    first: Position
    """The lowest position that its entries may have."""
    last: Position
    """The highest."""
    segments: tuple[SegmentSummary, ...]
    ledger_entries: tuple[int, ...]
    """Ledger entries that each segment takes: 1, or its chunks."""


class SnapshotChunk(NamedTuple):
    """A piece of a record that did not fit into one ledger entry."""

    record_number: int
    """From 0: the parts of the metadata, then the segments."""
    chunk_index: int
    chunk_count: int
    piece: bytes


class StoredSnapshot(NamedTuple):
    """A snapshot that is durable."""

    snapshot_id: int
    """Its ledger."""
    bytes_stored: int
