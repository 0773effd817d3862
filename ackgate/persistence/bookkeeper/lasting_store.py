"""ZooKeeper's nodes over any number of sessions: a lost one is replaced, and what waits goes on.

Edge. A broker's own session owns topics, so its loss is the end of something. A BookKeeper client's session
owns nothing: ledgers are fenced at the bookies, and the nodes that its ids come from are deleted at once. So
no caller learns of a lost session; it waits for the next one, as for an answer::

    call --> SessionLostError: nothing was done --> renew, with backoff --> the call again
                                                |  not within the operation time-out: StoreSuspendedError
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from ackgate.errors import MetadataStoreError, SessionLostError, StoreSuspendedError
from ackgate.persistence.ports import SessionState
from ackgate.persistence.system.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence.ports import NodeValue, WatchEvent
    from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore

logger = logging.getLogger(__name__)

_RETRY_FIRST_SECONDS: Final = 0.1
_RETRY_LONGEST_SECONDS: Final = 5.0

T = TypeVar("T")


class LastingStore:
    """Implements `MetadataStore` but for the end of its sessions. Owns the store below."""

    def __init__(self, store: ZooKeeperMetadataStore, *, wait_seconds: float = 30.0) -> None:
        """`wait_seconds`: how long a call waits for a new session."""
        self._store = store
        self._wait_seconds = wait_seconds
        self._renewing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._cancel = store.on_session_change(self._changed)

    @property
    def node_bytes_max(self) -> int:
        return self._store.node_bytes_max

    @property
    def session_state(self) -> SessionState:
        return self._store.session_state

    @property
    def lease_until(self) -> float:
        return self._store.lease_until

    async def get(self, path: str) -> NodeValue | None:
        return await self._lasting(lambda: self._store.get(path))

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        return await self._lasting(
            lambda: self._store.put(path, value, expected_version=expected_version)
        )

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        await self._lasting(lambda: self._store.create(path, value, ephemeral=ephemeral))

    async def create_sequential(self, prefix: str) -> str:
        return await self._lasting(lambda: self._store.create_sequential(prefix))

    async def sync(self, path: str) -> None:
        await self._lasting(lambda: self._store.sync(path))

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        await self._lasting(lambda: self._store.delete(path, expected_version=expected_version))

    async def children(self, path: str) -> list[str]:
        return await self._lasting(lambda: self._store.children(path))

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        return self._store.watch(path, on_event)

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._store.on_session_change(on_change)

    async def renew(self) -> None:
        await asyncio.shield(self._begin_renewal())

    async def close(self) -> None:
        self._is_closed = True
        self._cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._store.close()

    def _changed(self, state: SessionState) -> None:
        if state is SessionState.LOST and not self._is_closed:
            self._begin_renewal()

    def _begin_renewal(self) -> asyncio.Task[None]:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return self._renewing

    async def _renew(self) -> None:
        failures = 0
        while True:
            try:
                await self._store.renew()
            except MetadataStoreError as error:
                failures += 1
                logger.warning("no new session with BookKeeper's ZooKeeper yet: %s", error)
            else:
                return
            await asyncio.sleep(
                backoff_seconds(
                    failures,
                    first=_RETRY_FIRST_SECONDS,
                    longest=_RETRY_LONGEST_SECONDS,
                    seed=id(self),
                )
            )

    async def _lasting(self, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        while True:
            try:
                return await call()
            except SessionLostError as lost:
                if self._is_closed:
                    raise
                try:
                    async with asyncio.timeout_at(deadline):
                        await asyncio.shield(self._begin_renewal())
                except TimeoutError:
                    raise StoreSuspendedError(f"{lost}, and there is no new one yet") from None
