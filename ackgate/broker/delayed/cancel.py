"""Cancelling delayed messages by position: durable, for every subscription, now and later.

Edge: owns the store of the topic's hidden cursor ``pulsar.delayed-cancelled``. What that cursor has
acked is cancelled. It is made at the first cancel and opened with the topic from then on; nothing
is trimmed or kept because of it. ::

    validate --> ack in the hidden cursor --> durable --> ack in every subscription --> answer
                                                  |
                        a crash from here on: every subscription acks them when it is made or loaded

A subscription acks what is cancelled when it is made, loaded or moved back, so a cancelled message
is delivered to no consumer that did not have it before. A second ack has no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from pyroaring import BitMap

from ackgate.broker.delayed.hidden_cursors import HiddenCursor, HiddenCursorTopic
from ackgate.broker.wire import NotAllowedError, PersistenceFailedError, ServiceNotReadyError
from ackgate.errors import CallerError, CursorClosedError, OwnershipError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import ManagedCursor, Position
    from ackgate.persistence.cursors.store import CursorStore

log = logging.getLogger(__name__)

POSITIONS_MAX: Final = 2_000
"""Positions of one call; each entry's metadata is read."""

AT_ONCE_MAX: Final = 100
"""Positions that are judged or acked before others get their turn."""

RANGES_MAX: Final = 1_000_000
"""Ranges of cancelled messages that a topic keeps. Some two bytes each when they are scattered."""


class CancelOutcome(enum.Enum):
    """What became of a cancel."""

    CANCELLED = "cancelled"
    ALREADY_CANCELLED = "alreadyCancelled"
    NOT_DELAYED = "notDelayed"
    """It was published without a delivery time."""
    DUE = "due"
    """Its time has come."""
    DELIVERED = "delivered"
    """A consumer has it (every subscription's, or acked it: of the message as a whole)."""
    ACKED = "acked"
    """Of a subscription: it is done with it."""
    UNKNOWN_POSITION = "unknownPosition"
    """There is no such entry, or no more."""


_HOLDING: Final = frozenset({CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED})


class SubscriptionOutcome(NamedTuple):
    """What a cancel meant for one subscription."""

    outcome: CancelOutcome
    consumer: str | None = None
    """Who has it."""


@dataclass(frozen=True, slots=True)
class PositionOutcome:
    """What became of the cancel of one message."""

    position: Position
    outcome: CancelOutcome
    deliver_at: int | None = None
    """Its delivery time, ms since 1970. None: not looked up, or it has none."""
    subscriptions: Mapping[str, SubscriptionOutcome] = field(default_factory=dict)
    """Where it is or was delayed; for each what the cancel met there."""


class CancellingSubscription(Protocol):
    """A subscription in which messages are cancelled."""

    @property
    def cursor(self) -> ManagedCursor: ...

    def holder_name(self, position: Position) -> str | None:
        """The consumer that has an entry and has not acked it; None: none."""

    def ack_elsewhere(self, positions: Sequence[Position]) -> int:
        """Ack whole entries without a consumer."""


class CancellingTopic(HiddenCursorTopic, Protocol):
    """The topic of the cancelled messages."""

    @property
    def subscriptions(self) -> Mapping[str, CancellingSubscription]:
        """Those that are loaded, by name."""


class CancelledMessages:
    """The cancelled messages of one topic."""

    def __init__(
        self,
        topic: CancellingTopic,
        open_store: Callable[[Position | None], Awaitable[CursorStore]],
    ) -> None:
        """`open_store`: opens the hidden cursor, or makes it at a position."""
        self._topic = topic
        self._hidden = HiddenCursor(topic, open_store)
        self._opening: asyncio.Task[CursorStore] | None = None

    # -- what is known --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many of the topic's messages are cancelled."""
        if self._store is None:
            return 0
        cursor, ledgers = self._store.cursor, self._topic.ledger.ledgers
        passed = ledgers.count_between(ledgers.first_position, cursor.mark_delete)
        return passed + cursor.acked_count

    def __contains__(self, position: Position) -> bool:
        """Whether a message that exists is cancelled."""
        return self._store is not None and self._store.cursor.is_acked(position)

    def by_ledger(self, first_ledger_id: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """All of them from this ledger on: ledger and entry ids."""
        if self._store is None:
            return
        ledgers, snapshot = self._topic.ledger.ledgers, self._store.cursor.snapshot()
        mark_delete = snapshot.mark_delete
        for ledger_id in [each for each in ledgers.ledger_ids if each >= first_ledger_id]:
            cancelled = snapshot.acked.get(ledger_id, BitMap())
            if ledger_id < mark_delete.ledger_id:
                cancelled |= BitMap(range(ledgers.entry_count(ledger_id) or 0))
            elif ledger_id == mark_delete.ledger_id:
                cancelled |= BitMap(range(mark_delete.entry_id + 1))
            if cancelled:
                yield ledger_id, np.frombuffer(cancelled.to_array(), dtype=np.uint32)

    # -- cancelling -----------------------------------------------------------------------------

    async def cancel(self, positions: Sequence[Position]) -> list[PositionOutcome]:
        """Cancel these, each for itself. A message that cannot be cancelled is reported, and unchanged.

        Returns, in the order given, when what is cancelled is durable. Raises `CallerError` (too
        many), what reading raises (nothing has changed then), `PersistenceFailedError` or what
        storage raises (not known to be durable: cancel again).
        """
        if len(positions) > POSITIONS_MAX:
            raise CallerError(f"{len(positions)} positions, at most {POSITIONS_MAX} are cancelled")
        times = await self._deliver_times(positions)
        if any(at > self._now_ms for at in times.values()):
            await self._opened()
            self._check_room(len(times))
        judged: dict[Position, PositionOutcome] = {}
        for group in _groups(list(dict.fromkeys(positions)), AT_ONCE_MAX):
            self._judge_and_ack(group, times, judged)
            await asyncio.sleep(0)  # others get their turn
        held = [one for one in judged.values() if one.outcome in _HOLDING]
        if held:
            await self._until_durable()
            subscriptions = await self._ack_in_all([one.position for one in held])
            for one in held:
                if one.outcome is CancelOutcome.CANCELLED:
                    found = subscriptions[one.position]
                    judged[one.position] = replace(one, subscriptions=found)
        return [judged[position] for position in positions]

    def _judge_and_ack(
        self,
        positions: Sequence[Position],
        times: Mapping[Position, int],
        judged: dict[Position, PositionOutcome],
    ) -> None:
        """Nothing else runs between the two."""
        self._check_open()
        for position in positions:
            judged[position] = self._judge(position, times)
        wanted = [p for p in positions if judged[p].outcome is CancelOutcome.CANCELLED]
        if wanted:
            store = self._store
            assert store is not None
            store.cursor.ack_individual(wanted)
            store.notify()

    async def _deliver_times(self, positions: Sequence[Position]) -> dict[Position, int]:
        """Delivery times of those that exist and are not cancelled; 0: none."""
        ledger = self._topic.ledger
        times = {}
        for position in sorted(set(positions)):
            if ledger.ledgers.exists(position) and position not in self:
                times[position] = (await ledger.reads.read_one(position)).deliver_at_ms
        return times

    def _judge(self, position: Position, times: Mapping[Position, int]) -> PositionOutcome:
        if not self._topic.ledger.ledgers.exists(position):
            return PositionOutcome(position, CancelOutcome.UNKNOWN_POSITION)
        if position in self:
            return PositionOutcome(position, CancelOutcome.ALREADY_CANCELLED)
        deliver_at = times[position]
        if not deliver_at:
            return PositionOutcome(position, CancelOutcome.NOT_DELAYED)
        is_due = deliver_at <= self._now_ms
        still_there = CancelOutcome.DUE if is_due else CancelOutcome.CANCELLED
        found = {
            name: _whereabouts(subscription, position, still_there)
            for name, subscription in self._topic.subscriptions.items()
        }
        outcome = still_there
        if found and all(each.outcome is not still_there for each in found.values()):
            outcome = CancelOutcome.DELIVERED
        return PositionOutcome(position, outcome, deliver_at, found)

    def _check_room(self, more: int) -> None:
        """Raises `NotAllowedError`: what is cancelled would not be kept."""
        store = self._store
        assert store is not None
        ranges = store.cursor.range_count
        if ranges + more > RANGES_MAX:
            raise NotAllowedError(
                f"topic {self._topic.name} has {ranges} ranges of cancelled messages; with {more} more "
                f"there may be more than the {RANGES_MAX} that are kept"
            )

    async def _until_durable(self) -> None:
        store = self._store
        assert store is not None
        version = store.cursor.version
        try:
            await store.flush()  # after failures the next attempt of its own may be far off
        except CursorClosedError:
            self._check_open()
            raise
        await store.until_durable(version)
        outcome = store.outcome
        if outcome is not None and outcome.entries_dropped:
            raise PersistenceFailedError(
                f"topic {self._topic.name}: {outcome.entries_dropped} cancelled messages did not fit "
                "into the last write; they are cancelled until this broker stops"
            )

    async def _ack_in_all(
        self, positions: Sequence[Position]
    ) -> dict[Position, dict[str, SubscriptionOutcome]]:
        outcomes: dict[Position, dict[str, SubscriptionOutcome]] = {p: {} for p in positions}
        for name, subscription in list(self._topic.subscriptions.items()):
            for group in _groups(positions, AT_ONCE_MAX):
                for position in group:
                    outcomes[position][name] = _whereabouts(
                        subscription, position, CancelOutcome.CANCELLED
                    )
                # One that is being closed finds them in the hidden cursor when it is opened again.
                with contextlib.suppress(CursorClosedError):
                    subscription.ack_elsewhere(group)
                await asyncio.sleep(0)
        return outcomes

    @property
    def _now_ms(self) -> int:
        return self._topic.services.clock_ms()

    # -- life -----------------------------------------------------------------------------------

    @property
    def _store(self) -> CursorStore | None:
        return self._hidden.store

    async def load(self) -> None:
        """Open the hidden cursor, which exists."""
        await self._hidden.open(create=False)

    async def _opened(self) -> None:
        """Make the hidden cursor if there is none. Several may ask at a time."""
        if self._store is not None:
            return
        self._check_open()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._make())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        finally:
            if opening.done() and self._opening is opening:
                self._opening = None

    async def _make(self) -> CursorStore:
        try:
            return await self._hidden.open(create=True)
        except OwnershipError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._topic.is_closing:
            raise ServiceNotReadyError(f"topic {self._topic.name} is being closed")

    def configure(self, settings: PersistenceSettings) -> None:
        self._hidden.configure(settings_of_cancelled(settings))

    def ledger_trimmed(self, ledger_id: int) -> None:
        """A message ledger is gone, and what was cancelled in it."""
        self._hidden.ledger_trimmed(ledger_id)

    async def close(self) -> None:
        """Persist what is dirty and let go."""
        await self._hidden.close()

    def abandon(self, error: OwnershipError) -> None:
        """Let go at once, and write no more."""
        self._hidden.abandon(error)

    async def delete(self) -> None:
        """Delete it, with what is stored."""
        await self._hidden.delete()


def settings_of_cancelled(settings: PersistenceSettings) -> PersistenceSettings:
    """The hidden cursor keeps more ranges than a subscription's: none of them may be dropped."""
    return settings.model_copy(
        update={
            "managed_ledger_max_unacked_ranges_to_persist": RANGES_MAX,
            "managed_ledger_max_unacked_ranges_to_persist_in_metadata_store": RANGES_MAX,
        }
    )


def _whereabouts(
    subscription: CancellingSubscription, position: Position, still_there: CancelOutcome
) -> SubscriptionOutcome:
    """Where an unexpired entry is, as far as this subscription goes."""
    if subscription.cursor.is_acked(position):
        return SubscriptionOutcome(CancelOutcome.ACKED)
    holder = subscription.holder_name(position)
    if holder is not None:
        return SubscriptionOutcome(CancelOutcome.DELIVERED, holder)
    return SubscriptionOutcome(still_there)


def _groups(positions: Sequence[Position], size: int) -> Iterator[Sequence[Position]]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]
