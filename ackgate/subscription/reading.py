"""From a dispatcher's `Read` to the entries to be read, and from these to the columns it assigns.

Pure. A normal read moves the cursor's read position when it is issued, before its I/O; so a rewind
that comes while it is under way wins. After a failure reads begin again with one entry and grow, so
that everything before an entry that cannot be read is delivered all the same::

    read of 100 fails  ->  1  2  4  8 ... fails at 8: the bad entry is among these
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.cursor import Position, PositionSet, Span
from ackgate.dispatcher import EntriesRead, ReadKind
from ackgate.subscription.ready import ReadRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.cursor import LeftOut, ManagedCursor, MessageLedgers
    from ackgate.dispatcher import Read
    from ackgate.subscription.entries import EntryT

GAP_ENTRIES_MAX: Final = 16
"""Held entries between two wanted ones that are read through: cheaper than another read."""

SCAN_ENTRIES: Final = 100
"""A read among delayed entries is no shorter, however few may be delivered: else a consumer with
room for one message would have them read one by one."""

LOST_READ_ENTRIES_MAX: Final = 500
"""Lost delayed entries that are read again at a time."""

STEP_ENTRIES_MAX: Final = 1_000
"""A read of so many entries that succeeds ends the caution after a failure."""


class CursorReads:
    """The reads of one cursor."""

    def __init__(self, ledgers: MessageLedgers, cursor: ManagedCursor) -> None:
        self._ledgers = ledgers
        self._cursor = cursor
        self._entries_max: int | None = None
        """Set after a failure, doubled by each success."""

    def failed(self) -> None:
        """Begin with one entry after a failed read, then read more and more."""
        self._entries_max = 1

    def succeeded(self) -> None:
        """Note that the last read had no error."""
        if self._entries_max is not None:
            self._entries_max *= 2
            if self._entries_max > STEP_ENTRIES_MAX:
                self._entries_max = None

    def begin(
        self,
        read: Read,
        left_out: LeftOut | None,
        *,
        scans: bool,
        entries_max: int | None,
    ) -> ReadRequest:
        """Choose what will be read; a normal read moves the read position past it.

        `left_out`: what a normal read skips, by ledger. Some of it may still be read; acked entries are
        not. `scans`: most will not be delivered; see `keep_first`. `entries_max`: bound of a normal
        read. No span is left when everything is acked by now.
        """
        cursor = self._cursor
        if read.kind is ReadKind.REPLAY:
            is_acked = cursor.is_acked
            return ReadRequest(joined([p for p in read.positions if not is_acked(p)]), read)
        wanted = max(read.entries_max, SCAN_ENTRIES) if scans else read.entries_max
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

    def keep_first(self, request: ReadRequest, entries: Sequence[EntryT]) -> Sequence[EntryT]:
        """As many of the entries as the dispatcher asked for; the cursor reads the rest again.

        If the cursor was moved since, the read is stale, and nothing is kept.
        """
        assert request.dispatched is not None
        entries_max = request.dispatched.entries_max
        if len(entries) <= entries_max or self._cursor.read_position != request.stop:
            return entries
        self._cursor.seek(entries[entries_max].position)
        return entries[:entries_max]

    def unacked(self, entries: Sequence[EntryT]) -> Sequence[EntryT]:
        """Those that are not acked by now."""
        is_acked = self._cursor.is_acked
        return [entry for entry in entries if not is_acked(entry.position)]

    def columns(
        self,
        entries: Sequence[EntryT],
        *,
        key_hash: Callable[[bytes], int] | None,
        with_chunks: bool,
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
        chunks = [entry.chunk for entry in entries] if with_chunks else None
        return EntriesRead(
            [entry.position for entry in entries],
            counts,
            [key_hash(entry.key) for entry in entries] if key_hash is not None else None,
            chunks if chunks and any(chunks) else None,
        )


class LostEntries:
    """Delayed entries whose time was lost with a stored bucket. They are read again, a group at a time."""

    __slots__ = ("_entries", "_group")

    def __init__(self) -> None:
        self._entries = PositionSet()
        self._group: tuple[Position, ...] = ()
        """What is being read."""

    def __len__(self) -> int:
        return self._entries.entry_count

    def add(self, entries: Mapping[int, BitMap]) -> None:
        """Positions to look for, by ledger."""
        for ledger_id, lost in entries.items():
            self._entries.add_many(ledger_id, lost.copy())

    def clear(self) -> None:
        """Forget everything: the cursor will read it."""
        self._entries.clear()
        self._group = ()

    def next_spans(self, is_lost: Callable[[Position], bool]) -> list[Span]:
        """The lowest of those that still are lost; the others are forgotten."""
        while self._entries.entry_count:
            self._group = self._entries.first(LOST_READ_ENTRIES_MAX)
            wanted = [position for position in self._group if is_lost(position)]
            if wanted:
                return joined(wanted)
            self.found()
        return []

    def found(self) -> None:
        """Note that the entries of `next_spans` were read: stop asking for them."""
        self._entries.discard_positions(self._group)
        self._group = ()


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
