"""The durable side of de-duplication: one cursor that remembers the producers' sequence ids.

Edge: owns the store of the cursor ``pulsar.dedup``. The map is saved every so many entries; what
came after the last save is learned again from the stored messages at load, so nothing depends on a
save. Of chunks of a message that is not complete, and of batches between whose ids others are missing,
the map says nothing: the cursor stays in front of them, for as many entries as lie between two saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.topic.deduplication import Deduplication
from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.wire import Entry
    from ackgate.config.broker import BrokerSettings
    from ackgate.errors import OwnershipError
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.messages.managed_ledger import ManagedLedger

REPLAY_ENTRIES: Final = 1_000
"""Entries per read while the map is rebuilt."""


class TopicDeduplication:
    """De-duplication of one topic: checks publishes, and saves the ids. Make it with `load`."""

    def __init__(
        self, ledger: ManagedLedger[Entry], store: CursorStore, settings: BrokerSettings
    ) -> None:
        self.producers = Deduplication(
            store.cursor.properties, settings.broker_deduplication_max_number_of_producers
        )
        self._ledger = ledger
        self._store = store
        self._save_interval_entries = settings.broker_deduplication_entries_interval
        self._unsaved_entries = 0

    async def load(self) -> None:
        """Rebuild the map from the messages after the last save, and save it."""
        cursor, ledgers = self._store.cursor, self._ledger.ledgers
        while cursor.read_position <= ledgers.last_confirmed:
            spans = cursor.unacked_spans(cursor.read_position, REPLAY_ENTRIES)
            if not spans:
                break
            for entry in await self._ledger.reads.read(spans):
                self.producers.replay(entry)
            cursor.seek(Position(spans[-1].ledger_id, spans[-1].stop))
        self.save()

    @property
    def persisted_mark_delete(self) -> Position:
        """Messages up to here are not needed any more to rebuild the map."""
        return self._store.persisted_mark_delete

    def confirmed(self, entries: Sequence[Entry], contexts: Sequence[Any]) -> None:
        """Record entries that became durable. Each context has `producer` and `sequence_ids`."""
        for entry, context in zip(entries, contexts, strict=True):
            if context.sequence_ids is not None:
                self.producers.confirmed(
                    context.producer.name, context.sequence_ids, entry.position
                )
        self._unsaved_entries += len(contexts)
        if self._unsaved_entries >= self._save_interval_entries:
            self.save()

    def save(self) -> None:
        """Write the map soon, as of the end of the topic.

        Once the cursor is closed nothing is saved: the next owner rebuilds it from the messages.
        """
        cursor = self._store.cursor
        through = self._known_through()
        if through > cursor.mark_delete and not cursor.is_sealed:
            cursor.ack_cumulative(through, properties=self.producers.saved())
            self._store.notify()
        self._unsaved_entries = 0

    def _known_through(self) -> Position:
        """The last position up to which the map alone is sufficient."""
        ledgers = self._ledger.ledgers
        last = ledgers.last_confirmed
        needed = [
            position
            for position in self.producers.needed_positions()
            if ledgers.count_between(position, last) < self._save_interval_entries
        ]
        return ledgers.previous(min(needed)) if needed else last

    async def close(self) -> None:
        self.save()
        await self._store.close()

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more."""
        self._store.abandon(error)

    async def delete(self) -> None:
        """Delete the cursor and the stored map."""
        await self._store.delete()
