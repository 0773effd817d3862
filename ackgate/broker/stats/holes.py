"""The oldest unacked entries of a subscription, who has them and since when; a window of a ledger.

Edge only in that it looks at live objects. Both answers are bounded: so many holes, so many entries.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ackgate.broker.stats.ledger_acks import CELLS_MAX, cells_between
from ackgate.cursor import Position
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from ackgate.broker.stats.sampler import StatsSampler
    from ackgate.broker.topic import SubscriptionDriver

HOLES_MAX: Final = 20
"""Oldest holes of one answer."""

WINDOW_ENTRIES_MAX: Final = 1_024
"""A window of no more entries says of each who has it."""


class EntryState(enum.Enum):
    """Where an entry is."""

    ACKED = "acked"
    HELD = "held"
    """A consumer has it and has not acked it."""
    QUEUED = "queued"
    """It waits to be delivered, again or after its time has come."""
    DELAYED = "delayed"
    NACKED = "nacked"
    """It waits after a negative ack."""
    UNREAD = "unread"
    """It was not delivered yet."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Neighbouring unacked entries of one ledger, all with one consumer or in one state."""

    first: Position
    entries: int
    state: EntryState
    holder: str | None
    """The consumer that has them; None: none."""
    since_ms: int | None
    """Since when its consumer has it, to within the sampling interval; None: not known."""


@dataclass(frozen=True, slots=True)
class WindowRun:
    """Neighbouring entries of a window that are alike."""

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
    """After its last entry."""
    ledger_entries: int
    cells: tuple[int, ...]
    """Thousandths acked per slice."""
    runs: tuple[WindowRun, ...] | None
    """Each entry; None: the window is too large for that."""


def state_of(subscription: SubscriptionDriver, position: Position) -> tuple[EntryState, str | None]:
    """Where an entry is, and the consumer that has it. O(consumers)."""
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
    """The first unacked runs of what was read, cut where the holder or the state changes."""
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
    if not 1 <= cells <= CELLS_MAX:
        raise CallerError(f"number of cells is {cells}, allowed is 1..{CELLS_MAX}")
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
