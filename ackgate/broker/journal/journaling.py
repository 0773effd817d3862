"""The delivery journal of one topic as the topic holds it: off, or on from its opening to its end.

Edge: makes the writer and what it writes to. The topic's node says which owner's epoch it is; the
journal's own node lies in a tree of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.broker.journal.recorded_settings import configured, opened, policies_of, settings_of
from ackgate.broker.journal.writer import JournalWriter, limits_of
from ackgate.persistence.delivery_journal import DeliveryJournal
from ackgate.persistence.paths import delivery_journal_path

if TYPE_CHECKING:
    from ackgate.broker.journal.topic_journal import TopicJournal
    from ackgate.broker.journal.writer import JournalStatistics
    from ackgate.broker.topic import Topic
    from ackgate.persistence.delivery_details import TopicPolicies


class TopicJournaling:
    """Whether a topic has a journal, and its life."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._writer: JournalWriter | None = None
        self._settings: dict[str, str] = {}
        self._policies: TopicPolicies | None = None

    @property
    def _path(self) -> str:
        name = self._topic.name
        return delivery_journal_path(name.tenant, name.namespace, name.local_name)

    def begin(self) -> TopicJournal | None:
        """The topic's ledgers are open: what the journal is told by from now on; None: it is off."""
        topic = self._topic
        parts = topic.parts
        if not parts.settings.journal.delivery_journal_enabled:
            return None
        self._writer = JournalWriter(
            str(topic.name),
            topic.ledger.owner_epoch,
            parts.settings.journal,
            parts.journal_pace,
            open_journal=self._open,
            clock_us=parts.clock_us,
        )
        self._settings, self._policies = settings_of(topic), policies_of(topic)
        self._writer.notes.note_opened(opened(topic, self._settings))
        return self._writer.notes

    async def _open(self) -> DeliveryJournal:
        topic = self._topic
        parts = topic.parts
        return await DeliveryJournal.open(
            parts.ledger_client,
            parts.metadata,
            self._path,
            topic_path=topic.path,
            owner_epoch=topic.ledger.owner_epoch,
            settings=parts.settings.persistence,
            limits=limits_of(parts.settings.journal),
            clock_ms=parts.clock_ms,
        )

    def configure(self) -> None:
        """Settings or policies have changed: of anybody's, so perhaps not for this topic."""
        writer = self._writer
        if writer is None:
            return
        writer.configure(self._topic.parts.settings.journal)
        before = self._settings, self._policies
        self._settings, self._policies = settings_of(self._topic), policies_of(self._topic)
        if before != (self._settings, self._policies):
            writer.notes.note_configured(configured(self._topic, before[0], self._settings))

    def statistics(self) -> JournalStatistics | None:
        """Everything there is to say in numbers; None: it is off."""
        return None if self._writer is None else self._writer.statistics()

    async def trim(self) -> None:
        """Delete what is too old or too much. Raises `StorageError`."""
        if self._writer is not None:
            await self._writer.trim()

    async def close(self) -> None:
        """Write what waits, within bounds, and let go."""
        if self._writer is not None:
            await self._writer.close()

    def abandon(self) -> None:
        """Let go at once, and write no more: somebody else may own the topic."""
        if self._writer is not None:
            self._writer.abandon()

    async def remove(self) -> None:
        """The topic is deleted: its journal goes, also one of a time before. Raises `StorageError`."""
        if self._writer is not None:
            await self._writer.remove()
        elif await self._topic.parts.metadata.get(self._path) is not None:
            await (await self._open()).remove()
