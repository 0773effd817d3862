"""Renders entries of message ledgers, cursor ledgers and snapshots, for people and for programs.

Pure.

An entry that cannot be decoded has an error in place of its content.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.commands.terminal.tables import printable, size_text, time_text
from ackgate.cursor import Position
from ackgate.errors import AckGateError
from ackgate.persistence.buckets.codec import NumberedSegment, SnapshotChunk, decode_entry
from ackgate.persistence.messages.entry import parse_metadata
from ackgate.persistence.messages.frame import metadata_span
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import ChunkRecord, DeltaRecord

if TYPE_CHECKING:
    from ackgate.persistence.buckets.codec import SnapshotMetadata
    from ackgate.persistence.ports import LedgerEntry
    from ackgate.persistence.records.values import CursorRecord

_HEX_COLUMNS: Final = 16

RECORD_HEAD: Final = ("entry", "kind", "epoch/version", "mark-delete", "ranges", "written", "bytes")

SNAPSHOT_HEAD: Final = ("entry", "kind", "number", "delayed", "first due", "last due", "bytes")


def message_json(ledger_id: int, entry: LedgerEntry, *, has_payload: bool) -> dict[str, Any]:
    """An entry of a message ledger as JSON: a message, or a batch of them."""
    described: dict[str, Any] = {
        "ledgerId": ledger_id,
        "entryId": entry.entry_id,
        "bytes": len(entry.payload),
    }
    try:
        metadata = parse_metadata(entry.payload, Position(ledger_id, entry.entry_id))
    except AckGateError as error:
        described["error"] = str(error)
        if has_payload:
            described["payload"] = base64.b64encode(entry.payload).decode()
        return described
    described["producer"] = metadata.producer_name
    described["sequenceId"] = metadata.sequence_id
    described["publishTime"] = metadata.publish_time
    optional = {
        "eventTime": metadata.event_time,
        "deliverAt": metadata.deliver_at_time,
        "key": metadata.partition_key,
        "orderingKey": base64.b64encode(metadata.ordering_key).decode(),
        "batch": metadata.num_messages_in_batch
        if metadata.HasField("num_messages_in_batch")
        else 0,
        "chunkId": metadata.chunk_id if metadata.HasField("chunk_id") else None,
        "chunks": metadata.num_chunks_from_msg,
        "compression": pb.CompressionType.Name(metadata.compression)
        if metadata.compression
        else "",
        "encryptionKeys": [key.key for key in metadata.encryption_keys],
        "properties": {pair.key: pair.value for pair in metadata.properties},
    }
    described |= {key: value for key, value in optional.items() if value or key == "chunkId"}
    if described.get("chunkId") is None:
        described.pop("chunkId", None)
    payload = _message_payload(entry.payload)
    described["payloadBytes"] = len(payload)
    if has_payload:
        described["payload"] = base64.b64encode(payload).decode()
    return described


def _message_payload(payload: bytes) -> bytes:
    return payload[metadata_span(payload)[1] :]


def message_line(described: dict[str, Any]) -> str:
    """What `message_json` returned, as one line of text."""
    parts = [
        f"{described['ledgerId']}:{described['entryId']}".ljust(10),
        size_text(described["bytes"]).rjust(9),
    ]
    if "error" in described:
        parts.append(described["error"])
    elif "publishTime" in described:
        parts.append(time_text(described["publishTime"]))
        parts.append(f"producer={described['producer']} sequence={described['sequenceId']}")
        parts += [
            f"{name}={described[key]}"
            for key, name in (
                ("key", "key"),
                ("batch", "batch"),
                ("chunks", "chunks"),
                ("compression", "compression"),
                ("deliverAt", "deliver-at"),
            )
            if key in described
        ]
        parts += [f"{key}={value!r}" for key, value in described.get("properties", {}).items()]
    if "payload" in described:
        parts.append(repr(base64.b64decode(described["payload"])))
    return printable("  ".join(parts))


def record_json(entry: LedgerEntry) -> dict[str, Any]:
    """A record of a cursor ledger as JSON. A damaged one has an error."""
    described: dict[str, Any] = {"entryId": entry.entry_id, "bytes": len(entry.payload)}
    try:
        record = decode_record(entry.payload)
    except AckGateError as error:
        return {**described, "kind": "damaged", "error": str(error)}
    if isinstance(record, ChunkRecord):
        return {
            **described,
            "kind": "chunk",
            "ownerEpoch": record.stamp.owner_epoch,
            "version": record.stamp.version,
            "chunk": record.chunk_index,
            "chunks": record.chunk_count,
        }
    return {**described, **_record_fields(record)}


def _record_fields(record: CursorRecord) -> dict[str, Any]:
    is_delta = isinstance(record, DeltaRecord)
    body = record.growth if isinstance(record, DeltaRecord) else record.snapshot
    fields: dict[str, Any] = {
        "kind": "delta" if is_delta else "snapshot",
        "ownerEpoch": record.owner_epoch,
        "version": record.stamp.version,
        "writtenMs": record.written_ms,
        "markDelete": str(body.mark_delete),
        "ranges": body.range_count,
        "entriesAcked": sum(map(len, body.acked.values())),
        "partlyAcked": len(body.unacked_indexes),
    }
    if isinstance(record, DeltaRecord):
        fields["baseVersion"] = record.growth.base_version
        fields["baseSnapshotVersion"] = record.base_snapshot_version
    else:
        fields["rangesInMemory"] = record.ranges_in_memory
        fields["entriesDropped"] = record.entries_dropped
    return fields


def record_row(described: dict[str, Any]) -> tuple[str, ...]:
    """What `record_json` returned, in the columns of `RECORD_HEAD`."""
    if "ownerEpoch" not in described:
        return (
            str(described["entryId"]),
            described["kind"],
            "",
            described["error"],
            "",
            "",
            str(described["bytes"]),
        )
    version = f"{described['ownerEpoch']}/{described['version']}"
    if described["kind"] == "chunk":
        part = f"{described['chunk'] + 1} of {described['chunks']}"
        return (str(described["entryId"]), "chunk", version, part, "", "", str(described["bytes"]))
    if "baseVersion" in described:
        version += f" on {described['baseVersion']}"
    ranges = str(described["ranges"])
    if described.get("rangesInMemory", described["ranges"]) != described["ranges"]:
        ranges += f" of {described['rangesInMemory']}"
    return (
        str(described["entryId"]),
        described["kind"],
        version,
        described["markDelete"],
        ranges,
        time_text(described["writtenMs"]),
        str(described["bytes"]),
    )


def hex_lines(ledger_id: int, entry: LedgerEntry) -> list[str]:
    """A hex dump of an entry."""
    lines = [f"{ledger_id}:{entry.entry_id}  {len(entry.payload)} bytes"]
    for at in range(0, len(entry.payload), _HEX_COLUMNS):
        piece = entry.payload[at : at + _HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"  {at:08x}  {piece.hex(' ').ljust(3 * _HEX_COLUMNS)} {text}")
    return lines


def snapshot_json(ledger_id: int, entry: LedgerEntry) -> dict[str, Any]:
    """An entry of a snapshot as JSON: its metadata, a segment, or a chunk of either."""
    described: dict[str, Any] = {"entryId": entry.entry_id, "bytes": len(entry.payload)}
    try:
        record = decode_entry(entry.payload, snapshot_id=ledger_id)
    except AckGateError as error:
        return {**described, "kind": "damaged", "error": str(error)}
    if isinstance(record, SnapshotChunk):
        return {
            **described,
            "kind": "chunk",
            "record": record.record_number,
            "chunk": record.chunk_index,
            "chunks": record.chunk_count,
        }
    if isinstance(record, NumberedSegment):
        keys = record.columns.keys_ms
        return {
            **described,
            "kind": "segment",
            "segment": record.number,
            "delayedEntries": int(keys.size),
            "firstDueMs": int(keys[0]),
            "lastDueMs": int(keys[-1]),
        }
    return {**described, "kind": "metadata", **_metadata_fields(record)}


def _metadata_fields(metadata: SnapshotMetadata) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "part": metadata.part_number,
        "parts": metadata.part_count,
        "first": str(metadata.first),
        "last": str(metadata.last),
        "segments": len(metadata.segments),
        "delayedEntries": sum(segment.entry_count for segment in metadata.segments),
    }
    if metadata.segments:
        fields["firstDueMs"] = metadata.segments[0].first_key_ms
        fields["lastDueMs"] = metadata.segments[-1].last_key_ms
    return fields


def snapshot_row(described: dict[str, Any]) -> tuple[str, ...]:
    """What `snapshot_json` returned, in the columns of `SNAPSHOT_HEAD`."""
    entry_id, size = str(described["entryId"]), str(described["bytes"])
    match described["kind"]:
        case "chunk":
            number = (
                f"{described['chunk'] + 1} of {described['chunks']} of record {described['record']}"
            )
            return (entry_id, "chunk", number, "", "", "", size)
        case "segment":
            number = str(described["segment"])
        case "metadata":
            number = f"{described['first']}..{described['last']}, {described['segments']} segments"
            if described["parts"] > 1:
                number += f" (part {described['part'] + 1} of {described['parts']})"
        case kind:
            return (entry_id, kind, described["error"], "", "", "", size)
    due = (
        (time_text(described["firstDueMs"]), time_text(described["lastDueMs"]))
        if "firstDueMs" in described
        else ("", "")
    )
    return (entry_id, described["kind"], number, f"{described['delayedEntries']:,}", *due, size)
