"""Entries of message and cursor ledgers, taken apart for people and for programs. Pure.

What cannot be taken apart says why, in place of its content.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.proto import pulsar_pb2 as pb
from ackgate.broker.tables import printable, size_text, time_text
from ackgate.cursor.position import Position
from ackgate.errors import AckGateError
from ackgate.persistence.codec import decode_record
from ackgate.persistence.message_entry import metadata_span, parse_metadata
from ackgate.persistence.records import ChunkRecord, DeltaRecord

if TYPE_CHECKING:
    from ackgate.persistence.ports import LedgerEntry
    from ackgate.persistence.records import CursorRecord

_HEX_COLUMNS: Final = 16


def message_json(ledger_id: int, entry: LedgerEntry, *, has_payload: bool) -> dict[str, Any]:
    """A message, or a batch of them."""
    told: dict[str, Any] = {
        "ledgerId": ledger_id,
        "entryId": entry.entry_id,
        "bytes": len(entry.payload),
    }
    try:
        metadata = parse_metadata(entry.payload, Position(ledger_id, entry.entry_id))
    except AckGateError as error:
        told["error"] = str(error)
        if has_payload:
            told["payload"] = base64.b64encode(entry.payload).decode()
        return told
    told["producer"] = metadata.producer_name
    told["sequenceId"] = metadata.sequence_id
    told["publishTime"] = metadata.publish_time
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
    told |= {key: value for key, value in optional.items() if value or key == "chunkId"}
    if told.get("chunkId") is None:
        told.pop("chunkId", None)
    payload = _message_payload(entry.payload)
    told["payloadBytes"] = len(payload)
    if has_payload:
        told["payload"] = base64.b64encode(payload).decode()
    return told


def _message_payload(payload: bytes) -> bytes:
    return payload[metadata_span(payload)[1] :]


def message_line(told: dict[str, Any]) -> str:
    """The same in a line."""
    parts = [f"{told['ledgerId']}:{told['entryId']}".ljust(10), size_text(told["bytes"]).rjust(9)]
    if "error" in told:
        parts.append(told["error"])
    else:
        parts.append(time_text(told["publishTime"]))
        parts.append(f"producer={told['producer']} sequence={told['sequenceId']}")
        parts += [
            f"{name}={told[key]}"
            for key, name in (
                ("key", "key"),
                ("batch", "batch"),
                ("chunks", "chunks"),
                ("compression", "compression"),
                ("deliverAt", "deliver-at"),
            )
            if key in told
        ]
        parts += [f"{key}={value!r}" for key, value in told.get("properties", {}).items()]
    if "payload" in told:
        parts.append(repr(base64.b64decode(told["payload"])))
    return printable("  ".join(parts))


def record_json(entry: LedgerEntry) -> dict[str, Any]:
    """A cursor's record."""
    told: dict[str, Any] = {"entryId": entry.entry_id, "bytes": len(entry.payload)}
    try:
        record = decode_record(entry.payload)
    except AckGateError as error:
        return {**told, "kind": "damaged", "error": str(error)}
    if isinstance(record, ChunkRecord):
        return {
            **told,
            "kind": "chunk",
            "ownerEpoch": record.stamp.owner_epoch,
            "version": record.stamp.version,
            "chunk": record.chunk_index,
            "chunks": record.chunk_count,
        }
    return {**told, **_record_fields(record)}


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
    else:
        fields["rangesInMemory"] = record.ranges_in_memory
        fields["entriesDropped"] = record.entries_dropped
    return fields


def record_row(told: dict[str, Any]) -> tuple[str, ...]:
    """The same in columns: those of `RECORD_HEAD`."""
    if "ownerEpoch" not in told:
        return (str(told["entryId"]), told["kind"], "", told["error"], "", "", str(told["bytes"]))
    version = f"{told['ownerEpoch']}/{told['version']}"
    if told["kind"] == "chunk":
        part = f"{told['chunk'] + 1} of {told['chunks']}"
        return (str(told["entryId"]), "chunk", version, part, "", "", str(told["bytes"]))
    if "baseVersion" in told:
        version += f" on {told['baseVersion']}"
    ranges = str(told["ranges"])
    if told.get("rangesInMemory", told["ranges"]) != told["ranges"]:
        ranges += f" of {told['rangesInMemory']}"
    return (
        str(told["entryId"]),
        told["kind"],
        version,
        told["markDelete"],
        ranges,
        time_text(told["writtenMs"]),
        str(told["bytes"]),
    )


RECORD_HEAD: Final = ("entry", "kind", "epoch/version", "mark-delete", "ranges", "written", "bytes")


def hex_lines(ledger_id: int, entry: LedgerEntry) -> list[str]:
    """The bytes of an entry, to look at."""
    lines = [f"{ledger_id}:{entry.entry_id}  {len(entry.payload)} bytes"]
    for at in range(0, len(entry.payload), _HEX_COLUMNS):
        piece = entry.payload[at : at + _HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"  {at:08x}  {piece.hex(' ').ljust(3 * _HEX_COLUMNS)} {text}")
    return lines
