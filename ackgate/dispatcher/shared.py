"""Shared: every entry goes to one consumer that has room, in turn.

Pure. Consumers of the lowest priority number are served first, in a round robin of
``round_robin_entries_max`` entries a turn; a single consumer takes all it has room for. The rest
waits in the replay queue. There is no order across consumers, except that all chunks of a message go
to one of them.

Invariants: a position is in flight with at most one consumer, or waits for replay, never both;
only normal reads are paused (by the gate, by too many unacked messages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.cursor import Position, PositionSet
from ackgate.dispatcher.port import (
    Assignment,
    EntriesRead,
    ReadKind,
    Rewind,
)
from ackgate.dispatcher.several_active import SeveralActive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.dispatcher.delivery_book import Recipient
    from ackgate.dispatcher.port import ConsumerSpec, DispatchLimits, Effect, Read


class SharedDispatcher(SeveralActive):
    """The `Dispatcher` of a Shared subscription; the methods are described there."""

    def __init__(self, limits: DispatchLimits) -> None:
        super().__init__(limits)
        self._queue = PositionSet()
        self._chunks = ChunkOwners()
        # A replay read of which nothing could be placed (chunks whose consumer has no room) is
        # not tried again before something has changed.
        self._is_stalled = False

    # -- consumers ------------------------------------------------------------------------------

    def add_consumer(self, consumer: int, spec: ConsumerSpec, now_ms: int) -> tuple[Effect, ...]:
        """A consumer subscribed; the first one rewinds."""
        del now_ms
        is_first = not self._book.recipients
        self._book.add_consumer(consumer, spec)
        return (Rewind(),) if is_first else ()

    def remove_consumer(self, consumer: int, now_ms: int) -> tuple[Effect, ...]:
        """A consumer is gone; what it had waits for the others, or is read again by the next."""
        del now_ms
        if consumer not in self._book.recipients:
            return ()
        returned = self._book.remove_consumer(consumer)
        self._chunks.forget_consumer(consumer)
        if self._book.recipients:
            self._queue.add_positions(returned)
        else:
            self.reset()
        self._is_stalled = False
        return ()

    def add_permits(self, consumer: int, messages: int) -> None:
        """A consumer takes so many more messages."""
        self._book.add_permits(consumer, messages)
        self._is_stalled = False

    def set_writable(self, consumer: int, *, is_writable: bool) -> None:
        """A consumer's connection does or does not take bytes."""
        self._book.set_writable(consumer, is_writable=is_writable)
        self._is_stalled = False

    # -- reading --------------------------------------------------------------------------------

    @property
    def key_hash(self) -> Callable[[bytes], int] | None:
        """Keys do not count here."""
        return None

    def next_read(
        self,
        *,
        has_unread: bool,
        gate_open: bool,
        entry_budget: int | None = None,
        holes_up_to: Position | None = None,
        is_acked: Callable[[Position], bool] | None = None,
    ) -> Read | None:
        """Replays first, then what the gate and the unacked messages allow."""
        book = self._book
        if self._reading.current is not None or not book.ready.count:
            return None
        limits = book.limits
        if self._queue.entry_count:
            if self._is_stalled:
                return None
            room = book.room()
            entries_max = min(limits.read_entries_max, room)
            if gate_open or is_acked is None or not limits.hole_closing_redelivery_first:
                waiting = self._queue.first(entries_max)
            else:
                scanned = self._queue.first(max(limits.hole_scan_entries_max, entries_max))
                waiting = holes_first(scanned, entries_max, is_acked)
            return self._reading.begin_replay(waiting, room)
        if not has_unread or book.is_blocked:
            return None
        return self._reading.begin_normal(
            entries_max=limits.read_entries_max,
            messages_max=book.room(),
            gate_open=gate_open,
            entry_budget=entry_budget,
            holes_up_to=holes_up_to,
        )

    def assign(self, read: Read, entries: EntriesRead) -> list[Assignment]:
        """Deal the entries out; the rest waits for replay."""
        if not self._reading.end(read):
            return []
        if read.kind is ReadKind.NORMAL:
            deliveries, rest = self._deal(entries, range(len(entries.positions)), counted=False)
            if rest:
                self._queue.add_positions([entries.positions[index] for index in rest])
            return deliveries
        self._drop_vanished(read, entries)
        queue = self._queue
        # What was acked while it was read has left the queue: it is not to be given.
        waiting: Sequence[int] = range(len(entries.positions))
        if not all(position in queue for position in entries.positions):
            waiting = [index for index in waiting if entries.positions[index] in queue]
        deliveries, _ = self._deal(entries, waiting, counted=True)
        for delivery in deliveries:
            queue.discard_positions([entries.positions[index] for index in delivery.indexes])
        self._is_stalled = not deliveries
        return deliveries

    # -- answers --------------------------------------------------------------------------------

    def acked(self, consumer: int | None, position: Position) -> bool:
        """One whole entry is acked."""
        if not self._book.take(consumer, position) and self._queue.discard(*position):
            self._is_stalled = False
        if len(self._redeliveries):
            self._redeliveries.forget(position)
        return self._pop_unblocked()

    def acked_many(self, consumer: int | None, positions: Sequence[Position]) -> bool:
        for position in self._book.take_many(consumer, positions):
            if self._queue.discard(*position):
                self._is_stalled = False
        if len(self._redeliveries):
            for position in positions:
                self._redeliveries.forget(position)
        return self._pop_unblocked()

    def acked_through(self, position: Position) -> bool:
        """All positions up to this one are acked or skipped."""
        self._book.take_through(position)
        self._queue.take_through(position)
        self._redeliveries.forget_through(position)
        self._is_stalled = False
        return self._pop_unblocked()

    def _pop_unblocked(self) -> bool:
        is_unblocked = self._book.pop_unblocked()
        if is_unblocked:
            self._is_stalled = False
        return is_unblocked

    def redeliver(
        self, consumer: int, positions: Sequence[Position] | None, *, epoch: int | None = None
    ) -> tuple[Effect, ...]:
        """The consumer's unacked entries (None: all) wait for replay, counted."""
        del epoch
        returned = self._book.take_back(consumer, positions)
        if returned:
            self._queue.add_positions(returned)
            self._redeliveries.increment(returned)
            self._is_stalled = False
        return ()

    # -- what others hold -----------------------------------------------------------------------

    def hold(self, consumer: int, positions: Sequence[Position] | None) -> list[Position]:
        """The consumer's unacked entries, counted; they wait elsewhere."""
        returned = self._book.take_back(consumer, positions)
        self._redeliveries.increment(returned)
        self._is_stalled = False
        return returned

    def queue_due(self, positions: Sequence[Position]) -> None:
        """What is not in flight waits for replay."""
        recipients = self._book.recipients.values()
        for recipient in recipients:
            positions = recipient.in_flight.others(positions)
        if positions and recipients:
            self._queue.add_positions(positions)
            self._is_stalled = False

    @property
    def waiting_entries(self) -> int:
        """Entries that wait for replay."""
        return self._queue.entry_count

    # -- the rest -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Nothing is in flight, waiting, counted or under way."""
        self._book.clear()
        self._queue.clear()
        self._redeliveries.clear()
        self._reading.abandon()
        self._chunks.clear()
        self._is_stalled = False

    def configure(self, limits: DispatchLimits) -> None:
        self._book.configure(limits)
        self._is_stalled = False

    def check(self) -> None:
        super().check()
        self._queue.check()
        for consumer, recipient in self._book.recipients.items():
            both = [position for position in recipient.in_flight if position in self._queue]
            assert not both, f"in flight with {consumer} and waiting: {both}"

    # -- dealing --------------------------------------------------------------------------------

    def _drop_vanished(self, read: Read, entries: EntriesRead) -> None:
        if len(entries.positions) < len(read.positions):
            self._queue.discard_positions(sorted(set(read.positions).difference(entries.positions)))

    def _deal(
        self, entries: EntriesRead, waiting: Sequence[int], *, counted: bool
    ) -> tuple[list[Assignment], Sequence[int]]:
        """Deal the entries at these places. Returns the deliveries and the places left over."""
        if entries.chunks is not None and len(self._book.recipients) > 1:
            return self._deal_chunks(entries, entries.chunks, waiting, counted=counted)
        book = self._book
        deliveries: list[Assignment] = []
        start, total = 0, len(waiting)
        while start < total and (recipient := book.ready.next()) is not None:
            turn = total - start
            if book.ready.peers(recipient) > 1:
                turn = min(turn, book.limits.round_robin_entries_max)
            taken = waiting[start : start + turn]
            fitting = _fitting(entries.message_counts, taken, recipient.room())
            taken = taken[:fitting]
            deliveries.append(self._give(recipient, entries, taken, counted=counted))
            start += fitting
        return deliveries, waiting[start:]

    def _deal_chunks(
        self,
        entries: EntriesRead,
        chunks: Sequence[tuple[str, bool] | None],
        waiting: Sequence[int],
        *,
        counted: bool,
    ) -> tuple[list[Assignment], Sequence[int]]:
        """As `_deal`, one by one: the pieces of a chunked message go where its first piece went."""
        book = self._book
        deliveries: list[Assignment] = []
        left: list[int] = []
        held: set[str] = set()
        for index in waiting:
            chunk = chunks[index]
            recipient: Recipient | None
            if chunk is not None and chunk[0] in held:
                recipient = None
            elif chunk is not None and (owner := self._chunks.owner(chunk[0])) is not None:
                recipient = book.recipients[owner]
                recipient = recipient if recipient.is_ready else None
            else:
                recipient = book.ready.next()
            if recipient is None:
                left.append(index)
                if chunk is not None:
                    held.add(chunk[0])
                continue
            if chunk is not None:
                self._chunks.given(chunk[0], recipient.consumer, is_last=chunk[1])
            deliveries.append(self._give(recipient, entries, (index,), counted=counted))
        return deliveries, left

    def _give(
        self, recipient: Recipient, entries: EntriesRead, indexes: Sequence[int], *, counted: bool
    ) -> Assignment:
        positions = entries.positions
        counts = entries.message_counts
        if len(indexes) < len(positions):
            positions = [positions[index] for index in indexes]
            counts = None if counts is None else [counts[index] for index in indexes]
        return Assignment(
            recipient.consumer,
            indexes,
            self._redeliveries.column(positions) if counted else None,
            self._book.give(recipient, positions, counts),
            None,
        )


def _fitting(message_counts: Sequence[int] | None, indexes: Sequence[int], room: int) -> int:
    """How many of these entries fit; the last one may overshoot."""
    if message_counts is None:
        return min(len(indexes), room)
    for place, index in enumerate(indexes):
        if room <= 0:
            return place
        room -= message_counts[index]
    return len(indexes)


# ------------------------------------------------------------------------------ holes first
#
# While the gate is shut, replays that close holes go first: every run of waiting entries between two
# acked neighbours merges two ack ranges once it is acked, and the shorter it is the sooner. ::
#
#     acked  #### ## ## . . ####        waiting  w
#            ####w##ww##.ww.####
#                1   2    no: its neighbours are in flight or unread


def holes_first(
    waiting: Sequence[Position], entries_max: int, is_acked: Callable[[Position], bool]
) -> tuple[Position, ...]:
    """The same positions (ascending), those that close whole holes first, shortest hole first.

    Costs two calls of ``is_acked`` per run of neighbouring positions.
    """
    closing: list[tuple[int, int, int]] = []  # length, start, stop (places in `waiting`)
    others: list[Position] = []
    singles = 0
    start = 0
    total = len(waiting)
    # Holes of one entry cannot be beaten: with enough of them the rest need not be looked at.
    while start < total and singles < entries_max:
        ledger_id, entry_id = waiting[start]
        stop = start + 1
        while stop < total and waiting[stop] == (ledger_id, entry_id + stop - start):
            stop += 1
        # Entry 0 has no neighbour below: ack ranges do not cross ledgers.
        if (
            entry_id > 0
            and is_acked(Position(ledger_id, entry_id - 1))
            and is_acked(Position(ledger_id, entry_id + stop - start))
        ):
            closing.append((stop - start, start, stop))
            singles += stop - start == 1
        else:
            others.extend(waiting[start:stop])
        start = stop
    closing.sort()
    chosen: list[Position] = []
    for _, start, stop in closing:
        if len(chosen) >= entries_max:
            break
        chosen.extend(waiting[start:stop])
    chosen.extend(others)
    return tuple(chosen[:entries_max])


# ------------------------------------------------------------------------------ chunked messages


CHUNKED_MESSAGES_MAX: Final = 10_000
"""Incomplete messages remembered per subscription, some 2 MB."""


class ChunkOwners:
    """Which consumer of a Shared subscription assembles which chunked message.

    Kept from a message's first piece given to its last, or until the consumer is gone. A message
    whose producer died half-way stays; the oldest are forgotten past a bound.
    """

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[str, int] = {}

    def owner(self, uuid: str) -> int | None:
        """The consumer that has the chunks so far; None: none."""
        return self._owners.get(uuid)

    def given(self, uuid: str, consumer: int, *, is_last: bool) -> None:
        if is_last:
            self._owners.pop(uuid, None)
            return
        self._owners[uuid] = consumer
        if len(self._owners) > CHUNKED_MESSAGES_MAX:
            del self._owners[next(iter(self._owners))]

    def forget_consumer(self, consumer: int) -> None:
        """Its pieces will go to another, all of them."""
        self._owners = {uuid: owner for uuid, owner in self._owners.items() if owner != consumer}

    def clear(self) -> None:
        self._owners.clear()
