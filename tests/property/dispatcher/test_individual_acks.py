"""Shared and Key_Shared against a dumb broker: nothing twice, nothing lost, counts exact."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ackgate.dispatcher import (
    Dispatcher,
    DispatchLimits,
    KeySharedDispatcher,
    KeySharedPolicy,
    SharedDispatcher,
)
from tests.property.dispatcher.world import World

NAMES = st.sampled_from(["a", "b", "c"])
HASHES = st.sampled_from([1, 9_000, 20_000, 33_000, 50_000, 65_535])


class IndividualAcks(RuleBasedStateMachine):
    """Random facts, reads that take their time, and the world's check after each."""

    ordered = False

    def make(self, limits: DispatchLimits) -> Dispatcher:
        return SharedDispatcher(limits)

    @initialize(
        unacked_max=st.sampled_from([0, 1, 4]),
        subscription_max=st.sampled_from([0, 1, 6]),
        read_entries_max=st.sampled_from([1, 3, 100]),
        look_ahead=st.sampled_from([2, 1000]),
    )
    def start(
        self, unacked_max: int, subscription_max: int, read_entries_max: int, look_ahead: int
    ) -> None:
        limits = DispatchLimits(
            read_entries_max=read_entries_max,
            round_robin_entries_max=2,
            unacked_messages_per_consumer_max=unacked_max,
            unacked_messages_per_subscription_max=subscription_max,
            key_shared_ring_points=5,
            key_shared_look_ahead_per_subscription_max=look_ahead,
        )
        self.world = World(self.make(limits), ordered=self.ordered, unacked_max=unacked_max)

    def consumers(self) -> list[int]:
        return list(self.world.clients)

    def unacked(self) -> list[int]:
        return [n for n, remaining in enumerate(self.world.remaining) if remaining]

    # -- facts

    @rule(
        batches=st.lists(
            st.tuples(st.sampled_from([1, 1, 3]), HASHES, st.sampled_from([False, False, True])),
            min_size=1,
            max_size=6,
        )
    )
    def publish(self, batches: list[tuple[int, int, bool]]) -> None:
        for messages, key_hash, is_delayed in batches:
            self.world.publish(messages, key_hash, is_delayed=is_delayed)

    @precondition(lambda self: len(self.world.clients) < 4)
    @rule(name=NAMES, priority=st.sampled_from([0, 0, 1]), permits=st.integers(0, 12))
    def join(self, name: str, priority: int, permits: int) -> None:
        consumer = self.world.join(name, priority)
        if permits:
            self.world.flow(consumer, permits)

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(self.consumers())))

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), messages=st.integers(1, 10))
    def flow(self, data: st.DataObject, messages: int) -> None:
        self.world.flow(data.draw(st.sampled_from(self.consumers())), messages)

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), is_writable=st.booleans())
    def writable(self, data: st.DataObject, is_writable: bool) -> None:
        self.world.writable(data.draw(st.sampled_from(self.consumers())), is_writable)

    @rule(is_open=st.booleans())
    def gate(self, is_open: bool) -> None:
        self.world.gate_open = is_open

    @precondition(lambda self: any(self.world.remaining))
    @rule(data=st.data(), one_by_one=st.booleans())
    def ack(self, data: st.DataObject, one_by_one: bool) -> None:
        by = data.draw(st.sampled_from([None, *self.consumers()]))
        numbers = data.draw(st.lists(st.sampled_from(self.unacked()), unique=True, max_size=6))
        self.world.ack(by, numbers, one_by_one=one_by_one)

    @precondition(lambda self: any(client.has for client in self.world.clients.values()))
    @rule(data=st.data(), one_by_one=st.booleans())
    def ack_own(self, data: st.DataObject, one_by_one: bool) -> None:
        have = [c for c, client in self.world.clients.items() if client.has]
        consumer = data.draw(st.sampled_from(have))
        own = sorted(self.world.clients[consumer].has)
        numbers = data.draw(st.lists(st.sampled_from(own), unique=True, min_size=1))
        self.world.ack(consumer, numbers, one_by_one=one_by_one)

    @precondition(lambda self: any(remaining > 1 for remaining in self.world.remaining))
    @rule(data=st.data())
    def ack_partly(self, data: st.DataObject) -> None:
        batches = [n for n, remaining in enumerate(self.world.remaining) if remaining > 1]
        number = data.draw(st.sampled_from(batches))
        by = data.draw(st.sampled_from([None, *self.consumers()]))
        left = data.draw(st.integers(1, self.world.remaining[number]))
        self.world.ack_partly(by, number, left)

    @precondition(lambda self: self.world.unread)
    @rule(data=st.data())
    def ack_through(self, data: st.DataObject) -> None:
        self.world.ack_through(data.draw(st.integers(0, self.world.unread - 1)))

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: st.DataObject, everything: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers()))
        numbers = None
        if not everything and self.world.unread:
            any_number = st.integers(0, self.world.unread - 1)
            numbers = data.draw(st.lists(any_number, unique=True, max_size=4))
        self.world.redeliver(consumer, numbers)

    @precondition(lambda self: any(client.has for client in self.world.clients.values()))
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.consumers()))
        any_number = st.integers(0, len(self.world.remaining) - 1)
        self.world.hold(consumer, data.draw(st.lists(any_number, unique=True, max_size=6)))

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def due(self, data: st.DataObject) -> None:
        held = st.sampled_from(sorted(self.world.held))
        self.world.due(data.draw(st.lists(held, unique=True, min_size=1)))

    @precondition(lambda self: self.world.remaining)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self.world.reset(data.draw(st.integers(0, len(self.world.remaining))))

    # -- reads

    @rule()
    def begin(self) -> None:
        self.world.begin()

    @precondition(lambda self: self.world.read is not None)
    @rule()
    def complete(self) -> None:
        self.world.complete()

    @precondition(lambda self: self.world.late)
    @rule()
    def complete_late(self) -> None:
        self.world.complete_late()

    @precondition(lambda self: self.world.read is not None)
    @rule()
    def fail(self) -> None:
        self.world.fail()

    @rule()
    def pump(self) -> None:
        if self.world.read is not None:
            self.world.complete()
        for _ in range(1000):
            if not self.world.begin():
                break
            self.world.complete()
        else:
            raise AssertionError("reads for ever")

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


class KeyShared(IndividualAcks):
    ordered = True

    def make(self, limits: DispatchLimits) -> Dispatcher:
        return KeySharedDispatcher(limits, KeySharedPolicy())


class KeySharedOutOfOrder(IndividualAcks):
    def make(self, limits: DispatchLimits) -> Dispatcher:
        return KeySharedDispatcher(limits, KeySharedPolicy(allow_out_of_order=True))


TestShared = IndividualAcks.TestCase
TestKeyShared = KeyShared.TestCase
TestKeySharedOutOfOrder = KeySharedOutOfOrder.TestCase
