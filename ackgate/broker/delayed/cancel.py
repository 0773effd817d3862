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
"""Positions that are checked or acked before other tasks get their turn."""

RANGES_MAX: Final = 1_000_000
"""Ranges of cancelled messages that a topic keeps. Some two bytes each when they are scattered."""


class CancelOutcome(enum.Enum):
    """The result of a cancel."""

    CANCELLED = "cancelled"
    ALREADY_CANCELLED = "alreadyCancelled"
    NOT_DELAYED = "notDelayed"
    """The message has no delivery time."""
    DUE = "due"
    """The message's delivery time has come."""
    DELIVERED = "delivered"
    """A consumer has it. For the message as a whole: each subscription's consumer has it or acked
    it."""
    ACKED = "acked"
    """The subscription has acked the message."""
    UNKNOWN_POSITION = "unknownPosition"
    """There is no such entry, or it was trimmed."""


_HOLDING: Final = frozenset({CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED})


class SubscriptionOutcome(NamedTuple):
    """The result of a cancel for one subscription."""

    outcome: CancelOutcome
    consumer: str | None = None
    """The consumer that has the message."""


@dataclass(frozen=True, slots=True)
class PositionOutcome:
    """The result of a cancel for one message."""

    position: Position
    outcome: CancelOutcome
    deliver_at: int | None = None
    """Its delivery time, ms since 1970. None: not looked up, or it has none."""
    subscriptions: Mapping[str, SubscriptionOutcome] = field(default_factory=dict)
    """By name, the subscriptions where it is or was delayed, and the result for each."""


class CancellingSubscription(Protocol):
    """What cancelling needs of a subscription."""

    @property
    def cursor(self) -> ManagedCursor: ...

    def holder_name(self, position: Position) -> str | None:
        """The consumer that has an entry and has not acked it, or None."""

    def ack_elsewhere(self, positions: Sequence[Position]) -> int:
        """Ack whole entries on nobody's behalf. Returns how many were not acked before."""


class CancellingTopic(HiddenCursorTopic, Protocol):
    """What cancelling needs of a topic."""

    @property
    def subscriptions(self) -> Mapping[str, CancellingSubscription]:
        """The loaded subscriptions, by name."""


class CancelledMessages:
    """The cancelled messages of one topic, which the acks of a hidden cursor record."""

    def __init__(
        self,
        topic: CancellingTopic,
        open_store: Callable[[Position | None], Awaitable[CursorStore]],
    ) -> None:
        """`open_store`: opens the hidden cursor, or creates it with this mark-delete."""
        self._topic = topic
        self._hidden = HiddenCursor(topic, open_store)
        self._opening: asyncio.Task[CursorStore] | None = None

    # -- what is known --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many messages of the topic are cancelled."""
        if self._store is None:
            return 0
        cursor, ledgers = self._store.cursor, self._topic.ledger.ledgers
        passed = ledgers.count_between(ledgers.first_position, cursor.mark_delete)
        return passed + cursor.acked_count

    def __contains__(self, position: Position) -> bool:
        """Whether a message that exists is cancelled."""
        return self._store is not None and self._store.cursor.is_acked(position)

    def by_ledger(self, first_ledger_id: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """The cancelled messages from this ledger on: ledger id and entry ids."""
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
        """Cancel messages, each on its own.

        Reports one that cannot be cancelled, and leaves it as it is.

        Returns the outcomes, in the order given, when what is cancelled is durable. Raises
        `CallerError` (too many), what reading raises (nothing has changed then),
        `PersistenceFailedError` or what storage raises (not known to be durable: cancel again).
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
        """Decide what can be cancelled, and ack that. Awaits nothing between the two."""
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
        """Delivery times of the messages that exist and are not cancelled; 0 if it has none."""
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
        """Raise `NotAllowedError` if so many more could not all be kept."""
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
            await store.flush()  # after failures, the cursor's own next attempt may be far off
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
                # A subscription that is closing acks them when it is opened again.
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
        """Open the hidden cursor, which must exist."""
        await self._hidden.open(create=False)

    async def _opened(self) -> None:
        """Create the hidden cursor if there is none. Several callers wait for one creation."""
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
        """Forget what was cancelled in a message ledger that was deleted."""
        self._hidden.ledger_trimmed(ledger_id)

    async def close(self) -> None:
        """Persist what is dirty, and close the hidden cursor."""
        await self._hidden.close()

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more."""
        self._hidden.abandon(error)

    async def delete(self) -> None:
        """Delete the hidden cursor and what it stored."""
        await self._hidden.delete()


def settings_of_cancelled(settings: PersistenceSettings) -> PersistenceSettings:
    """Settings of the hidden cursor, which keeps more ranges: it must drop none of them."""
    return settings.model_copy(
        update={
            "managed_ledger_max_unacked_ranges_to_persist": RANGES_MAX,
            "managed_ledger_max_unacked_ranges_to_persist_in_metadata_store": RANGES_MAX,
        }
    )


def _whereabouts(
    subscription: CancellingSubscription, position: Position, still_there: CancelOutcome
) -> SubscriptionOutcome:
    """Where an entry is in this subscription; `still_there` if it was not delivered."""
    if subscription.cursor.is_acked(position):
        return SubscriptionOutcome(CancelOutcome.ACKED)
    holder = subscription.holder_name(position)
    if holder is not None:
        return SubscriptionOutcome(CancelOutcome.DELIVERED, holder)
    return SubscriptionOutcome(still_there)


def _groups(positions: Sequence[Position], size: int) -> Iterator[Sequence[Position]]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]
