"""What a subscription has acked, how much of it is durable, and whether the gate stays open.

Pure, frozen. It contains the statistics of cursor, gate and store, and above them
the few figures that everybody asks for first. The same form describes a subscription that a
broker holds (`of_subscription`) and one read from its files: there the gate, the store's counters
and the forecast, which live in memory only, are None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.described import statistic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.topic import SubscriptionDriver
    from ackgate.cursor import CursorStatistics
    from ackgate.dispatcher import GateStatistics
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.records.outcome import CursorStoreStats, RecoveryReport

# ---- Forecast: in how many seconds is a headroom used up, if it goes on shrinking like this?
#
# The slope is that of the straight line closest to the samples (least squares): one burst of
# acks does not turn the answer round. There is none while the headroom does not shrink, before enough
# time has been watched, and beyond a day, where the rate says nothing any more.

SPAN_MS_MIN: Final = 2_000
"""No forecast from samples that span less time."""

FORECAST_SECONDS_MAX: Final = 86_400.0


def seconds_until_used_up(samples: Sequence[tuple[int, float]]) -> float | None:
    """Forecast when the headroom is used up, in seconds.

    `samples`: (time in ms, headroom), oldest first; the last one is of now. Returns 0.0 if nothing
    is left, None if the samples allow no forecast.
    """
    if not samples:
        return None
    now_ms, headroom = samples[-1]
    if headroom <= 0:
        return 0.0
    if now_ms - samples[0][0] < SPAN_MS_MIN:
        return None
    shrinks_per_ms = -_slope(samples)
    if shrinks_per_ms <= 0:
        return None
    seconds = headroom / shrinks_per_ms / 1000
    return seconds if seconds <= FORECAST_SECONDS_MAX else None


def _slope(samples: Sequence[tuple[int, float]]) -> float:
    """Slope of the least-squares line, per ms. The times must not all be equal."""
    origin_ms = samples[0][0]
    count = len(samples)
    time_mean = sum(at_ms - origin_ms for at_ms, _ in samples) / count
    level_mean = sum(level for _, level in samples) / count
    covariance = variance = 0.0
    for at_ms, level in samples:
        offset = at_ms - origin_ms - time_mean
        covariance += offset * (level - level_mean)
        variance += offset * offset
    return covariance / variance


@dataclass(frozen=True, slots=True)
class GateForecast:
    """Forecasts for ranges that go on growing as in the last minute.

    0.0: it has happened already. None: there is no forecast.
    """

    gate_shuts_in_seconds: float | None = statistic(
        "Forecast: time until the gate shuts if ranges go on growing as in the last minute",
        "seconds",
        "ackgate_gate_shuts_in_seconds",
    )
    limit_reached_in_seconds: float | None = statistic(
        "The same until more ranges exist than are persisted, whether the gate is on or off",
        "seconds",
    )


@dataclass(frozen=True, slots=True)
class AckState:
    """The ack state of one subscription."""

    ranges_live: int = statistic("Ack ranges in memory", "", "ackgate_ack_ranges")
    ranges_persisted: int = statistic(
        "Ack ranges in the last durable write", "", "ackgate_ack_ranges_persisted"
    )
    ranges_max: int | None = statistic("The most ranges that are persisted; null: not known")
    entries_dropped: int = statistic(
        "Acked entries that the last write left out: they would be delivered again after a crash",
        "",
        "ackgate_entries_dropped",
    )
    batch_indexes_dropped: int = statistic(
        "Partly acked entries that the last write left out", "", "ackgate_batch_indexes_dropped"
    )
    cursor: CursorStatistics = statistic("The cursor")
    gate: GateStatistics | None = statistic("The gate; null: read from files")
    store: CursorStoreStats | None = statistic(
        "The cursor's store; null: of a reader, or read from files"
    )
    recovery: RecoveryReport | None = statistic(
        "What opening the cursor found; null: of a reader, whose state is not kept"
    )
    forecast: GateForecast | None = statistic("When the gate will shut; null: read from files")
    is_gate_switched_on: bool | None = statistic(
        "Whether setting or policy have the gate on for the topic. The gate's `isEnabled` is true only "
        "once a consumer has shown the subscription to be Shared or Key_Shared. null: not known",
        default=None,
    )


class Headroom(NamedTuple):
    """How much may still be acked out of order, sampled for the forecast."""

    to_shut: int
    """Ranges until the gate shuts; if the gate is strict, entries that may still be sent."""
    to_limit: int
    """Ranges until there are more than the limit."""


def headroom_of(subscription: SubscriptionDriver) -> Headroom:
    """The headroom now. O(ranges) if the gate is strict, else O(1)."""
    gate, cursor = subscription.core.gate.settings, subscription.cursor
    to_limit = gate.ranges_max + 1 - cursor.range_count
    if gate.is_strict and gate.enabled:
        # The gate itself knows only as much of the budget as the next read needs.
        return Headroom(cursor.entry_budget(gate.ranges_max), to_limit)
    return Headroom(to_limit, to_limit)


def of_subscription(
    subscription: SubscriptionDriver, headrooms: Sequence[tuple[int, Headroom]]
) -> AckState:
    """The ack state of a loaded subscription.

    `headrooms`: (time in ms, headroom), oldest first; the last one is of now.
    """
    gate, store = subscription.core.gate.statistics(), subscription.store
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
        store=None if store is None else _store_stats(subscription, store),
        recovery=recovery,
        forecast=_forecast(gate, headrooms),
        is_gate_switched_on=subscription.topic.pauses_on_ack_state,
    )


def _store_stats(subscription: SubscriptionDriver, store: CursorStore) -> CursorStoreStats:
    """Statistics of the store, completed by the waiting receipts, which the subscription counts."""
    waiting = subscription.core.statistics().receipts_waiting
    return replace(store.statistics(), receipts_waiting=waiting)


def _forecast(gate: GateStatistics, headrooms: Sequence[tuple[int, Headroom]]) -> GateForecast:
    shuts_in: float | None = None
    if gate.is_enabled:
        shuts_in = 0.0
        if gate.is_open:
            shuts_in = seconds_until_used_up([(at, left.to_shut) for at, left in headrooms])
    return GateForecast(
        gate_shuts_in_seconds=shuts_in,
        limit_reached_in_seconds=seconds_until_used_up(
            [(at, left.to_limit) for at, left in headrooms]
        ),
    )
