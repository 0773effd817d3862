"""One place of a writer's ensemble, taken by one bookie for a while.

Edge. The bookie reports here what became of the entries it was given at this place, and only as
long as it has the place: a bookie that failed, was replaced and came back to another place still
reports on what it was given before, and that must not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ackgate.errors import AckGateError
    from ackgate.persistence.ledgers.bookie import Bookie
    from ackgate.persistence.ledgers.entry_batch import EntryBatch


class PlaceOwner(Protocol):
    """The writer, as its places see it."""

    @property
    def ledger_id(self) -> int: ...

    def place_synced(self, place: int, last_entry_id: int) -> None:
        """The bookie there has synced all that it was given up to this entry."""

    def place_failed(self, place: int, error: AckGateError) -> None:
        """The bookie there has failed."""

    def place_fenced(self) -> None:
        """Somebody else recovers the ledger."""


class EnsemblePlace:
    """Implements `AddSink` for a writer."""

    __slots__ = ("_owner", "_place", "bookie", "ledger_id")

    is_recovery = False

    def __init__(self, owner: PlaceOwner, place: int, bookie: Bookie | None) -> None:
        self._owner = owner
        self._place = place
        self.ledger_id = owner.ledger_id
        self.bookie = bookie
        """None: it failed, or is not here, and was not replaced."""

    def add(self, batch: EntryBatch | None) -> None:
        """Give entries to the bookie, if there is one and if any belong there."""
        if batch is not None and self.bookie is not None:
            self.bookie.add(batch, self)

    def leave(self) -> None:
        """Whatever the bookie reports from now on does not count."""
        self.bookie = None

    def synced(self, last_entry_id: int) -> None:
        """See `AddSink`."""
        if self.bookie is not None:
            self._owner.place_synced(self._place, last_entry_id)

    def failed(self, error: AckGateError) -> None:
        """See `AddSink`."""
        if self.bookie is not None:
            self._owner.place_failed(self._place, error)

    def fenced(self) -> None:
        """See `AddSink`. Counts whoever says it."""
        self._owner.place_fenced()
