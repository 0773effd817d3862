"""The connections of one client: one per bookie for writing and reading, one more for recoveries.

Edge. A connection is opened on demand, and again after it failed. After a failure to connect, attempts
wait for a time that grows with each failure; a caller that wants the bookie before gets the last error at
once. Callers that want the same bookie wait for the same attempt; it goes on when one of them gives up.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    BookieRefusedError,
    ClosedHandleError,
    NotEnoughBookiesError,
    StorageError,
)
from ackgate.persistence.bookkeeper.connection import BookieConnection
from ackgate.persistence.bookkeeper.handshake import BookieDiskSpace, Handshake, Security
from ackgate.persistence.bookkeeper.statistics import (
    BookieCounters,
    BookKeeperStatistics,
    ClientCounters,
)
from ackgate.persistence.system.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster

_RETRY_FIRST_SECONDS: Final = 0.05
_RETRY_LONGEST_SECONDS: Final = 5.0
_SLOW_SECONDS: Final = 1.0
"""A bookie that has been connected to for so long without an answer is not the first choice."""


def summed(text: str, errors: Iterable[StorageError]) -> StorageError:
    """Sum up the errors of several bookies: `BookieRefusedError` if all are that."""
    errors = tuple(errors)
    refused = bool(errors) and all(isinstance(error, BookieRefusedError) for error in errors)
    kind = BookieRefusedError if refused else StorageError
    return kind(f"{text}: {'; '.join(map(str, errors))}")


class _Channel:
    """The connection to one bookie for one purpose, over time."""

    __slots__ = ("connection", "error", "failures", "opening", "retry_at", "since")

    def __init__(self) -> None:
        self.connection: BookieConnection | None = None
        self.opening: asyncio.Task[BookieConnection] | None = None
        self.since = 0.0
        """By the loop's clock: when `opening` began."""
        self.failures = 0
        self.retry_at = 0.0
        self.error: StorageError | None = None


class BookieConnections:
    """The connections of one client, by bookie."""

    def __init__(
        self, cluster: BookKeeperCluster, *, timeout_seconds: float, security: Security
    ) -> None:
        self._cluster = cluster
        self._timeout_seconds = timeout_seconds
        self._security = security
        self._channels: dict[tuple[str, bool], _Channel] = {}
        self._by_bookie: dict[str, BookieCounters] = {}
        self.counters = ClientCounters()
        self.is_closed = False
        self._random = random.Random()  # noqa: S311  spreads load

    async def get(self, bookie_id: str, *, is_for_recovery: bool = False) -> BookieConnection:
        """An open connection. Raises `StorageError`."""
        channel = self._channels.setdefault((bookie_id, is_for_recovery), _Channel())
        if channel.connection is not None and channel.connection.is_open:
            return channel.connection
        if self.is_closed:
            raise _closed()
        if channel.opening is None:
            loop = asyncio.get_running_loop()
            channel.since = loop.time()
            if channel.error is not None and channel.since < channel.retry_at:
                raise type(channel.error)(*channel.error.args)
            channel.opening = loop.create_task(self._open(bookie_id, channel))
            channel.opening.add_done_callback(_look_at)
        return await asyncio.shield(channel.opening)

    async def _open(self, bookie_id: str, channel: _Channel) -> BookieConnection:
        counters = self._by_bookie.setdefault(bookie_id, BookieCounters())
        try:
            channel.connection = await BookieConnection.open(
                bookie_id,
                await self._cluster.address(bookie_id),
                timeout_seconds=self._timeout_seconds,
                security=self._security,
                counters=counters,
            )
        except StorageError as error:
            counters.connections_failed += 1
            counters.last_error = str(error)
            channel.failures += 1
            channel.error = error
            channel.retry_at = asyncio.get_running_loop().time() + backoff_seconds(
                channel.failures,
                first=_RETRY_FIRST_SECONDS,
                longest=_RETRY_LONGEST_SECONDS,
                seed=hash(bookie_id),
            )
            raise
        except asyncio.CancelledError:
            if self.is_closed:
                raise _closed() from None
            raise
        finally:
            channel.opening = None
        counters.connections_opened += 1
        channel.failures = 0
        channel.error = None
        return channel.connection

    def statistics(self) -> BookKeeperStatistics:
        counters = self.counters
        return BookKeeperStatistics(
            bookies=tuple(each.traffic(name) for name, each in sorted(self._by_bookie.items())),
            ledgers_created=counters.ledgers_created,
            ledgers_recovered=counters.ledgers_recovered,
            ensemble_changes=counters.ensemble_changes,
            ledgers_fenced=counters.ledgers_fenced,
        )

    def current(self, bookie_id: str, *, is_for_recovery: bool = False) -> BookieConnection | None:
        """The connection if there is an open one."""
        channel = self._channels.get((bookie_id, is_for_recovery))
        connection = channel.connection if channel is not None else None
        return connection if connection is not None and connection.is_open else None

    def is_failing(self, bookie_id: str, *, is_for_recovery: bool = False) -> bool:
        """Whether the last attempt to reach it failed, or has no answer for a while."""
        channel = self._channels.get((bookie_id, is_for_recovery))
        if channel is None:
            return False
        now = asyncio.get_running_loop().time()
        if channel.opening is not None:
            return channel.error is not None or now > channel.since + _SLOW_SECONDS
        return channel.error is not None and now < channel.retry_at

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

    async def disk_space(self, bookie_id: str) -> BookieDiskSpace:
        """Ask the bookie, on a connection for that alone. Raises `StorageError`."""
        if self.is_closed:
            raise _closed()
        address = await self._cluster.address(bookie_id)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                handshake = await Handshake.open(bookie_id, address, self._security)
                try:
                    return await handshake.disk_space()
                finally:
                    handshake.close()
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._timeout_seconds:g} s"
            raise StorageError(
                f"bookie {bookie_id} at {address.host}:{address.port}: {reason}"
            ) from error

    async def close(self) -> None:
        """Close all connections, those being opened included."""
        self.is_closed = True
        openings = [c.opening for c in self._channels.values() if c.opening is not None]
        for opening in openings:
            opening.cancel()
        if openings:
            await asyncio.wait(openings)
        for channel in self._channels.values():
            if channel.connection is not None:
                channel.connection.close()


def _closed() -> ClosedHandleError:
    return ClosedHandleError("this client of BookKeeper is closed")


def _look_at(opening: asyncio.Task[BookieConnection]) -> None:
    """Read the error of an attempt whose callers have given up, so that asyncio does not warn."""
    if not opening.cancelled():
        opening.exception()
