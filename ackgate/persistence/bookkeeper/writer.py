"""The one writer of an open ledger on a BookKeeper cluster.

Edge. `append` gives ids and returns; what was gathered in one turn of the loop is encoded once and goes
to all bookies that are to have it. Nothing is kept per entry but what a bookie answered out of order. A
place keeps what its bookie has not answered, also if the others have confirmed it: a busy bookie is sent
it again, and a slow one counts for `has_room`::

             append              once a turn             ack quorum has synced it
    payloads ------> gathered ----------------> in flight -----------------------> confirmed
                        |                          |
                        |                          |  a bookie failed: another one takes its place, or
                        |                          |  it is connected to again; while the metadata are
                        |                          |  written for that, nothing is confirmed
                        +-----------+--------------+
                                    v
                fenced | below ack quorum | closed: tickets fail, and no more are accepted

A bookie may forget a fence when it is killed (it answers a fence on a ledger of which it has no entry
before that is synced). A restart breaks the connection; so a writer that connects again to a bookie
within the life of its ledger reads the ledger's metadata before it sends it anything.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    AckGateError,
    ClosedHandleError,
    ConfigurationError,
    LedgerFencedError,
    LedgerWriteError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    StorageError,
)
from ackgate.persistence.bookkeeper.connection import AddBlock
from ackgate.persistence.bookkeeper.protocol import PARTS_PER_ADD, Code, code_name
from ackgate.persistence.ledgers.handles import AddingHandle, Flight
from ackgate.persistence.ledgers.quorum import (
    ConfirmedBorder,
    held_count,
    holds,
    parts_of_place,
)
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster
    from ackgate.persistence.bookkeeper.connection import BookieConnection
    from ackgate.persistence.bookkeeper.connections import BookieConnections
    from ackgate.persistence.bookkeeper.metadata_format import StoredMetadata
    from ackgate.persistence.bookkeeper.reads import BookKeeperReads
    from ackgate.persistence.bookkeeper.settings import BookKeeperSettings
    from ackgate.persistence.ledgers.handles import Ticket

logger = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 0.05
"""After TOO_MANY_REQUESTS: a bookie is slow, not gone, and is sent the entry again."""

_RETRY_SECONDS: Final = 1.0
"""Between attempts to fill a lost place without which the ledger goes on, and before a bookie that refused
an add (its disks are full, as a rule) is tried again."""


class _Place:
    """A bookie's place in the ensemble. Implements `AddReplies` for as long as the bookie has it."""

    __slots__ = (
        "_busy",
        "_early",
        "_next",
        "_number",
        "_unanswered",
        "_writer",
        "connection",
        "unanswered_bytes",
    )

    def __init__(
        self,
        writer: BookKeeperWriter,
        number: int,
        connection: BookieConnection | None,
        first: int,
    ) -> None:
        """`first`: the first entry that the bookie is sent from this place."""
        self._writer = writer
        self._number = number
        self._early: set[int] = set()
        """Answered before entries with lower ids."""
        self._busy: list[int] = []
        """Refused for now: sent again soon."""
        self._unanswered: deque[tuple[int, AddBlock]] = deque()
        """By the last entry, in order."""
        self.unanswered_bytes = 0
        self._next = writer.next_held(number, first)
        """The lowest entry that belongs here and was not answered."""
        self.connection = connection
        """None: it is lost."""
        if connection is not None:
            connection.begin(writer.ledger_id, self)

    def add(self, last_entry_id: int, block: AddBlock | None) -> None:
        if block is not None and self.connection is not None:
            self._unanswered.append((last_entry_id, block))
            self.unanswered_bytes += len(block.frames)
            self.connection.add(block)

    def leave(self) -> None:
        """What the bookie answers from now on does not count."""
        if self.connection is not None:
            self.connection.end(self._writer.ledger_id, self)
            self._forget()

    def _forget(self) -> None:
        self.connection = None
        self._unanswered.clear()
        self.unanswered_bytes = 0

    def added(self, entry_ids: NDArray[np.int64] | list[int]) -> None:
        before = self._next
        if isinstance(entry_ids, list):
            self._take(entry_ids)
        elif not self._take_run(entry_ids):
            self._take(entry_ids.tolist())
        if self._next != before:
            unanswered = self._unanswered
            while unanswered and unanswered[0][0] < self._next:
                self.unanswered_bytes -= len(unanswered.popleft()[1].frames)
            self._writer.place_synced(self._number, self._next - 1)

    def _take_run(self, entry_ids: NDArray[np.int64]) -> bool:
        """Take answers without a gap between them. False: there may be one."""
        first, last = int(entry_ids[0]), int(entry_ids[-1])
        if (
            self._early
            or first != self._next
            or self._writer.held_count(self._number, first, last) != entry_ids.size
            or not (entry_ids[1:] > entry_ids[:-1]).all()
        ):
            return False
        self._next = self._writer.next_held(self._number, last + 1)
        return True

    def _take(self, entry_ids: list[int]) -> None:
        step = self._writer.is_everywhere
        for entry_id in entry_ids:
            if entry_id != self._next:
                if entry_id > self._next:  # else it was sent twice, and answered before
                    self._early.add(entry_id)
                continue
            self._next = (
                entry_id + 1 if step else self._writer.next_held(self._number, entry_id + 1)
            )
            while self._early and self._next in self._early:
                self._early.remove(self._next)
                self._next = self._writer.next_held(self._number, self._next + 1)

    def refused(self, entry_id: int, code: int) -> None:
        if code != Code.TOO_MANY_REQUESTS:
            self._writer.place_refused(self._number, code)
            return
        if not self._busy:
            asyncio.get_running_loop().call_later(_BUSY_SECONDS, self._send_again)
        self._busy.append(entry_id)

    def _send_again(self) -> None:
        busy, self._busy = sorted(self._busy), []
        sent = 0
        for last_entry_id, block in self._unanswered:
            after = bisect_right(busy, last_entry_id)
            if after > sent and self.connection is not None:
                self.connection.add(block)
            sent = after

    def lost(self, error: StorageError) -> None:
        self._forget()
        self._writer.place_lost(self._number, error)


class BookKeeperWriter(AddingHandle[AddBlock, "StoredMetadata"]):
    """A `LedgerWriter` on a BookKeeper cluster."""

    def __init__(
        self,
        stored: StoredMetadata,
        cluster: BookKeeperCluster,
        connections: BookieConnections,
        reads: BookKeeperReads,
        settings: BookKeeperSettings,
    ) -> None:
        """Bookies of its ensemble without an open connection count as lost."""
        codec = reads.codec
        super().__init__(stored, cluster, reads, settings, settings.entry_bytes_max)
        metadata = stored.metadata
        self._cluster = cluster
        self._connections = connections
        self._codec = codec
        self._timeout_seconds = settings.timeout_seconds
        self._sent_bytes = 0
        """Payload bytes up to the last entry that was encoded."""
        self._border = ConfirmedBorder(
            metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )
        self.is_everywhere = metadata.write_quorum == metadata.ensemble_size
        self._lost: dict[int, StorageError] = {}
        """Places whose bookie failed and was not replaced."""
        self._refused_at: dict[str, float] = {}
        """By bookie: when it last refused an add, by the loop's clock."""
        self._stalled_at: float | None = None
        """Since when the ack quorum is out of reach, with nothing confirmed after it."""
        self._reported_lost: frozenset[int] = frozenset()
        self._retry: asyncio.TimerHandle | None = None
        self._is_frozen = False
        """Whether a fragment is being written that begins after the last add confirmed."""
        self._places = [
            _Place(self, place, connections.current(bookie_id), 0)
            for place, bookie_id in enumerate(metadata.fragments[-1].ensemble)
        ]
        for number, place in enumerate(self._places):
            if place.connection is None:
                bookie_id = metadata.fragments[-1].ensemble[number]
                self.place_lost(number, StorageError(f"bookie {bookie_id}: no connection"))

    def next_held(self, place: int, entry_id: int) -> int:
        """The first entry from this one on that belongs at the place."""
        metadata = self._entry.metadata
        while not holds(place, entry_id, metadata.ensemble_size, metadata.write_quorum):
            entry_id += 1
        return entry_id

    def held_count(self, place: int, first: int, last: int) -> int:
        """How many of the entries first..last (both included) belong at the place."""
        metadata = self._entry.metadata
        return held_count(place, first, last, metadata.ensemble_size, metadata.write_quorum)

    # -------------------------------------------------------------------------------------- adding

    def _send(
        self,
        first: int,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        payload_bytes: int,
        tickets: list[Ticket],
    ) -> None:
        parts = self._codec.add_parts(
            first, self._adds.last_add_confirmed, self._sent_bytes, payloads
        )
        self._sent_bytes += payload_bytes
        last = first + len(lengths) - 1
        blocks = self._blocks(first, last, parts)
        self._adds.put(Flight(last, payload_bytes, blocks, tickets))
        for place, block in zip(self._places, blocks, strict=True):
            place.add(last, block)
        if self._lost and not self._has_ack_quorum:
            self._start_change()

    def _blocks(self, first: int, last: int, parts: Sequence[bytes]) -> tuple[AddBlock | None, ...]:
        """Per place of the ensemble what goes there."""
        metadata = self._entry.metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        if self.is_everywhere:
            return (AddBlock(b"".join(parts), last - first + 1),) * size
        blocks: list[AddBlock | None] = []
        for place in range(size):
            held = self.held_count(place, first, last)
            joined = parts_of_place(
                parts, first, place, size, quorum, parts_per_entry=PARTS_PER_ADD
            )
            blocks.append(AddBlock(joined, held) if held else None)
        return tuple(blocks)

    def _finish(self, error: AckGateError) -> None:
        if isinstance(error, LedgerFencedError) and not isinstance(self._end, LedgerFencedError):
            self._connections.counters.ledgers_fenced += 1
        super()._finish(error)
        self._let_go()

    @property
    def has_room(self) -> bool:
        """Whether adds in flight are below the bounds, and so is what each bookie has not answered.

        The ack quorum may be far ahead of a slow bookie, which is sent everything all the same.
        """
        bytes_max = self._bounds.in_flight_bytes_max
        return super().has_room and all(p.unanswered_bytes < bytes_max for p in self._places)

    # ------------------------------------------------------------------------- what bookies answer

    def place_synced(self, place: int, last_entry_id: int) -> None:
        """A bookie has synced all that it was sent up to this entry."""
        self._border.synced(place, last_entry_id)
        self._confirm()
        self._give_room()

    def place_refused(self, place: int, code: int) -> None:
        """A bookie did not take an entry, and will not for a while."""
        match code:
            case Code.FENCED:
                self._finish(LedgerFencedError(f"ledger {self.ledger_id} was fenced"))
            case Code.UNAUTHORIZED:
                self._finish(
                    ConfigurationError(f"ledger {self.ledger_id}: a bookie wants another password")
                )
            case _:
                bookie_id = self._entry.metadata.fragments[-1].ensemble[place]
                self._refused_at[bookie_id] = asyncio.get_running_loop().time()
                self._places[place].leave()
                self.place_lost(place, StorageError(f"bookie {bookie_id}: {code_name(code)}"))

    def place_lost(self, place: int, error: StorageError) -> None:
        """The bookie at this place failed: begin to fill the place."""
        if self._is_through:
            return
        if self._connections.is_closed:
            self._finish(ClosedHandleError(f"ledger {self.ledger_id}: its client is closed"))
            return
        logger.warning("ledger %d: %s", self.ledger_id, error)
        self._lost[place] = error
        self._give_room()  # what it had not answered counts no more
        self._start_change()

    def _start_change(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._change is None and self._lost and not self._is_through:
            self._change = asyncio.get_running_loop().create_task(self._fill_lost_places())

    def _confirm(self) -> None:
        if not self._is_frozen and self._adds.count:
            before = self._adds.last_add_confirmed
            self._adds.confirm(self._border.border())
            if self._adds.last_add_confirmed != before:
                self._stalled_at = None
                self._give_room()

    # ------------------------------------------------------------------------------ ensemble change

    async def _fill_lost_places(self) -> None:
        """Bring spares to where bookies failed, or connect again, or go on without, or end."""
        try:
            while self._lost and not self._is_through:
                self._check_progress()
                if await self._replace_one() or await self._reconnect():
                    continue
                if self._has_ack_quorum or not self._adds.count:
                    self._try_later()
                    break
                await asyncio.sleep(_BUSY_SECONDS)
        except (MetadataConflictError, NoSuchLedgerError, LedgerFencedError) as conflict:
            self._finish(LedgerFencedError(f"ledger {self.ledger_id}: {conflict}"))
        except LedgerWriteError as refused:
            self._finish(refused)
        except AckGateError as other:
            self._finish(LedgerWriteError(f"ledger {self.ledger_id}: {other}"))
        finally:
            self._change = None
            self._confirm()

    @property
    def _has_ack_quorum(self) -> bool:
        return self._border.reaches_ack_quorum(set(self._lost))

    def _check_progress(self) -> None:
        """Raise `LedgerWriteError` if adds have waited for an ack quorum for the whole time-out.

        A spare, or a bookie that is connected to again, may refuse adds or not answer: that is no progress.
        """
        if self._has_ack_quorum or not self._adds.count:
            return
        now = asyncio.get_running_loop().time()
        if self._stalled_at is None:
            self._stalled_at = now
        if now >= self._stalled_at + self._timeout_seconds:
            reasons = "; ".join(map(str, self._lost.values()))
            raise LedgerWriteError(
                f"ledger {self.ledger_id}: below its ack quorum, and no other bookie: {reasons}"
            )

    def _try_later(self) -> None:
        if self._lost.keys() != self._reported_lost:
            self._reported_lost = frozenset(self._lost)
            left, size = len(self._places) - len(self._lost), len(self._places)
            logger.warning("ledger %d continues with %d of %d bookies", self.ledger_id, left, size)
        if self._retry is None and self._end is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_RETRY_SECONDS, self._start_change)

    async def _replace_one(self) -> bool:
        """Put a spare in one lost place. False if there is none."""
        ensemble = list(self._entry.metadata.fragments[-1].ensemble)
        try:
            (spare,) = await self._connections.choose(1, besides={*ensemble, *self._refusing()})
        except NotEnoughBookiesError:
            return False
        if not self._lost or self._is_through:
            return True
        number = min(self._lost)
        ensemble[number] = spare
        self._is_frozen = True
        try:
            await self._begin_fragment(ensemble)
            self._connections.counters.ensemble_changes += 1
            self._take_place(number, self._connections.current(spare))
        finally:
            self._is_frozen = False
            self._confirm()
        return True

    async def _reconnect(self) -> bool:
        """Connect again to one bookie that was lost, unless another client has recovered the ledger."""
        ensemble = self._entry.metadata.fragments[-1].ensemble
        refusing = self._refusing()
        connecting = {
            asyncio.ensure_future(self._connections.get(ensemble[number])): number
            for number in sorted(self._lost)
            if ensemble[number] not in refusing
        }
        try:
            while connecting:
                done, _ = await asyncio.wait(connecting, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    number = connecting.pop(attempt)
                    try:
                        connection = attempt.result()
                    except StorageError as error:
                        self._lost[number] = error
                        continue
                    await self._check_ownership()
                    self._take_place(number, connection)
                    return True
        finally:
            for attempt in connecting:
                attempt.cancel()
        return False

    def _refusing(self) -> set[str]:
        """Bookies that refused an add a moment ago."""
        since = asyncio.get_running_loop().time() - _RETRY_SECONDS
        return {bookie_id for bookie_id, at in self._refused_at.items() if at > since}

    async def _check_ownership(self) -> None:
        """Raises `LedgerFencedError` if another client has recovered the ledger."""
        found = await self._cluster.read(self.ledger_id, is_latest=True)
        is_ours = found.metadata.fragments[-1] == self._entry.metadata.fragments[-1]
        if found.metadata.state is not LedgerState.OPEN or not is_ours:
            raise LedgerFencedError(f"another client made it {found.metadata.state.value}")
        self._entry = found

    def _take_place(self, number: int, connection: BookieConnection | None) -> None:
        """The bookie gets what is in flight, and counts from the first of it on."""
        if self._is_through:
            return
        place = _Place(self, number, connection, self.last_add_confirmed + 1)
        self._places[number] = place
        self._border.replaced(number, self.last_add_confirmed)
        if place.connection is None or not place.connection.is_open:
            return  # lost again meanwhile: tried again
        del self._lost[number]
        for flight in self._adds.flights():
            place.add(flight.last_entry_id, flight.batches[number])

    def _let_go(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        for place in self._places:
            place.leave()
