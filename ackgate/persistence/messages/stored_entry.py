"""What the rooms of messages must know of an entry. Pure (types only).

The owner of the messages says what its entries are: the broker parses Pulsar's metadata, an embedded topic
its own. Here an entry is a position and some bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.cursor import Position
    from ackgate.persistence.ports import LedgerEntry


class EntryOfTopic(Protocol):
    """An entry of a message ledger."""

    deliver_at_ms: int
    """When it is to be delivered, ms since 1970; 0: at once."""

    @property
    def position(self) -> Position: ...

    @property
    def payload(self) -> bytes:
        """The bytes in the ledger."""

    @property
    def published_ms(self) -> int:
        """When its producer says that it was published. Raises `CorruptRecordError`."""


EntryT = TypeVar("EntryT", bound=EntryOfTopic)


class EntryForm(NamedTuple, Generic[EntryT]):
    """How entries are made."""

    added: Callable[[Position, bytes, int], EntryT]
    """Of one that was just added, with the number of messages in it; its time is set afterwards."""

    stored: Callable[[int, LedgerEntry], EntryT]
    """Of one that was read from this ledger. Raises `CorruptRecordError`."""
