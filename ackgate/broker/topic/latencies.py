"""How long things take in one broker, counted as Prometheus' histograms count it.

Pure: times are arguments. An observation adds to one of the numbers that were made at the start, and is made
for a batch of entries at once wherever they share their times. One set for all topics, so that twenty
thousand of them cost no more to scrape than one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds. They include those of Pulsar's `pulsar_storage_write_latency_le_*`."""


class Latency:
    """A histogram of durations, in seconds, with the bounds `BOUNDS_SECONDS`."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        """Durations at most as long as each bound, and longer than the one before; then the longer
        ones."""
        self.sum_seconds = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` durations of `seconds` each."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.sum_seconds += seconds * count


class Latencies:
    """The histograms of one broker."""

    __slots__ = ("dispatch", "persist", "publish", "receipt")

    def __init__(self) -> None:
        self.publish = Latency()
        """Entries: from the chunk that brought the frame to its SEND_RECEIPT."""
        self.dispatch = Latency()
        """Entries: from the time when their subscription could go on, to their connection's
        output."""
        self.persist = Latency()
        """Writes of subscriptions' cursors, from their start until they are durable."""
        self.receipt = Latency()
        """ACKs with a request id: from the chunk that brought the frame to its ACK_RESPONSE."""
