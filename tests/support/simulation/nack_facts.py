"""What is known of entries that were given back: before when nobody may have them again.

A promise is made by the broker that holds an entry back, and kept by that one for as long as the
subscription lives in it. Once it is durable every later owner has to keep it, too. It ends when the
entry is acked: a limit may drop that ack later, and what was held is forgotten by then. Where
clients seek or unsubscribe nothing is promised: what was acked meanwhile may come again any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.cursor import Position
from ackgate.subscription.held import EARLY_SHARE
from tests.support.simulation.facts import violated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.broker.topic.subscription import SubscriptionDriver


class _Promise:
    """One entry is held back."""

    __slots__ = ("epoch", "holder", "is_durable", "until_ms", "version")

    def __init__(self, holder: SubscriptionDriver, until_ms: int, version: int) -> None:
        self.holder = holder
        self.until_ms = until_ms
        self.version = version
        """Of the image that has it first."""
        self.epoch = holder.topic.ledger.owner_epoch
        self.is_durable = False


class NackFacts:
    """Promises about the entries of all topics."""

    def __init__(self, least_ms: int) -> None:
        """`least_ms`: the least delay of the policy; 0: nothing is promised."""
        self._least_ms = least_ms
        self._promises: dict[tuple[str, str], dict[Position, _Promise]] = {}

    def given_back(self, subscription: SubscriptionDriver, positions: Iterable[Position]) -> None:
        """A REDELIVER was carried out."""
        nacks = subscription.core.held_nacks
        if nacks is None or not self._least_ms:
            return
        promises = self._of(subscription)
        now_ms = subscription.topic.services.clock_ms()
        until_ms = now_ms + self._least_ms - self._least_ms // EARLY_SHARE
        for position in positions:
            if position in nacks and position not in promises:
                promises[position] = _Promise(subscription, until_ms, nacks.version)

    def acked(self, subscription: SubscriptionDriver) -> None:
        """Acks were applied."""
        promises = self._of(subscription)
        for position in [p for p in promises if subscription.cursor.is_acked(p)]:
            del promises[position]

    def delivering(self, subscription: SubscriptionDriver, position: Position) -> None:
        """A consumer is being given an entry."""
        violated(
            subscription.core.held_nacks is not None
            and subscription.core.holds
            and position in subscription.core.held_nacks,
            f"{subscription.name}: {position} is delivered and held back",
        )
        promise = self._of(subscription).pop(position, None)
        if promise is None:
            return
        now_ms = subscription.topic.services.clock_ms()
        epoch = subscription.topic.ledger.owner_epoch
        is_bound = promise.holder is subscription or (promise.is_durable and epoch > promise.epoch)
        violated(
            is_bound and now_ms < promise.until_ms,
            f"{subscription.name}: {position} was held back until {promise.until_ms}, and comes at"
            f" {now_ms}; it was durable: {promise.is_durable}",
        )

    def check(self, subscription: SubscriptionDriver) -> None:
        """What is held is nobody's and unacked; what is durable becomes a promise of all."""
        nacks, store = subscription.core.held_nacks, subscription.store
        if nacks is None or store is None:
            return
        for part in nacks.image(2**40).nacks:
            for entry_id in part.entry_ids:
                position = Position(part.ledger_id, entry_id)
                violated(
                    subscription.cursor.is_acked(position),
                    f"{subscription.name}: {position} is acked and held back",
                )
                violated(
                    subscription.core.holds and subscription.core.holder(position) is not None,
                    f"{subscription.name}: {position} is in flight and held back",
                )
        durable = store.nacks_durable_version
        for promise in self._of(subscription).values():
            if promise.holder is subscription and promise.version <= durable:
                promise.is_durable = True

    def opened(self, subscription: SubscriptionDriver) -> None:
        """An owner has recovered it, whole or not."""
        assert subscription.store is not None
        report = subscription.store.report
        if report.lost is not None or report.torn_records:
            self._of(subscription).clear()

    def _of(self, subscription: SubscriptionDriver) -> dict[Position, _Promise]:
        key = str(subscription.topic.name), subscription.name
        return self._promises.setdefault(key, {})
