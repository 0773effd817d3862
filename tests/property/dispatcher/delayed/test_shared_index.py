"""Subscriptions that share one index of delayed entries: each is given every entry, once.

A small broker is played: cursors that read on and leave out what is held, consumers that ack and
crash, late subscriptions, seeks, restarts, in a random order that the seed decides. What must hold
after every step: an unacked entry is with its subscription's consumers, or held by its view, or
still to be read. Or else it was lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from pyroaring import BitMap

from ackgate.cursor import EARLIEST, Position
from ackgate.dispatcher.buckets import BucketTracker
from ackgate.dispatcher.delayed import (
    DelayedTracker,
    DelaySettings,
    SharedIndex,
    SharedView,
    TimeBucketTracker,
    shared_index,
)


@dataclass(eq=False)
class Subscriber:
    """A subscription as the broker has it."""

    acked: set[Position]
    in_flight: set[Position] = field(default_factory=set)
    read_position: Position = EARLIEST
    view: SharedView = field(init=False)

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


class SharedWorld:
    """A topic, its shared index, three subscriptions."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.now_ms = 1_000
        self.settings = DelaySettings(tick_ms=rng.choice([1, 8, 100]), is_strict=rng.random() < 0.5)
        self.with_buckets = rng.random() < 0.3
        self.published: list[Position] = []
        self.times: dict[Position, int] = {}
        self.ledger_id = 3
        self.all = [Subscriber(set()) for _ in range(3)]
        self.restart()

    def make_index(self) -> None:
        """Storage never answers here, so what buckets seal stays in memory."""
        tracker: DelayedTracker = TimeBucketTracker(self.settings)
        if self.with_buckets:
            tracker = BucketTracker(self.settings)
        self.index = SharedIndex(tracker, self.settings)

    def step(self) -> None:
        """Mostly peace."""
        rng = self.random
        who = rng.randrange(3)
        match rng.choices(range(5), (4, 5, 3, 3, 2))[0]:
            case 0:
                self.publish()
            case 1:
                self.work()
            case 2:
                self.now_ms += rng.choice([1, 10, 60, 300])
                self.pop(who, rng.randint(0, 10))
            case 3:
                self.ack(who)
            case _:
                if self.published:
                    self.disturb(who)

    # -- the topic

    def publish(self) -> None:
        """Some are not fed to the index: as if a restart had found them, say."""
        rng = self.random
        if rng.random() < 0.3:
            self.ledger_id += 2
        first = sum(ledger_id == self.ledger_id for ledger_id, _ in self.published)
        delayed = []
        for entry_id in range(first, first + rng.randint(1, 8)):
            position = Position(self.ledger_id, entry_id)
            time = self.now_ms + rng.randint(1, 400) if rng.random() < 0.7 else 0
            self.published.append(position)
            self.times[position] = time
            if time:
                delayed.append((entry_id, time))
        if delayed and rng.random() < 0.5:
            self.index.add_published(self.ledger_id, *zip(*delayed, strict=True), self.now_ms)

    def work(self) -> None:
        """Everybody has consumers with room."""
        rng = self.random
        self.now_ms += rng.choice([0, 5, 30])
        for who in range(3):
            self.pop(who, rng.randint(1, 10))
            self.read(who, rng.randint(1, 10))

    # -- subscriptions

    def join(self, subscriber: Subscriber) -> None:
        mark_delete = subscriber.mark_delete(self.published)
        subscriber.view = self.index.join(mark_delete, subscriber.acked_entries)

    def read(self, who: int, count: int) -> None:
        """The cursor reads on, and leaves out what is acked, in flight or held."""
        subscriber = self.all[who]
        view = subscriber.view
        for position in self.published:
            if not count:
                return
            if position < subscriber.read_position:
                continue
            subscriber.read_position = Position(position.ledger_id, position.entry_id + 1)
            if position in subscriber.acked or position in subscriber.in_flight:
                continue
            if position in view:
                assert position.entry_id in (view.tracked(position.ledger_id) or ())
                continue
            count -= 1
            time = self.times[position]
            if time > self.now_ms:
                if self.random.random() < 0.5:
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

    def pop(self, who: int, count: int) -> None:
        subscriber = self.all[who]
        view = subscriber.view
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

    def ack(self, who: int) -> None:
        subscriber = self.all[who]
        in_flight = sorted(subscriber.in_flight)
        self.acked(
            subscriber, set(self.random.sample(in_flight, self.random.randint(0, len(in_flight))))
        )

    def acked(self, subscriber: Subscriber, positions: set[Position]) -> None:
        subscriber.acked |= positions
        subscriber.in_flight -= positions
        view = subscriber.view
        for position in positions:
            view.discard(position)
        view.forget_through(subscriber.mark_delete(self.published))

    def disturb(self, who: int) -> None:
        subscriber, rng = self.all[who], self.random
        chosen = rng.choice(self.published)
        match rng.randrange(8):
            case 0 | 1:
                self.cancel(chosen)
            case 2:
                self.acked(subscriber, {each for each in self.published if each <= chosen})
            case 3:
                subscriber.rewind()
            case 4:
                self.seek(subscriber, chosen)
            case 5:
                self.clear_delayed(subscriber)
            case 6:
                self.restart()
            case _:
                self.replace(who, is_late=rng.random() < 0.5)

    def restart(self) -> None:
        self.make_index()
        for subscriber in self.all:
            subscriber.rewind()
            self.join(subscriber)

    def replace(self, who: int, *, is_late: bool) -> None:
        """Unsubscribe; another subscription comes, at the beginning or the end of the topic."""
        view = self.all[who].view
        self.index.leave(view)
        assert view.entry_count == 0
        self.all[who] = Subscriber(set(self.published) if is_late else set())
        self.join(self.all[who])

    def cancel(self, position: Position) -> None:
        for subscriber in self.all:
            held = position in subscriber.view
            assert subscriber.view.discard(position) == held
            self.acked(subscriber, {position})

    def seek(self, subscriber: Subscriber, target: Position) -> None:
        subscriber.acked = {each for each in self.published if each < target}
        subscriber.rewind()
        subscriber.view.forget_through(subscriber.mark_delete(self.published))

    def clear_delayed(self, subscriber: Subscriber) -> None:
        subscriber.view.clear()
        assert subscriber.view.entry_count == 0
        assert not subscriber.view.has_due(10**12)
        subscriber.rewind()

    # -- what must hold

    def nothing_is_lost(self) -> None:
        self.index.check()
        for subscriber in self.all:
            view = subscriber.view
            held: set[Position] = set()
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
        for who, subscriber in enumerate(self.all):
            self.pop(who, 10_000)
            self.read(who, 10_000)
            assert subscriber.acked | subscriber.in_flight == set(self.published)


@pytest.mark.parametrize(
    "first_seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 60, 10))]
)
def test_no_view_loses_an_entry_whatever_the_others_do(
    first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first_seed, first_seed + 10):
        monkeypatch.setattr(shared_index, "DUE_ENTRIES_MAX", (1, 3, 1_000)[seed % 3])
        world = SharedWorld(seed)
        try:
            for _ in range(100):
                world.step()
                world.nothing_is_lost()
            world.drain()
        except AssertionError as error:
            raise AssertionError(f"with seed {seed}: {error}") from error
