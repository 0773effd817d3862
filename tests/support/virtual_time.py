"""An event loop whose time moves only when nothing else can happen: seconds pass in microseconds.

Timers fire in their order, and `loop.time()` is exact. It is for code that neither uses threads nor
sockets: when nothing is ready and no timer is set, nothing will ever happen, and the loop says so.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class DeadlockError(RuntimeError):
    """Tasks wait for each other, and no timer will ever wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready now; nothing, and the clock moved on, when nothing is."""
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise DeadlockError("every task waits, and no timer is set")
        self.now += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; leftover tasks are cancelled."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
