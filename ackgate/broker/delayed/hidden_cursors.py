"""The cursors that a topic keeps for itself. They are no subscriptions, and users never see them.

Edge: a hidden cursor lives as long as its topic. Their names: `persistence.nodes.paths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ackgate.errors import OwnershipError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.broker.cluster import BrokerServices
    from ackgate.broker.wire import Entry, TopicName
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import Position
    from ackgate.errors import AckGateError
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.messages.managed_ledger import ManagedLedger


class HiddenCursorTopic(Protocol):
    """What a hidden cursor needs of its topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def path(self) -> str: ...

    @property
    def services(self) -> BrokerServices: ...

    @property
    def ledger(self) -> ManagedLedger[Entry]: ...

    @property
    def is_closing(self) -> bool:
        """Whether the topic is being closed."""

    def on_fenced(self, error: AckGateError) -> None:
        """Another broker owns the topic now: close it here."""


class HiddenCursor:
    """A hidden cursor that may not exist. Without one, every call does nothing."""

    def __init__(
        self,
        topic: HiddenCursorTopic,
        open_store: Callable[[Position | None], Awaitable[CursorStore]],
    ) -> None:
        """`open_store`: opens the cursor, or creates it with this mark-delete."""
        self.store: CursorStore | None = None
        self._topic = topic
        self._open_store = open_store

    async def open(self, *, create: bool) -> CursorStore:
        """Open the cursor, or create it at the topic's first position.

        Raises as `CursorStore.open`.

        Raises `OwnershipError` if the topic was closed meanwhile; the cursor is not open then.
        """
        create_at = self._topic.ledger.ledgers.first_position if create else None
        store = await self._open_store(create_at)
        if self._topic.is_closing:
            error = OwnershipError(f"topic {self._topic.name} was closed meanwhile")
            store.abandon(error)
            raise error
        self.store = store
        store.on_outcome(self._on_outcome)
        return store

    def _on_outcome(self) -> None:
        why = None if self.store is None else self.store.why_stopped
        if isinstance(why, OwnershipError) and not self._topic.is_closing:
            self._topic.on_fenced(why)

    def configure(self, settings: PersistenceSettings) -> None:
        if self.store is not None:
            self.store.configure(settings)

    def ledger_trimmed(self, ledger_id: int) -> None:
        """Forget what was acked in a message ledger that was deleted."""
        if self.store is not None:
            self.store.cursor.ledger_trimmed(ledger_id)
            self.store.notify()

    async def close(self) -> None:
        """Persist what is dirty, and close the cursor."""
        if self.store is not None:
            await self.store.close()

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more."""
        if self.store is not None:
            self.store.abandon(error)

    async def delete(self) -> None:
        """Delete the cursor and what it stored."""
        if self.store is not None:
            await self.store.delete()
