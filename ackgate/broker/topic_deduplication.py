"""The durable side of de-duplication: one cursor that remembers the producers' sequence ids.

Edge: owns the store of the cursor ``pulsar.dedup``. The map is saved every so many entries; what
came after the last save is learned again from the stored messages at load, so nothing depends on a
save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.deduplication import Deduplication
from ackgate.cursor.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.managed_ledger import ManagedLedger
    from ackgate.config.broker import BrokerSettings
    from ackgate.errors import OwnershipError
    from ackgate.persistence.cursor_store import CursorStore

REPLAY_ENTRIES: Final = 1_000
"""Entries read at a time while learning."""


class TopicDeduplication:
    """What a topic with de-duplication adds to its publishes. Make it with `load`."""

    def __init__(self, ledger: ManagedLedger, store: CursorStore, settings: BrokerSettings) -> None:
        self.producers = Deduplication(
            store.cursor.properties, settings.broker_deduplication_max_number_of_producers
        )
        self._ledger = ledger
        self._store = store
        self._save_interval_entries = settings.broker_deduplication_entries_interval
        self._unsaved_entries = 0

    async def load(self) -> None:
        """Learn from the messages behind the last save, and save."""
        cursor, facts = self._store.cursor, self._ledger.facts
        while cursor.read_position <= facts.last_confirmed:
            spans = cursor.unacked_spans(cursor.read_position, REPLAY_ENTRIES)
            if not spans:
                break
            for entry in await self._ledger.reads.read(spans):
                self.producers.replay(entry)
            cursor.seek(Position(spans[-1].ledger_id, spans[-1].stop))
        self.save()

    @property
    def persisted_mark_delete(self) -> Position:
        """Messages up to here are not needed for learning any more."""
        return self._store.persisted_mark_delete

    def confirmed(self, contexts: Sequence[Any]) -> None:
        """Messages became durable: (producer, sequence id, highest sequence id, ...) of each."""
        for producer, sequence_id, highest_sequence_id, *_ in contexts:
            self.producers.confirmed(producer.name, sequence_id, highest_sequence_id)
        self._unsaved_entries += len(contexts)
        if self._unsaved_entries >= self._save_interval_entries:
            self.save()

    def save(self) -> None:
        """Write the map soon, as it stands at the end of the topic."""
        cursor, last = self._store.cursor, self._ledger.facts.last_confirmed
        if last > cursor.mark_delete:
            cursor.ack_cumulative(last, properties=dict(self.producers.sequence_ids))
            self._store.notify()
        self._unsaved_entries = 0

    async def close(self) -> None:
        """Save and close."""
        self.save()
        await self._store.close()

    def abandon(self, error: OwnershipError) -> None:
        """Let go at once, and write no more."""
        self._store.abandon(error)

    async def delete(self) -> None:
        """Forget it all."""
        await self._store.delete()
