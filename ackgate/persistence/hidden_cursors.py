"""Names of the cursors that a topic keeps for itself: no subscriptions, and users see none of them.

Pure. What lies below a topic's node under a name that is not in `HIDDEN_CURSORS` is a subscription.
"""

from __future__ import annotations

from typing import Final

DEDUP_CURSOR: Final = "pulsar.dedup"
"""Keeps each producer's last sequence id."""

CANCELLED_CURSOR: Final = "pulsar.delayed-cancelled"
"""What it has acked are delayed messages that were cancelled."""

DELAYED_INDEX_CURSOR: Final = "pulsar.delayed-index"
"""Reads for the index of delayed messages that subscriptions share."""

HIDDEN_CURSORS: Final = frozenset({DEDUP_CURSOR, CANCELLED_CURSOR, DELAYED_INDEX_CURSOR})
