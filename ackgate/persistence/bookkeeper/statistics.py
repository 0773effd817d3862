"""The client in numbers: how much it sends to each bookie, how long answers take, what is outstanding.

Pure. Counters grow from the making of the client on; `BookieCounters.traffic` copies them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Final

LATENCY_BOUNDS_MS: Final = (
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1_000.0,
    5_000.0,
)
"""Upper bounds, inclusive; longer times are counted after the last one."""


@dataclass(frozen=True, slots=True)
class LatencyCounts:
    """Answers, counted by the time they took."""

    counts: tuple[int, ...]
    """By `LATENCY_BOUNDS_MS`, and one more for what took longer."""
    sum_ms: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def bounds_seconds(self) -> list[float]:
        """`LATENCY_BOUNDS_MS`, in seconds."""
        return [bound_ms / 1000 for bound_ms in LATENCY_BOUNDS_MS]

    def bound_ms(self, share: float) -> float:
        """The bound below which this share (0.99) of answers came; infinite beyond the last, 0 for none."""
        wanted, seen = share * self.count, 0
        for bound_ms, count in zip((*LATENCY_BOUNDS_MS, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound_ms
        return 0.0


@dataclass(frozen=True, slots=True)
class BookieTraffic:
    """The traffic with one bookie, since the client was made."""

    bookie_id: str
    connections_opened: int
    """All but the first are reconnects; a recovery has a connection of its own."""
    connections_failed: int
    """Attempts to connect that failed."""
    last_error: str | None
    """Why the last attempt failed, or the last connection ended."""
    adds: int
    """Entries that the bookie has synced."""
    adds_refused: int
    add_latency: LatencyCounts
    """From sending to the answer, by entry."""
    reads: int
    """Requests that were answered, whatever the answer; one for a batch of entries."""
    reads_failed: int
    """The connection ended before the answer."""
    read_latency: LatencyCounts
    outstanding_adds: int
    """Entries queued for the bookie or not answered."""
    outstanding_bytes: int
    """Bytes of the frames of these adds."""
    outstanding_reads: int


@dataclass(frozen=True, slots=True)
class BookKeeperStatistics:
    """A client of BookKeeper in numbers, since it was made."""

    bookies: tuple[BookieTraffic, ...]
    """Every bookie that the client has used, in order of their ids."""
    ledgers_created: int
    ledgers_recovered: int
    """Ledgers that were opened with fencing and had not been closed."""
    ensemble_changes: int
    """How often a bookie was replaced in a ledger that is written."""
    ledgers_fenced: int
    """Writers that lost their ledger to another client."""


class LatencyCounter:
    """Counts answers by the time they took."""

    __slots__ = ("_counts", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._sum_ms = 0.0

    def count(self, seconds: float, answers: int = 1) -> None:
        milliseconds = seconds * 1_000
        self._counts[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += answers
        self._sum_ms += milliseconds * answers

    def counts(self) -> LatencyCounts:
        return LatencyCounts(tuple(self._counts), self._sum_ms)


class ClientCounters:
    """Counters of one client, updated by its writers, too."""

    __slots__ = ("ensemble_changes", "ledgers_created", "ledgers_fenced", "ledgers_recovered")

    def __init__(self) -> None:
        self.ledgers_created = 0
        self.ledgers_recovered = 0
        self.ensemble_changes = 0
        self.ledgers_fenced = 0


class BookieCounters:
    """Counters of one bookie, over all its connections."""

    __slots__ = (
        "_add_latency",
        "_read_latency",
        "adds",
        "adds_refused",
        "connections_failed",
        "connections_opened",
        "last_error",
        "outstanding_adds",
        "outstanding_bytes",
        "outstanding_reads",
        "reads",
        "reads_failed",
    )

    def __init__(self) -> None:
        self.connections_opened = 0
        self.connections_failed = 0
        self.last_error: str | None = None
        self.adds = 0
        self.adds_refused = 0
        self.reads = 0
        self.reads_failed = 0
        self.outstanding_adds = 0
        self.outstanding_bytes = 0
        self.outstanding_reads = 0
        self._add_latency = LatencyCounter()
        self._read_latency = LatencyCounter()

    def queued(self, adds: int, size_bytes: int) -> None:
        self.outstanding_adds += adds
        self.outstanding_bytes += size_bytes

    def answered(self, adds: int, size_bytes: int, seconds: float) -> None:
        """Count adds that were sent together and have all been answered."""
        self.dropped(adds, size_bytes)
        self._add_latency.count(seconds, adds)

    def dropped(self, adds: int, size_bytes: int) -> None:
        """Stop counting adds as outstanding: they were answered, or the connection has ended."""
        self.outstanding_adds -= adds
        self.outstanding_bytes -= size_bytes

    def read(self, seconds: float) -> None:
        self.outstanding_reads -= 1
        self.reads += 1
        self._read_latency.count(seconds)

    def traffic(self, bookie_id: str) -> BookieTraffic:
        return BookieTraffic(
            bookie_id=bookie_id,
            connections_opened=self.connections_opened,
            connections_failed=self.connections_failed,
            last_error=self.last_error,
            adds=self.adds,
            adds_refused=self.adds_refused,
            add_latency=self._add_latency.counts(),
            reads=self.reads,
            reads_failed=self.reads_failed,
            read_latency=self._read_latency.counts(),
            outstanding_adds=self.outstanding_adds,
            outstanding_bytes=self.outstanding_bytes,
            outstanding_reads=self.outstanding_reads,
        )


class SentAdds:
    """Adds on their way to one bookie, in the pieces in which they were sent.

    A bookie answers adds of one ledger in order; answers of several ledgers may overtake one another. A
    piece counts as answered when as many answers have come as adds were sent up to it.
    """

    __slots__ = ("_answers", "_pieces", "_sent", "counters")

    def __init__(self, counters: BookieCounters) -> None:
        self.counters = counters
        self._pieces: deque[tuple[int, int, int, float]] = deque()
        """Adds sent up to and with it, its adds, their bytes, when it was sent."""
        self._sent = 0
        self._answers = 0

    @property
    def unanswered(self) -> int:
        return self._sent - self._answers

    def sent(self, adds: int, size_bytes: int, now: float) -> None:
        self._sent += adds
        self._pieces.append((self._sent, adds, size_bytes, now))

    def answered(self, answers: int, now: float) -> None:
        self._answers += answers
        pieces = self._pieces
        while pieces and pieces[0][0] <= self._answers:
            _, adds, size_bytes, sent_at = pieces.popleft()
            self.counters.answered(adds, size_bytes, now - sent_at)

    def drop(self) -> None:
        """Drop what is outstanding: the connection has ended."""
        for _, adds, size_bytes, _ in self._pieces:
            self.counters.dropped(adds, size_bytes)
        self._pieces.clear()
