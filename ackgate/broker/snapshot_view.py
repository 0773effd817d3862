"""Entries of snapshots of delayed entries, taken apart for people and for programs. Pure.

What cannot be taken apart says why, in place of its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.tables import time_text
from ackgate.errors import AckGateError
from ackgate.persistence.bucket_codec import decode_entry
from ackgate.persistence.bucket_records import NumberedSegment, SnapshotChunk

if TYPE_CHECKING:
    from ackgate.persistence.bucket_records import SnapshotMetadata
    from ackgate.persistence.ports import LedgerEntry

SNAPSHOT_HEAD: Final = ("entry", "kind", "number", "delayed", "first due", "last due", "bytes")


def snapshot_json(ledger_id: int, entry: LedgerEntry) -> dict[str, Any]:
    """The metadata, a segment, or a chunk of either."""
    told: dict[str, Any] = {"entryId": entry.entry_id, "bytes": len(entry.payload)}
    try:
        record = decode_entry(entry.payload, snapshot_id=ledger_id)
    except AckGateError as error:
        return {**told, "kind": "damaged", "error": str(error)}
    if isinstance(record, SnapshotChunk):
        return {
            **told,
            "kind": "chunk",
            "record": record.record_number,
            "chunk": record.chunk_index,
            "chunks": record.chunk_count,
        }
    if isinstance(record, NumberedSegment):
        keys = record.columns.keys_ms
        return {
            **told,
            "kind": "segment",
            "segment": record.number,
            "delayedEntries": int(keys.size),
            "firstDueMs": int(keys[0]),
            "lastDueMs": int(keys[-1]),
        }
    return {**told, "kind": "metadata", **_metadata_fields(record)}


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


def snapshot_row(told: dict[str, Any]) -> tuple[str, ...]:
    """The same in columns: those of `SNAPSHOT_HEAD`."""
    entry_id, size = str(told["entryId"]), str(told["bytes"])
    match told["kind"]:
        case "chunk":
            number = f"{told['chunk'] + 1} of {told['chunks']} of record {told['record']}"
            return (entry_id, "chunk", number, "", "", "", size)
        case "segment":
            number = str(told["segment"])
        case "metadata":
            number = f"{told['first']}..{told['last']}, {told['segments']} segments"
            if told["parts"] > 1:
                number += f" (part {told['part'] + 1} of {told['parts']})"
        case kind:
            return (entry_id, kind, told["error"], "", "", "", size)
    due = (
        (time_text(told["firstDueMs"]), time_text(told["lastDueMs"]))
        if "firstDueMs" in told
        else ("", "")
    )
    return (entry_id, told["kind"], number, f"{told['delayedEntries']:,}", *due, size)
