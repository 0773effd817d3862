"""What the rooms of messages must know of an entry, stored or on its way into a ledger. Pure.

The owner of the messages says what its entries are: the broker parses Pulsar's metadata, an embedded topic
its own. Here an entry is a position and some bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    """How stored bytes become the entries of a host."""

    added: Callable[[Position, bytes, int], EntryT]
    """Makes an entry that was just added, of its position, bytes and number of messages. Its time
    is set afterwards."""

    stored: Callable[[int, LedgerEntry], EntryT]
    """Makes an entry that was read from the ledger of this id. Raises `CorruptRecordError`."""


@dataclass(slots=True)
class AddBatch:
    """Payloads, the messages in each, and the context that each confirmation returns.

    ``deliver_at_ms`` has the places of delayed ones, with their times.
    """

    payloads: list[bytes] = field(default_factory=list)
    message_counts: list[int] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)
    deliver_at_ms: dict[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    """Bytes of all payloads."""

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, part: slice) -> AddBatch:
        places = range(len(self.payloads))[part]
        return AddBatch(
            self.payloads[part],
            self.message_counts[part],
            self.contexts[part],
            {places.index(at): ms for at, ms in self.deliver_at_ms.items() if at in places},
            sum(map(len, self.payloads[part])),
        )

    @classmethod
    def joined(cls, batches: Iterable[AddBatch]) -> AddBatch:
        """Join batches into one, in order."""
        whole = cls()
        for batch in batches:
            before = len(whole)
            whole.deliver_at_ms |= {before + at: ms for at, ms in batch.deliver_at_ms.items()}
            whole.payloads += batch.payloads
            whole.message_counts += batch.message_counts
            whole.contexts += batch.contexts
            whole.size_bytes += batch.size_bytes
        return whole
