"""What a subscription must know of an entry, and of a consumer. Pure values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ackgate.cursor import Position
    from ackgate.dispatcher import MessageChunk


class EntryFacts(Protocol):
    """An entry that was read, as far as dispatch needs it. Any object of the host will do."""

    @property
    def position(self) -> Position:
        """Ledger id and entry id."""

    @property
    def message_count(self) -> int:
        """Messages in it: 1, or the size of the batch."""

    @property
    def deliver_at_ms(self) -> int:
        """Earliest delivery time, in ms since 1970; 0: at once."""

    @property
    def key(self) -> bytes:
        """The key that Key_Shared hashes. Other kinds do not read it."""

    @property
    def chunk(self) -> MessageChunk | None:
        """Which chunk of a message it is, if it is one. Only Shared reads it."""


class EntryRead(NamedTuple):
    """The plainest `EntryFacts`, for hosts without an entry class of their own."""

    position: Position
    message_count: int = 1
    deliver_at_ms: int = 0
    key: bytes = b""
    chunk: MessageChunk | None = None


ConsumerT = TypeVar("ConsumerT", bound="Hashable")
EntryT = TypeVar("EntryT", bound=EntryFacts)
