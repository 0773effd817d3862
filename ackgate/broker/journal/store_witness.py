"""What a cursor store's attempts to write are for the delivery journal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackgate.broker.journal.topic_journal import TopicJournal
    from ackgate.persistence.outcome import PersistOutcome, PersistWhere


class StoreWitness:
    """Tells the journal of one subscription's writes; see `WriteWitness`."""

    __slots__ = ("_journal", "_subscription")

    def __init__(self, journal: TopicJournal, subscription: str) -> None:
        self._journal = journal
        self._subscription = subscription

    def wrote(self, outcome: PersistOutcome) -> None:
        """A state is durable."""
        self._journal.note_persisted(self._subscription, outcome)

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        """A state could not be written there."""
        self._journal.note_persist_failed(
            self._subscription, where, version, error, failing_since_ms
        )
