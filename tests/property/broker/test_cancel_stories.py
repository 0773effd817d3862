"""Random stories of delayed delivery in which messages are cancelled, too.

What was answered as cancelled comes to nobody any more: not after a crash that lost what the
subscription had acked, not after a seek, not on a subscription that is made in the end.
"""

from __future__ import annotations

import pytest

from ackgate.broker.delayed.cancel import CancelOutcome
from ackgate.broker.wire.requests import SubscriptionType
from ackgate.errors import AckGateError, OwnershipError
from tests.property.broker.test_delayed_delivery import BUCKETS, GATED, Story
from tests.support.bare_broker import loop_clock_ms
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.delayed.delivery_world import settle

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)))
HOLDS = {CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED}
SHARED_INDEX = {**BUCKETS, "delayedDeliverySharedIndexEnabled": "true"}
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


class CancelStory(Story):
    """With cancels in place of acks by nobody."""

    def __init__(self, seed: int, type_: SubscriptionType, keys: dict[str, str]) -> None:
        super().__init__(seed, type_, keys, has_backoff=seed % 2 == 1)
        self.cancelled: set[str] = set()

    async def ack_elsewhere(self) -> None:
        names = sorted(self.world.positions)
        names = self.random.sample(names, min(5, len(names)))
        began_ms = loop_clock_ms()
        try:
            told = await self.world.topic.cancelled.cancel([self.world.positions[n] for n in names])
        except AckGateError:
            return  # an entry could not be read: nothing has changed
        self.heard()  # what was given before the answer
        for name, each in zip(names, told, strict=True):
            self.judge(name, each.outcome, began_ms)
            if each.outcome in HOLDS:
                self.cancelled.add(name)
                self.acked.add(name)
                self.with_client.pop(name, None)

    def judge(self, name: str, outcome: CancelOutcome, began_ms: int) -> None:
        """Whether it is the right answer."""
        at_ms, now_ms = self.deliver_at[name], loop_clock_ms()
        exists = self.world.topic.ledger.ledgers.exists(self.world.positions[name])
        assert (outcome is CancelOutcome.UNKNOWN_POSITION) == (not exists)
        assert (outcome is CancelOutcome.ALREADY_CANCELLED) <= (name in self.cancelled)
        if outcome is CancelOutcome.CANCELLED:
            assert at_ms > began_ms
            assert name not in self.cancelled
        if outcome is CancelOutcome.DUE:
            assert at_ms <= now_ms
        if outcome is CancelOutcome.DELIVERED:
            assert at_ms <= now_ms or name in self.acked or name in self.with_client

    async def seek(self) -> None:
        await super().seek()
        self.acked |= self.cancelled

    async def kill(self) -> None:
        """Nothing is flushed before: what a subscription has acked last may be lost."""
        self.heard()
        self.world.plan.rules = []
        self.world.topic.abandon(OwnershipError("killed"))
        self.clients.clear()
        self.with_client.clear()
        await self.world.start()
        subscription = self.world.topic.subscriptions.get("s")
        if subscription is not None:
            positions, is_acked = self.world.positions, subscription.cursor.is_acked
            acked = {name for name in self.due if is_acked(positions[name])}
            self.due |= {name: self.deliver_at[name] for name in self.due.keys() - acked}
            self.acked = acked
            assert self.cancelled <= acked

    async def end(self) -> None:
        await super().end()
        facts = self.world.topic.ledger.ledgers
        late = await self.world.consumer(100_000, type=self.type, subscription="late")
        await settle()
        expected = {
            name
            for name, position in self.world.positions.items()
            if facts.exists(position) and name not in self.cancelled
        }
        assert set(late.names) == expected
        there = sum(facts.exists(self.world.positions[name]) for name in self.cancelled)
        assert self.world.topic.cancelled.count == there


@pytest.mark.parametrize(
    "keys", [{}, GATED, BUCKETS, SHARED_INDEX], ids=["plain", "gated", "buckets", "shared"]
)
@pytest.mark.parametrize("type_", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_story_with_cancels(seed: int, type_: SubscriptionType, keys: dict[str, str]) -> None:
    run_in_virtual_time(CancelStory(seed, type_, keys).run())
