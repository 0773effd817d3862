"""Follows metadata nodes: a watch reports a change, and the node is read again.

Edge. A read always returns the newest value, so neither the order of notifications matters, nor how
many of them were combined. A watch ends with its session: `start` again in a new one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, OwnershipError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ackgate.persistence.ports import MetadataStore, WatchEvent

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.2
"""Pause after a read that failed."""


class NodeFollower:
    """Calls a function for nodes at and below some roots when they change."""

    def __init__(
        self,
        metadata: MetadataStore,
        roots: Sequence[str],
        read: Callable[[set[str]], Awaitable[None]],
    ) -> None:
        """`read` gets the paths that changed, and reads them."""
        self._metadata = metadata
        self._roots = roots
        self._read = read
        self._stale: set[str] = set()
        self._wake = asyncio.Event()
        self._cancels: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on. The caller reads what changed before."""
        self.stop()
        self._cancels = [self._metadata.watch(root, self._on_event) for root in self._roots]
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        for cancel in self._cancels:
            cancel()
        self._cancels.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._stale.clear()

    def _on_event(self, event: WatchEvent) -> None:
        self._stale.add(event.path)
        self._wake.set()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            paths, self._stale = self._stale, set()
            try:
                await self._read(paths)
            except OwnershipError:
                return  # the session is lost; a new one calls `start` again
            except AckGateError as error:
                log.warning("changes below %s cannot be read: %s", self._roots, error)
                self._stale |= paths
                self._wake.set()
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                # Another read would fail in the same way; later changes are still read.
                log.exception("changes below %s could not be taken over", self._roots)
