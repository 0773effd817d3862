"""Where blocking work runs: one lane, one thread, in order.

Edge: owns a thread. A bookie has two lanes, so that a slow flush of fragment files never holds up
the journal. Work handed to one lane runs one after the other; whatever only that lane touches needs
no lock. A simulation puts a lane in its place that runs the work at once.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class IoLane(Protocol):
    """Runs blocking work off the loop, in the order given."""

    async def run(self, work: Callable[[], T]) -> T: ...

    def close(self) -> None:
        """Wait for what was handed over, then end. Takes no more work."""


class ThreadLane:
    """An `IoLane` that is a thread. The thread starts with the first work."""

    __slots__ = ("_executor",)

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
