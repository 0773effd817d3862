"""The bytes that Pulsar's brokers store, as values: nodes, states of cursors, buckets of delayed messages.

Pure. It reads every form that 2.8 to 4.x write: nodes plain or compressed (PIP-146, PIP-270), acks as
ranges or as words of bit sets, the state of a cursor in its node or in the last entry of its ledger,
that entry in pieces too (PIP-381), and the protobuf text that brokers before wrote. A compressed node::

    | 0x4778 | header size | CompressedInfo | protobuf, compressed |
        2          4

What cannot be read is a `CorruptRecordError` with the name that the caller gave. Source: Pulsar's
`MetaStoreImpl`, `ManagedCursorImpl`, `MLDataFormats`.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from pyroaring import BitMap

from ackgate.cursor import (
    EARLIEST,
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    CursorSnapshot,
    Position,
    bitmap_of,
    run_bounds,
    run_count,
)
from ackgate.errors import CorruptRecordError
from ackgate.persistence.records.envelope import decompressed
from ackgate.pulsar.proto.stored_pb2 import (
    BatchedEntryDeletionIndexInfo,
    CompressedInfo,
    LongListMap,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    MessageRange,
    NestedPositionInfo,
    PositionInfo,
    SnapshotMetadata,
    SnapshotSegment,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

_MAGIC: Final = b"\x47\x78"
_HEADER_BYTES: Final = 6
_WORD_BITS: Final = 64
_WORD_MASK: Final = 2**64 - 1
_WORDS_MAX: Final = (ENTRY_ID_MAX + 1) // _WORD_BITS
_BUCKET_KEY: Final = "#pulsar.internal.delayed.bucket"

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger of a topic's messages, as the topic's node has it."""

    ledger_id: int
    entries: int | None
    """None: it is the one that is being written, or its broker ended without closing it."""
    bytes: int | None
    closed_ms: int | None
    """When it was closed, in ms since 1970. Retention counts from then."""
    is_offloaded: bool = False
    """Its entries lie in tiered storage as well, or only there."""
    is_on_bookies: bool = True
    """False: offloaded, and deleted from the bookies."""
    offload_driver: str | None = None
    """``aws-s3``, ``filesystem``, ..."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """What a topic's node holds: its ledgers, and where a terminated topic ended."""

    ledgers: tuple[StoredLedger, ...]
    terminated_at: Position | None = None
    """The last entry of a topic that was terminated."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def entry_counts(self) -> dict[int, int]:
        """Entries of the closed ledgers, by id."""
        return {of.ledger_id: of.entries for of in self.ledgers if of.entries is not None}


@dataclass(frozen=True, slots=True)
class PersistedAcks:
    """The ack state of a cursor as it was written: in one entry of its ledger, or in its node."""

    mark_delete: Position
    acked: Mapping[int, BitMap]
    """Message ledger -> entries acked above the mark-delete. No empty bitmap."""
    unacked_indexes: Mapping[Position, int]
    """Partly acked entries: bit i set = message i of the batch is not acked. Never 0."""
    properties: Mapping[str, int] = field(default_factory=dict)
    """Properties of the mark-delete."""
    ranges_stored: int = 0
    """Ranges as stored: one over two ledgers is one here, two in `range_count`. Words: as
    counted."""
    is_words: bool = False
    """Whether acks were stored as words of bit sets (managedLedgerPersistIndividualAckAsLongArray)."""
    bytes: int = 0
    """Bytes of the whole record."""
    ranges_unread: int = 0
    """Ranges whose ledger is not known any more, so that their length is not; Pulsar drops them, too."""

    @property
    def range_count(self) -> int:
        """Runs of acked entries above the mark-delete, none of them over two ledgers."""
        return sum(map(run_count, self.acked.values()))

    @property
    def acked_count(self) -> int:
        """Entries acked above the mark-delete."""
        return sum(map(len, self.acked.values()))

    def snapshot(self, version: int) -> CursorSnapshot:
        """The same as a state of ours. Pulsar's have no version."""
        return CursorSnapshot(
            version=version,
            mark_delete=self.mark_delete,
            acked=self.acked,
            range_count=self.range_count,
            unacked_indexes=self.unacked_indexes,
            properties=self.properties,
        )

    def ranges(self) -> list[tuple[int, int, int]]:
        """(ledger id, first entry, last entry), ascending."""
        found = []
        for ledger_id, bitmap in sorted(self.acked.items()):
            starts, stops = run_bounds(bitmap)
            found += [
                (ledger_id, start, stop - 1)
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
        return found


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """What a subscription's node holds: its state, or the ledger that has it."""

    cursor_ledger_id: int | None
    """The ledger whose last entry is the state. None: the state is in the node."""
    state: PersistedAcks | None
    """None: in the ledger, and the node has no mark-delete of before."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of the subscription, and buckets of delayed messages."""

    @property
    def buckets(self) -> list[BucketPlace]:
        """Sealed buckets of delayed messages (PIP-195), by their first message ledger."""
        found = []
        for key, value in self.properties.items():
            name, _, last = key.rpartition("_")
            name, _, first = name.rpartition("_")
            if name == _BUCKET_KEY and all(map(_is_id, (first, last, value))):
                found.append(BucketPlace(int(first), int(last), int(value)))
        return sorted(found)


class BucketPlace(NamedTuple):
    """A sealed bucket, and the ledger that holds its snapshot."""

    first_ledger_id: int
    """The lowest ledger of the bucket's messages."""
    last_ledger_id: int
    snapshot_ledger_id: int


class StoredSegment(NamedTuple):
    """One segment of a bucket's snapshot, as the snapshot's first entry describes it."""

    min_due_ms: int
    max_due_ms: int
    entries: Mapping[int, BitMap]
    """Delayed entries per message ledger."""


class DelayedRows(NamedTuple):
    """The delayed entries of one segment: columns of one length."""

    due_ms: NDArray[np.int64]
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]


# ---------------------------------------------------------------------------------------- a topic's node


def decode_managed_ledger(value: bytes, *, name: str) -> StoredTopic:
    """The node of a topic. Raises `CorruptRecordError`."""
    stored = _parsed(ManagedLedgerInfo, value, name)
    ledgers = []
    newest = max((info.ledgerId for info in stored.ledgerInfo), default=-1)
    if len({info.ledgerId for info in stored.ledgerInfo}) < len(stored.ledgerInfo):
        raise CorruptRecordError(f"{name}: a ledger is named twice")
    for info in sorted(stored.ledgerInfo, key=lambda info: info.ledgerId):
        _ledger_id(info.ledgerId, name)
        is_last = info.ledgerId == newest
        is_open = not info.entries and (is_last or not info.timestamp)
        offload = info.offloadContext
        ledgers.append(
            StoredLedger(
                info.ledgerId,
                None if is_open else info.entries,
                None if is_open else info.size,
                info.timestamp or None,
                is_offloaded=offload.complete,
                is_on_bookies=not offload.bookkeeperDeleted,
                offload_driver=offload.driverMetadata.name or None,
            )
        )
    return StoredTopic(
        tuple(ledgers),
        _position(stored.terminatedPosition, name)
        if stored.HasField("terminatedPosition")
        else None,
        {pair.key: pair.value for pair in stored.properties},
    )


# ---------------------------------------------------------------------------------------- a cursor's state


def decode_cursor_node(
    value: bytes, *, name: str, entry_counts: Mapping[int, int] | None = None
) -> StoredSubscription:
    """The node of a cursor, with the state that is in it.

    Where the state is in a ledger, the node's own is of the time when that ledger was begun: the
    mark-delete, without ranges. `entry_counts`: entries of the topic's closed ledgers, for ranges that
    run over several (of old brokers). Raises `CorruptRecordError`.
    """
    stored = _parsed(ManagedCursorInfo, value, name)
    state = None
    if stored.HasField("markDeleteLedgerId"):
        mark_delete = NestedPositionInfo(
            ledgerId=stored.markDeleteLedgerId, entryId=stored.markDeleteEntryId
        )
        state = _state(
            mark_delete,
            stored.individualDeletedMessages,
            (),
            stored.batchedEntryDeletionIndexInfo,
            {each.name: each.value for each in stored.properties},
            len(value),
            name,
            entry_counts or {},
        )
    elif stored.cursorsLedgerId == -1:
        raise CorruptRecordError(f"{name}: it names no ledger and holds no mark-delete")
    return StoredSubscription(
        None if stored.cursorsLedgerId == -1 else stored.cursorsLedgerId,
        state,
        {each.name: each.value for each in stored.cursorProperties},
    )


def decode_cursor_entry(
    payload: bytes, *, name: str, entry_counts: Mapping[int, int] | None = None
) -> PersistedAcks:
    """The last entry of a cursor's ledger: the whole state. Raises `CorruptRecordError`."""
    stored = _parsed(PositionInfo, payload, name)
    return _state(
        NestedPositionInfo(ledgerId=stored.ledgerId, entryId=stored.entryId),
        stored.individualDeletedMessages,
        stored.individualDeletedMessageRanges,
        stored.batchedEntryDeletionIndexInfo,
        {each.name: each.value for each in stored.properties},
        len(payload),
        name,
        entry_counts or {},
    )


def pieces_before(payload: bytes, *, name: str) -> int:
    """How many entries before this one hold the state in pieces (PIP-381); 0: this one is the state.

    Raises `CorruptRecordError`.
    """
    if payload[:1] != b"{":  # no PositionInfo begins so
        return 0
    try:
        count = json.loads(payload)["numParts"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"{name}: the entry after the pieces: {error!r}") from None
    if not isinstance(count, int) or count < 1:
        raise CorruptRecordError(f"{name}: the entry after the pieces says {count!r} pieces")
    return count


def _state(
    mark_delete: NestedPositionInfo,
    ranges: Sequence[MessageRange],
    words: Sequence[LongListMap],
    partly_acked: Sequence[BatchedEntryDeletionIndexInfo],
    properties: Mapping[str, int],
    size: int,
    name: str,
    entry_counts: Mapping[int, int],
) -> PersistedAcks:
    acked: dict[int, BitMap] = {}
    unread = 0
    if ranges:  # with both forms there Pulsar takes this one
        unread = _add_ranges(acked, ranges, name, entry_counts)
    else:
        for each in words:
            bitmap = _bitmap_of_words(each.values, name)
            if bitmap:
                acked[_ledger_id(each.key, name)] = bitmap
    position = _position(mark_delete, name)
    for ledger_id in [i for i in acked if i <= position.ledger_id]:
        if ledger_id == position.ledger_id:
            acked[ledger_id].remove_range(0, position.entry_id + 1)
        if ledger_id < position.ledger_id or not acked[ledger_id]:
            del acked[ledger_id]  # left behind by a mark-delete; Pulsar drops it with the next ack
    masks = ((_position(each.position, name), _mask(each.deleteSet)) for each in partly_acked)
    return PersistedAcks(
        position,
        acked,
        {
            at: mask
            for at, mask in masks
            if mask and at > position and at.entry_id not in acked.get(at.ledger_id, ())
        },
        properties,
        ranges_stored=len(ranges) or sum(map(run_count, acked.values())),
        is_words=bool(words) and not ranges,
        bytes=size,
        ranges_unread=unread,
    )


def _add_ranges(
    acked: dict[int, BitMap],
    ranges: Iterable[MessageRange],
    name: str,
    entry_counts: Mapping[int, int],
) -> int:
    """Returns how many could not be read in full."""
    unread = 0
    for stored in ranges:
        lower, upper = _position(stored.lowerEndpoint, name), _position(stored.upperEndpoint, name)
        if lower.ledger_id == upper.ledger_id:
            spans = [(lower.ledger_id, lower.entry_id + 1, upper.entry_id + 1)]
        else:
            between = [i for i in entry_counts if lower.ledger_id < i < upper.ledger_id]
            spans = [(i, 0, entry_counts[i]) for i in between]
            spans.append((upper.ledger_id, 0, upper.entry_id + 1))
            count = entry_counts.get(lower.ledger_id)
            if count is None:
                unread += 1
            else:
                spans.append((lower.ledger_id, lower.entry_id + 1, count))
        for ledger_id, start, stop in spans:
            if start < stop:
                acked.setdefault(ledger_id, BitMap()).add_range(start, stop)
    return unread


def _bitmap_of_words(values: Sequence[int], name: str) -> BitMap:
    if len(values) > _WORDS_MAX:
        raise CorruptRecordError(f"{name}: {len(values)} words of one ledger's acks")
    octets = np.array(values, dtype="<i8").view(np.uint8)
    return bitmap_of(np.flatnonzero(np.unpackbits(octets, bitorder="little")))


def _mask(words: Iterable[int]) -> int:
    return sum((word & _WORD_MASK) << _WORD_BITS * place for place, word in enumerate(words))


# ----------------------------------------------------------------------------- buckets of delayed messages


def decode_bucket_head(payload: bytes, *, name: str) -> list[StoredSegment]:
    """The first entry of a bucket's snapshot: its segments. Raises `CorruptRecordError`."""
    stored = _parsed(SnapshotMetadata, payload, name)
    segments = []
    for each in stored.metadata_list:
        try:
            entries = {i: BitMap.deserialize(b) for i, b in each.delayed_index_bit_map.items()}
        except ValueError as error:
            raise CorruptRecordError(f"{name}: a bitmap of its segments: {error}") from error
        segments.append(
            StoredSegment(each.min_schedule_timestamp, each.max_schedule_timestamp, entries)
        )
    return segments


def decode_bucket_segment(payload: bytes, *, name: str) -> DelayedRows:
    """A further entry: the delayed entries of one segment, by time. Raises `CorruptRecordError`."""
    rows = _parsed(SnapshotSegment, payload, name).indexes
    columns = np.array(
        [(each.timestamp, each.ledger_id, each.entry_id) for each in rows], dtype=np.uint64
    ).reshape(-1, 3)
    due_ms, ledger_ids, entry_ids = columns.astype(np.int64).T
    return DelayedRows(due_ms, ledger_ids, entry_ids)


# ------------------------------------------------------------------------------- a compacted topic's ledger


def entry_of_compacted(payload: bytes, *, name: str) -> bytes:
    """The message in an entry of a compacted topic's ledger, as it is in a ledger of messages.

    Before it stands where it was: ``| size | position | size | message |``. Raises `CorruptRecordError`.
    """
    at = 4 + int.from_bytes(payload[:4], "big")
    stop = at + 4 + int.from_bytes(payload[at : at + 4], "big")
    if not at + 4 <= stop == len(payload):
        raise CorruptRecordError(f"{name}: {len(payload)} bytes that hold no message")
    return payload[at + 4 :]


# ------------------------------------------------------------------------------------------------ bytes


def _parsed(kind: type[MessageT], value: bytes, name: str) -> MessageT:
    """Parse a message in binary, compressed or text form."""
    try:
        return _whole(kind, _inflated(value, name))
    except DecodeError as error:
        if value.isascii():
            with contextlib.suppress(text_format.ParseError):
                return text_format.Parse(value.decode("ascii"), kind())
        raise CorruptRecordError(
            f"{name}: {len(value)} bytes that are no {kind.__name__}"
        ) from error


def _whole(kind: type[MessageT], body: bytes) -> MessageT:
    """Parse a message with all its required fields. Raises `DecodeError`."""
    message = kind()
    message.ParseFromString(body)
    if not message.IsInitialized():
        raise DecodeError("a required field is missing")
    return message


def _inflated(value: bytes, name: str) -> bytes:
    if value[:2] != _MAGIC:
        return value
    stop = _HEADER_BYTES + int.from_bytes(value[2:_HEADER_BYTES], "big")
    try:
        header = _whole(CompressedInfo, value[_HEADER_BYTES:stop])
        return decompressed(value[stop:], header.compressionType, header.uncompressedSize)
    except (DecodeError, CorruptRecordError) as error:
        raise CorruptRecordError(f"{name}: it is compressed, and damaged: {error}") from error


def _position(stored: NestedPositionInfo, name: str) -> Position:
    ledger_id, entry_id = stored.ledgerId, stored.entryId
    if (ledger_id, entry_id) == EARLIEST:
        return EARLIEST
    if not 0 <= ledger_id <= LEDGER_ID_MAX or not -1 <= entry_id <= ENTRY_ID_MAX:
        raise CorruptRecordError(f"{name}: {ledger_id}:{entry_id} is no position")
    return Position(ledger_id, entry_id)


def _ledger_id(number: int, name: str) -> int:
    if not 0 <= number <= LEDGER_ID_MAX:
        raise CorruptRecordError(f"{name}: {number} is no ledger id")
    return number


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()
