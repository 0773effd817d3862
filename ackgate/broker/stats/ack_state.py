"""What is acked of a subscription, how much of it is durable, and what the gate makes of it.

Pure, frozen. The parts are the statistics that cursor, gate and store give of themselves; on top
stand the few figures that everybody asks for first. The same form describes a subscription that a
broker holds (`of_subscription`) and one read from its files: there the gate, the store's counters
and the forecast, which live in memory only, are None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ackgate.broker.stats.forecast import seconds_until_used_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.subscription import Subscription
    from ackgate.cursor.stats import CursorStats
    from ackgate.dispatcher.gate import GateStatistics
    from ackgate.persistence.outcome import RecoveryReport
    from ackgate.persistence.store_stats import CursorStoreStats


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens if the ranges go on growing as they did in the last minute.

    0.0: it has happened. None: the rate allows no answer.
    """

    gate_shuts_in_seconds: float | None
    """None too where the gate is off."""
    limit_reached_in_seconds: float | None
    """More ranges than are persisted, whether the gate is on or off."""


@dataclass(frozen=True, slots=True)
class AckState:
    """The ack state of one subscription."""

    ranges_live: int
    """Ack ranges in memory now; read from files: when the newest record was written."""
    ranges_persisted: int
    """Ack ranges that the last durable write (or recovery) holds. 0 of a reader."""
    ranges_max: int | None
    """The most that are persisted (`managedLedgerMaxUnackedRangesToPersist`). None: not known."""
    entries_dropped: int
    """Acked entries that the last write left out: they would come again after a crash."""
    batch_indexes_dropped: int
    """Partly acked entries that it left out."""
    cursor: CursorStats
    gate: GateStatistics | None
    store: CursorStoreStats | None
    recovery: RecoveryReport | None
    """What opening the cursor found. None: of a reader, whose state is not kept."""
    forecast: Forecast | None


class Headroom(NamedTuple):
    """How much is left, sampled for the forecast."""

    to_shut: int
    """Before the gate shuts: ranges, or entries that may still be sent where it is strict."""
    to_limit: int
    """Ranges, before more than the limit exist."""


def headroom_of(subscription: Subscription) -> Headroom:
    """The headroom now. O(ranges) where the gate is strict, else O(1)."""
    gate, cursor = subscription.gate.settings, subscription.cursor
    to_limit = gate.ranges_max + 1 - cursor.range_count
    if gate.is_strict and gate.enabled:
        # The gate itself is told no more of the budget than the next read needs.
        return Headroom(cursor.entry_budget(gate.ranges_max), to_limit)
    return Headroom(to_limit, to_limit)


def of_subscription(
    subscription: Subscription, headrooms: Sequence[tuple[int, Headroom]]
) -> AckState:
    """`headrooms`: (time in ms, headroom), oldest first, the last one of now."""
    gate, store = subscription.gate.statistics(), subscription.store
    if gate.is_strict and gate.is_enabled:
        gate = replace(gate, budget_entries=headrooms[-1][1].to_shut)
    outcome = store.outcome if store is not None else None
    recovery = store.report if store is not None else None
    return AckState(
        ranges_live=subscription.cursor.range_count,
        ranges_persisted=(
            outcome.ranges_persisted
            if outcome is not None
            else (recovery.ranges if recovery is not None else 0)
        ),
        ranges_max=gate.ranges_max,
        entries_dropped=outcome.entries_dropped if outcome is not None else 0,
        batch_indexes_dropped=outcome.batch_indexes_dropped if outcome is not None else 0,
        cursor=subscription.cursor.statistics(),
        gate=gate,
        store=store.statistics() if store is not None else None,
        recovery=recovery,
        forecast=_forecast(gate, headrooms),
    )


def _forecast(gate: GateStatistics, headrooms: Sequence[tuple[int, Headroom]]) -> Forecast:
    shuts_in: float | None = None
    if gate.is_enabled:
        shuts_in = 0.0
        if gate.is_open:
            shuts_in = seconds_until_used_up([(at, left.to_shut) for at, left in headrooms])
    return Forecast(
        gate_shuts_in_seconds=shuts_in,
        limit_reached_in_seconds=seconds_until_used_up(
            [(at, left.to_limit) for at, left in headrooms]
        ),
    )
