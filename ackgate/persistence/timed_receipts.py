"""Acks that wait to hear that they are durable, or that it takes too long.

Edge: one loop timer for each cursor that has acks waiting. A host that has a clock of its own for
everything that waits gives `CursorStore` another `ReceiptQueue`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ackgate.persistence.receipts import Receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.persistence.receipts import Done


class TimedReceipts:
    """`Receipts` and their timer. A `ReceiptQueue`."""

    __slots__ = ("_loop", "_on_overdue", "_receipts", "_timer")

    def __init__(self, on_overdue: Callable[[Done], None]) -> None:
        """`on_overdue` is told of each that has waited too long."""
        self._loop = asyncio.get_running_loop()
        self._on_overdue = on_overdue
        self._receipts = Receipts()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._receipts)

    def add(self, version: int, timeout_seconds: float, done: Done) -> None:
        """Someone waits for `version` to be durable, so long."""
        deadline = self._loop.time() + timeout_seconds
        self._receipts.add(version, deadline, done)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)

    def take_durable(self, version: int) -> Sequence[Done]:
        """Remove and return those whose version is reached."""
        return self._receipts.take_durable(version)

    def take_all(self) -> Sequence[Done]:
        """Remove and return everything: there will be no further write."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._receipts.take_all()

    def _look(self) -> None:
        for done in self._receipts.take_overdue(self._loop.time()):
            self._on_overdue(done)
        deadline = self._receipts.next_deadline
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._look)
