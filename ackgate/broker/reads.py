"""From a dispatcher's `Read` to entries: from cache or ledger, less what is acked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor.position import EARLIEST, Position
from ackgate.cursor.unacked_entries import Span
from ackgate.dispatcher.dispatcher import EntriesRead, ReadKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.broker.entry import Entry
    from ackgate.broker.managed_ledger import ManagedLedger
    from ackgate.cursor.managed_cursor import ManagedCursor
    from ackgate.cursor.unacked_entries import LeftOut
    from ackgate.dispatcher.dispatcher import Read

GAP_ENTRIES_MAX: Final = 16
"""Held entries between two wanted ones that are read through: cheaper than another read."""

SCAN_ENTRIES: Final = 100
"""A read among delayed entries is no shorter, however few may be delivered: else a consumer with
room for one message would have them read one by one."""

STEP_ENTRIES_MAX: Final = 1_000
"""A read of so many entries that succeeds ends the caution after a failure."""


class PendingRead(NamedTuple):
    """A read whose positions are known."""

    read: Read
    spans: list[Span]
    has_gaps: bool = False
    """Whether the spans may hold entries that are acked or held back, and are only read through."""
    stop: Position = EARLIEST
    """Where a normal read has moved the read position to."""

    @property
    def passed_over(self) -> Sequence[Position]:
        """What a normal read has moved the read position over."""
        if self.read.kind is ReadKind.REPLAY:
            return ()
        return [
            Position(span.ledger_id, entry_id)
            for span in self.spans
            for entry_id in range(span.start, span.stop)
        ]


class SubscriptionReader:
    """Reads for one cursor."""

    def __init__(self, ledger: ManagedLedger, cursor: ManagedCursor, read_bytes_max: int) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._read_bytes_max = read_bytes_max
        self._entries_max: int | None = None
        """Set after a failure: what lies before the entry that cannot be read is read all the same."""

    def failed(self) -> None:
        """The next read is of one entry, and the others after it of more and more."""
        self._entries_max = 1

    def succeeded(self) -> bool:
        """What was asked for could be read. Answers whether the failure before it is history."""
        if self._entries_max is not None:
            self._entries_max *= 2
            if self._entries_max > STEP_ENTRIES_MAX:
                self._entries_max = None
        return self._entries_max is None

    def begin(
        self, read: Read, left_out: LeftOut | None = None, *, scans: bool = False
    ) -> PendingRead:
        """Fix what will be read; a normal read moves the read position past it.

        ``left_out``: what a normal read shall pass over, by ledger. Some of it may come all the
        same; acked entries do not. ``scans``: most will not be delivered; see `keep_first`.

        No span is left when everything asked for is acked by now: the caller then assigns nothing.
        """
        if read.kind is ReadKind.REPLAY:
            is_acked = self._cursor.is_acked
            return PendingRead(read, joined([p for p in read.positions if not is_acked(p)]))
        cursor = self._cursor
        bytes_bound = max(1, self._read_bytes_max // self._ledger.average_entry_bytes)
        entries_max = max(read.entries_max, SCAN_ENTRIES) if scans else read.entries_max
        entries_max = min(entries_max, bytes_bound)
        if self._entries_max is not None:
            entries_max = min(entries_max, self._entries_max)
        spans = cursor.unacked_spans(
            cursor.read_position,
            entries_max,
            left_out=left_out,
            gap_entries_max=0 if left_out is None else GAP_ENTRIES_MAX,
        )
        if read.up_to is not None:
            spans = cut(spans, read.up_to)
        if spans:
            cursor.seek(Position(spans[-1].ledger_id, spans[-1].stop))
        else:
            cursor.seek(
                self._ledger.facts.next_valid(read.up_to or self._ledger.facts.last_confirmed)
            )
        return PendingRead(read, spans, left_out is not None, cursor.read_position)

    def keep_first(self, pending: PendingRead, entries: list[Entry]) -> list[Entry]:
        """Of what a normal read has brought and may be delivered, as much as was asked for.

        The rest is read again. Unless the cursor was moved meanwhile: then the read is stale.
        """
        entries_max = pending.read.entries_max
        if len(entries) <= entries_max or self._cursor.read_position != pending.stop:
            return entries
        self._cursor.seek(entries[entries_max].position)
        return entries[:entries_max]

    def read_cached(self, pending: PendingRead) -> list[Entry] | None:
        """The entries if all of them are in the cache."""
        entries = self._ledger.reads.cached(pending.spans)
        if entries and pending.has_gaps:
            is_acked = self._cursor.is_acked
            return [entry for entry in entries if not is_acked(entry.position)]
        return entries

    async def read(self, pending: PendingRead) -> list[Entry]:
        """The entries, less those acked meanwhile. Raises as the ledger's read."""
        is_acked = self._cursor.is_acked
        return [
            entry
            for entry in await self._ledger.reads.read(pending.spans)
            if not is_acked(entry.position)
        ]

    def columns(
        self,
        entries: list[Entry],
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
