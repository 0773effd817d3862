"""Exclusive and Failover against a list: one consumer at a time, nothing skipped, in order."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ackgate.cursor import Position
from ackgate.dispatcher import (
    ActiveConsumerChanged,
    ConsumerSpec,
    DispatchLimits,
    Effect,
    EntriesRead,
    Read,
    ReadFrom,
    Rewind,
    SingleActiveDispatcher,
)
from ackgate.dispatcher.single_active import choose_active

TOPIC = "persistent://public/default/orders"


class SingleActive(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from([0, 10]),
        partition=st.sampled_from([None, 0, 1, 5]),
        by_ring=st.booleans(),
    )
    def start(self, delay_ms: int, partition: int | None, by_ring: bool) -> None:
        self.dispatcher = SingleActiveDispatcher(
            DispatchLimits(
                read_entries_max=3,
                failover_delay_ms=delay_ms,
                failover_consistent_hashing=by_ring,
            ),
            is_exclusive=False,
            topic=TOPIC,
            partition_index=partition,
        )
        self.delay_ms, self.partition, self.by_ring = delay_ms, partition, by_ring
        self.now_ms = 0
        self.published = 0
        self.acked: set[int] = set()
        self.unread = 0
        self.consumers: dict[int, ConsumerSpec] = {}
        self.permits: dict[int, int] = {}
        self.told: dict[int, bool] = {}
        self.serial = 0
        self.read: Read | None = None
        self.read_numbers: list[int] = []
        self.is_stale = False
        self.expected: list[int] | None = None

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Rewind):
                self.unread = 0
                self.is_stale = True
            elif isinstance(effect, ActiveConsumerChanged):
                self.told[effect.consumer] = effect.is_active
            else:
                self.unread = effect.position.entry_id

    def active(self) -> int | None:
        if not self.consumers:
            return None
        return choose_active(
            self.consumers, topic=TOPIC, partition_index=self.partition, by_hash_ring=self.by_ring
        )

    def is_waiting(self) -> bool:
        return self.dispatcher.next_deadline_ms is not None

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        self.published += count

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(name=st.sampled_from(["a", "b", "c"]), priority=st.integers(0, 1))
    def join(self, name: str, priority: int) -> None:
        self.serial += 1
        before = self.active()
        self.consumers[self.serial] = spec = ConsumerSpec(name, priority)
        self.permits[self.serial] = 0
        effects = self.dispatcher.add_consumer(self.serial, spec, self.now_ms)
        self.change(before, effects)
        if before == self.active():
            assert effects == (ActiveConsumerChanged(self.serial, is_active=False),)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.consumers)))
        before = self.active()
        del self.consumers[consumer], self.permits[consumer]
        self.told.pop(consumer, None)
        effects = self.dispatcher.remove_consumer(consumer, self.now_ms)
        if not self.consumers:
            self.is_stale = True
        self.change(before, effects)

    def change(self, before: int | None, effects: tuple[Effect, ...]) -> None:
        after = self.active()
        if after != before and after is not None:
            self.is_stale = True
            if self.delay_ms:
                assert effects == ()
                assert self.is_waiting()
            else:
                assert effects[0] == Rewind()
        self.carry_out(effects)

    @rule(ms=st.integers(0, 15))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        deadline = self.dispatcher.next_deadline_ms
        effects = self.dispatcher.advance(self.now_ms)
        assert bool(effects) == (deadline is not None and deadline <= self.now_ms)
        self.carry_out(effects)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), messages=st.integers(1, 5))
    def flow(self, data: st.DataObject, messages: int) -> None:
        consumer = data.draw(st.sampled_from(list(self.consumers)))
        self.permits[consumer] += messages
        self.dispatcher.add_permits(consumer, messages)

    @precondition(lambda self: self.unread)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.unread - 1))
        self.acked.add(number)
        assert not self.dispatcher.acked(None, Position(0, number))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.consumers)))
        effects = self.dispatcher.redeliver(consumer, None)
        is_heard = consumer == self.active() and not self.is_waiting()
        assert effects == ((Rewind(),) if is_heard else ())
        self.carry_out(effects)

    @rule()
    def begin(self) -> None:
        unread = [n for n in range(self.unread, self.published) if n not in self.acked]
        read = self.dispatcher.next_read(has_unread=bool(unread), gate_open=False, entry_budget=0)
        active = self.active()
        if read is None:
            is_reading = self.read is not None and not self.is_stale
            assert (
                active is None
                or not unread
                or self.permits[active] <= 0
                or self.is_waiting()
                or is_reading
            ), "it could have read"
            return
        assert not self.is_waiting()
        assert active is not None
        assert self.permits[active] > 0
        assert self.read is None or self.is_stale
        self.read, self.is_stale = read, False
        self.read_numbers = unread[: min(read.entries_max, read.messages_max)]
        self.unread = self.read_numbers[-1] + 1

    @precondition(lambda self: self.read is not None)
    @rule(fails=st.booleans())
    def complete(self, fails: bool) -> None:
        read, self.read = self.read, None
        assert read is not None
        if fails:
            positions = [Position(0, number) for number in self.read_numbers]
            effects = self.dispatcher.read_failed(read, positions)
            assert effects == (() if self.is_stale else (ReadFrom(positions[0]),))
            self.carry_out(effects)
            return
        numbers = [number for number in self.read_numbers if number not in self.acked]
        deliveries = self.dispatcher.assign(read, EntriesRead([Position(0, n) for n in numbers]))
        if self.is_stale or not numbers:
            assert deliveries == []
            return
        (delivery,) = deliveries
        assert delivery.consumer == self.active()
        assert list(delivery.indexes) == list(range(len(numbers)))
        assert delivery.redelivery_counts is None
        self.permits[delivery.consumer] -= len(numbers)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        self.dispatcher.check()
        assert self.dispatcher.active_consumer == self.active()
        for told in self.dispatcher.statistics().consumers:
            assert told.permits == self.permits[told.consumer]
        if not self.is_waiting() and self.consumers:
            assert {c for c, is_active in self.told.items() if is_active} == {self.active()}


TestSingleActive = SingleActive.TestCase
