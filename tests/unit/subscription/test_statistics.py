"""Statistics of a subscription with many consumers."""

from __future__ import annotations

import pytest

from ackgate.cursor import MessageLedgers
from ackgate.dispatcher import Failover, KeyShared, SubscriptionKind
from ackgate.dispatcher.keys import HashRing
from ackgate.subscription import Subscription

CONSUMERS = [f"consumer-{number}" for number in range(20)]


def subscription(kind: SubscriptionKind) -> Subscription[str, object]:
    sub: Subscription[str, object] = Subscription(MessageLedgers(), kind=kind)
    for number, consumer in enumerate(CONSUMERS):
        sub.attach(consumer, permits=number, now_ms=0)
    return sub


@pytest.mark.parametrize("kind", [KeyShared(), Failover()])
def test_each_consumer_is_there_as_the_dispatcher_sees_it(kind: SubscriptionKind) -> None:
    sub = subscription(kind)
    sub.detach(CONSUMERS[0], now_ms=1)
    dispatched = sub.statistics().dispatched
    assert dispatched == {consumer: sub.dispatch_of(consumer) for consumer in CONSUMERS[1:]}


def test_hash_ranges_are_computed_once_for_all_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0
    ranges = HashRing.ranges

    def counted(self: HashRing) -> dict[int, tuple[tuple[int, int], ...]]:
        nonlocal passes
        passes += 1
        return ranges(self)

    sub = subscription(KeyShared())
    monkeypatch.setattr(HashRing, "ranges", counted)
    seen = sub.statistics()
    assert sum(len(each.hash_ranges) for each in seen.dispatched.values()) > len(CONSUMERS)
    assert passes == 1, "a pass takes a look at a hundred points of every consumer"
    for consumer in CONSUMERS:
        sub.counts_of(consumer)
    assert passes == 1
