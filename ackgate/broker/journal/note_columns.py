"""Turns notes into the columns of a block, one form of note at a time, as arrays.

Pure. ::

    notes    Published x3   Row   WholeAcks x2         each takes as many rows as it has events
    rows     0 1 2          3     4 5
    columns  entry_id       filled form by form: rows 0 1 2 at once, then rows 4 5
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import numpy as np

from ackgate.broker.journal.notes import (
    DispatchedNote,
    DroppedNote,
    MixedAcksNote,
    NackedNote,
    PublishedNote,
    RowNote,
    WholeAcksNote,
)
from ackgate.persistence.deliveries.columns import (
    BLOB_COLUMNS,
    KINDS,
    TEXT_COLUMNS,
    EventColumns,
    EventKind,
    NumberColumn,
    WordColumn,
)
from ackgate.persistence.deliveries.details import AckedCall, encode_detail
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import plan_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ackgate.broker.journal.notes import Column, Note
    from ackgate.cursor import CursorSnapshot, Position
    from ackgate.subscription import PartialAck

    Ints = NDArray[np.int64]

WordT = TypeVar("WordT", str, bytes)

_CODES: Final[Mapping[EventKind, int]] = {kind: code for code, kind in enumerate(KINDS)}
_INT64_MAX: Final = 2**63 - 1
_HEAD: Final = itemgetter(0, 1)
"""Events and time of a note."""
_REASONS: Final = ("normal", "redelivery", "delayed")
_ALL: Final = PersistLimits(_INT64_MAX, _INT64_MAX)
_PACKING: Final = Packing(Compression.ZSTD)


def columns_of_notes(
    notes: Sequence[Note], *, topic: str, owner_epoch: int, first_sequence: int
) -> EventColumns:
    """Make a block of these notes; there must be at least one."""
    event_counts, all_times = zip(*map(_HEAD, notes), strict=True)
    counts = np.array(event_counts, dtype=np.int64)
    ends = np.cumsum(counts)
    block = _Block(int(ends[-1]), owner_epoch)
    by_form: dict[type[Note], list[int]] = defaultdict(list)
    for place, form in enumerate(map(type, notes)):
        by_form[form].append(place)
    block.time_us[:] = np.repeat(np.array(all_times, dtype=np.int64), counts)
    starts = ends - counts
    for form, places in by_form.items():
        chosen = [notes[place] for place in places]
        rows = _Rows(starts[places], counts[places])
        _FILLS[form](block, cast("Any", chosen), rows)
    return block.columns(topic, first_sequence)


class _Rows:
    """The rows of some notes in a block."""

    def __init__(self, starts: Ints, counts: Ints) -> None:
        self.starts = starts
        """The first row of each note."""
        self.counts = counts
        self.total = int(counts.sum())
        ends = np.cumsum(counts)
        self.all = np.repeat(starts - (ends - counts), counts) + np.arange(self.total)
        """Indexes of all rows, note by note."""

    def spread(self, values: Sequence[int] | Ints) -> Ints:
        """Repeat the value of each note for all of its rows."""
        return np.repeat(np.asarray(values, dtype=np.int64), self.counts)

    def join(self, columns: Sequence[Column | None]) -> Ints:
        """Concatenate the columns of the notes, a value per row. None stands for zeros."""
        if None in columns:
            columns = [
                bytes(8 * count) if column is None else column  # type: ignore[misc]  # both are bytes
                for column, count in zip(columns, self.counts.tolist(), strict=True)
            ]
        return _joined(columns)  # type: ignore[arg-type]  # as just seen


def _joined(columns: Sequence[Column]) -> Ints:
    return np.frombuffer(b"".join(columns), dtype=np.int64)


class _Words(Generic[WordT]):
    """A column of words under construction. Each distinct word has a code."""

    def __init__(self, size: int) -> None:
        self._codes = np.full(size, -1, dtype=np.int64)
        self._known: dict[WordT | None, int] = {None: -1}

    def code(self, word: WordT | None) -> int:
        """The code of a word, which may be a new one; -1 for None."""
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = len(self._known) - 1
        return found

    def codes(self, words: Sequence[WordT | None]) -> Ints:
        """The codes of words. Fast if all words are equal."""
        if words.count(words[0]) == len(words):
            return np.full(len(words), self.code(words[0]), dtype=np.int64)
        for word in sorted(set(words) - self._known.keys()):  # type: ignore[type-var]  # no None
            self._known[word] = len(self._known) - 1
        return np.fromiter(map(self._known.__getitem__, words), np.int64, len(words))

    def set(self, rows: Ints, codes: Ints | int) -> None:
        """Store the codes for these rows."""
        self._codes[rows] = codes

    def column(self) -> WordColumn[WordT]:
        """The finished column, without words that no row uses."""
        words = tuple(word for word in self._known if word is not None)
        return WordColumn(self._codes, words).take(slice(None))


class _Block:
    """The columns of a block under construction. Rows that are not set are null."""

    def __init__(self, size: int, owner_epoch: int) -> None:
        self.owner_epoch = owner_epoch
        self.size = size
        self.kinds = np.zeros(size, dtype=np.int64)
        self.time_us = np.zeros(size, dtype=np.int64)
        self._numbers: dict[str, NumberColumn] = {}
        self._texts: dict[str, _Words[str]] = {}
        self._blobs: dict[str, _Words[bytes]] = {}

    def kind(self, rows: Ints | int, kind: EventKind) -> None:
        """Set the kind of these rows."""
        self.kinds[rows] = _CODES[kind]

    def number(self, name: str, rows: Ints | int, values: Ints | int) -> None:
        """Set a number column for these rows."""
        column = self._numbers.get(name)
        if column is None:
            column = self._numbers[name] = NumberColumn(
                np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=np.bool_)
            )
        column.values[rows] = values
        column.is_set[rows] = True

    def some_numbers(self, name: str, rows: Ints, values: Ints, is_set: NDArray[np.bool_]) -> None:
        """Set a number column for those of the rows where `is_set` is true."""
        if is_set.any():
            self.number(name, rows[is_set], values[is_set])

    def text(self, name: str) -> _Words[str]:
        column = self._texts.get(name)
        if column is None:
            column = self._texts[name] = _Words(self.size)
        return column

    def blob(self, name: str) -> _Words[bytes]:
        column = self._blobs.get(name)
        if column is None:
            column = self._blobs[name] = _Words(self.size)
        return column

    def spread_text(self, name: str, rows: _Rows, words: Sequence[str | None]) -> None:
        """Set a text column from one text per note, for all of its rows."""
        column = self.text(name)
        column.set(rows.all, rows.spread(column.codes(words)))

    def texts(self, name: str, rows: Ints, words: Sequence[str | None]) -> None:
        """Set a text column from one text per row."""
        column = self.text(name)
        column.set(rows, column.codes(words))

    def masks(self, rows: Sequence[int], masks: Iterable[int]) -> None:
        """Set the unacked batch indexes of some rows, as little-endian bytes. 0 is one byte."""
        column = self.blob("unacked_indexes")
        codes = [
            column.code(mask.to_bytes(max(1, (mask.bit_length() + 7) >> 3), "little"))
            for mask in masks
        ]
        column.set(np.array(rows, dtype=np.int64), np.array(codes, dtype=np.int64))

    def positions(self, rows: Ints, positions: Iterable[tuple[int, int]]) -> None:
        """Set ledger and entry id of each row."""
        self.flat_positions(
            rows, np.fromiter(chain.from_iterable(positions), np.int64, 2 * rows.size)
        )

    def flat_positions(self, rows: Ints, flat: Ints) -> None:
        """Set ledger and entry id of each row, from an array where they alternate."""
        self.number("ledger_id", rows, flat[0::2])
        self.number("entry_id", rows, flat[1::2])

    def columns(self, topic: str, first_sequence: int) -> EventColumns:
        all_set = np.ones(self.size, dtype=np.bool_)
        return EventColumns(
            topic=topic,
            owner_epoch=self.owner_epoch,
            first_sequence=first_sequence,
            kinds=self.kinds,
            numbers={"time_us": NumberColumn(self.time_us, all_set), **self._numbers},
            texts={name: words.column() for name, words in self._texts.items()},
            blobs={name: words.column() for name, words in self._blobs.items()},
        )


# ---------------------------------------------------------------------- form by form


def _fill_rows(block: _Block, notes: Sequence[RowNote], rows: _Rows) -> None:
    for row, note in zip(rows.starts.tolist(), notes, strict=True):
        block.kind(row, note.kind)
        for name, value in note.columns.items():
            if value is None:
                continue
            at = np.array([row], dtype=np.int64)
            if name in TEXT_COLUMNS:
                text = encode_detail(value) if name == "detail" else str(value)
                block.texts(name, at, (text,))
            elif name == "unacked_indexes":
                block.masks((row,), (value,))
            elif name in BLOB_COLUMNS:
                column = block.blob(name)
                column.set(at, column.code(_stored(value, block.owner_epoch, note.time_us)))
            else:
                block.number(name, row, int(value))


def _stored(snapshot: CursorSnapshot, owner_epoch: int, time_us: int) -> bytes:
    """The whole state, encoded as in a cursor ledger."""
    plan = plan_snapshot(snapshot, limits=_ALL, owner_epoch=owner_epoch, now_ms=time_us // 1000)
    return encode_record(plan.record, _PACKING)


def _fill_published(block: _Block, notes: Sequence[PublishedNote], rows: _Rows) -> None:
    _, _, firsts, producers, batch_sizes, sizes, deliver_ats, times, keys = zip(*notes, strict=True)
    at = rows.all
    block.kind(at, EventKind.PUBLISHED)
    ledger_ids, entry_ids = zip(*firsts, strict=True)
    block.number("ledger_id", at, rows.spread(ledger_ids))
    block.number("entry_id", at, rows.spread(np.array(entry_ids) - rows.starts) + at)
    names = (
        repeat(each[0], count) if len(each) == 1 else each
        for each, count in zip(producers, rows.counts.tolist(), strict=True)
    )
    block.texts("producer", at, list(chain.from_iterable(names)))
    block.number("batch_size", at, rows.join(batch_sizes))
    block.number("entry_bytes", at, rows.join(sizes))
    deliver_at = rows.join(deliver_ats)
    block.some_numbers("deliver_at_ms", at, deliver_at, deliver_at > 0)
    publish_times = rows.join(times)
    block.some_numbers("publish_time_ms", at, publish_times, publish_times >= 0)
    for start, count, of_note in zip(rows.starts.tolist(), rows.counts.tolist(), keys, strict=True):
        if of_note is not None:
            words = [key or None for key in of_note]
            block.texts("key", np.arange(start, start + count), words)


def _fill_dispatched(block: _Block, notes: Sequence[DispatchedNote], rows: _Rows) -> None:
    _, _, subscriptions, consumers, flats, batch_sizes, counts, masks, deliver_ats = zip(
        *notes, strict=True
    )
    at = rows.all
    block.kind(at, EventKind.DISPATCHED)
    block.spread_text("subscription", rows, subscriptions)
    block.spread_text("consumer", rows, consumers)
    block.flat_positions(at, _joined(flats))
    block.number("batch_size", at, rows.join(batch_sizes))
    redeliveries = rows.join(counts)
    block.number("redelivery_count", at, redeliveries)
    reasons = np.zeros(rows.total, dtype=np.int64)
    if any(deliver_at is not None for deliver_at in deliver_ats):
        is_replay = rows.spread([deliver_at is not None for deliver_at in deliver_ats]) > 0
        is_delayed = is_replay & (redeliveries == 0) & (rows.join(deliver_ats) > 0)
        reasons[is_replay], reasons[is_delayed] = 1, 2
    for code, reason in enumerate(_REASONS):
        chosen = at[reasons == code]
        if chosen.size:
            block.text("reason").set(chosen, block.text("reason").code(reason))
    if any(mask is not None for mask in masks):
        _mask_dispatched(block, masks, rows)


def _mask_dispatched(
    block: _Block, masks: Sequence[Sequence[int | None] | None], rows: _Rows
) -> None:
    masked = [
        (start + place, mask)
        for start, of_note in zip(rows.starts.tolist(), masks, strict=True)
        for place, mask in enumerate(of_note or ())
        if mask is not None
    ]
    if masked:
        block.masks(*zip(*masked, strict=True))


def _fill_whole_acks(block: _Block, notes: Sequence[WholeAcksNote], rows: _Rows) -> None:
    _, _, subscriptions, consumers, flats, versions, at_once = zip(*notes, strict=True)
    block.flat_positions(rows.all, _joined(flats))
    _fill_acks(block, rows, subscriptions, consumers, versions)
    _fill_calls(block, rows, at_once)


def _fill_acks(
    block: _Block,
    rows: _Rows,
    subscriptions: Sequence[str],
    consumers: Sequence[str | None],
    versions: Sequence[int],
) -> None:
    """Set the columns that all acks of entries have."""
    block.kind(rows.all, EventKind.ACKED)
    block.spread_text("subscription", rows, subscriptions)
    block.spread_text("consumer", rows, consumers)
    block.number("version", rows.all, rows.spread(versions))
    block.number("is_cumulative", rows.all, 0)


def _fill_calls(block: _Block, rows: _Rows, at_once: Sequence[bool]) -> None:
    """For a call that acked several entries, record that in its first event."""
    several = [
        (start, _call_detail(count, at_once=applied))
        for start, count, applied in zip(
            rows.starts.tolist(), rows.counts.tolist(), at_once, strict=True
        )
        if count > 1 or applied
    ]
    if several:
        starts, details = zip(*several, strict=True)
        block.texts("detail", np.array(starts, dtype=np.int64), details)


@lru_cache(maxsize=1_000)
def _call_detail(entries: int, *, at_once: bool) -> str:
    return encode_detail(AckedCall(entries, at_once))


def _fill_mixed_acks(block: _Block, notes: Sequence[MixedAcksNote], rows: _Rows) -> None:
    _, _, subscriptions, consumers, _, _, versions = zip(*notes, strict=True)
    positions = (chain(note.whole, (ack.position for ack in note.partial)) for note in notes)
    block.positions(rows.all, chain.from_iterable(positions))
    _fill_acks(block, rows, subscriptions, consumers, versions)
    _fill_calls(block, rows, [False] * len(notes))
    for start, note in zip(rows.starts.tolist(), notes, strict=True):
        masked = [
            (start + len(note.whole) + place, mask)
            for place, mask in enumerate(masks_after(note.partial, note.whole))
            if mask is not None
        ]
        if masked:
            block.masks(*zip(*masked, strict=True))


def masks_after(
    partial: Sequence[PartialAck], whole: Collection[Position] = ()
) -> list[int | None]:
    """The unacked batch indexes after each ack of one call; None: the entry is acked then.

    `whole`: entries that the call has acked before. A batch may occur several times.
    """
    now: dict[Position, int | None] = dict.fromkeys(whole)
    left: list[int | None] = []
    for position, mask, before, was_acked in partial:
        if position not in now:
            now[position] = None if was_acked else -1 if before is None else before
        unacked = now[position]
        now[position] = None if unacked is None else (unacked & mask) or None
        left.append(now[position])
    return left


def _fill_nacked(block: _Block, notes: Sequence[NackedNote], rows: _Rows) -> None:
    at = rows.all
    block.kind(at, EventKind.NACKED)
    _, _, subscriptions, consumers, reasons, _, _ = zip(*notes, strict=True)
    block.spread_text("subscription", rows, subscriptions)
    block.spread_text("consumer", rows, consumers)
    block.spread_text("reason", rows, reasons)
    spans = [span for note in notes for span in note.spans]
    lengths = np.fromiter((span.stop - span.start for span in spans), np.int64, len(spans))
    of_spans = _Rows(np.cumsum(lengths) - lengths, lengths)
    block.number("ledger_id", at, of_spans.spread([span.ledger_id for span in spans]))
    firsts = np.array([span.start for span in spans], dtype=np.int64) - of_spans.starts
    block.number("entry_id", at, of_spans.spread(firsts) + of_spans.all)
    for start, count, note in zip(rows.starts.tolist(), rows.counts.tolist(), notes, strict=True):
        if note.unacked_masks:
            _mask_nacked(block, range(start, start + count), note)


def _mask_nacked(block: _Block, rows: range, note: NackedNote) -> None:
    positions = (
        (span.ledger_id, entry_id)
        for span in note.spans
        for entry_id in range(span.start, span.stop)
    )
    masks = cast("Mapping[tuple[int, int], int]", note.unacked_masks)
    masked = [
        (row, masks[position])
        for row, position in zip(rows, positions, strict=True)
        if position in masks
    ]
    if masked:
        block.masks(*zip(*masked, strict=True))


def _fill_dropped(block: _Block, notes: Sequence[DroppedNote], rows: _Rows) -> None:
    block.kind(rows.all, EventKind.DROPPED)
    block.number("version", rows.all, rows.spread([note.missing[0] for note in notes]))


_FILLS: Final[Mapping[type[Note], Callable[[_Block, Any, _Rows], None]]] = {
    RowNote: _fill_rows,
    PublishedNote: _fill_published,
    DispatchedNote: _fill_dispatched,
    WholeAcksNote: _fill_whole_acks,
    MixedAcksNote: _fill_mixed_acks,
    NackedNote: _fill_nacked,
    DroppedNote: _fill_dropped,
}
