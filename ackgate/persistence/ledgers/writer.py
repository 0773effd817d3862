"""The one writer of an open ledger.

Edge. `append` gives ids, encodes once, hands the bytes to the bookies, returns; everything else
happens when bookies report what they have synced. Nothing is kept per entry: an append is one or a
few batches, and confirmation goes by whole batches, in order.

             append                 border (ack quorum) passes the batch
    payloads ------> in flight ----------------------------------------> confirmed, ticket done
                        |  bookie fails, a spare exists: new fragment from the last add confirmed on,
                        |  metadata by compare-and-set, what is in flight goes to the spare; until
                        |  then nothing is confirmed
                        +--> fenced | below ack quorum | closed: tickets fail, and nothing more is taken

A handle ends once, with one reason, and stays ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    LedgerFencedError,
    LedgerWriteError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from ackgate.persistence.ledgers.entry_batch import EntryBatch
from ackgate.persistence.ledgers.entry_codec import EntryEncoder, parts_of_place
from ackgate.persistence.ledgers.quorum import ConfirmedBorder, held_count
from ackgate.persistence.ports import AppendTicket, Fragment, LedgerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.ledgers.bookie import Bookie
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ledgers.ledger_catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ledgers.settings import LedgerClientSettings
    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata

logger = logging.getLogger(__name__)


class _InFlight(NamedTuple):
    """A batch on its way."""

    last_entry_id: int
    entry_count: int
    payload_bytes: int
    batches: tuple[EntryBatch | None, ...]
    """Per place of the ensemble; None where none of its entries belongs."""
    durable: asyncio.Future[None] | None
    """The ticket's, on the last batch of an append."""


class BookieLedgerWriter:
    """Implements `LedgerWriter`. A few hundred bytes while nothing is in flight."""

    __slots__ = (
        "_bookies", "_border", "_catalog", "_change", "_confirmed_bytes", "_encoder", "_end", "_entry",
        "_fragment_id", "_in_flight", "_in_flight_adds", "_is_released", "_last_add_confirmed", "_lost",
        "_next_entry_id", "_pool", "_reads", "_room", "_settings",
    )  # fmt: skip

    def __init__(
        self,
        entry: CatalogEntry,
        catalog: LedgerCatalog,
        pool: BookiePool,
        reads: EntryReads,
        settings: LedgerClientSettings,
    ) -> None:
        metadata = entry.metadata
        self._entry = entry
        self._catalog = catalog
        self._pool = pool
        self._reads = reads
        self._settings = settings
        self._encoder = EntryEncoder(metadata.ledger_id, reads.digest)
        self._border = ConfirmedBorder(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self._bookies: list[Bookie | None] = [pool.get(b) for b in metadata.fragments[-1].ensemble]
        """By place of the ensemble; None: failed, and not replaced (yet)."""
        self._fragment_id = 0
        self._next_entry_id = 0
        self._last_add_confirmed = -1
        self._confirmed_bytes = 0
        self._in_flight: deque[_InFlight] | None = None
        self._in_flight_adds = 0
        self._lost: set[int] = set()
        """Places whose bookie failed and was not replaced."""
        self._change: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._end: AckGateError | None = None
        """Why no more adds are taken."""
        self._is_released = False

    # -------------------------------------------------------------------------------------- adding

    @property
    def ledger_id(self) -> int:
        return self._entry.metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._last_add_confirmed

    @property
    def length_bytes(self) -> int:
        return self._confirmed_bytes

    @property
    def is_recovery(self) -> bool:
        return False

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        if self._end is not None:
            raise _again(self._end)
        lengths = list(map(len, payloads))
        if not lengths:
            raise CallerError(f"ledger {self.ledger_id}: nothing to append")
        if max(lengths) > self._settings.entry_bytes_max:
            raise CallerError(
                f"ledger {self.ledger_id}: an entry of {max(lengths)} bytes; at most "
                f"{self._settings.entry_bytes_max} are taken"
            )
        first = self._next_entry_id
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        total, batch_bytes_max = sum(lengths), self._settings.batch_bytes_max
        if total <= batch_bytes_max:
            sent = [self._encode(first, payloads, lengths, total, durable)]
        else:
            # Encode all before anything is sent: a payload that is no bytes must leave no trace.
            sent = []
            step = max(len(lengths) * batch_bytes_max // total, 1)
            for at in range(0, len(lengths), step):
                some = lengths[at : at + step]
                is_last = at + step >= len(lengths)
                part = payloads[at : at + step]
                sent.append(
                    self._encode(first + at, part, some, sum(some), durable if is_last else None)
                )
        if self._in_flight is None:
            self._in_flight = deque()
        self._next_entry_id = first + len(lengths)
        self._in_flight_adds += len(lengths)
        self._in_flight += sent
        for flying in sent:
            for place, batch in enumerate(flying.batches):
                bookie = self._bookies[place]
                if batch is not None and bookie is not None:
                    bookie.add(batch, self)
        return AppendTicket(first, durable)

    def _encode(
        self,
        first: int,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        payload_bytes: int,
        durable: asyncio.Future[None] | None,
    ) -> _InFlight:
        parts = self._encoder.encode(
            first, self._last_add_confirmed, self._confirmed_bytes, payloads, lengths
        )
        count = len(lengths)
        last = first + count - 1
        metadata = self._entry.metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        batches: tuple[EntryBatch | None, ...]
        if quorum == size:
            batch = EntryBatch(
                metadata.ledger_id, self._fragment_id, first, last, count, b"".join(parts)
            )
            batches = (batch,) * size
        else:
            batches = tuple(
                EntryBatch(
                    metadata.ledger_id,
                    self._fragment_id,
                    first,
                    last,
                    held,
                    parts_of_place(parts, first, place, size, quorum),
                )
                if (held := held_count(place, first, last, size, quorum))
                else None
                for place in range(size)
            )
        return _InFlight(last, count, payload_bytes, batches, durable)

    async def add_entry(self, payload: bytes) -> int:
        if not self.has_room:
            await self.wait_for_room()
        ticket = self.append((payload,))
        await ticket.durable
        return ticket.first_entry_id

    @property
    def has_room(self) -> bool:
        return self._in_flight_adds < self._settings.in_flight_adds_max

    async def wait_for_room(self) -> None:
        while not self.has_room:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    # ------------------------------------------------------------------------- what bookies report

    def synced(self, bookie_id: str, last_entry_id: int) -> None:
        place = self._place_of(bookie_id)
        if place is not None:
            self._border.synced(place, last_entry_id)
            self._confirm()

    def fenced(self, bookie_id: str) -> None:
        self._finish(
            LedgerFencedError(f"ledger {self.ledger_id} was fenced (bookie {bookie_id} says)")
        )

    def failed(self, bookie_id: str, error: AckGateError) -> None:
        place = self._place_of(bookie_id)
        if place is None or self._end is not None:
            return
        logger.warning("ledger %d: bookie %s failed: %s", self.ledger_id, bookie_id, error)
        self._bookies[place] = None
        self._lost.add(place)
        if self._change is None:
            self._change = asyncio.get_running_loop().create_task(self._change_ensemble(error))

    def _place_of(self, bookie_id: str) -> int | None:
        for place, bookie in enumerate(self._bookies):
            if bookie is not None and bookie.bookie_id == bookie_id:
                return place
        return None

    def _confirm(self) -> None:
        """Confirm what has its ack quorum now."""
        flying = self._in_flight
        if self._change is not None or not flying:
            return
        border = self._border.border()
        while flying and flying[0].last_entry_id <= border:
            batch = flying.popleft()
            self._last_add_confirmed = batch.last_entry_id
            self._confirmed_bytes += batch.payload_bytes
            self._in_flight_adds -= batch.entry_count
            if batch.durable is not None and not batch.durable.done():
                batch.durable.set_result(None)
        if not flying:
            # An empty deque is 600 bytes, and most ledgers are idle.
            self._in_flight = None
        self._give_room()

    def _give_room(self) -> None:
        if self._room is not None and self.has_room:
            self._room.set_result(None)
            self._room = None

    def _finish(self, error: AckGateError) -> None:
        """Take no more adds; those in flight have failed."""
        if self._end is None or not isinstance(self._end, LedgerFencedError):
            self._end = error
        flying, self._in_flight = self._in_flight, None
        self._in_flight_adds = 0
        for batch in flying or ():
            if batch.durable is not None and not batch.durable.done():
                batch.durable.set_exception(_again(error))
                # The handle says the same at the next append; a ticket that nobody awaits is no
                # reason for asyncio to complain.
                batch.durable.exception()
        self._give_room()

    # ------------------------------------------------------------------------------ ensemble change

    async def _change_ensemble(self, error: AckGateError) -> None:
        try:
            while self._lost and self._end is None:
                if not await self._replace_lost():
                    if not self._border.reaches_ack_quorum(self._lost):
                        raise LedgerWriteError(  # noqa: TRY301
                            f"ledger {self.ledger_id}: below the ack quorum, and no bookie to go to: {error}"
                        )
                    logger.warning(
                        "ledger %d goes on with %d of %d bookies",
                        self.ledger_id,
                        len(self._bookies) - len(self._lost),
                        len(self._bookies),
                    )
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

    async def _replace_lost(self) -> bool:
        """Put spares in the places of lost bookies. False when there are not enough."""
        metadata = self._entry.metadata
        ensemble = list(metadata.fragments[-1].ensemble)
        replaced: dict[int, Bookie] = {}
        for place in sorted(self._lost):
            spare = await self._pool.spare(ensemble)
            if spare is None:
                break
            ensemble[place] = spare.bookie_id
            replaced[place] = spare
        if not replaced:
            return False
        first = self._last_add_confirmed + 1
        fragments = metadata.fragments
        if fragments[-1].first_entry_id == first:
            fragments = fragments[:-1]
        changed = replace(metadata, fragments=(*fragments, Fragment(first, tuple(ensemble))))
        self._entry = await self._catalog.replace(self._entry, changed)
        logger.warning(
            "ledger %d: from entry %d on: %s", self.ledger_id, first, ", ".join(ensemble)
        )
        self._fragment_id = first
        for place, spare in replaced.items():
            self._bookies[place] = spare
            self._lost.discard(place)
            self._border.replaced(place, self._last_add_confirmed)
            for flying in tuple(self._in_flight or ()):
                batch = flying.batches[place]
                if batch is not None:
                    spare.add(batch._replace(fragment_id=first), self)
        return True

    # ----------------------------------------------------------------------------- reading, the end

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        self._check_open()
        metadata: LedgerMetadata = self._entry.metadata
        return await self._reads.read(
            metadata, first_entry_id, last_entry_id, self._last_add_confirmed
        )

    async def read_last_add_confirmed(self) -> int:
        self._check_open()
        return self._last_add_confirmed

    async def close(self) -> None:
        """Wait for adds in flight, then close the ledger for good. Twice is fine.

        A fenced handle is only let go of: the ledger is somebody else's. Raises
        `MetadataStoreError` when the metadata cannot be written; then call it again.
        """
        if self._is_released:
            return
        if self._end is None:
            self._end = ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")
        if self._change is not None:
            await asyncio.wait([self._change])
        while self._in_flight:
            last = self._in_flight[-1].durable
            assert last is not None
            await asyncio.wait([last])
            if self._change is not None:
                await asyncio.wait([self._change])
        if not isinstance(self._end, LedgerFencedError):
            await self._close_metadata()
        self._is_released = True
        for bookie in self._bookies:
            if bookie is not None:
                bookie.ledger_closed(self.ledger_id)

    async def _close_metadata(self) -> None:
        closed = replace(
            self._entry.metadata,
            state=LedgerState.CLOSED,
            last_entry_id=self._last_add_confirmed,
            length_bytes=self._confirmed_bytes,
        )
        try:
            self._entry = await self._catalog.replace(self._entry, closed)
        except (MetadataConflictError, NoSuchLedgerError) as error:
            # Deleted, or being recovered: all that was confirmed will be in it.
            logger.info("ledger %d was not closed by its writer: %s", self.ledger_id, error)

    def _check_open(self) -> None:
        if self._is_released:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")


def _again(error: AckGateError) -> AckGateError:
    """A fresh exception of the same kind: one raised twice drags its tracebacks along."""
    return type(error)(*error.args)
