"""A bucket's snapshot as bytes: Avro in the envelope that cursors' records have, too.

Pure. Sizes, for 5,000 entries in a segment: a byte an entry before compression and 0.02 after it
when they come in order of time, 4 and 3.6 when their times have nothing to do with their positions.

    position   7:0  7:1  7:2  7:3  8:0     bitmaps, one per message ledger, run-optimised
    time       +0   +512 +0   -512 +1024   differences in units of 512 ms: 0 1 0 -1 2

What is decoded is checked before it is believed: that it belongs into this ledger, at this place,
that times and positions are in bounds, ascend where they must, and are as many as announced.

A snapshot is a ledger of its own, written once and never changed::

    ledger entry   0            1            2            3
                   +----------+ +----------+ +----------+ +----------+
                   | metadata | | segment 0| | segment 1| | segment 2|   closed
                   +----------+ +----------+ +----------+ +----------+
                                 10:00-10:05  10:05-10:10  10:11-10:14   by time of delivery

Metadata of very many segments comes in parts, a record each, so that nothing takes long. A record
that is larger than one entry may be takes several, one chunk each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    Position,
    SegmentMetadata,
    SnapshotSegment,
    bitmap_of,
    check_position,
    members,
)
from ackgate.errors import CallerError, CorruptRecordError, PositionError
from ackgate.persistence.records.avro import AvroSchema
from ackgate.persistence.records.codec import ledger_fields
from ackgate.persistence.records.envelope import Packing, seal, unseal
from ackgate.persistence.records.values import RecordKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray


class NumberedSegment(NamedTuple):
    """A segment, and which one it is."""

    number: int
    columns: SnapshotSegment


class SnapshotMetadata(NamedTuple):
    """What a snapshot holds, or one part of it."""

    part_number: int
    part_count: int
    first: Position
    """The lowest position that its entries may have."""
    last: Position
    """The highest."""
    segments: tuple[SegmentMetadata, ...]
    ledger_entries: tuple[int, ...]
    """Ledger entries that each segment takes: 1, or its chunks."""


class SnapshotChunk(NamedTuple):
    """A piece of a record that did not fit into one ledger entry."""

    record_number: int
    """From 0: the parts of the metadata, then the segments."""
    chunk_index: int
    chunk_count: int
    piece: bytes


_METADATA: Final = AvroSchema("delayed_metadata")
_SEGMENT: Final = AvroSchema("delayed_segment")
_CHUNK: Final = AvroSchema("delayed_chunk")

_NOT_PACKED: Final = Packing()
_CHUNK_OVERHEAD_BYTES: Final = 64
"""Room for the envelope and the fields beside the piece: 13 + 10 + 3 * 5 + 5, rounded up."""


# ------------------------------------------------------------------------ encoding


def encode_metadata(metadata: SnapshotMetadata, *, snapshot_id: int, packing: Packing) -> bytes:
    """A part of the metadata. Its bitmaps are run-optimised in place."""
    fields = {
        "snapshot_id": snapshot_id,
        "part_number": metadata.part_number,
        "part_count": metadata.part_count,
        "first_ledger_id": metadata.first.ledger_id,
        "first_entry_id": metadata.first.entry_id,
        "last_ledger_id": metadata.last.ledger_id,
        "last_entry_id": metadata.last.entry_id,
        "segments": [
            {
                "first_key_ms": segment.first_key_ms,
                "last_key_ms": segment.last_key_ms,
                "entry_count": segment.entry_count,
                "ledger_entries": ledger_entries,
                "positions": ledger_fields(segment.positions),
            }
            for segment, ledger_entries in zip(
                metadata.segments, metadata.ledger_entries, strict=True
            )
        ],
    }
    return seal(RecordKind.DELAYED_METADATA, _METADATA.encode(fields), packing)


def encode_segment(
    columns: SnapshotSegment, *, snapshot_id: int, segment_number: int, packing: Packing
) -> bytes:
    """A segment. Raises `CallerError` for columns that are none."""
    _check_columns(columns)
    keys, ledger_ids, entry_ids = columns
    order = np.lexsort((entry_ids, ledger_ids))
    keys, ledger_ids, entry_ids = keys[order], ledger_ids[order], entry_ids[order]
    if np.any((ledger_ids[1:] == ledger_ids[:-1]) & (entry_ids[1:] == entry_ids[:-1])):
        raise CallerError("a position comes twice in one segment")
    borders = np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1
    first_key = int(columns.keys_ms[0])
    unit = max(1, int(np.gcd.reduce(keys - first_key)))
    fields = {
        "snapshot_id": snapshot_id,
        "segment_number": segment_number,
        "first_key_ms": first_key,
        "last_key_ms": int(columns.keys_ms[-1]),
        "key_unit_ms": unit,
        "positions": ledger_fields(
            {
                int(ledger_ids[start]): bitmap_of(ids)
                for start, ids in zip((0, *borders), np.split(entry_ids, borders), strict=True)
            }
        ),
        "key_deltas": (np.diff(keys, prepend=first_key) // unit).tolist(),
    }
    return seal(RecordKind.DELAYED_SEGMENT, _SEGMENT.encode(fields), packing)


def cut_snapshot(
    encoded: bytes, *, snapshot_id: int, record_number: int, entry_bytes_max: int
) -> list[bytes]:
    """The ledger entries of one encoded record: itself, or its chunks."""
    if len(encoded) <= entry_bytes_max:
        return [encoded]
    piece_bytes = entry_bytes_max - _CHUNK_OVERHEAD_BYTES
    count = -(-len(encoded) // piece_bytes)
    return [
        seal(
            RecordKind.DELAYED_CHUNK,
            _CHUNK.encode(
                {
                    "snapshot_id": snapshot_id,
                    "record_number": record_number,
                    "chunk_index": index,
                    "chunk_count": count,
                    "piece": encoded[index * piece_bytes : (index + 1) * piece_bytes],
                }
            ),
            _NOT_PACKED,
        )
        for index in range(count)
    ]


def check_summary(columns: SnapshotSegment, summary: SegmentMetadata) -> None:
    """Raise `CallerError` unless the summary is that of these columns. Bitmaps are only counted."""
    claimed = (summary.first_key_ms, summary.last_key_ms, summary.entry_count)
    there = (int(columns.keys_ms[0]), int(columns.keys_ms[-1]), columns.keys_ms.size)
    if claimed != there or sum(map(len, summary.positions.values())) != summary.entry_count:
        raise CallerError(f"a segment's metadata says {claimed}, and its columns {there}")


def _check_columns(columns: SnapshotSegment) -> None:
    keys, ledger_ids, entry_ids = columns
    if not keys.size or not keys.size == ledger_ids.size == entry_ids.size:
        raise CallerError(
            f"a segment's columns are empty or differ in length: "
            f"{keys.size}, {ledger_ids.size}, {entry_ids.size}"
        )
    if keys[0] < 0 or np.any(keys[1:] < keys[:-1]):
        raise CallerError("the keys of a segment must ascend from 0 on")
    if int(ledger_ids.min()) < 0 or int(entry_ids.min()) < 0 or int(entry_ids.max()) > ENTRY_ID_MAX:
        raise CallerError("a segment has a position out of bounds")


# ------------------------------------------------------------------------ decoding


def decode_metadata(
    envelope: bytes, *, snapshot_id: int, part_number: int
) -> SnapshotMetadata | SnapshotChunk:
    """A part of the metadata, or a chunk of it. Raises `CorruptRecordError`, `UnknownFormatError`."""
    fields = _fields(envelope, RecordKind.DELAYED_METADATA, _METADATA, snapshot_id)
    if isinstance(fields, SnapshotChunk):
        return fields
    if not fields["part_number"] == part_number < fields["part_count"]:
        raise CorruptRecordError(
            f"part {fields['part_number']} of {fields['part_count']} of the metadata lies where "
            f"part {part_number} must"
        )
    try:
        return _metadata(fields)
    except (ValueError, IndexError) as error:  # PositionError, and pyroaring's complaints
        raise CorruptRecordError(f"the metadata is wrong: {error}") from error


def decode_segment(
    envelope: bytes, *, snapshot_id: int, segment_number: int
) -> SnapshotSegment | SnapshotChunk:
    """A segment, or a chunk of it. Raises as `decode_metadata`."""
    fields = _fields(envelope, RecordKind.DELAYED_SEGMENT, _SEGMENT, snapshot_id)
    if isinstance(fields, SnapshotChunk):
        return fields
    if fields["segment_number"] != segment_number:
        raise CorruptRecordError(
            f"segment {fields['segment_number']} lies where segment {segment_number} must"
        )
    try:
        return _columns(fields)
    except (ValueError, IndexError, OverflowError) as error:
        raise CorruptRecordError(f"segment {segment_number} is wrong: {error}") from error


def decode_entry(
    envelope: bytes, *, snapshot_id: int
) -> SnapshotMetadata | NumberedSegment | SnapshotChunk:
    """Whatever one entry of a snapshot ledger holds. Raises as `decode_metadata`."""
    kind, body = unseal(envelope)
    if kind == RecordKind.DELAYED_METADATA:
        part = _METADATA.decode(body)["part_number"]
        return decode_metadata(envelope, snapshot_id=snapshot_id, part_number=part)
    if kind != RecordKind.DELAYED_SEGMENT:
        chunk = _fields(envelope, RecordKind.DELAYED_SEGMENT, _SEGMENT, snapshot_id)
        assert isinstance(chunk, SnapshotChunk)
        return chunk
    number = _SEGMENT.decode(body)["segment_number"]
    columns = decode_segment(envelope, snapshot_id=snapshot_id, segment_number=number)
    assert isinstance(columns, SnapshotSegment)
    return NumberedSegment(number, columns)


def _fields(
    envelope: bytes, wanted: RecordKind, schema: AvroSchema, snapshot_id: int
) -> dict[str, Any] | SnapshotChunk:
    kind, body = unseal(envelope)
    if kind not in {wanted, RecordKind.DELAYED_CHUNK}:
        raise CorruptRecordError(f"record kind {kind} does not belong here")
    fields = (schema if kind == wanted else _CHUNK).decode(body)
    if fields["snapshot_id"] != snapshot_id:
        raise CorruptRecordError(f"written for snapshot {fields['snapshot_id']}, not for this one")
    if kind == wanted:
        return fields
    index, count = fields["chunk_index"], fields["chunk_count"]
    if not 0 <= index < count or count < 2:
        raise CorruptRecordError(f"chunk {index} of {count} cannot be")
    return SnapshotChunk(fields["record_number"], index, count, fields["piece"])


def _metadata(fields: Mapping[str, Any]) -> SnapshotMetadata:
    first = check_position(Position(fields["first_ledger_id"], fields["first_entry_id"]))
    last = check_position(Position(fields["last_ledger_id"], fields["last_entry_id"]))
    segments = tuple(map(_summary, fields["segments"]))
    end_ms = 0
    for number, segment in enumerate(segments):
        if not end_ms <= segment.first_key_ms <= segment.last_key_ms:
            raise CorruptRecordError(
                f"segment {number} spans {segment.first_key_ms}..{segment.last_key_ms} ms, "
                f"and the one before ends at {end_ms}"
            )
        end_ms = segment.last_key_ms
        _check_within(segment.positions, first, last)
    ledger_entries = tuple(segment["ledger_entries"] for segment in fields["segments"])
    if ledger_entries and min(ledger_entries) < 1:
        raise CorruptRecordError("a segment takes no ledger entry")
    part, parts = fields["part_number"], fields["part_count"]
    return SnapshotMetadata(part, parts, first, last, segments, ledger_entries)


def _summary(fields: Mapping[str, Any]) -> SegmentMetadata:
    positions = _positions(fields["positions"])
    count = fields["entry_count"]
    held = sum(map(len, positions.values()))
    if count < 1 or held != count:
        raise CorruptRecordError(f"a segment of {count} entries names {held}")
    return SegmentMetadata(fields["first_key_ms"], fields["last_key_ms"], count, positions)


def _check_within(positions: Mapping[int, BitMap], first: Position, last: Position) -> None:
    low, high = min(positions), max(positions)
    lowest = Position(low, positions[low].min())
    highest = Position(high, positions[high].max())
    if lowest < first or highest > last:
        raise PositionError(f"{lowest}..{highest} is not within {first}..{last}")


def _positions(ledgers: Iterable[Mapping[str, Any]]) -> dict[int, BitMap]:
    positions: dict[int, BitMap] = {}
    before = -1
    for fields in ledgers:
        ledger_id = fields["message_ledger_id"]
        if not before < ledger_id <= LEDGER_ID_MAX:
            raise PositionError(
                f"message ledger {ledger_id} after {before} is out of bounds or order"
            )
        bitmap = BitMap.deserialize(fields["entry_ids"])
        if not bitmap:
            raise CorruptRecordError(f"message ledger {ledger_id} is named without an entry")
        positions[ledger_id] = bitmap
        before = ledger_id
    return positions


def _columns(fields: Mapping[str, Any]) -> SnapshotSegment:
    positions = _positions(fields["positions"])
    counts = [len(bitmap) for bitmap in positions.values()]
    deltas = np.array(fields["key_deltas"], dtype=np.int64)
    if not counts or sum(counts) != deltas.size:
        raise CorruptRecordError(f"{sum(counts)} positions have {deltas.size} times")
    keys = _keys(deltas, fields["first_key_ms"], fields["last_key_ms"], fields["key_unit_ms"])
    ledger_ids = np.repeat(np.fromiter(positions, np.int64, len(positions)), counts)
    entry_ids = np.concatenate([members(bitmap) for bitmap in positions.values()])
    order = np.argsort(keys, kind="stable")
    return SnapshotSegment(keys[order], ledger_ids[order], entry_ids[order])


def _keys(deltas: NDArray[np.int64], first: int, last: int, unit: int) -> NDArray[np.int64]:
    if unit < 1 or not 0 <= first <= last:
        raise CorruptRecordError(f"times {first}..{last} ms in units of {unit} cannot be")
    steps = np.cumsum(deltas)
    if int(steps.min()) != 0 or int(steps.max()) * unit != last - first:
        raise CorruptRecordError(
            f"times go {int(steps.min())}..{int(steps.max())} units of {unit} ms beyond {first}, "
            f"and {last} was announced"
        )
    return first + steps * unit
