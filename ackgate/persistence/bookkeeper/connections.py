"""The connections of one client: one per bookie for writing and reading, one more for recoveries.

Edge. A connection is opened on demand, and again after it failed. After a failure to connect, attempts
wait for a time that grows with each failure; a caller that wants the bookie before gets the last error at
once.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from ackgate.errors import ClosedHandleError, NotEnoughBookiesError, StorageError
from ackgate.persistence.bookkeeper.connection import BookieConnection
from ackgate.persistence.system.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Collection

    from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster

_RETRY_FIRST_SECONDS: Final = 0.05
_RETRY_LONGEST_SECONDS: Final = 5.0


class _Channel:
    """The connection to one bookie for one purpose, over time."""

    __slots__ = ("connection", "error", "failures", "lock", "retry_at")

    def __init__(self) -> None:
        self.connection: BookieConnection | None = None
        self.lock = asyncio.Lock()
        self.failures = 0
        self.retry_at = 0.0
        self.error: StorageError | None = None


class BookieConnections:
    """Connections by bookie."""

    def __init__(self, cluster: BookKeeperCluster, *, timeout_seconds: float) -> None:
        self._cluster = cluster
        self._timeout_seconds = timeout_seconds
        self._channels: dict[tuple[str, bool], _Channel] = {}
        self._is_closed = False
        self._random = random.Random()  # noqa: S311  spreads load

    async def get(self, bookie_id: str, *, is_for_recovery: bool = False) -> BookieConnection:
        """An open connection. Raises `StorageError`."""
        channel = self._channels.setdefault((bookie_id, is_for_recovery), _Channel())
        if channel.connection is not None and channel.connection.is_open:
            return channel.connection
        async with channel.lock:
            if channel.connection is not None and channel.connection.is_open:
                return channel.connection
            if self._is_closed:
                raise ClosedHandleError("this client of BookKeeper is closed")
            loop = asyncio.get_running_loop()
            if channel.error is not None and loop.time() < channel.retry_at:
                raise StorageError(*channel.error.args)
            try:
                channel.connection = await BookieConnection.open(
                    bookie_id,
                    await self._cluster.address(bookie_id),
                    timeout_seconds=self._timeout_seconds,
                )
            except StorageError as error:
                channel.failures += 1
                channel.error = error
                channel.retry_at = loop.time() + backoff_seconds(
                    channel.failures,
                    first=_RETRY_FIRST_SECONDS,
                    longest=_RETRY_LONGEST_SECONDS,
                    seed=hash(bookie_id),
                )
                raise
            channel.failures = 0
            channel.error = None
            return channel.connection

    def current(self, bookie_id: str) -> BookieConnection | None:
        """The connection if there is an open one."""
        channel = self._channels.get((bookie_id, False))
        connection = channel.connection if channel is not None else None
        return connection if connection is not None and connection.is_open else None

    def is_failing(self, bookie_id: str) -> bool:
        """Whether the last attempt to reach it failed, and the next one is not due."""
        channel = self._channels.get((bookie_id, False))
        return (
            channel is not None
            and channel.error is not None
            and asyncio.get_running_loop().time() < channel.retry_at
        )

    async def choose(self, count: int, *, besides: Collection[str] = ()) -> list[str]:
        """So many writable bookies that could be reached just now, in random order.

        Raises `NotEnoughBookiesError`, naming why others could not be reached.
        """
        candidates = [b for b in await self._cluster.writable_bookies() if b not in besides]
        self._random.shuffle(candidates)
        candidates.sort(key=self.is_failing)
        chosen: list[str] = []
        failures: list[str] = []
        while candidates and len(chosen) < count:
            some = [candidates.pop(0) for _ in range(min(count - len(chosen), len(candidates)))]
            results = await asyncio.gather(*map(self.get, some), return_exceptions=True)
            for bookie_id, result in zip(some, results, strict=True):
                if isinstance(result, StorageError):
                    failures.append(str(result))
                elif isinstance(result, BaseException):
                    raise result
                else:
                    chosen.append(bookie_id)
        if len(chosen) < count:
            reasons = f" ({'; '.join(failures)})" if failures else ""
            raise NotEnoughBookiesError(
                f"{count} writable bookies are wanted, {len(chosen)} are there{reasons}"
            )
        return chosen

    async def close(self) -> None:
        """Close them all."""
        self._is_closed = True
        for channel in self._channels.values():
            if channel.connection is not None:
                channel.connection.close()
