"""Statistics of topics, subscriptions and consumers: taken once, frozen, rendered by others.

The face of the room. A name is imported from its home at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.faces import lazy_face

if TYPE_CHECKING:
    from ackgate.broker.stats.ack_state import AckState, GateForecast
    from ackgate.broker.stats.glance import OverviewRow, Severity, hole_text, judged, why
    from ackgate.broker.stats.holes import (
        CELLS_MAX,
        FULL,
        AckPicture,
        EntryState,
        Hole,
        LedgerAcks,
        ack_picture,
        ledger_window,
        oldest_holes,
        state_of,
    )
    from ackgate.broker.stats.internal import internal_stats
    from ackgate.broker.stats.overview import (
        PAGE_ROWS_MAX,
        Order,
        Overview,
        OverviewAnswer,
        OverviewQuery,
        counted_severities,
        merged,
        overview_row,
        page_of_rows,
    )
    from ackgate.broker.stats.sampler import SAMPLE_SECONDS, StatsSampler
    from ackgate.broker.stats.take import (
        consumer_rates,
        delayed_state,
        earliest_publish_times,
        subscription_stats,
        topic_stats,
    )
    from ackgate.broker.stats.values import (
        AckStateAnswer,
        ConsumerStats,
        DelayedState,
        NackStatistics,
        PublisherStats,
        SubscriptionStats,
        TopicStats,
        from_json,
        key_of,
        to_json,
    )

__all__ = [
    "CELLS_MAX",
    "FULL",
    "PAGE_ROWS_MAX",
    "SAMPLE_SECONDS",
    "AckPicture",
    "AckState",
    "AckStateAnswer",
    "ConsumerStats",
    "DelayedState",
    "EntryState",
    "GateForecast",
    "Hole",
    "LedgerAcks",
    "NackStatistics",
    "Order",
    "Overview",
    "OverviewAnswer",
    "OverviewQuery",
    "OverviewRow",
    "PublisherStats",
    "Severity",
    "StatsSampler",
    "SubscriptionStats",
    "TopicStats",
    "ack_picture",
    "consumer_rates",
    "counted_severities",
    "delayed_state",
    "earliest_publish_times",
    "from_json",
    "hole_text",
    "internal_stats",
    "judged",
    "key_of",
    "ledger_window",
    "merged",
    "oldest_holes",
    "overview_row",
    "page_of_rows",
    "state_of",
    "subscription_stats",
    "to_json",
    "topic_stats",
    "why",
]

__getattr__ = lazy_face(
    __name__,
    {
        "ackgate.broker.stats.ack_state": (
            "AckState",
            "GateForecast",
        ),
        "ackgate.broker.stats.glance": (
            "OverviewRow",
            "Severity",
            "hole_text",
            "judged",
            "why",
        ),
        "ackgate.broker.stats.holes": (
            "CELLS_MAX",
            "FULL",
            "AckPicture",
            "EntryState",
            "Hole",
            "LedgerAcks",
            "ack_picture",
            "ledger_window",
            "oldest_holes",
            "state_of",
        ),
        "ackgate.broker.stats.internal": ("internal_stats",),
        "ackgate.broker.stats.overview": (
            "PAGE_ROWS_MAX",
            "Order",
            "Overview",
            "OverviewAnswer",
            "OverviewQuery",
            "counted_severities",
            "merged",
            "overview_row",
            "page_of_rows",
        ),
        "ackgate.broker.stats.sampler": (
            "SAMPLE_SECONDS",
            "StatsSampler",
        ),
        "ackgate.broker.stats.take": (
            "consumer_rates",
            "delayed_state",
            "earliest_publish_times",
            "subscription_stats",
            "topic_stats",
        ),
        "ackgate.broker.stats.values": (
            "AckStateAnswer",
            "ConsumerStats",
            "DelayedState",
            "NackStatistics",
            "PublisherStats",
            "SubscriptionStats",
            "TopicStats",
            "from_json",
            "key_of",
            "to_json",
        ),
    },
)
