"""What the metadata node of a topic's delivery journal holds: which ledgers it has, in order.

Pure. Its bytes: `nodes.sealed_json`, as those of the topic's own node. It lies in a tree of its own
(`paths.delivery_journal_path`), so that the topic's node stays as small as it is, and a build that knows
nothing of journals finds nothing new in its trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ackgate.persistence.nodes.sealed_json import decode_sealed, encode_sealed, optional_int

JOURNAL_PATH_KEY: Final = "ackgate/delivery-journal"
"""Custom metadata: the node of the journal that a ledger belongs to."""

JOURNAL_TOPIC_KEY: Final = "ackgate/delivery-journal-topic"
"""Custom metadata: the node of that journal's topic."""


@dataclass(frozen=True, slots=True)
class JournalLedgerRecord:
    """One ledger of a delivery journal."""

    ledger_id: int
    opened_ms: int
    closed_ms: int | None = None
    """None: it is being written, or its writer died and it is not closed yet."""
    size_bytes: int = 0
    """Size of a closed ledger."""
    event_count: int | None = None
    """Events of a closed ledger; None when its writer died before reporting them."""


@dataclass(frozen=True, slots=True)
class DeliveryJournalNode:
    """The ledgers of one topic's delivery journal, oldest first."""

    ledgers: tuple[JournalLedgerRecord, ...] = ()
    owner_epoch: int = 0
    """Epoch of the topic's owner that wrote the node last. No owner of a lower epoch writes it
    again."""


def encode_journal_node(node: DeliveryJournalNode) -> bytes:
    return encode_sealed(
        "journal",
        {
            "ledgers": [
                {
                    "ledgerId": ledger.ledger_id,
                    "openedMs": ledger.opened_ms,
                    "closedMs": ledger.closed_ms,
                    "size": ledger.size_bytes,
                    "events": ledger.event_count,
                }
                for ledger in node.ledgers
            ],
            "ownerEpoch": node.owner_epoch,
        },
    )


def ledgers_of_journal(value: bytes, path: str) -> set[int]:
    """The ledgers that a journal's node names. Raises `CorruptRecordError`."""
    return {record.ledger_id for record in decode_journal_node(value, path=path).ledgers}


def decode_journal_node(value: bytes, *, path: str) -> DeliveryJournalNode:
    """Read a node's value. Raises `CorruptRecordError` naming the path and what is wrong."""
    return decode_sealed(value, "journal", _read, of=f"delivery journal {path}")


def _read(journal: dict[str, Any]) -> DeliveryJournalNode:
    return DeliveryJournalNode(
        ledgers=tuple(
            JournalLedgerRecord(
                ledger_id=int(ledger["ledgerId"]),
                opened_ms=int(ledger["openedMs"]),
                closed_ms=optional_int(ledger["closedMs"]),
                size_bytes=int(ledger["size"]),
                event_count=optional_int(ledger["events"]),
            )
            for ledger in journal["ledgers"]
        ),
        owner_epoch=int(journal["ownerEpoch"]),
    )
