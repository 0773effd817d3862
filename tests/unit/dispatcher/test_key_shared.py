"""Key_Shared: owners, draining keys, waiting in order, looking ahead, sticky ranges."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.dispatcher import (
    ConsumerSpec,
    DispatchLimits,
    EntriesRead,
    KeySharedDispatcher,
    KeySharedMode,
    KeySharedPolicy,
    Rewind,
)
from tests.unit.dispatcher.host import Host, at

STICKY = KeySharedPolicy(KeySharedMode.STICKY)
LOW, HIGH = 100, 40_000
"""A hash in consumer 1's range and one in consumer 2's."""


def sticky(entries: int = 0, **limits: Any) -> Host:
    """Consumer 1 owns the lower half of the hashes, consumer 2 the upper; none has permits."""
    host = Host(KeySharedDispatcher(DispatchLimits(**limits), STICKY), entries)
    effects = host.dispatcher.add_consumer(1, ConsumerSpec("a", hash_ranges=((0, 32_767),)), 0)
    assert effects == (Rewind(),)
    host.dispatcher.add_consumer(2, ConsumerSpec("b", hash_ranges=((32_768, 65_535),)), 0)
    return host


def owner_after_joining(name: str, key_hash: int) -> int | None:
    from ackgate.dispatcher.keys import HashRing

    ring = HashRing(100)
    ring.add(1, "old", ())
    ring.add(2, name, ())
    return ring.owner(key_hash)


def test_a_key_that_came_back_to_its_first_owner_goes_on() -> None:
    dispatcher = KeySharedDispatcher(DispatchLimits(), KeySharedPolicy())
    host = Host(dispatcher, 1)
    host.join(1, permits=10, name="old")
    moved = next(h for h in range(1, 65_536) if owner_after_joining("new", h) == 2)
    host.hashes = {0: moved, 1: moved}
    host.pump()
    host.join(2, permits=10, name="new")
    host.entries = 2
    assert host.pump() == []
    dispatcher.remove_consumer(2, 0)
    assert host.pump() == [(1, [1])]


def test_an_entry_given_back_during_a_read_goes_before_the_new_ones_of_its_key() -> None:
    host = sticky(2)
    host.hashes = {0: LOW, 1: LOW}
    host.entries = 1
    host.dispatcher.add_permits(1, 10)
    host.pump()
    host.entries = 2
    read = host.next_read() or pytest.fail("no read")
    host.dispatcher.redeliver(1, [at(0)])
    assert host.answer(read) == []
    assert host.pump() == [(1, [0, 1])]


def test_a_key_that_moves_during_a_replay_read_waits() -> None:
    dispatcher = KeySharedDispatcher(DispatchLimits(), KeySharedPolicy())
    host = Host(dispatcher, 2)
    host.join(1, permits=10, name="old")
    moved = next(h for h in range(1, 65_536) if owner_after_joining("new", h) == 2)
    host.hashes = {0: moved, 1: moved}
    host.pump()
    dispatcher.redeliver(1, [at(0)])
    read = host.next_read() or pytest.fail("no read")
    host.join(2, permits=10, name="new")
    assert host.answer(read) == [], "entry 1 is still in flight with the old owner"
    assert host.ack(1, 1)
    assert host.pump() == [(2, [0])]


def test_reads_look_ahead_only_so_far() -> None:
    host = sticky(1_000, key_shared_look_ahead_per_consumer_max=5, read_entries_max=4)
    host.hashes = dict.fromkeys(range(1_000), LOW)
    host.dispatcher.add_permits(2, 100)
    assert host.pump() == []
    assert host.dispatcher.statistics().replay_entries == 10
    assert host.unread == 10


def test_replays_pass_a_shut_gate_and_keys_keep_their_order() -> None:
    host = sticky(4)
    host.hashes = {0: LOW, 1: LOW, 2: HIGH, 3: LOW}
    host.dispatcher.add_permits(1, 10)
    host.dispatcher.add_permits(2, 10)
    host.pump()
    host.dispatcher.redeliver(1, None)
    host.entries = 5
    got = host.pump(gate_open=False, is_acked=lambda _: True)
    assert got == [(1, [0, 1, 3])]


def test_a_replay_that_vanished_frees_the_rest_of_its_key() -> None:
    host = sticky(2)
    host.hashes = {0: LOW, 1: LOW}
    host.dispatcher.add_permits(1, 10)
    host.pump()
    host.dispatcher.redeliver(1, None)
    read = host.next_read() or pytest.fail("no read")
    deliveries = host.dispatcher.assign(read, EntriesRead([at(1)], None, [LOW]))
    assert [delivery.consumer for delivery in deliveries] == [1]
    host.dispatcher.check()


def test_statistics_tell_the_ranges() -> None:
    host = sticky()
    told = {each.consumer: each.hash_ranges for each in host.dispatcher.statistics().consumers}
    assert told == {1: ((0, 32_767),), 2: ((32_768, 65_535),)}
    statistics = host.dispatcher.consumer_statistics(1)
    assert statistics is not None
    assert statistics.hash_ranges == ((0, 32_767),)
    assert host.dispatcher.consumer_statistics(7) is None
    hasher = host.dispatcher.key_hash
    assert hasher is not None
    assert hasher(b"key-1") == 5_536


def test_what_fell_due_is_read_for_its_key_and_then_waits_in_its_place() -> None:
    host = sticky(4)
    host.hashes = {0: LOW, 1: HIGH, 2: LOW, 3: LOW}
    host.unread = 4  # 0 and 1 were held, 2 and 3 not
    host.dispatcher.add_permits(1, 1)
    host.dispatcher.add_permits(2, 1)
    host.dispatcher.queue_due([at(2), at(3)])
    assert host.pump() == [(1, [2])]
    host.dispatcher.queue_due([at(0), at(1)])
    assert host.dispatcher.waiting_entries == 3
    assert host.pump() == [(2, [1])]
    host.dispatcher.add_permits(1, 1)
    assert host.pump() == [(1, [0])]
    host.dispatcher.add_permits(1, 1)
    assert host.pump() == [(1, [3])]
    assert host.dispatcher.waiting_entries == 0


def test_no_more_of_what_fell_due_is_read_than_may_wait() -> None:
    host = sticky(6, key_shared_look_ahead_per_subscription_max=2)
    host.hashes = dict.fromkeys(range(5), LOW) | {5: HIGH}
    host.unread = 6
    host.dispatcher.add_permits(2, 10)
    host.dispatcher.queue_due([at(number) for number in range(6)])
    read = host.next_read()
    assert read is not None
    assert read.positions == (at(0), at(1))
    host.answer(read)
    assert host.next_read() is None, "their consumer has no room, and no more may wait"
    host.dispatcher.add_permits(1, 10)
    assert sorted(host.pump()) == [(1, [0, 1]), (1, [2, 3]), (1, [4]), (2, [5])]
