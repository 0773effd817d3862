"""Pulsar's internal statistics of a topic: its ledgers and cursors.

Pure; looks at live objects. As in Pulsar the ledger that is being written shows no entries in the
list (they are `currentLedgerEntries`), cursors stand under their URL-encoded names, and
`individuallyDeletedMessages` is text with open-closed ranges; here it is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

from ackgate.broker.stats.values import to_json
from ackgate.cursor import Position
from ackgate.described import iso_time

if TYPE_CHECKING:
    from ackgate.broker.journal import JournalStatistics
    from ackgate.broker.topic import SubscriptionDriver, Topic

RANGES_SHOWN_MAX: Final = 10_000
"""Ranges of one cursor in an answer (Pulsar prints all of them, megabytes if need be)."""

_NOT_COMPACTED: Final = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    "underReplicated": False,
}


def internal_stats(topic: Topic) -> dict[str, Any]:
    ledger = topic.ledger
    records = ledger.ledger_records
    journal = topic.journaling.statistics()
    current = records[-1] if records and records[-1].entry_count is None else None
    current_entries = ledger.ledgers.entry_count(current.ledger_id) if current is not None else 0
    return {
        "entriesAddedCounter": ledger.added_entries,
        "numberOfEntries": ledger.ledgers.total_entries,
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": current_entries or 0,
        "currentLedgerSize": current.size_bytes if current is not None else 0,
        "lastLedgerCreatedTimestamp": iso_time(records[-1].opened_ms / 1000 if records else 0),
        "waitingCursorsCount": sum(_is_waiting(s) for s in topic.subscriptions.values()),
        "pendingAddEntriesCount": ledger.pending_adds,
        "lastConfirmedEntry": str(ledger.ledgers.last_confirmed),
        "state": _state(topic, has_current=current is not None),
        "ledgers": [
            {
                "ledgerId": record.ledger_id,
                "entries": record.entry_count or 0,
                "size": record.size_bytes if record.entry_count is not None else 0,
                "offloaded": False,
                "underReplicated": False,
            }
            for record in records
        ],
        "cursors": {
            quote_plus(name): _cursor_stats(subscription)
            for name, subscription in topic.subscriptions.items()
        },
        "schemaLedgers": [],
        "compactedLedger": _NOT_COMPACTED,
        **({} if journal is None else {"deliveryJournal": _journal_stats(journal)}),
    }


def _journal_stats(journal: JournalStatistics) -> dict[str, Any]:
    fields: dict[str, Any] = to_json(journal)
    fields["stopped"] = fields.pop("isStopped")
    return fields


def _state(topic: Topic, *, has_current: bool) -> str:
    if topic.ledger.is_terminated:
        return "Terminated"
    if topic.is_closing:
        return "Closed"
    return "LedgerOpened" if has_current else "ClosedLedger"


def _cursor_stats(subscription: SubscriptionDriver) -> dict[str, Any]:
    cursor, store = subscription.cursor, subscription.store
    ledger_id = store.statistics().cursor_ledger_id if store is not None else None
    last_entry = store.statistics().cursor_ledger_last_entry if store is not None else -1
    is_waiting = _is_waiting(subscription)
    dispatch = subscription.core.statistics().dispatcher
    replays = dispatch.replay_entries if dispatch is not None else 0
    return {
        "markDeletePosition": str(cursor.mark_delete),
        "readPosition": str(cursor.read_position),
        "waitingReadOp": is_waiting,
        "pendingReadOps": int(subscription.core.is_reading),
        "messagesConsumedCounter": subscription.core.counts.messages_acked,
        "cursorLedger": ledger_id if ledger_id is not None else -1,
        "cursorLedgerLastEntry": last_entry,
        "individuallyDeletedMessages": cursor.ranges_text(RANGES_SHOWN_MAX),
        "state": "Open" if ledger_id is not None or store is None else "NoLedger",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": _entries_since_first_unacked(subscription),
        "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        "subscriptionHavePendingRead": is_waiting or subscription.core.is_reading,
        "subscriptionHavePendingReplayRead": subscription.core.is_reading and replays > 0,
        "properties": dict(cursor.properties),
    }


def _is_waiting(subscription: SubscriptionDriver) -> bool:
    """Whether it has consumers and nothing to read. In Pulsar its cursor waits for entries then."""
    last = subscription.topic.ledger.ledgers.last_confirmed
    return bool(subscription.consumers) and subscription.cursor.read_position > last


def _entries_since_first_unacked(subscription: SubscriptionDriver) -> int:
    """Entries after the mark-delete up to and including the read position, as Pulsar counts."""
    cursor, ledgers = subscription.cursor, subscription.topic.ledger.ledgers
    ledger_id, entry_id = cursor.read_position
    return 1 + ledgers.count_between(cursor.mark_delete, Position(ledger_id, entry_id - 1))
