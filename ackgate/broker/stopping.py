"""Stopping in bounded time: what was begun is ended in reverse order, each step by a moment of its own.

Edge: tasks. Each step has a share of the time there is (`brokerShutdownTimeoutMs`), and gets what those
before it have left::

    began                                                               began + time
      | upkeep | topics: cursors, ledgers, handover    | clients | ledgers | metadata |
      |--3-----|------------------6--------------------|---1-----|----2----|----1-----|

A step that is not through by then is cancelled and not waited for, whatever it does about that; the next
one begins. What it left undone is what a `kill -9` would have left: the next start recovers it, and nothing
that was confirmed is lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

log = logging.getLogger(__name__)


class _Step(NamedTuple):
    name: str
    end: Callable[[], Awaitable[object]] | Callable[[], None]
    share: int


class Stopping:
    """Steps that stop what was started, and the time that they may take.

    As a context manager it runs them when a start has failed, that is, unless `keep` was called.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        """Returns the time for all steps together, in seconds; called when they begin."""
        self._steps: list[_Step] = []
        self._is_kept = False
        self.cut_short: list[str] = []
        """Names of steps that did not end in their time."""

    def then(
        self,
        name: str,
        end: Callable[[], Awaitable[object]] | Callable[[], None],
        *,
        share: int = 1,
    ) -> None:
        """Add a step: `end` stops what was started now, before everything that was started earlier.

        `share`: its share of the time, relative to the other steps.
        """
        self._steps.append(_Step(name, end, share))

    async def run(self) -> None:
        """Run all steps. Raises the first error of a step after all have run.

        May be called twice.
        """
        steps, self._steps = self._steps[::-1], []
        shares = sum(step.share for step in steps)
        seconds = self.seconds()
        loop = asyncio.get_running_loop()
        began, used = loop.time(), 0
        errors: list[BaseException] = []
        for step in steps:
            used += step.share
            try:
                ending = step.end()
                if ending is not None:
                    await self._within(began + seconds * used / shares, step.name, ending)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        for name in self.cut_short:
            log.error(
                "%s did not end in time (brokerShutdownTimeoutMs, %d ms for everything): the next start"
                " recovers what was left",
                name,
                seconds * 1000,
            )
        if errors:
            raise errors[0]

    async def _within(self, deadline: float, name: str, ending: Awaitable[object]) -> None:
        task = asyncio.ensure_future(ending)
        seconds = deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait([task], timeout=max(seconds, 0))
        if done:
            task.result()
        else:
            task.cancel()
            self.cut_short.append(name)

    def keep(self) -> None:
        """Do not stop when the context ends: the start succeeded. The owner calls `run` later."""
        self._is_kept = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_kept:
            await self.run()
