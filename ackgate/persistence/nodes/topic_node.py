"""What the metadata node of a topic holds: which message ledgers it has, in order.

Pure. The node is JSON, so that an operator can read it with any tool; it carries a format version
and a CRC32C of its canonical text, so that a damaged one is noticed and named instead of believed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

from ackgate.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION: Final = 1

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
    body = _canonical(
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
        }
    )
    crc = google_crc32c.value(body.encode())
    return f'{{"format":{FORMAT_VERSION},"crc32c":{crc},"topic":{body}}}'.encode()


def ledgers_of_topic(value: bytes, path: str) -> set[int]:
    """The ledgers that a topic's node names. Raises `CorruptRecordError`."""
    return {record.ledger_id for record in decode_topic_node(value, path=path).ledgers}


def decode_topic_node(value: bytes, *, path: str) -> TopicNode:
    """Read a node's value. Raises `CorruptRecordError` naming the path and what is wrong."""
    try:
        outer = json.loads(value)
        if outer["format"] != FORMAT_VERSION:
            raise CorruptRecordError(  # noqa: TRY301 - one place names the path
                f"topic node {path}: format {outer['format']!r}, this build reads {FORMAT_VERSION}"
            )
        topic: dict[str, Any] = outer["topic"]
        if google_crc32c.value(_canonical(topic).encode()) != outer["crc32c"]:
            raise CorruptRecordError(  # noqa: TRY301 - as above
                f"topic node {path}: checksum does not match"
            )
        return TopicNode(
            ledgers=tuple(
                MessageLedgerRecord(
                    ledger_id=int(ledger["ledgerId"]),
                    entry_count=None if ledger["entries"] is None else int(ledger["entries"]),
                    size_bytes=int(ledger["size"]),
                    opened_ms=int(ledger["openedMs"]),
                    closed_ms=None if ledger["closedMs"] is None else int(ledger["closedMs"]),
                )
                for ledger in topic["ledgers"]
            ),
            properties={str(key): str(text) for key, text in topic["properties"].items()},
            owner_epoch=int(topic["ownerEpoch"]),
            is_terminated=bool(topic["terminated"]),
        )
    except CorruptRecordError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"topic node {path}: cannot be read: {error!r}") from error


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
