"""Entries of snapshots of delayed entries, taken apart for people and for programs. Pure.

What cannot be taken apart says why, in place of its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.commands.terminal.tables import time_text
from ackgate.errors import AckGateError
from ackgate.persistence.buckets.codec import NumberedSegment, SnapshotChunk, decode_entry

if TYPE_CHECKING:
    from ackgate.persistence.buckets.codec import SnapshotMetadata
    from ackgate.persistence.ports import LedgerEntry

SNAPSHOT_HEAD: Final = ("entry", "kind", "number", "delayed", "first due", "last due", "bytes")


def snapshot_json(ledger_id: int, entry: LedgerEntry) -> dict[str, Any]:
    """The metadata, a segment, or a chunk of either."""
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
    """The same in columns: those of `SNAPSHOT_HEAD`."""
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
