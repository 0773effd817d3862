"""What the metadata node of a topic holds: which message ledgers it has, in order.

Pure. Its bytes: `sealed_json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ackgate.persistence.nodes.sealed_json import decode_sealed, encode_sealed, optional_int

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC_PATH_KEY: Final = "ackgate/topic"
"""Custom metadata of a message ledger: the path of its topic's node."""


@dataclass(frozen=True, slots=True)
class MessageLedgerRecord:
    """One message ledger of a topic."""

    ledger_id: int
    entry_count: int | None
    """Entries of a closed ledger; None for the last, still open one."""
    size_bytes: int
    """Payload bytes of a closed ledger."""
    opened_ms: int
    closed_ms: int | None
    """When it was closed: retention counts from here."""


@dataclass(frozen=True, slots=True)
class TopicNode:
    """The durable description of one topic (or one partition of a topic)."""

    ledgers: tuple[MessageLedgerRecord, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    owner_epoch: int = 0
    """Grows each time a broker opens the topic; cursors stamp their records with it."""
    is_terminated: bool = False
    """A terminated topic takes no more messages; its readers are notified when they reach the end."""


def encode_topic_node(node: TopicNode) -> bytes:
    return encode_sealed(
        "topic",
        {
            "ledgers": [
                {
                    "ledgerId": ledger.ledger_id,
                    "entries": ledger.entry_count,
                    "size": ledger.size_bytes,
                    "openedMs": ledger.opened_ms,
                    "closedMs": ledger.closed_ms,
                }
                for ledger in node.ledgers
            ],
            "properties": dict(node.properties),
            "ownerEpoch": node.owner_epoch,
            "terminated": node.is_terminated,
        },
    )


def ledgers_of_topic(value: bytes, path: str) -> set[int]:
    """The ledgers that a topic's node names. Raises `CorruptRecordError`."""
    return {record.ledger_id for record in decode_topic_node(value, path=path).ledgers}


def decode_topic_node(value: bytes, *, path: str) -> TopicNode:
    """Read a node's value. Raises `CorruptRecordError` naming the path and what is wrong."""
    return decode_sealed(value, "topic", _read, of=f"topic node {path}")


def _read(topic: dict[str, Any]) -> TopicNode:
    return TopicNode(
        ledgers=tuple(
            MessageLedgerRecord(
                ledger_id=int(ledger["ledgerId"]),
                entry_count=optional_int(ledger["entries"]),
                size_bytes=int(ledger["size"]),
                opened_ms=int(ledger["openedMs"]),
                closed_ms=optional_int(ledger["closedMs"]),
            )
            for ledger in topic["ledgers"]
        ),
        properties={str(key): str(text) for key, text in topic["properties"].items()},
        owner_epoch=int(topic["ownerEpoch"]),
        is_terminated=bool(topic["terminated"]),
    )
