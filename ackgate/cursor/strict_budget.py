"""The strict gate's arithmetic: how many further entries may be sent without risk for the limit?

Pure. The limit is one of ranges, and consumers ack what they like, in whatever order. All unacked
entries below the read position are in flight, those from it on are candidates, in order:

    ledger 7    # M . # . . . | .  .  .  .          M mark-delete, | read position
                    ^   `---'   `---------'
                 in flight      the budget ends where one more could make a range too many

A *hole* is a run of unacked entries in one ledger. Acking every second entry of it makes the most
ranges, but an entry next to an acked one only widens that range. So a hole of L entries adds at
most

    acked neighbours    2: # . . . . . #      1: # . . . . . |      0: | . . . . . |
    most ranges            # . + . + . #         # . + . + . |         | + . + . + |
                           (L - 1) // 2          L // 2                (L + 1) // 2

that is ``(L + 1 - neighbours) // 2``. The mark-delete counts as an acked neighbour: what touches it
is absorbed. Ledger borders (``|``) have no neighbour, nor has the place where sending stops.

The worst case of the first k unacked entries, W(k), is the ranges there are plus what every hole
(the last one perhaps only in part) can add. It never falls as k grows, and an ack never raises it:
acking is one step on the way to some subset that W has counted already. Hence a budget
once granted never exceeds the limit.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ackgate.cursor.bitmaps import run_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position
    from ackgate.cursor.position_set import PositionSet

ENDLESS: Final = 1 << 62
"""Stop of the last hole of the newest ledger: entries that are still to come count as unacked."""


class LedgerHoles(NamedTuple):
    """The holes of one ledger above the mark-delete, ascending, none of them empty."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    gains: NDArray[np.int64]
    """Most ranges that each hole can add."""
    first_has_left: bool
    """Whether the first hole has an acked neighbour (or the mark-delete) on its left."""


def ledger_holes(
    run_starts: NDArray[np.int64],
    run_stops: NDArray[np.int64],
    *,
    low: int,
    high: int,
    touches_mark_delete: bool,
) -> LedgerHoles:
    """The holes between the acked runs of a ledger whose unacked entries lie in ``[low, high)``."""
    starts = np.concatenate(([low], run_stops))
    stops = np.concatenate((run_starts, [high]))
    gains = (stops - starts - 1) // 2
    has_last = starts[-1] < stops[-1]
    if has_last and len(starts) > 1:
        gains[-1] = (stops[-1] - starts[-1]) // 2
    if starts[0] < stops[0]:
        neighbours = touches_mark_delete + (len(starts) > 1)
        gains[0] = (stops[0] - starts[0] + 1 - neighbours) // 2
        first, has_left = 0, touches_mark_delete
    else:
        first, has_left = 1, True
    last = len(starts) if has_last else len(starts) - 1
    kept = slice(first, last)
    return LedgerHoles(starts[kept], stops[kept], gains[kept], has_left)


def gain_below(holes: LedgerHoles, boundary: int) -> tuple[int, int]:
    """What the unacked entries below the boundary can add at most, and how many they are."""
    whole = int(np.searchsorted(holes.stops, boundary, side="right"))
    gain = int(holes.gains[:whole].sum())
    entries = int((holes.stops[:whole] - holes.starts[:whole]).sum())
    if whole < len(holes.starts):
        part = boundary - int(holes.starts[whole])
        if part > 0:
            entries += part
            gain += part_gain(part, has_left=whole > 0 or holes.first_has_left)
    return gain, entries


def part_gain(entries: int, *, has_left: bool) -> int:
    """Most ranges that the first entries of a hole can add if the rest of it is not sent."""
    return (entries + 1 - has_left) // 2


def widest(ledgers: Iterable[LedgerHoles], gain_max: int) -> int:
    """The largest number of unacked entries, in order, that can add at most `gain_max` ranges."""
    entries = 0
    for holes in ledgers:
        totals = np.cumsum(holes.gains)
        fitting = int(np.searchsorted(totals, gain_max, side="right"))
        entries += int((holes.stops[:fitting] - holes.starts[:fitting]).sum())
        if fitting < len(totals):
            spare = gain_max - (int(totals[fitting - 1]) if fitting else 0)
            # Largest j with (j + 1 - left) // 2 <= spare.
            return entries + 2 * spare + (fitting > 0 or holes.first_has_left)
        gain_max -= int(totals[-1]) if fitting else 0
    return entries


# ------------------------------------------------------------------------------ of a cursor


NO_IDS: Final = np.empty(0, dtype=np.int64)


def entry_budget(
    ledgers: MessageLedgers,
    ranges: PositionSet,
    *,
    first_unacked: Position,
    boundary: Position,
    ranges_max: int,
) -> int:
    """The largest number of unacked entries from `boundary` on with a worst case within the limit.

    The limit is `ranges_max`, or what the entries in flight alone could make if that is more.
    Entries that are still to come count as if they went to the newest ledger. O(ranges).
    """
    gain = in_flight = 0
    below: list[LedgerHoles] = []
    holes_by_ledger = _holes_by_ledger(ledgers, ranges, first_unacked)
    for ledger_id, holes in holes_by_ledger:
        below.append(holes)
        stop = boundary.entry_id if ledger_id == boundary.ledger_id else ENDLESS
        ledger_gain, entries = gain_below(holes, stop)
        gain += ledger_gain
        in_flight += entries
        if ledger_id >= boundary.ledger_id:
            break
    spare = max(ranges_max - ranges.range_count, gain)
    beyond = (holes for _, holes in holes_by_ledger)
    return widest(chain(below, beyond), spare) - in_flight


def _holes_by_ledger(
    ledgers: MessageLedgers, ranges: PositionSet, first_unacked: Position
) -> Iterator[tuple[int, LedgerHoles]]:
    """The holes from the first unacked entry on; the last one of the newest ledger is endless."""
    ids = ledgers.ledger_ids
    for ledger_id in ids:
        if ledger_id < first_unacked.ledger_id:
            continue
        is_first = ledger_id == first_unacked.ledger_id
        bitmap = ranges.bitmap(ledger_id)
        run_starts, run_stops = (NO_IDS, NO_IDS) if bitmap is None else run_bounds(bitmap)
        yield (
            ledger_id,
            ledger_holes(
                run_starts,
                run_stops,
                low=first_unacked.entry_id if is_first else 0,
                high=ENDLESS if ledger_id == ids[-1] else ledgers.entry_counts[ledger_id],
                touches_mark_delete=is_first,
            ),
        )
