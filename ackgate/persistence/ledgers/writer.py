"""The one writer of an open ledger.

Edge. `append` assigns ids and returns. All else happens once a turn of the loop: gathered payloads are
encoded and passed to the bookies, and these report what they have synced. There is no state per
entry.

             append              once a turn             ack quorum has synced it
    payloads ------> gathered ----------------> in flight -----------------------> confirmed
                        |                          |
                        |                          |  a bookie failed: an ensemble change; until
                        |                          |  that is done nothing is confirmed
                        +-----------+--------------+
                                    v
                fenced | below ack quorum | closed: tickets fail, and no more are accepted

A handle ends once, with one reason, and stays ended.

An *ensemble change* puts spares where bookies failed. A new fragment with another ensemble begins after the
last add confirmed. The ledger's metadata change first, by compare-and-set, and only if the writer still owns
the ledger; then the entries in flight go to the spares.

A bookie has a place of the ensemble for a while, and its reports count only for that place and time: a
bookie that failed, was replaced and came back to another place still reports on its earlier adds, which
must not count.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ackgate.errors import (
    AckGateError,
    LedgerFencedError,
    LedgerWriteError,
    MetadataConflictError,
    NoSuchLedgerError,
    StorageError,
)
from ackgate.persistence.bookies.entry_codec import EntryBatch, EntryEncoder
from ackgate.persistence.bookies.origins import LedgerOrigin
from ackgate.persistence.ledgers.catalog import encode_metadata
from ackgate.persistence.ledgers.handles import AddingHandle, Flight
from ackgate.persistence.ledgers.quorum import ConfirmedBorder, held_count, parts_of_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookies.settings import LedgerClientSettings
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ledgers.handles import Ticket

logger = logging.getLogger(__name__)


class EnsemblePlace:
    """A bookie's place in the ensemble, for a while. Implements `AddSink` for the writer."""

    __slots__ = ("_place", "_writer", "bookie", "ledger_id")

    is_recovery = False

    def __init__(self, writer: BookieLedgerWriter, place: int, bookie: Bookie | None) -> None:
        self._writer = writer
        self._place = place
        self.ledger_id = writer.ledger_id
        self.bookie = bookie
        """None: it failed, or is not here, and was not replaced."""

    def add(self, batch: EntryBatch | None) -> None:
        """Give entries to the bookie, if there is one and if any belong there."""
        if batch is not None and self.bookie is not None:
            self.bookie.add(batch, self)

    def leave(self) -> None:
        """Ignore the bookie's reports from now on."""
        self.bookie = None

    def synced(self, last_entry_id: int) -> None:
        if self.bookie is not None:
            self._writer.place_synced(self._place, last_entry_id)

    def failed(self, error: AckGateError) -> None:
        if self.bookie is not None:
            self._writer.place_failed(self._place, error)

    def fenced(self) -> None:
        """A bookie reports a fence; counts from any bookie."""
        self._writer.place_fenced()


class BookieLedgerWriter(AddingHandle[EntryBatch, "CatalogEntry"]):
    """The writer of one ledger: implements `LedgerWriter`. About a kilobyte when idle."""

    __slots__ = (
        "_border",
        "_changes_in_a_row",
        "_encoder",
        "_lost",
        "_places",
        "_pool",
    )

    def __init__(
        self,
        entry: CatalogEntry,
        catalog: LedgerCatalog,
        pool: BookiePool,
        reads: EntryReads,
        settings: LedgerClientSettings,
    ) -> None:
        metadata = entry.metadata
        super().__init__(entry, catalog, reads, settings, settings.entry_bytes_max)
        self._pool = pool
        self._encoder = EntryEncoder(metadata.ledger_id, reads.digest)
        self._border = ConfirmedBorder(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._places = [
            EnsemblePlace(self, place, pool.get(bookie_id))
            for place, bookie_id in enumerate(metadata.fragments[-1].ensemble)
        ]
        self._lost: set[int] = set()
        """Places whose bookie failed and was not replaced."""
        self._changes_in_a_row = 0
        """Ensemble changes since an entry was last confirmed."""

    # -------------------------------------------------------------------------------------- adding

    def _send(
        self,
        first: int,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        payload_bytes: int,
        tickets: list[Ticket],
    ) -> None:
        batches = self._encode(first, payloads, lengths)
        self._adds.put(Flight(first + len(lengths) - 1, payload_bytes, batches, tickets))
        for place, batch in zip(self._places, batches, strict=True):
            place.add(batch)

    def _encode(
        self, first: int, payloads: Sequence[bytes], lengths: Sequence[int]
    ) -> tuple[EntryBatch | None, ...]:
        """Encode entries. Returns a batch for each place of the ensemble, or None for a place."""
        adds, metadata = self._adds, self._entry.metadata
        parts = self._encoder.encode(
            first, adds.last_add_confirmed, adds.confirmed_bytes, payloads, lengths
        )
        ledger_id, fragment_id = metadata.ledger_id, metadata.fragments[-1].first_entry_id
        count, size, quorum = len(lengths), metadata.ensemble_size, metadata.write_quorum
        last = first + count - 1
        if quorum == size:
            whole = EntryBatch(ledger_id, fragment_id, first, last, count, b"".join(parts))
            return (whole,) * size
        batches: list[EntryBatch | None] = []
        for place in range(size):
            held = held_count(place, first, last, size, quorum)
            if held:
                encoded = parts_of_place(parts, first, place, size, quorum)
                batches.append(EntryBatch(ledger_id, fragment_id, first, last, held, encoded))
            else:
                batches.append(None)
        return tuple(batches)

    # ------------------------------------------------------------------------ what bookies report

    def place_synced(self, place: int, last_entry_id: int) -> None:
        """A bookie has synced its adds up to this entry."""
        self._border.synced(place, last_entry_id)
        self._confirm()

    def place_fenced(self) -> None:
        """Another process recovers the ledger."""
        self._finish(LedgerFencedError(f"ledger {self.ledger_id} was fenced"))

    def place_failed(self, place: int, error: AckGateError) -> None:
        """A bookie did not write its adds."""
        if self._is_through:
            return
        logger.warning("ledger %d: %s", self.ledger_id, error)
        self._places[place].leave()
        self._lost.add(place)
        if self._change is None:
            self._change = asyncio.get_running_loop().create_task(self._replace_lost(error))

    def _confirm(self) -> None:
        if self._change is None and self._adds.count:
            before = self._adds.last_add_confirmed
            self._adds.confirm(self._border.border(self._places_behind()))
            if self._adds.last_add_confirmed != before:
                self._changes_in_a_row = 0
                self._give_room()

    def _places_behind(self) -> Sequence[int]:
        """Places whose bookie is too slow to go on without it: else what waits for it would grow."""
        metadata = self._entry.metadata
        if metadata.ack_quorum == metadata.write_quorum:
            return ()
        return [
            number
            for number, place in enumerate(self._places)
            if place.bookie is not None and place.bookie.is_behind
        ]

    # ------------------------------------------------------------------------------ ensemble change

    async def _replace_lost(self, error: AckGateError) -> None:
        """Bring spares to where bookies failed, or go on without, or end."""
        try:
            while self._lost and not self._is_through:
                self._changes_in_a_row += 1
                # Bookies that seem to work and then do not must not be tried forever.
                is_hopeless = self._changes_in_a_row > 2 * len(self._pool)
                if is_hopeless or not await self._replace_some():
                    self._check_quorum(error)
                    break
        except (MetadataConflictError, NoSuchLedgerError) as conflict:
            self._finish(LedgerFencedError(f"ledger {self.ledger_id}: {conflict}"))
        except LedgerWriteError as refused:
            self._finish(refused)
        except AckGateError as other:
            self._finish(LedgerWriteError(f"ledger {self.ledger_id}: {error}; {other}"))
        finally:
            self._change = None
            self._confirm()

    async def _replace_some(self) -> bool:
        """Put spares in as many of the lost places as there are spares; False when there is none.

        Raises `MetadataConflictError` when the ledger has another owner now, `NoSuchLedgerError`,
        `MetadataStoreError`.
        """
        ensemble = list(self._entry.metadata.fragments[-1].ensemble)
        spares: dict[int, Bookie] = {}
        for place in sorted(self._lost):
            spare = await self._pool.spare(ensemble)
            if spare is None:
                break
            ensemble[place] = spare.bookie_id
            spares[place] = spare
        if not spares:
            return False
        first = await self._begin_fragment(ensemble)
        for place, spare in spares.items():
            await take_in(spare, self._entry)
            self._places[place] = taken = EnsemblePlace(self, place, spare)
            self._lost.discard(place)
            self._border.replaced(place, first - 1)
            for flight in self._adds.flights():
                batch = flight.batches[place]
                if batch is not None:
                    taken.add(batch._replace(fragment_id=first))
        return True

    def _check_quorum(self, error: AckGateError) -> None:
        """Raise `LedgerWriteError` when what is left makes no ack quorum."""
        left, size = len(self._places) - len(self._lost), len(self._places)
        if not self._border.reaches_ack_quorum(self._lost):
            raise LedgerWriteError(
                f"ledger {self.ledger_id}: {left} of {size} bookies left, below the ack "
                f"quorum, and none to take a place: {error}"
            )
        logger.warning("ledger %d continues with %d of %d bookies", self.ledger_id, left, size)

    def _let_go(self) -> None:
        for place in self._places:
            if place.bookie is not None:
                place.bookie.ledger_closed(self.ledger_id)


async def take_in(bookie: Bookie, entry: CatalogEntry) -> None:
    """Let a bookie that gets a ledger later in its life store the ledger's origin."""
    value = encode_metadata(entry.metadata, entry.password)
    try:
        await bookie.take_in(LedgerOrigin(entry.metadata.ledger_id, value))
    except StorageError as error:
        logger.warning("ledger %d: its origin is not written: %s", entry.metadata.ledger_id, error)
