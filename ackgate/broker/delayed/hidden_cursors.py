"""The cursors that a topic keeps for itself: no subscriptions, and users see none of them.

Edge: a hidden cursor's life is its topic's. Their names are persistence's (`hidden_cursors` there).
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
        """Whether it is on its way out."""

    def on_fenced(self, error: AckGateError) -> None:
        """Another broker owns the topic now: let go of it."""


class HiddenCursor:
    """A hidden cursor that there may be or not; without one all that may be done to it is nothing."""

    def __init__(
        self,
        topic: HiddenCursorTopic,
        open_store: Callable[[Position | None], Awaitable[CursorStore]],
    ) -> None:
        """`open_store`: opens the cursor, or makes it at a position."""
        self.store: CursorStore | None = None
        self._topic = topic
        self._open_store = open_store

    async def open(self, *, create: bool) -> CursorStore:
        """Open it, or make it where the topic begins. Raises as `CursorStore.open`.

        Raises `OwnershipError` if the topic was closed meanwhile, without it.
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
        """A message ledger is gone, and what was acked in it."""
        if self.store is not None:
            self.store.cursor.ledger_trimmed(ledger_id)
            self.store.notify()

    async def close(self) -> None:
        """Persist what is dirty and let go."""
        if self.store is not None:
            await self.store.close()

    def abandon(self, error: OwnershipError) -> None:
        """Let go at once, and write no more."""
        if self.store is not None:
            self.store.abandon(error)

    async def delete(self) -> None:
        """Delete it, with what is stored."""
        if self.store is not None:
            await self.store.delete()
