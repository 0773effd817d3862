"""Subscriptions that share one index of delayed entries: each is given every entry, once.

A small broker is played: cursors that read on and leave out what is held, consumers that ack and
crash, late subscriptions, seeks, restarts. What must hold after every step: an unacked entry is with
its subscription's consumers, held by its view, or still to be read. Or else it was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from pyroaring import BitMap

from ackgate.cursor.position import EARLIEST, Position
from ackgate.dispatcher.trackers import shared_index
from ackgate.dispatcher.trackers.bucket_tracker import BucketTracker
from ackgate.dispatcher.trackers.delayed import DelayedTracker, DelaySettings
from ackgate.dispatcher.trackers.shared_index import SharedIndex
from ackgate.dispatcher.trackers.shared_view import SharedView
from ackgate.dispatcher.trackers.time_buckets import TimeBucketTracker


@dataclass(eq=False)
class Subscriber:
    """A subscription as the broker has it."""

    acked: set[Position] = field(default_factory=set)
    in_flight: set[Position] = field(default_factory=set)
    read_position: Position = EARLIEST
    view: SharedView | None = None

    def acked_entries(self, ledger_id: int) -> BitMap | None:
        return BitMap(entry for ledger, entry in self.acked if ledger == ledger_id) or None

    def mark_delete(self, published: list[Position]) -> Position:
        mark_delete = EARLIEST
        for position in published:
            if position not in self.acked:
                break
            mark_delete = position
        return mark_delete

    def rewind(self) -> None:
        self.in_flight.clear()
        self.read_position = EARLIEST


class SharedIndexMachine(RuleBasedStateMachine):
    subscribers = Bundle("subscribers")

    @initialize(
        tick_ms=st.sampled_from([1, 8, 100]),
        is_strict=st.booleans(),
        due_max=st.sampled_from([1, 3, 1_000]),
        with_buckets=st.booleans(),
    )
    def start(self, tick_ms: int, is_strict: bool, due_max: int, with_buckets: bool) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(shared_index, "DUE_ENTRIES_MAX", due_max)
        self.now_ms = 1_000
        self.settings = DelaySettings(tick_ms=tick_ms, is_strict=is_strict)
        self.with_buckets = with_buckets
        self.published: list[Position] = []
        self.times: dict[Position, int] = {}
        self.ledger_id = 3
        self.all: list[Subscriber] = []
        self.make_index()

    def teardown(self) -> None:
        if hasattr(self, "all"):
            self.drain()
            self.patch.undo()

    def make_index(self) -> None:
        """Storage never answers here, so what buckets seal stays in memory."""
        tracker: DelayedTracker = TimeBucketTracker(self.settings)
        if self.with_buckets:
            tracker = BucketTracker(self.settings)
        self.index = SharedIndex(tracker, self.settings)

    # -- the topic

    @rule(
        delays=st.lists(st.one_of(st.just(0), st.integers(0, 300)), min_size=1, max_size=8),
        is_fed=st.booleans(),
        rolls=st.booleans(),
    )
    def publish(self, delays: list[int], is_fed: bool, rolls: bool) -> None:
        """Not fed: what a restart finds, say."""
        if rolls:
            self.ledger_id += 2
        first = sum(ledger_id == self.ledger_id for ledger_id, _ in self.published)
        delayed = []
        for entry_id, delay in enumerate(delays, first):
            position = Position(self.ledger_id, entry_id)
            self.published.append(position)
            self.times[position] = self.now_ms + delay if delay else 0
            if delay:
                delayed.append((entry_id, self.now_ms + delay))
        if is_fed and delayed:
            self.index.add_published(self.ledger_id, *zip(*delayed, strict=True), self.now_ms)

    @rule(ms=st.one_of(st.integers(0, 30), st.integers(0, 500)))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def restart(self) -> None:
        self.make_index()
        for subscriber in self.all:
            subscriber.rewind()
            subscriber.view = None

    # -- subscriptions

    @rule(target=subscribers, is_late=st.booleans())
    def subscribe(self, is_late: bool) -> Any:
        if len(self.all) >= 3:
            return multiple()
        subscriber = Subscriber(acked=set(self.published) if is_late else set())
        self.all.append(subscriber)
        return subscriber

    @rule(subscriber=consumes(subscribers))
    def unsubscribe(self, subscriber: Subscriber) -> None:
        self.all.remove(subscriber)
        if subscriber.view is not None:
            self.index.leave(subscriber.view)

    @rule(subscriber=subscribers)
    def join(self, subscriber: Subscriber) -> None:
        self.view_of(subscriber)

    def view_of(self, subscriber: Subscriber) -> SharedView:
        if subscriber.view is None:
            # A view that comes in between leaves out what its subscription has in flight, too.
            subscriber.view = self.index.join(
                subscriber.mark_delete(self.published), subscriber.acked_entries
            )
        return subscriber.view

    @rule(subscriber=subscribers, count=st.integers(1, 10), in_array=st.booleans())
    def read(self, subscriber: Subscriber, count: int, in_array: bool) -> None:
        """The cursor reads on, and leaves out what is acked, in flight or held."""
        view = subscriber.view
        for position in self.published:
            if not count:
                return
            if position < subscriber.read_position:
                continue
            subscriber.read_position = Position(position.ledger_id, position.entry_id + 1)
            if position in subscriber.acked or position in subscriber.in_flight:
                continue
            if view is not None and position in view:
                assert position.entry_id in (view.tracked(position.ledger_id) or ())
                continue
            count -= 1
            time = self.times[position]
            if time > self.now_ms:
                view = self.view_of(subscriber)
                if in_array:
                    is_held = view.add_many(position[0], [position[1]], [time], self.now_ms)[0]
                else:
                    is_held = view.add(position, time, self.now_ms)
                if is_held:
                    assert position in view
                    continue
            self.give(subscriber, position)

    def give(self, subscriber: Subscriber, position: Position) -> None:
        assert position not in subscriber.acked, "acked, and given again"
        assert position not in subscriber.in_flight, "given twice"
        early_by = self.times[position] - self.now_ms
        assert early_by <= (0 if self.settings.is_strict else self.settings.tick_ms)
        subscriber.in_flight.add(position)

    @rule(subscriber=subscribers, count=st.integers(0, 10))
    def pop(self, subscriber: Subscriber, count: int) -> None:
        view = subscriber.view
        if view is None:
            return
        held = view.entry_count
        has_due = view.has_due(self.now_ms)
        deadline = view.next_deadline_ms
        popped = view.pop_due(self.now_ms, count)
        assert bool(popped) == bool(has_due and count)
        assert len(popped) <= count
        assert not popped or (deadline is not None and deadline <= self.now_ms)
        assert view.entry_count == held - len(popped)
        if len(popped) < count:
            assert not view.has_due(self.now_ms)
        for position in popped:
            self.give(subscriber, position)

    @rule(subscriber=subscribers, data=st.data())
    def ack(self, subscriber: Subscriber, data: Any) -> None:
        if subscriber.in_flight:
            chosen = data.draw(st.lists(st.sampled_from(sorted(subscriber.in_flight)), min_size=1))
            self.acked(subscriber, set(chosen))

    @rule(subscriber=subscribers)
    def ack_all(self, subscriber: Subscriber) -> None:
        self.acked(subscriber, set(subscriber.in_flight))

    def acked(self, subscriber: Subscriber, positions: set[Position]) -> None:
        subscriber.acked |= positions
        subscriber.in_flight -= positions
        view = subscriber.view
        if view is not None:
            for position in positions:
                view.discard(position)
            view.forget_through(subscriber.mark_delete(self.published))

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        position = data.draw(st.sampled_from(self.published))
        for subscriber in self.all:
            held = subscriber.view is not None and position in subscriber.view
            if subscriber.view is not None:
                assert subscriber.view.discard(position) == held
            self.acked(subscriber, {position})

    @precondition(lambda self: self.published)
    @rule(subscriber=subscribers, data=st.data())
    def skip(self, subscriber: Subscriber, data: Any) -> None:
        through = data.draw(st.sampled_from(self.published))
        self.acked(subscriber, {each for each in self.published if each <= through})

    @rule(subscriber=subscribers)
    def lose_consumers(self, subscriber: Subscriber) -> None:
        subscriber.rewind()

    @precondition(lambda self: self.published)
    @rule(subscriber=subscribers, data=st.data())
    def seek(self, subscriber: Subscriber, data: Any) -> None:
        target = data.draw(st.sampled_from(self.published))
        subscriber.acked = {each for each in self.published if each < target}
        subscriber.rewind()
        if subscriber.view is not None:
            subscriber.view.forget_through(subscriber.mark_delete(self.published))

    @rule(subscriber=subscribers)
    def clear_delayed(self, subscriber: Subscriber) -> None:
        if subscriber.view is not None:
            subscriber.view.clear()
            assert subscriber.view.entry_count == 0
            assert not subscriber.view.has_due(10**12)
            subscriber.rewind()

    # -- what must hold

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "all"):
            return
        self.index.check()
        for subscriber in self.all:
            view = subscriber.view
            held: set[Position] = set()
            if view is not None:
                for ledger_id in range(self.ledger_id + 1):
                    held |= {Position(ledger_id, each) for each in view.tracked(ledger_id) or ()}
                assert view.entry_count == len(held)
                assert not held & subscriber.acked, "acked, and held"
                assert not held & subscriber.in_flight, "given, and held"
                assert (view.next_deadline_ms is None) == (not held)
                assert view.byte_estimate > 0
            for position in self.published:
                assert (
                    position in subscriber.acked
                    or position in subscriber.in_flight
                    or position in held
                    or position >= subscriber.read_position
                ), f"lost: {position}"

    def drain(self) -> None:
        """At the end of time every subscription has everything."""
        self.now_ms += 10_000
        for subscriber in self.all:
            self.pop(subscriber, 10_000)
            self.read(subscriber, 10_000, in_array=False)
            assert subscriber.acked | subscriber.in_flight == set(self.published)


TestSharedIndex = SharedIndexMachine.TestCase
