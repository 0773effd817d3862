"""How many further entries may be sent so that no acks can push the ranges over a limit?

Pure. Joins the arithmetic of `worst_case` with a cursor's ledgers: all unacked entries below the
read position are in flight, those from it on are candidates, in order.

    ledger 7    # M . # . . . | .  .  .  .          M mark-delete, | read position
                    ^   `---'   `---------'
                 in flight      the budget ends where one more could make a range too many
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from ackgate.cursor.bitmap_runs import run_bounds
from ackgate.cursor.worst_case import ENDLESS, gain_below, ledger_holes, widest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.cursor.ack_ranges import AckRanges
    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position
    from ackgate.cursor.worst_case import LedgerHoles

NO_IDS: Final = np.empty(0, dtype=np.int64)


def entry_budget(
    ledgers: MessageLedgers,
    ranges: AckRanges,
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
    ledgers: MessageLedgers, ranges: AckRanges, first_unacked: Position
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
