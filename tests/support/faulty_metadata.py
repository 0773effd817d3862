"""A metadata store that fails as a plan says: a wrapper over any `MetadataStore`.

With an empty plan it passes the conformance suite as the store below does. What each fault means
here:

====================  ==============================================================================
FAIL                  `MetadataStoreError`; nothing was done
DROP_ANSWER           a write is done and raises `OutcomeUnknownError`; a read fails
LANDS_LATE            a write raises `OutcomeUnknownError` at once and is done after the fault's seconds,
                      or ahead of the session's next write if that comes first, as ZooKeeper keeps
                      a session's writes in order; reads meanwhile do not see it
REPEAT                a put: the same value once more, so the version moves by two and the answer
                      names the first; create and delete: the answer is that of the second request
CORRUPT               a byte of the value read is another one
SUSPEND               see `suspend`; it ends by itself after the fault's seconds
LOSE_SESSION          see `lose_session`; the call raises `SessionLostError`
====================  ==============================================================================

The session can be suspended, resumed and lost by hand too, whatever store is below. As with the
ZooKeeper store, a call that is made while suspended waits for the store to come back, and gives up
after the operation time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Final, TypeVar

from ackgate.errors import (
    AckGateError,
    MetadataStoreError,
    OutcomeUnknownError,
    SessionLostError,
    StoreSuspendedError,
)
from ackgate.persistence.metadata.watches import SessionListeners
from ackgate.persistence.ports import NodeValue, SessionState
from tests.support.faults import Fault, FaultPlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence.ports import MetadataStore, WatchEvent

T = TypeVar("T")

_OF_SESSIONS: Final = frozenset(
    {Fault.FAIL, Fault.DELAY, Fault.LATE_ANSWER, Fault.SUSPEND, Fault.LOSE_SESSION}
)
_OF_READS: Final = _OF_SESSIONS | {Fault.DROP_ANSWER}
_OF_GETS: Final = _OF_READS | {Fault.CORRUPT}
_OF_WRITES: Final = _OF_READS | {Fault.REPEAT, Fault.LANDS_LATE}


class FaultyMetadataStore:
    """Implements `MetadataStore`: one session, as good as its plan."""

    def __init__(
        self,
        store: MetadataStore,
        plan: FaultPlan | None = None,
        *,
        operation_timeout_seconds: float = 30.0,
    ) -> None:
        self.plan = plan if plan is not None else FaultPlan()
        self._store = store
        self._timeout_seconds = operation_timeout_seconds
        self._state = SessionState.CONNECTED
        self._is_back = asyncio.Event()
        self._is_back.set()
        self._out_of_touch_at = math.inf
        self._ephemeral: set[str] = set()
        self._burial: asyncio.Task[None] | None = None
        self._on_their_way: dict[asyncio.Task[None], asyncio.Event] = {}
        self._resume: asyncio.TimerHandle | None = None
        self._cancels: dict[object, Callable[[], None]] = {}
        self._untold: list[tuple[Callable[[WatchEvent], None], WatchEvent]] = []
        self._listeners = SessionListeners(asyncio.get_running_loop())
        store.on_session_change(self._listeners.notify)

    @property
    def node_bytes_max(self) -> int:
        """See `MetadataStore.node_bytes_max`."""
        return self._store.node_bytes_max

    @property
    def session_state(self) -> SessionState:
        """See `MetadataStore.session_state`."""
        below = self._store.session_state
        return self._state if below is SessionState.CONNECTED else below

    @property
    def lease_until(self) -> float:
        """See `MetadataStore.lease_until`. Over from the moment of a suspension or a loss."""
        return min(self._store.lease_until, self._out_of_touch_at)

    # ------------------------------------------------------------------ the session, by hand

    def suspend(self) -> None:
        """Out of touch: calls wait, and changes elsewhere are not heard of until `resume`."""
        if self._state is SessionState.CONNECTED:
            self._state = SessionState.SUSPENDED
            self._out_of_touch_at = asyncio.get_running_loop().time()
            self._is_back.clear()
            self._listeners.notify(self._state)

    def resume(self) -> None:
        """Back in time: the session lives."""
        if self._state is SessionState.SUSPENDED:
            self._go(SessionState.CONNECTED)
            untold, self._untold = self._untold, []
            for on_event, event in untold:
                on_event(event)

    def lose_session(self) -> None:
        """The session is over: its watches end, its ephemeral nodes go, calls are refused."""
        if self._state is not SessionState.LOST:
            for cancel in list(self._cancels.values()):
                cancel()
            self._untold.clear()
            for task in self._on_their_way:
                task.cancel()
            self._burial = asyncio.get_running_loop().create_task(self._bury())
            self._go(SessionState.LOST)

    async def _bury(self) -> None:
        """Do what a server does when a session has expired."""
        ephemeral, self._ephemeral = self._ephemeral, set()
        for path in sorted(ephemeral, reverse=True):
            with contextlib.suppress(AckGateError):
                await self._store.delete(path)

    def _go(self, state: SessionState) -> None:
        self._state = state
        is_lost = state is SessionState.LOST
        self._out_of_touch_at = asyncio.get_running_loop().time() if is_lost else math.inf
        self._is_back.set()
        self._listeners.notify(state)

    async def _in_touch(self) -> None:
        if self._state is SessionState.SUSPENDED:
            try:
                await asyncio.wait_for(self._is_back.wait(), self._timeout_seconds)
            except TimeoutError:
                raise StoreSuspendedError(
                    f"out of touch for {self._timeout_seconds} s; nothing was done"
                ) from None
        if self._state is SessionState.LOST:
            raise SessionLostError("the session to the metadata store has expired")

    # ------------------------------------------------------------------ the port

    async def get(self, path: str) -> NodeValue | None:
        """See `MetadataStore.get`."""
        return await self._call(
            "get", path, _OF_GETS, lambda: self._store.get(path), corrupt=self._corrupted
        )

    async def put(self, path: str, value: bytes, *, expected_version: int | None) -> int:
        """See `MetadataStore.put`."""

        async def put() -> int:
            return await self._store.put(path, value, expected_version=expected_version)

        async def again(answer: int) -> int:
            await self._store.put(path, value, expected_version=answer)
            return answer

        return await self._call("put", path, _OF_WRITES, put, again=again)

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """See `MetadataStore.create`."""

        async def create() -> None:
            await self._store.create(path, value, ephemeral=ephemeral)
            if ephemeral:
                self._ephemeral.add(path)

        await self._call("create", path, _OF_WRITES, create, again=lambda _: create())

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """See `MetadataStore.delete`."""

        async def delete() -> None:
            await self._store.delete(path, expected_version=expected_version)
            self._ephemeral.discard(path)

        await self._call("delete", path, _OF_WRITES, delete, again=lambda _: delete())

    async def children(self, path: str) -> list[str]:
        """See `MetadataStore.children`."""
        return await self._call("children", path, _OF_READS, lambda: self._store.children(path))

    def watch(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        key = object()

        def hear(event: WatchEvent) -> None:
            if self._state is SessionState.SUSPENDED:
                self._untold.append((on_event, event))
            else:
                on_event(event)

        cancel_below = self._store.watch(path, hear)

        def cancel() -> None:
            if self._cancels.pop(key, None) is not None:
                cancel_below()

        self._cancels[key] = cancel
        return cancel

    def on_session_change(self, on_change: Callable[[SessionState], None]) -> Callable[[], None]:
        """See `MetadataStore.on_session_change`."""
        return self._listeners.add(on_change)

    async def renew(self) -> None:
        """See `MetadataStore.renew`."""
        chosen = self.plan.next_fault("metadata.renew", "", {Fault.FAIL, Fault.DELAY})
        if chosen is not None:
            await asyncio.sleep(chosen.seconds)
            if chosen.fault is Fault.FAIL:
                raise chosen.failure(MetadataStoreError)
        if self._burial is not None:
            await asyncio.wait([self._burial])
        await self._store.renew()
        if self._state is SessionState.LOST:
            self._go(SessionState.CONNECTED)

    async def close(self) -> None:
        """See `MetadataStore.close`."""
        if self._resume is not None:
            self._resume.cancel()
        self._listeners.clear()
        self._untold.clear()
        if self._burial is not None:
            await asyncio.wait([self._burial])
        await self._store.close()

    # ------------------------------------------------------------------ one call

    async def _call(
        self,
        operation: str,
        path: str,
        possible: frozenset[Fault],
        work: Callable[[], Awaitable[T]],
        *,
        again: Callable[[T], Awaitable[T]] | None = None,
        corrupt: Callable[[T], T] | None = None,
    ) -> T:
        chosen = self.plan.next_fault(f"metadata.{operation}", path, possible)
        if chosen is None:
            await self._in_touch()
            if again is not None:
                await self._land()
            return await work()
        fault = chosen.fault
        if fault is Fault.LOSE_SESSION:
            self.lose_session()
        elif fault is Fault.SUSPEND:
            self._suspend_for(chosen.seconds)
        elif fault in {Fault.FAIL, Fault.DELAY} and chosen.seconds:
            await asyncio.sleep(chosen.seconds)
        await self._in_touch()
        if fault is Fault.FAIL:
            raise chosen.failure(MetadataStoreError)
        if again is not None:
            await self._land()
        if fault is Fault.LANDS_LATE:
            self._send_off(work, chosen.seconds)
            raise chosen.failure(OutcomeUnknownError)
        answer = await work()
        if fault is Fault.REPEAT and again is not None:
            return await again(answer)
        if fault is Fault.CORRUPT and corrupt is not None:
            return corrupt(answer)
        if fault in {Fault.LATE_ANSWER, Fault.DROP_ANSWER} and chosen.seconds:
            await asyncio.sleep(chosen.seconds)
        if fault is Fault.DROP_ANSWER:
            raise chosen.failure(MetadataStoreError if again is None else OutcomeUnknownError)
        return answer

    def _send_off(self, work: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Do it later; its caller has been told otherwise."""
        overtaken = asyncio.Event()

        async def land() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(overtaken.wait(), seconds)
            with contextlib.suppress(AckGateError):
                await work()

        task = asyncio.get_running_loop().create_task(land())
        self._on_their_way[task] = overtaken
        task.add_done_callback(lambda done: self._on_their_way.pop(done, None))

    async def _land(self) -> None:
        """What is on its way comes first."""
        for task, overtaken in list(self._on_their_way.items()):
            overtaken.set()
            await asyncio.wait([task])

    def _suspend_for(self, seconds: float) -> None:
        self.suspend()
        if self._resume is not None:
            self._resume.cancel()
        self._resume = asyncio.get_running_loop().call_later(seconds, self.resume)

    def _corrupted(self, node: NodeValue | None) -> NodeValue | None:
        if node is None or not node.value:
            return node
        value = bytearray(node.value)
        value[self.plan.random.randrange(len(value))] ^= 1 << self.plan.random.randrange(8)
        return node._replace(value=bytes(value))
