"""The reads of one subscription: what to read next, and who gets what it brought.

Pure. A normal read moves the cursor's read position when it is issued, before its I/O; so a rewind
that comes while it is under way wins. After a failure reads begin again with one entry and grow, so
that everything before an entry that cannot be read is delivered all the same::

    read of 100 fails  ->  1  2  4  8 ... fails at 8: the bad entry is among these

One read is under way at a time: of lost delayed entries first, then of replays and what has fallen due,
then a normal one as far as the gate allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.cursor import Position, PositionSet, Span
from ackgate.dispatcher import EntriesRead, ReadKind, Shared
from ackgate.errors import CallerError
from ackgate.subscription.held import any_delayed
from ackgate.subscription.ready import ReadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.cursor import ManagedCursor, MessageLedgers
    from ackgate.dispatcher import Assignment, Dispatcher, Gate, Read, SubscriptionKind
    from ackgate.subscription.entries import EntryT
    from ackgate.subscription.held import HeldEntries

GAP_ENTRIES_MAX: Final = 16
"""Held entries between two wanted ones that are read through: cheaper than another read."""

SCAN_ENTRIES: Final = 100
"""A read among delayed entries is no shorter, however few may be delivered: else a consumer with
room for one message would have them read one by one."""

LOST_READ_ENTRIES_MAX: Final = 500
"""Lost delayed entries that are read again at a time."""

STEP_ENTRIES_MAX: Final = 1_000
"""A read of so many entries that succeeds ends the caution after a failure."""

READ_RETRY_MS: Final = 1_000
"""Pause after a failed read."""

DUE_TAKEN_MAX: Final = 1_000
"""Due entries that are taken out at once: enough that taking them costs nothing."""

DUE_RETRY_MS: Final = 10
"""Pause before a due entry that could not be read is read again."""


class CursorReads:
    """The reads of one cursor. It moves the read position, and sets the strict gate's budget."""

    __slots__ = (
        "_cursor",
        "_dispatcher",
        "_due_waiting_max",
        "_entries_max",
        "_finds_delayed",
        "_gate",
        "_held",
        "_holds",
        "_is_stale",
        "_last_partly_acked",
        "_ledgers",
        "_lost",
        "_lost_group",
        "_lost_reads_at_ms",
        "_normal_reads_at_ms",
        "_replays_at_ms",
        "_request",
        "_takes_chunks",
        "_version_at_request",
    )

    def __init__(
        self, ledgers: MessageLedgers, cursor: ManagedCursor, gate: Gate, held: HeldEntries
    ) -> None:
        self._ledgers = ledgers
        self._cursor = cursor
        self._gate = gate
        self._held = held
        self._dispatcher: Dispatcher | None = None
        self._holds = self._takes_chunks = False
        self._due_waiting_max = 0
        self._lost = PositionSet()
        """Delayed entries whose time was lost with a stored bucket: read again, a group at a time."""
        self._lost_group: tuple[Position, ...] = ()
        """What is being read of them."""
        self._request: ReadRequest | None = None
        """The read under way."""
        self._is_stale = False
        """Whether the read position went back since the request."""
        self._version_at_request = 0
        self._entries_max: int | None = None
        """Set after a failure, doubled by each success."""
        self._last_partly_acked: Position | None = None
        """See `_holes_up_to`."""
        self._finds_delayed = False
        """Whether most of what the last normal read brought was not to be delivered yet."""
        self._normal_reads_at_ms = 0
        """Not before; after a failure."""
        self._replays_at_ms = 0
        self._lost_reads_at_ms = 0

    def serve(self, dispatcher: Dispatcher, kind: SubscriptionKind, *, holds: bool) -> None:
        """Read for this dispatcher from now on. `holds`: delayed and nacked entries wait for their time."""
        self._dispatcher, self._holds = dispatcher, holds
        self._due_waiting_max = kind.due_waiting_max if holds else 0
        self._takes_chunks = type(kind) is Shared

    @property
    def is_under_way(self) -> bool:
        """Whether a request is not answered yet."""
        return self._request is not None

    @property
    def has_unread(self) -> bool:
        """Whether there are entries from the read position on."""
        ledgers, read_position = self._ledgers, self._cursor.read_position
        if read_position > ledgers.last_confirmed:
            return False
        # The last confirmed entry may be of a ledger that is gone.
        return ledgers.exists(read_position) or ledgers.exists(ledgers.next_valid(read_position))

    @property
    def lost_count(self) -> int:
        """Lost delayed entries that are still to be read again."""
        return self._lost.entry_count

    def deadlines_ms(self, now_ms: int) -> Sequence[int]:
        """When to ask `next` again though nothing has happened; never while an answer is awaited."""
        if self._request is not None:
            return ()
        retries = (self._normal_reads_at_ms, self._replays_at_ms, self._lost_reads_at_ms)
        deadlines = [at_ms for at_ms in retries if at_ms > now_ms]
        dispatcher, held = self._dispatcher, self._held
        if (
            held.is_used
            and dispatcher is not None
            and dispatcher.waiting_entries < self._due_waiting_max
        ):
            held_ms = held.next_deadline_ms
            if held_ms is not None:
                deadlines.append(held_ms if held_ms > now_ms else now_ms + DUE_RETRY_MS)
        return deadlines

    def unacked_spans(self) -> list[Span]:
        """What was read and is not acked."""
        cursor, ledgers = self._cursor, self._ledgers
        last_read = ledgers.previous(cursor.read_position)
        entries = ledgers.count_between(cursor.mark_delete, last_read)
        if not entries:
            return []
        return cut(cursor.unacked_spans(ledgers.next_valid(cursor.mark_delete), entries), last_read)

    def lost(self, entries: Mapping[int, BitMap]) -> None:
        """Read these again, by ledger: their delivery times are lost."""
        for ledger_id, lost in entries.items():
            self._lost.add_many(ledger_id, lost.copy())

    def rewound(self) -> None:
        """Note that the read position went back: a read under way is stale, and lost entries are ahead."""
        self._lost.clear()
        self._is_stale = self._request is not None

    # ---------------------------------------------------------------- what to read

    def next(
        self, *, now_ms: int, entries_enough: int, entries_max: int | None
    ) -> ReadRequest | None:
        """Begin the next read, if there is one; none may be under way.

        `entries_enough`: a strict gate's budget need not be known beyond it. `entries_max`: bound of a
        normal read.
        """
        dispatcher = self._dispatcher
        assert dispatcher is not None
        request = self._next_lost(dispatcher, now_ms)
        while request is None:
            read = self._next_read(dispatcher, now_ms, entries_enough)
            if read is None:
                return None
            request = self._begin(read, entries_max)
            if not request.spans:  # all of it is acked by now
                dispatcher.assign(read, EntriesRead((), key_hashes=()))
                request = None
        self._request = request
        self._is_stale = False
        self._version_at_request = self._cursor.version
        return request

    @property
    def _hops(self) -> bool:
        """Whether reads pass over what is held.

        A strict budget is of neighbours: there, what is held is read through and counts in it.
        """
        return self._held.is_used and self._holds and not self._gate.keeps_budget

    def _next_read(self, dispatcher: Dispatcher, now_ms: int, entries_enough: int) -> Read | None:
        cursor, gate, held = self._cursor, self._gate, self._held
        if now_ms < self._replays_at_ms:
            return None
        has_unread = self.has_unread and now_ms >= self._normal_reads_at_ms
        if held.is_used and self._holds and held.entry_count:
            if dispatcher.waiting_entries < self._due_waiting_max:
                is_strict = gate.keeps_budget
                due = held.take_due(now_ms, DUE_TAKEN_MAX, cursor.read_position, in_order=is_strict)
                if due:
                    dispatcher.queue_due(due)
            has_unread = has_unread and not held.pauses_reads(now_ms, cursor.read_position)
        budget = None
        if gate.keeps_budget:
            budget = cursor.entry_budget(gate.settings.ranges_max, entries_enough=entries_enough)
            gate.budget(budget, now_ms)
        if gate.is_open:
            return dispatcher.next_read(has_unread=has_unread, gate_open=True, entry_budget=budget)
        return dispatcher.next_read(
            has_unread=has_unread,
            gate_open=False,
            entry_budget=budget,
            holes_up_to=self._holes_up_to(),
            is_acked=cursor.is_acked,
        )

    def _holes_up_to(self) -> Position | None:
        """How far a normal read may pass the shut gate: to what is acked, or partly acked, ahead.

        Reading up to there can only open the gate. Entries ahead are acked after a recovery or a
        rewind. Of partly acked entries the highest is looked for again once it is acked.
        """
        cursor = self._cursor
        last_acked = cursor.last_acked_position()
        if last_acked is not None and last_acked > cursor.read_position:
            return last_acked
        if not cursor.partly_acked_count:
            return None
        last_partly = self._last_partly_acked
        if last_partly is None or cursor.unacked_mask(last_partly) is None:
            last_partly = self._last_partly_acked = cursor.last_partly_acked_position()
        if last_partly is not None and last_partly >= cursor.read_position:
            return last_partly
        return None

    def _begin(self, read: Read, entries_max: int | None) -> ReadRequest:
        """Choose what will be read, and move the read position past it. No span: all is acked by now."""
        cursor = self._cursor
        if read.kind is ReadKind.REPLAY:
            is_acked = cursor.is_acked
            return ReadRequest(joined([p for p in read.positions if not is_acked(p)]), read)
        hops = self._hops
        left_out = self._held.left_out if hops else None
        wanted = read.entries_max
        if self._finds_delayed and hops:  # most will not be delivered; see `_keep_first`
            wanted = max(wanted, SCAN_ENTRIES)
        for bound in (entries_max, self._entries_max):
            if bound is not None:
                wanted = min(wanted, max(1, bound))
        spans = cursor.unacked_spans(
            cursor.read_position,
            wanted,
            left_out=left_out,
            gap_entries_max=0 if left_out is None else GAP_ENTRIES_MAX,
        )
        if read.up_to is not None:
            spans = cut(spans, read.up_to)
        if spans:
            cursor.seek(Position(spans[-1].ledger_id, spans[-1].stop))
        else:
            ledgers = self._ledgers
            cursor.seek(ledgers.next_valid(read.up_to or ledgers.last_confirmed))
        return ReadRequest(spans, read, left_out is not None, cursor.read_position)

    # ---------------------------------------------------------------- what a read came to

    def done(
        self,
        request: ReadRequest,
        entries: Sequence[EntryT],
        *,
        now_ms: int,
        delays_enabled: bool,
    ) -> tuple[Sequence[EntryT], Sequence[Assignment]]:
        """Assign the entries of a read to consumers. Returns the entries, and the assignments to them.

        Raises `CallerError` if this read is not under way. If the entries are malformed, passes their
        exception on; the read then stays under way.
        """
        dispatcher = self._under_way(request)
        taken = self._take(
            request, entries, dispatcher, now_ms=now_ms, delays_enabled=delays_enabled
        )
        self._request = None
        if self._entries_max is not None:
            self._entries_max *= 2
            if self._entries_max > STEP_ENTRIES_MAX:
                self._entries_max = None
        return taken

    def _take(
        self,
        request: ReadRequest,
        entries: Sequence[EntryT],
        dispatcher: Dispatcher,
        *,
        now_ms: int,
        delays_enabled: bool,
    ) -> tuple[Sequence[EntryT], Sequence[Assignment]]:
        if self._is_stale:
            self._abandon(request, dispatcher)
            return (), ()
        cursor, held, read = self._cursor, self._held, request.dispatched
        if request.has_gaps or cursor.version != self._version_at_request:
            is_acked = cursor.is_acked
            entries = [entry for entry in entries if not is_acked(entry.position)]
        if read is None:
            wanted = [entry for entry in entries if self._is_lost(entry.position, dispatcher)]
            due = held.sift(wanted, now_ms, is_active=delays_enabled)
            self._lost.discard_positions(self._lost_group)
            if due:
                dispatcher.queue_due([entry.position for entry in due])
            return (), ()
        is_normal = read.kind is ReadKind.NORMAL
        if is_normal and self._holds and (held.is_used or any_delayed(entries)):
            prompt = held.sift(entries, now_ms, is_active=delays_enabled)
            self._finds_delayed = 2 * len(prompt) < len(entries)
            entries = self._keep_first(request, read.entries_max, prompt)
        return entries, dispatcher.assign(read, self._columns(entries, dispatcher.key_hash))

    def _keep_first(
        self, request: ReadRequest, entries_max: int, entries: Sequence[EntryT]
    ) -> Sequence[EntryT]:
        """As many of the entries as the dispatcher asked for; the cursor reads the rest again.

        If the cursor was moved since, the read is stale, and nothing is kept.
        """
        if len(entries) <= entries_max or self._cursor.read_position != request.stop:
            return entries
        self._cursor.seek(entries[entries_max].position)
        return entries[:entries_max]

    def _columns(
        self, entries: Sequence[EntryT], key_hash: Callable[[bytes], int] | None
    ) -> EntriesRead:
        """The entries as the dispatcher wants to see them."""
        counts: list[int] | None = [entry.message_count for entry in entries]
        if self._cursor.partly_acked_count:
            unacked_mask = self._cursor.unacked_mask
            counts = [
                count if (mask := unacked_mask(entry.position)) is None else mask.bit_count()
                for entry, count in zip(entries, counts or (), strict=True)
            ]
        if counts and max(counts) == 1:
            counts = None
        chunks = [entry.chunk for entry in entries] if self._takes_chunks else None
        return EntriesRead(
            [entry.position for entry in entries],
            counts,
            [key_hash(entry.key) for entry in entries] if key_hash is not None else None,
            chunks if chunks and any(chunks) else None,
        )

    def failed(self, request: ReadRequest, *, now_ms: int) -> None:
        """Pause after a failed read; then begin with one entry, and read more and more."""
        dispatcher = self._under_way(request)
        self._request = None
        retry_ms = now_ms + READ_RETRY_MS
        if request.dispatched is None:
            self._lost_reads_at_ms = retry_ms
            return
        self._entries_max = 1
        if request.dispatched.kind is ReadKind.REPLAY:
            self._replays_at_ms = retry_ms
        else:
            self._normal_reads_at_ms = retry_ms
        self._abandon(request, dispatcher)

    def cancelled(self, request: ReadRequest) -> None:
        """Offer the read again: nothing of it may be delivered."""
        self._abandon(request, self._under_way(request))
        self._request = None

    def _under_way(self, request: ReadRequest) -> Dispatcher:
        if request is not self._request or self._dispatcher is None:
            raise CallerError("this read is not under way")
        return self._dispatcher

    def _abandon(self, request: ReadRequest, dispatcher: Dispatcher) -> None:
        """Assign none of a read.

        A normal one moves the read position back, unless the cursor was moved.
        """
        if request.dispatched is not None:
            passed = [Position(first.ledger_id, first.start) for first in request.spans[:1]]
            for back in dispatcher.read_failed(request.dispatched, passed):
                self._cursor.seek(back.position)

    # ---------------------------------------------------------------- lost delayed entries

    def _next_lost(self, dispatcher: Dispatcher, now_ms: int) -> ReadRequest | None:
        """The lowest of the lost entries that still are; the others are forgotten."""
        while self._lost.entry_count and now_ms >= self._lost_reads_at_ms:
            group = self._lost_group = self._lost.first(LOST_READ_ENTRIES_MAX)
            wanted = [position for position in group if self._is_lost(position, dispatcher)]
            if wanted:
                return ReadRequest(joined(wanted), None)
            self._lost.discard_positions(group)
        return None

    def _is_lost(self, position: Position, dispatcher: Dispatcher) -> bool:
        """Whether nothing owns the position. The cursor reads what is after its read position."""
        return (
            position < self._cursor.read_position
            and self._ledgers.exists(position)
            and not self._cursor.is_acked(position)
            and position not in self._held
            and dispatcher.active_consumer is None
            and dispatcher.holder(position) is None
        )


def joined(positions: Sequence[Position]) -> list[Span]:
    """Neighbouring positions as spans, in the given order."""
    spans: list[Span] = []
    for ledger_id, entry_id in positions:
        if spans and spans[-1].ledger_id == ledger_id and spans[-1].stop == entry_id:
            spans[-1] = Span(ledger_id, spans[-1].start, entry_id + 1)
        else:
            spans.append(Span(ledger_id, entry_id, entry_id + 1))
    return spans


def cut(spans: Sequence[Span], up_to: Position) -> list[Span]:
    """The part of the spans at or below a position."""
    kept = []
    for span in spans:
        if Position(span.ledger_id, span.stop - 1) <= up_to:
            kept.append(span)
        elif Position(span.ledger_id, span.start) <= up_to:
            kept.append(Span(span.ledger_id, span.start, up_to.entry_id + 1))
    return kept
