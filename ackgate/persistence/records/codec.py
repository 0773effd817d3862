"""Records of a cursor as bytes: Avro in an envelope.

Pure. One codec for ledgers and metadata nodes. Bitmaps are run-optimised and in Roaring's portable
format, so that Spark and other languages read them. What is decoded is checked: positions in
bounds, no empty bitmap, no empty set of indexes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from ackgate.cursor import (
    EARLIEST,
    NO_NACKS,
    CursorGrowth,
    CursorSnapshot,
    PendingNacks,
    Position,
    check_position,
    stored_form,
)
from ackgate.errors import CorruptRecordError, PositionError
from ackgate.persistence.records.avro import AvroSchema
from ackgate.persistence.records.envelope import Packing, format_of, seal, unseal
from ackgate.persistence.records.values import (
    AnyRecord,
    ChunkRecord,
    CursorRecord,
    DeltaRecord,
    RecordKind,
    SnapshotRecord,
    Stamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NEWEST_FORMAT: Final = 3
"""1: acks. 2: pending nacks, too. 3: the descent, too.

A newer one is written only where it is needed. A snapshot that begins its descent needs no format 3, so
the state in the node of a cursor that was closed is read by builds before it."""

_FORMATS: Final = range(1, NEWEST_FORMAT + 1)
_SNAPSHOTS: Final = {n: AvroSchema("cursor_snapshot", format_version=n) for n in _FORMATS}
_DELTAS: Final = {n: AvroSchema("cursor_delta", format_version=n) for n in _FORMATS}
_CHUNK: Final = AvroSchema("cursor_chunk")

_NOT_PACKED: Final = Packing()


def encode_record(record: CursorRecord, packing: Packing) -> bytes:
    """The bytes of a snapshot or a delta. Its bitmaps are run-optimised in place."""
    if isinstance(record, DeltaRecord):
        kind, schemas, fields, nacks = (
            RecordKind.DELTA,
            _DELTAS,
            _delta_fields(record),
            record.nacks,
        )
    else:
        kind, schemas, fields = RecordKind.SNAPSHOT, _SNAPSHOTS, _snapshot_fields(record)
        nacks = record.nacks or None
    base = record.base_snapshot_version
    fields["pending_nacks"] = None if nacks is None else _nacks_fields(nacks)
    fields["base_snapshot_version"] = base
    needed = 3 if base is not None else 2 if nacks is not None else 1
    return seal(kind, schemas[needed].encode(fields), packing, format_version=needed)


def encode_chunk(chunk: ChunkRecord) -> bytes:
    """The bytes of a chunk. The record inside was compressed as a whole, so this is not."""
    fields = {
        "owner_epoch": chunk.stamp.owner_epoch,
        "version": chunk.stamp.version,
        "chunk_index": chunk.chunk_index,
        "chunk_count": chunk.chunk_count,
        "piece": chunk.piece,
    }
    return seal(RecordKind.CHUNK, _CHUNK.encode(fields), _NOT_PACKED)


def decode_record(envelope: bytes) -> AnyRecord:
    """Decode a record. Raises `CorruptRecordError`, `UnknownFormatError`."""
    kind, body = unseal(envelope, newest_format=NEWEST_FORMAT)
    format_version = format_of(envelope)
    try:
        match kind:
            case RecordKind.SNAPSHOT:
                return _snapshot(_SNAPSHOTS[format_version].decode(body))
            case RecordKind.DELTA:
                return _delta(_DELTAS[format_version].decode(body))
            case RecordKind.CHUNK:
                return _chunk(_CHUNK.decode(body))
            case _:
                raise CorruptRecordError(f"record kind {kind} does not belong into a cursor ledger")
    except (ValueError, IndexError) as error:  # PositionError, and pyroaring's complaints
        raise CorruptRecordError(f"the record's content is wrong: {error}") from error


# ---------------------------------------------------------------------- to Avro


def _snapshot_fields(record: SnapshotRecord) -> dict[str, Any]:
    snapshot = record.snapshot
    return {
        "owner_epoch": record.owner_epoch,
        "version": snapshot.version,
        "written_ms": record.written_ms,
        "mark_delete_ledger_id": snapshot.mark_delete.ledger_id,
        "mark_delete_entry_id": snapshot.mark_delete.entry_id,
        "acked": ledger_fields(snapshot.acked),
        "partly_acked": _partly_acked_fields(snapshot.unacked_indexes),
        "properties": snapshot.properties,
        "ranges_in_memory": record.ranges_in_memory,
        "ranges_persisted": snapshot.range_count,
        "entries_dropped": record.entries_dropped,
        "batch_indexes_in_memory": record.batch_indexes_in_memory,
    }


def _delta_fields(record: DeltaRecord) -> dict[str, Any]:
    growth = record.growth
    return {
        "owner_epoch": record.owner_epoch,
        "base_version": growth.base_version,
        "version": growth.version,
        "written_ms": record.written_ms,
        "mark_delete_ledger_id": growth.mark_delete.ledger_id,
        "mark_delete_entry_id": growth.mark_delete.entry_id,
        "acked": ledger_fields(growth.acked),
        "partly_acked": _partly_acked_fields(growth.unacked_indexes),
        "properties": growth.properties,
        "range_count": growth.range_count,
    }


def ledger_fields(entries: Mapping[int, BitMap]) -> list[dict[str, Any]]:
    """Entries by ledger as the schemas have them, the lowest ledger first."""
    return [
        {"message_ledger_id": ledger_id, "entry_ids": stored_form(entries[ledger_id])}
        for ledger_id in sorted(entries)
    ]


def _partly_acked_fields(unacked_indexes: Mapping[Position, int]) -> list[dict[str, Any]]:
    return [
        {
            "message_ledger_id": ledger_id,
            "entry_id": entry_id,
            "unacked_indexes": mask.to_bytes((mask.bit_length() + 7) >> 3, "little"),
        }
        for (ledger_id, entry_id), mask in sorted(unacked_indexes.items())
    ]


def _nacks_fields(nacks: PendingNacks) -> dict[str, Any]:
    return {
        "precision_bits": nacks.precision_bits,
        "buckets": [
            {"key_ms": key_ms, "ledgers": ledger_fields(ledgers)}
            for key_ms, ledgers in nacks.buckets.items()
        ],
    }


# -------------------------------------------------------------------- from Avro


def _snapshot(fields: Mapping[str, Any]) -> SnapshotRecord:
    return SnapshotRecord(
        owner_epoch=fields["owner_epoch"],
        written_ms=fields["written_ms"],
        snapshot=CursorSnapshot(
            version=fields["version"],
            mark_delete=_mark_delete(fields),
            acked=_acked(fields["acked"]),
            range_count=fields["ranges_persisted"],
            unacked_indexes=_partly_acked(fields["partly_acked"]),
            properties=fields["properties"],
        ),
        ranges_in_memory=fields["ranges_in_memory"],
        entries_dropped=fields["entries_dropped"],
        batch_indexes_in_memory=fields["batch_indexes_in_memory"],
        nacks=_nacks(fields) or NO_NACKS,
        base_snapshot_version=_base_snapshot_version(fields, fields["version"]),
    )


def _delta(fields: Mapping[str, Any]) -> DeltaRecord:
    return DeltaRecord(
        owner_epoch=fields["owner_epoch"],
        written_ms=fields["written_ms"],
        growth=CursorGrowth(
            base_version=fields["base_version"],
            version=fields["version"],
            mark_delete=_mark_delete(fields),
            acked=_acked(fields["acked"]),
            range_count=fields["range_count"],
            unacked_indexes=_partly_acked(fields["partly_acked"]),
            properties=fields["properties"],
        ),
        nacks=_nacks(fields),
        base_snapshot_version=_base_snapshot_version(fields, fields["base_version"]),
    )


def _chunk(fields: Mapping[str, Any]) -> ChunkRecord:
    index, count = fields["chunk_index"], fields["chunk_count"]
    if not 0 <= index < count:
        raise CorruptRecordError(f"chunk {index} of {count} cannot be")
    stamp = Stamp(fields["owner_epoch"], fields["version"])
    return ChunkRecord(stamp, index, count, fields["piece"])


def _base_snapshot_version(fields: Mapping[str, Any], version_max: int) -> int | None:
    base: int | None = fields.get("base_snapshot_version")
    if base is not None and base > version_max:
        raise CorruptRecordError(f"version {version_max} cannot descend from version {base}")
    return base


def _mark_delete(fields: Mapping[str, Any]) -> Position:
    position = Position(fields["mark_delete_ledger_id"], fields["mark_delete_entry_id"])
    # A cursor made before its topic had any ledger is before all positions.
    return position if position == EARLIEST else check_position(position)


def _acked(ledgers: Iterable[Mapping[str, Any]]) -> dict[int, BitMap]:
    acked = {}
    for fields in ledgers:
        ledger_id = fields["message_ledger_id"]
        check_position(Position(ledger_id, 0))
        bitmap = BitMap.deserialize(fields["entry_ids"])
        if not bitmap or ledger_id in acked:
            raise CorruptRecordError(f"message ledger {ledger_id} is empty or comes twice")
        acked[ledger_id] = bitmap
    return acked


def _nacks(fields: Mapping[str, Any]) -> PendingNacks | None:
    nacks = fields.get("pending_nacks")
    if nacks is None:
        return None
    buckets: dict[int, dict[int, BitMap]] = {}
    last_key_ms = -1
    for bucket in nacks["buckets"]:
        key_ms = bucket["key_ms"]
        if key_ms <= last_key_ms:
            raise CorruptRecordError(f"nacks due at {key_ms} ms come after {last_key_ms} ms")
        last_key_ms = key_ms
        buckets[key_ms] = _acked(bucket["ledgers"])
        if not buckets[key_ms]:
            raise CorruptRecordError(f"no nacks are due at {key_ms} ms")
    return PendingNacks(buckets, nacks["precision_bits"])


def _partly_acked(entries: Iterable[Mapping[str, Any]]) -> dict[Position, int]:
    unacked_indexes = {}
    for fields in entries:
        position = Position(fields["message_ledger_id"], fields["entry_id"])
        if position.entry_id < 0:
            raise PositionError(f"no batch can be at {position}")
        mask = int.from_bytes(fields["unacked_indexes"], "little")
        if mask == 0:
            raise CorruptRecordError(f"the batch at {check_position(position)} has nothing unacked")
        unacked_indexes[check_position(position)] = mask
    return unacked_indexes
