"""What is acked of message ledgers: a picture in cells, the oldest holes, and a window of entries.

The picture is pure. Holes and windows look at live objects, and change nothing. All are bounded, in cells,
holes and entries.

For the picture a ledger's entries are cut into equal slices; a cell says how many thousandths of its slice
are acked, at or below the mark-delete included. Rounding never lies at the ends: a cell is 0
exactly when nothing in it is acked, and `FULL` exactly when everything is::

    entries   0         10        20        30        40
              ##########.#.#.#.#.#..........................
    cells     |  1000   |   500   |    0    |    0    |  0

Costs O(cells x containers), whatever the number of ranges: Roaring ranks by its containers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ackgate.cursor import Position, run_count
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyroaring import BitMap

    from ackgate.broker.stats.sampler import StatsSampler
    from ackgate.broker.topic import SubscriptionDriver

FULL: Final = 1000
"""The value of a cell whose entries are all acked."""

CELLS_MAX: Final = 1024
"""Cells of one ledger; more than a terminal is wide."""

LEDGERS_MAX: Final = 64
"""Ledgers of one answer."""

HOLES_MAX: Final = 20
"""Oldest holes of one answer."""

WINDOW_ENTRIES_MAX: Final = 1_024
"""A window of at most so many entries names the consumer of each."""


@dataclass(frozen=True, slots=True)
class LedgerAcks:
    """What is acked in one message ledger."""

    ledger_id: int
    entries: int
    acked: int
    """Acked entries, including those at or below the mark-delete."""
    ranges: int
    """Ack ranges above the mark-delete."""
    cells: tuple[int, ...]
    """Thousandths acked per slice, from the first entry to the last. Empty if there are no
    entries."""


@dataclass(frozen=True, slots=True)
class AckPicture:
    """The ledgers from the mark-delete on."""

    ledgers: tuple[LedgerAcks, ...]
    ledgers_omitted: int
    """Number of later ledgers that are left out."""


def ack_picture(
    entry_counts: Iterable[tuple[int, int]],
    mark_delete: Position,
    acked: Mapping[int, BitMap],
    cells: int,
) -> AckPicture:
    """The picture of a subscription's message ledgers.

    `entry_counts`: (ledger id, entries), ascending. `acked`: entry ids above the mark-delete.
    """
    _check_cells(cells)
    shown = [pair for pair in entry_counts if pair[0] >= mark_delete.ledger_id and pair[1] > 0]
    return AckPicture(
        tuple(
            _ledger_acks(ledger_id, entries, mark_delete, acked.get(ledger_id), cells)
            for ledger_id, entries in shown[:LEDGERS_MAX]
        ),
        max(0, len(shown) - LEDGERS_MAX),
    )


def _check_cells(cells: int) -> None:
    if not 1 <= cells <= CELLS_MAX:
        raise CallerError(f"number of cells is {cells}, allowed is 1..{CELLS_MAX}")


def _ledger_acks(
    ledger_id: int, entries: int, mark_delete: Position, bitmap: BitMap | None, cells: int
) -> LedgerAcks:
    passed = mark_delete.entry_id + 1 if ledger_id == mark_delete.ledger_id else 0
    return LedgerAcks(
        ledger_id=ledger_id,
        entries=entries,
        acked=min(entries, passed) + _rank(bitmap, entries),
        ranges=run_count(bitmap) if bitmap else 0,
        cells=cells_between(bitmap, passed, 0, entries, cells),
    )


def cells_between(
    bitmap: BitMap | None, passed: int, start: int, stop: int, cells: int
) -> tuple[int, ...]:
    """The cells of a part of a ledger, for ``start <= entry < stop``.

    `bitmap`: acked entry ids above the mark-delete. `passed`: number of entries at or below it.
    """
    width = min(cells, stop - start)
    edges = [start + (stop - start) * cell // width for cell in range(width + 1)] if width else []
    below = [min(edge, passed) + _rank(bitmap, edge) for edge in edges]
    return tuple(
        _thousandths(below[cell + 1] - below[cell], edges[cell + 1] - edges[cell])
        for cell in range(width)
    )


def _rank(bitmap: BitMap | None, edge: int) -> int:
    return bitmap.rank(edge - 1) if bitmap and edge > 0 else 0


def _thousandths(part: int, whole: int) -> int:
    if part in {0, whole}:
        return FULL if part else 0
    return min(max(part * FULL // whole, 1), FULL - 1)


# ---- holes and windows of a live subscription


class EntryState(enum.Enum):
    """The state of an entry in a subscription."""

    ACKED = "acked"
    HELD = "held"
    """A consumer has it, and has not acked it."""
    QUEUED = "queued"
    """It waits for delivery: again, or because it has become due."""
    DELAYED = "delayed"
    NACKED = "nacked"
    """It waits for its redelivery after a negative ack."""
    UNREAD = "unread"
    """The dispatcher has not read it yet."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Neighbouring unacked entries of one ledger, all with one consumer or in one state."""

    first: Position
    entries: int
    state: EntryState
    holder: str | None
    """The consumer that has them, or None."""
    since_ms: int | None
    """When its consumer got it, to within the sampling interval; None: not known."""


@dataclass(frozen=True, slots=True)
class WindowRun:
    """Neighbouring entries of a window with the same state and consumer."""

    first: int
    entries: int
    state: EntryState
    holder: str | None


@dataclass(frozen=True, slots=True)
class LedgerWindow:
    """A part of one message ledger."""

    ledger_id: int
    start: int
    stop: int
    """First entry id after the window."""
    ledger_entries: int
    cells: tuple[int, ...]
    """Thousandths that are acked, for each slice of the window."""
    runs: tuple[WindowRun, ...] | None
    """The entries one by one, in runs. None: the window is too large."""


def state_of(subscription: SubscriptionDriver, position: Position) -> tuple[EntryState, str | None]:
    """The state of an entry, and the consumer that has it. O(consumers)."""
    core = subscription.core
    if subscription.cursor.is_acked(position):
        return EntryState.ACKED, None
    if core.is_held(position):
        nacks = core.held_nacks
        is_nacked = nacks is not None and position in nacks
        return EntryState.NACKED if is_nacked else EntryState.DELAYED, None
    holder = subscription.holder_name(position)
    if holder is not None:
        return EntryState.HELD, holder
    is_unread = position >= subscription.cursor.read_position
    return EntryState.UNREAD if is_unread else EntryState.QUEUED, None


def oldest_holes(
    subscription: SubscriptionDriver, sampler: StatsSampler, holes_max: int = HOLES_MAX
) -> tuple[Hole, ...]:
    """The first holes among what was read, split where the consumer or the state changes."""
    cursor, ledgers = subscription.cursor, subscription.topic.ledger.ledgers
    holes: list[Hole] = []
    since = {
        consumer.name: held
        for consumer in subscription.consumers
        if (held := sampler.oldest_unacked(consumer)) is not None
    }
    start = ledgers.next_valid(cursor.mark_delete)
    entries_max = WINDOW_ENTRIES_MAX if holes_max > 1 else 1
    for ledger_id, first, stop in cursor.unacked_spans(start, entries_max):
        positions = (Position(ledger_id, entry_id) for entry_id in range(first, stop))
        for (state, holder), run in groupby(
            positions, key=lambda position: state_of(subscription, position)
        ):
            if state is EntryState.UNREAD or len(holes) == holes_max:
                return tuple(holes)
            members = list(run)
            held = since.get(holder or "")
            known = held is not None and held.position in members
            holes.append(
                Hole(
                    members[0],
                    len(members),
                    state,
                    holder,
                    held.since_ms if held is not None and known else None,
                )
            )
    return tuple(holes)


def ledger_window(
    subscription: SubscriptionDriver, ledger_id: int, start: int, stop: int, cells: int
) -> LedgerWindow:
    """Entries ``start .. stop - 1`` of a ledger. Raises `CallerError`."""
    entries = subscription.topic.ledger.ledgers.entry_counts.get(ledger_id)
    if entries is None:
        raise CallerError(f"the topic has no ledger {ledger_id}")
    _check_cells(cells)
    start, stop = min(start, entries), min(stop, entries)
    if start > stop:
        raise CallerError(f"a window from {start} to {stop} has no entries")
    cursor = subscription.cursor
    mark_delete = cursor.mark_delete
    if ledger_id < mark_delete.ledger_id:
        passed = entries
    else:
        passed = mark_delete.entry_id + 1 if ledger_id == mark_delete.ledger_id else 0
    runs = None
    if stop - start <= WINDOW_ENTRIES_MAX:
        positions = [Position(ledger_id, entry_id) for entry_id in range(start, stop)]
        runs = tuple(
            WindowRun(members[0].entry_id, len(members), state, holder)
            for (state, holder), group in groupby(
                positions, key=lambda position: state_of(subscription, position)
            )
            if (members := list(group))
        )
    return LedgerWindow(
        ledger_id,
        start,
        stop,
        entries,
        cells_between(cursor.acked_entries(ledger_id), passed, start, stop, cells),
        runs,
    )
