"""Existing unacked entries: what there is to read, and how far n of them reach.

Pure. Acked stretches are hopped over with a few bitmap probes however long they are; between them
the unacked entries of a window are found by set difference. Cost: O(runs returned + ledgers
crossed). Entries that are held back (delayed, nacked) are left out just as cheaply::

    acked      # # # . . . . . # . . . . .
    left out   . . . . # # # . . # # . . .
    spans            -       -       - - -
    gaps <= 3        ---------       - - -     two reads, not three; # # # is read through
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyroaring import BitMap

from ackgate.cursor.bitmaps import nth_absent, run_bounds, run_stop
from ackgate.cursor.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position_set import PositionSet

WINDOW_ENTRIES_MIN: Final = 256
"""Entries looked at in one set difference; doubled while they turn out to be acked."""

WINDOW_ENTRIES_MAX: Final = 1 << 20
"""Bounds the memory of one difference."""


LeftOut: TypeAlias = "Callable[[int], BitMap | None]"
"""Which entries of a ledger (by its id) are not to be read. Asked once for each ledger passed."""


class Span(NamedTuple):
    """Consecutive entries of one ledger, half-open."""

    ledger_id: int
    start: int
    stop: int


def unacked_spans(
    ledgers: MessageLedgers,
    ranges: PositionSet,
    start: Position,
    entries_max: int,
    *,
    left_out: LeftOut | None = None,
    gap_entries_max: int = 0,
) -> list[Span]:
    """Maximal unacked runs from `start` on, up to `entries_max` entries in all, ascending.

    `left_out` names entries that are passed over like acked ones. With `gap_entries_max` runs of one
    ledger with no more than so many entries between them become one span: reading through is
    cheaper than reading twice. Entries between do not count as `entries_max`, but there are no more
    of them in all than that.
    """
    spans: list[Span] = []
    gaps_left = entries_max
    ids = ledgers.ledger_ids
    ledger_id, entry_id = start
    for index in range(bisect_left(ids, ledger_id), len(ids)):
        if entries_max <= 0:
            break
        current = ids[index]
        low = max(entry_id, 0) if current == ledger_id else 0
        count = ledgers.entry_counts[current]
        bitmap = _passed_over(ranges.bitmap(current), left_out and left_out(current))
        if bitmap is None or bitmap.max() < low:
            runs: Iterable[tuple[int, int]] = ((low, count),)
        else:
            runs = _absent_runs(bitmap, low, count, entries_max)
        for run_start, run_stop_ in runs:
            taken = min(run_stop_ - run_start, entries_max)
            if taken <= 0:
                break
            entries_max -= taken
            if spans and gap_entries_max and spans[-1].ledger_id == current:
                gap = run_start - spans[-1].stop
                if gap <= gap_entries_max and gap <= gaps_left:
                    gaps_left -= gap
                    spans[-1] = Span(current, spans[-1].start, run_start + taken)
                    continue
            spans.append(Span(current, run_start, run_start + taken))
    return spans


def _passed_over(acked: BitMap | None, left_out: BitMap | None) -> BitMap | None:
    """What is in either; None if that is nothing."""
    if not left_out:
        return acked
    if acked is None:
        return left_out
    return acked | left_out


def _absent_runs(
    bitmap: BitMap, low: int, high: int, entries_max: int
) -> Iterator[tuple[int, int]]:
    """Maximal runs of ``[low, high)`` without a member, until `entries_max` ids were given."""
    window = max(WINDOW_ENTRIES_MIN, 2 * entries_max)
    begun: tuple[int, int] | None = None
    while low < high and entries_max > 0:
        if low in bitmap:
            low = run_stop(bitmap, low, high)
        stop = min(low + window, high)
        starts, stops = run_bounds(BitMap(range(low, stop)) - bitmap)
        for run in zip(starts.tolist(), stops.tolist(), strict=True):
            if begun is not None and begun[1] == run[0]:
                begun = (begun[0], run[1])
                continue
            if begun is not None:
                entries_max -= begun[1] - begun[0]
                yield begun
            begun = run
        low = stop
        window = min(2 * window, WINDOW_ENTRIES_MAX)
        if begun is not None and begun[1] - begun[0] >= entries_max:
            break
    if begun is not None:
        yield begun


def nth_unacked(
    ledgers: MessageLedgers, ranges: PositionSet, mark_delete: Position, n: int
) -> Position | None:
    """The n-th unacked entry after the mark-delete; None when there are fewer."""
    ids = ledgers.ledger_ids
    for index in range(bisect_left(ids, mark_delete.ledger_id), len(ids)):
        ledger_id = ids[index]
        low = mark_delete.entry_id + 1 if ledger_id == mark_delete.ledger_id else 0
        bitmap = ranges.bitmap(ledger_id)
        acked = 0 if bitmap is None else len(bitmap)
        unacked = max(0, ledgers.entry_counts[ledger_id] - low) - acked
        if n <= unacked:
            entry_id = low + n - 1 if bitmap is None else nth_absent(bitmap, low, n)
            return Position(ledger_id, entry_id)
        n -= unacked
    return None
