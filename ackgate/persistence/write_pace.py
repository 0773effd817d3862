"""When a cursor may be written next, and to which of the two stores.

Pure: times are arguments, in seconds of one monotonic clock. The ledger is always preferred. Each
store has its own backoff; the node, which is there for emergencies, has a rate limit besides.

    may write at   = no earlier than the rate limit allows, and then
                     the ledger's next try or the node's, whichever comes first
    on fallback    : a clean cursor still waits for the ledger's next try, to return to it
"""

from __future__ import annotations

from typing import Final

from ackgate.persistence.backoff import backoff_seconds

RETRY_SECONDS_FIRST: Final = 0.1
RETRY_SECONDS_MAX: Final = 30.0


class WriteTarget:
    """One of the two stores: how it did, and when it may be tried again."""

    __slots__ = ("bytes_written", "errors", "failures_in_a_row", "try_at", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self.errors = 0
        self.bytes_written = 0
        self.failures_in_a_row = 0
        self.try_at = 0.0

    def wrote(self, bytes_written: int, *, again_at: float) -> None:
        """A write succeeded."""
        self.writes += 1
        self.bytes_written += bytes_written
        self.failures_in_a_row = 0
        self.try_at = again_at

    def failed(self, *, now: float, seed: int) -> None:
        """A write failed; the next try waits, longer each time."""
        self.errors += 1
        self.failures_in_a_row += 1
        self.try_at = now + backoff_seconds(
            self.failures_in_a_row, first=RETRY_SECONDS_FIRST, longest=RETRY_SECONDS_MAX, seed=seed
        )


class WritePace:
    """The pace of one cursor's writes."""

    __slots__ = ("_seed", "_write_at", "is_hurried", "is_on_fallback", "ledger", "node")

    is_hurried: bool
    """Somebody waits for the next write: no linger."""
    is_on_fallback: bool
    """The last write went to the node because the ledger could not be written."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._write_at = 0.0
        self.ledger = WriteTarget()
        self.node = WriteTarget()
        self.is_hurried = False
        self.is_on_fallback = False

    def hurry(self) -> None:
        """Forget linger, rate limit and backoff for the next write."""
        self.is_hurried = True
        self._write_at = self.ledger.try_at = self.node.try_at = 0.0

    def due_at(self, *, is_dirty: bool) -> float:
        """When to write next."""
        ledger_at = self.ledger.try_at
        if not is_dirty:
            return ledger_at
        return max(self._write_at, min(ledger_at, self.node.try_at))

    def begin(self, now: float, *, writes_per_second: float) -> None:
        """A write begins. 0 writes a second: as many as there are."""
        self.is_hurried = False
        if writes_per_second > 0:
            self._write_at = now + 1 / writes_per_second

    def ledger_wrote(self, bytes_written: int) -> None:
        """The state is durable in the ledger."""
        self.ledger.wrote(bytes_written, again_at=0.0)
        self.is_on_fallback = False

    def ledger_failed(self, now: float) -> None:
        """The ledger could not be written or made."""
        self.ledger.failed(now=now, seed=self._seed)

    def node_wrote(self, bytes_written: int, now: float, *, writes_per_second: float) -> None:
        """The state is durable in the node."""
        self.node.wrote(bytes_written, again_at=now + 1 / writes_per_second)
        self.is_on_fallback = True

    def node_failed(self, now: float) -> None:
        """The node could not be written."""
        self.node.failed(now=now, seed=self._seed)
