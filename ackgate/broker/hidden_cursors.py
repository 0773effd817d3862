"""Names of the cursors that a topic keeps for itself: no subscriptions, and users see none of them.

Pure. What lies below a topic's node under another name is a subscription.
"""

from __future__ import annotations

from typing import Final

from ackgate.broker.deduplication import DEDUP_CURSOR

CANCELLED_CURSOR: Final = "pulsar.delayed-cancelled"
"""What it has acked are delayed messages that were cancelled."""

DELAYED_INDEX_CURSOR: Final = "pulsar.delayed-index"
"""Reads for the index of delayed messages that subscriptions share."""

HIDDEN_CURSORS: Final = frozenset({DEDUP_CURSOR, CANCELLED_CURSOR, DELAYED_INDEX_CURSOR})
