"""Runs one subscription on asyncio: the pure machine and its cursor's store, a turn at a time.

Edge. The machine (`ackgate.subscription.Subscription`, here `core`) decides. The runtime reads, writes and
waits for it; its host delivers to consumers and answers receipts::

    host: ack, flow, seek ...     --> core --.               .--> carry_out: deliveries, receipts
    store: a write is durable     --> core --+-- turn: Ready +--> store.notify
    a read came                   --> core --'               '--> read: cached at once, else in a task

The host calls the machine itself, and `ask_turn` after it. One turn at a time, so no wake-up is lost
between turns. The runtime holds nothing of an ack.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ackgate.errors import AckGateError, CursorClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ackgate.cursor import Span
    from ackgate.persistence import CursorStore
    from ackgate.subscription import EntryFacts, ReadRequest, Ready, Subscription

log = logging.getLogger(__name__)

ConsumerT = TypeVar("ConsumerT", bound="Hashable")
EntryT = TypeVar("EntryT", bound="EntryFacts")

READS_PER_TURN_MAX: Final = 20
"""Reads of one turn before other tasks and connections get theirs."""

TIMER_MS_MAX: Final = 60_000
"""Longest timer, so that a clock that was set forward is noticed."""


class TopicReads(Protocol):
    """Where the entries of a topic are read."""

    def cached(self, spans: Sequence[Span]) -> Sequence[Any] | None:
        """The entries of the spans if all are in memory; else None."""

    async def read(self, spans: Sequence[Span]) -> Sequence[Any]:
        """The entries of the spans, in their order. May raise anything: it is repeated every second."""


def _raise(error: Exception) -> None:
    raise error


def _do_nothing() -> None:
    pass


@dataclass(slots=True, eq=False, kw_only=True)
class SubscriptionRuntime(Generic[ConsumerT, EntryT]):
    """One subscription that runs. It begins with the first `ask_turn`, and ends with `stop`."""

    core: Subscription[ConsumerT, EntryT]
    store: CursorStore | None
    """None: the machine is not durable."""
    reads: TopicReads
    name: str
    topic_name: object
    now_ms: Callable[[], int]
    """The current time, in ms since 1970."""
    carry_out: Callable[[Ready[ConsumerT, EntryT]], None]
    """Delivers, answers receipts, records notes. `Ready.read` and `.write` are the runtime's."""
    read_entries_max: Callable[[], int | None] = lambda: None
    """Bound of the next normal read, besides that of the limits."""
    may_deliver: Callable[[], bool] = lambda: True
    """Whether entries may be read and delivered now; asked before each `Ready`."""
    wait: Callable[[Ready[ConsumerT, EntryT]], None] | None = None
    """Calls `ask_turn` within `delay_ms`, or when what is awaited has come; called when a turn has
    nothing left to do. None: a timer of the loop, and the host asks for a turn when it has added entries."""
    on_outcome: Callable[[], None] = _do_nothing
    """A write succeeded or failed, or there will be no more. The machine knows already."""
    on_bug: Callable[[Exception], None] = _raise
    """A turn failed by a bug, ours or of what was read."""

    is_over: bool = field(default=False, init=False)
    """Whether there are no more turns."""
    why_unread: str = field(default="", init=False)
    """Why the last read failed; empty if it did not."""
    _is_asked: bool = field(default=False, init=False)
    _reading: asyncio.Task[None] | None = field(default=None, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.store is not None:
            self.store.on_outcome(self._outcome_came)
            self.store.keep_nacks(self.core.held_nacks)

    # ---------------------------------------------------------------- the turn

    def ask_turn(self) -> None:
        """Run one turn soon. Cheap; several calls before it cause one turn."""
        if not self._is_asked and not self.is_over:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_asked = False
        if not self.is_over:
            try:
                self._take_turn()
            except Exception as error:  # noqa: BLE001 - nothing may wait forever
                self.on_bug(error)

    def _take_turn(self) -> None:
        core = self.core
        for _ in range(READS_PER_TURN_MAX):
            if self.may_deliver():  # each time: the process may have been suspended
                core.resume()
            else:
                core.suspend()
            ready = core.ready(now_ms=self.now_ms(), read_entries_max=self.read_entries_max())
            self._do(ready)
            if ready.read is None:
                (self.wait or self._set_timer)(ready)
                return
            entries = self.reads.cached(ready.read.spans)
            if entries is None:
                self._reading = asyncio.get_running_loop().create_task(self._read(ready.read))
            else:
                self._read_done(ready.read, entries)
        self.ask_turn()

    def _do(self, ready: Ready[ConsumerT, EntryT]) -> None:
        self.carry_out(ready)
        store = self.store
        if ready.write is not None and store is not None:
            store.keep_nacks(self.core.held_nacks)
            if not store.notify():
                self.core.persisted(store.durable_outcome, now_ms=self.now_ms())

    def delay_ms(self, ready: Ready[ConsumerT, EntryT]) -> int | None:
        """How long nothing is to be done, in bounds; None: time alone changes nothing."""
        if ready.wake_at_ms is None:
            return None
        return min(max(0, ready.wake_at_ms - self.now_ms()), TIMER_MS_MAX)

    def _set_timer(self, ready: Ready[ConsumerT, EntryT]) -> None:
        self._stop_timer()
        if (delay_ms := self.delay_ms(ready)) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1000, self.ask_turn)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---------------------------------------------------------------- reading

    async def _read(self, request: ReadRequest) -> None:
        try:
            entries = await self.reads.read(request.spans)
        except Exception as error:  # noqa: BLE001 - without an answer the core never reads again
            self._read_failed(request, error)
        else:
            try:
                self._read_came(request, entries)
            except Exception as error:  # noqa: BLE001 - as in a turn
                self.on_bug(error)
        finally:
            self._reading = None
        self.ask_turn()

    def _read_came(self, request: ReadRequest, entries: Sequence[EntryT]) -> None:
        if self.is_over:
            return
        if self.may_deliver():
            self._read_done(request, entries)
        else:  # the next turn that may deliver asks for it again
            self.core.read_cancelled(request)

    def _read_done(self, request: ReadRequest, entries: Sequence[EntryT]) -> None:
        try:
            self.core.read_done(request, entries, now_ms=self.now_ms())
        except AckGateError as error:  # an entry's metadata cannot be parsed
            self._read_failed(request, error)
        else:
            self.why_unread = ""

    def _read_failed(self, request: ReadRequest, error: Exception) -> None:
        if self.is_over:
            return
        why = str(error) if isinstance(error, AckGateError) else repr(error)
        if why != self.why_unread:  # the read is retried every second
            self.why_unread = why
            trace = None if isinstance(error, AckGateError) else error
            where = (self.name, self.topic_name)
            log.warning("subscription %s of %s: read failed: %s", *where, why, exc_info=trace)
        self.core.read_failed(request, now_ms=self.now_ms())

    # ---------------------------------------------------------------- writing

    def _outcome_came(self) -> None:
        core, store, now_ms = self.core, self.store, self.now_ms()
        assert store is not None
        if store.failing_since_ms is not None:
            core.persist_failed(store.failing_since_ms, now_ms=now_ms)
        elif store.outcome is not None:
            core.persisted(store.outcome, now_ms=now_ms)
        if store.why_stopped is not None:
            core.fail_receipts(store.why_stopped)
        self.on_outcome()
        if self.is_over:
            self._answer_receipts()
        self.ask_turn()

    # ---------------------------------------------------------------- the end

    def stop(self, *, cancels_read: bool = False) -> None:
        """Take no more turns. Receipts are still answered when their writes are durable."""
        self.is_over = True
        self._stop_timer()
        if cancels_read and self._reading is not None:
            self._reading.cancel()

    async def settle(self) -> None:
        """Wait until no read is under way."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Stop, and write what is dirty; receipts that still wait fail. Raises `StorageError`."""
        self.stop()
        await self.settle()
        if self.store is not None:
            try:
                await self.store.close()
            finally:
                self.fail_receipts(CursorClosedError(f"subscription {self.name} is closed"))

    def fail_receipts(self, error: AckGateError) -> None:
        """Answer every receipt that still waits with this error, after `stop`: no write will come."""
        self.core.fail_receipts(error)
        self._answer_receipts()

    def _answer_receipts(self) -> None:
        """Answer receipts outside of a turn, because there are no more turns."""
        self.core.suspend()
        self._do(self.core.ready(now_ms=self.now_ms()))
