"""What a subscription keeps of its held entries beside its acks, as values to be stored.

Pure values, of two kinds. The trackers of `dispatcher` make and read them, `persistence` stores them, and
neither imports the other.

*Pending nacks*: negatively acked entries that wait for redelivery. The tracker of nacks holds the live state
and returns frozen images. The key of an entry is its time bucket, in ms since 1970::

    key     768 000  ->  ledger 3: {5, 6, 7}      due first
            768 256  ->  ledger 3: {9}, ledger 8: {0..4}
            ...                                     due last: left out first

An ack needs no new image: `unacked_nacks` drops what the acks cover. Nor does an entry that falls
due: after a crash it is redelivered at once. To lose an image, or a part of one, is safe for the
same reason.

*Buckets of delayed entries*: a sealed bucket is written once, as a **snapshot**: what is known of its
segments, then the segments themselves, in the order of time. The registry of a subscription names its
buckets by their snapshots::

    BucketRecord 7:0..7:9, snapshot 4711      in the registry
        |
        v
    snapshot 4711   SegmentMetadata x 3   SnapshotSegment   SnapshotSegment   SnapshotSegment
                                          10:00-10:05       10:05-10:10       10:11-10:14
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor.bitmaps import stored_form
from ackgate.cursor.position import ENTRY_ID_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pyroaring import BitMap

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position

BITMAP_OVERHEAD_BYTES: Final = 16
"""What a bitmap takes beside itself: ledger id, its length, and a share of the key."""


class NackedLedger(NamedTuple):
    """Entries of one ledger that are due together."""

    key_ms: int
    ledger_id: int
    entry_ids: BitMap


@dataclass(frozen=True, slots=True)
class PendingNacks:
    """Entries that wait, by their time. Of an entry that is there twice the earlier time counts."""

    buckets: Mapping[int, Mapping[int, BitMap]] = field(default_factory=dict)
    """Key in ms -> message ledger id -> entry ids; both ascending. Own copies; none is empty."""

    precision_bits: int = 0
    """The keys were made with so many low bits cleared. For people; nothing is decided by it."""

    @property
    def entry_count(self) -> int:
        return sum(len(entry_ids) for _, _, entry_ids in self)

    @property
    def stored_bytes(self) -> int:
        """What they take when they are stored, before compression. Run-optimises them in place."""
        return sum(_stored_bytes(entry_ids) for _, _, entry_ids in self)

    def __iter__(self) -> Iterator[NackedLedger]:
        for key_ms, ledgers in self.buckets.items():
            for ledger_id, entry_ids in ledgers.items():
                yield NackedLedger(key_ms, ledger_id, entry_ids)

    def __bool__(self) -> bool:
        return bool(self.buckets)


NO_NACKS: Final = PendingNacks()


class NackImage(NamedTuple):
    """The pending nacks at one version, as they are to be stored."""

    version: int
    """Number of changes that made an image worth storing."""

    nacks: PendingNacks
    """The nacks to store; the latest may be left out."""

    entries_in_memory: int
    """How many entries there were in all."""


def earliest_nacks(
    parts: Iterable[NackedLedger], bytes_max: int, *, precision_bits: int
) -> PendingNacks:
    """Copies of the entries due earliest, as many as fit into so many stored bytes."""
    buckets: dict[int, dict[int, BitMap]] = {}
    room = bytes_max
    for key_ms, ledger_id, entry_ids in parts:
        copy = entry_ids.copy()
        size = _stored_bytes(copy)
        if size > room:
            copy = _fitting(copy, room)
            size = room
        if copy:
            buckets.setdefault(key_ms, {})[ledger_id] = copy
        room -= size
        if room <= BITMAP_OVERHEAD_BYTES:
            break
    return PendingNacks(buckets, precision_bits)


def unacked_nacks(
    nacks: PendingNacks, mark_delete: Position, acked: Mapping[int, BitMap]
) -> PendingNacks:
    """The nacks above the mark-delete that are not acked, each once, in copies."""
    seen: dict[int, BitMap] = {}
    buckets: dict[int, dict[int, BitMap]] = {}
    for key_ms, ledger_id, entry_ids in nacks:
        if ledger_id < mark_delete.ledger_id:
            continue
        left = entry_ids.copy()
        if ledger_id == mark_delete.ledger_id:
            left.remove_range(0, mark_delete.entry_id + 1)
        if ledger_id in acked:
            left -= acked[ledger_id]
        if ledger_id in seen:
            left -= seen[ledger_id]
            seen[ledger_id] |= left
        else:
            seen[ledger_id] = left.copy()
        if left:
            buckets.setdefault(key_ms, {})[ledger_id] = left
    return PendingNacks(buckets, nacks.precision_bits)


def existing_nacks(nacks: PendingNacks, ledgers: MessageLedgers) -> PendingNacks:
    """The nacks of entries that exist, in copies."""
    buckets: dict[int, dict[int, BitMap]] = {}
    for key_ms, ledger_id, entry_ids in nacks:
        left = entry_ids.copy()
        left.remove_range(ledgers.entry_count(ledger_id) or 0, ENTRY_ID_MAX + 1)
        if left:
            buckets.setdefault(key_ms, {})[ledger_id] = left
    return PendingNacks(buckets, nacks.precision_bits)


def _stored_bytes(entry_ids: BitMap) -> int:
    return BITMAP_OVERHEAD_BYTES + len(stored_form(entry_ids))


def _fitting(entry_ids: BitMap, bytes_max: int) -> BitMap:
    """The lowest members, as many as fit."""
    fits, too_many = 0, len(entry_ids)
    while too_many - fits > 1:
        count = (fits + too_many) // 2
        if _stored_bytes(_lowest(entry_ids, count)) <= bytes_max:
            fits = count
        else:
            too_many = count
    return _lowest(entry_ids, fits)


def _lowest(entry_ids: BitMap, count: int) -> BitMap:
    lowest = entry_ids.copy()
    if count < len(lowest):
        lowest.remove_range(entry_ids[count], ENTRY_ID_MAX + 1)
    return lowest


# ---- buckets of delayed entries


class SnapshotSegment(NamedTuple):
    """A slice of a bucket: columns of one length, sorted by (key, ledger, entry)."""

    keys_ms: NDArray[np.int64]
    """When to deliver, rounded by the tracker. A stored segment has each position once."""
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]


class SegmentMetadata(NamedTuple):
    """What is known of a segment without reading it."""

    first_key_ms: int
    last_key_ms: int
    entry_count: int
    positions: Mapping[int, BitMap]
    """Entry ids by message ledger."""


class BucketRecord(NamedTuple):
    """A bucket as the registry stores it."""

    first: Position
    """The lowest position that its entries may have."""
    last: Position
    """The highest."""
    snapshot_id: int
    """The ledger that holds its snapshot."""


class StoredSnapshot(NamedTuple):
    """A snapshot that is durable."""

    snapshot_id: int
    bytes_stored: int
