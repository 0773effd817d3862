"""The targets of a rebuild: cursors whose trackers keep buckets, and their readers.

Pure, and picklable for the tasks. ::

    an index for each subscription      target  orders/billing      readers  billing
                                        target  orders/audit        readers  audit
    an index that all of them share     target  orders/pulsar.delayed-index
                                                                    readers  billing, audit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.dispatcher.delayed import DelayKeys
from ackgate.persistence.nodes.paths import DELAYED_INDEX_CURSOR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor import Position


@dataclass(frozen=True, slots=True)
class Target:
    """A cursor whose tracker keeps buckets, and the subscriptions that read it."""

    number: int
    topic: str
    cursor: str
    """Name of the subscription, or of the topic's hidden cursor for a shared index."""
    path: str
    """Path of the cursor's node."""
    readers: Mapping[str, Position]
    """Subscriptions that read through this index -> their mark-deletes."""
    cancelled_through: Position | None
    """Mark-delete of the cursor of cancelled messages; None: the topic has no such cursor."""
    tick_ms: int
    is_strict: bool

    @property
    def subscription(self) -> str | None:
        """Name of the subscription; None: the index is shared."""
        return None if self.cursor == DELAYED_INDEX_CURSOR else self.cursor

    @property
    def keys(self) -> DelayKeys:
        """Rounding of delivery times to keys in its tracker."""
        return DelayKeys(self.tick_ms, is_strict=self.is_strict)

    @property
    def read_from(self) -> Position | None:
        """Lowest mark-delete of its readers; None: it has no reader."""
        return min(self.readers.values(), default=None)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a rebuild, and which of them each message ledger belongs to."""

    all: tuple[Target, ...]
    by_ledger: Mapping[int, tuple[int, ...]]
    """Message ledger id -> numbers of the targets of its topic."""

    def of_ledger(self, ledger_id: int) -> tuple[Target, ...]:
        """The targets whose topic has this message ledger."""
        return tuple(self.all[number] for number in self.by_ledger.get(ledger_id, ()))

    @property
    def first_ledger_id(self) -> int:
        """Lowest ledger from which a reader may still need messages."""
        starts = [t.read_from.ledger_id for t in self.all if t.read_from is not None]
        return max(min(starts, default=0), 0)
