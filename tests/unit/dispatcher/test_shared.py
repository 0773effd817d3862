"""Shared: turns, priorities, permits, blocking, replays and the gate, one rule at a time."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.dispatcher.dispatcher import (
    NOTHING_READ,
    Chunk,
    ConsumerSpec,
    EntriesRead,
    ReadFrom,
    ReadKind,
    Rewind,
)
from ackgate.dispatcher.limits import DispatchLimits
from ackgate.dispatcher.shared import SharedDispatcher
from ackgate.errors import ConfigurationError
from tests.unit.dispatcher.host import Host, at


def make(entries: int = 0, **limits: Any) -> Host:
    return Host(SharedDispatcher(DispatchLimits(**limits)), entries)


# -- whose turn --------------------------------------------------------------------------------


def test_consumers_take_turns_of_a_bounded_size() -> None:
    host = make(10, round_robin_entries_max=3)
    host.join(1, permits=100)
    host.join(2, permits=100)
    assert host.pump() == [(1, [0, 1, 2]), (2, [3, 4, 5]), (1, [6, 7, 8]), (2, [9])]


def test_one_consumer_alone_takes_all_it_has_room_for() -> None:
    host = make(250)
    host.join(1, permits=240)
    assert [len(numbers) for _, numbers in host.pump()] == [100, 100, 40]


def test_the_lower_priority_number_is_served_first() -> None:
    host = make(10, round_robin_entries_max=2)
    host.join(1, permits=100, priority=1)
    host.join(2, permits=3, priority=0)
    host.join(3, permits=3, priority=0)
    got = host.pump()
    assert [numbers for to, numbers in got if to == 1] == [[6, 7, 8, 9]]
    assert sorted(n for to, numbers in got if to != 1 for n in numbers) == [0, 1, 2, 3, 4, 5]


def test_a_consumer_that_cannot_be_written_to_is_passed_over() -> None:
    host = make(4)
    host.join(1, permits=10)
    host.join(2, permits=10)
    host.dispatcher.set_writable(1, is_writable=False)
    assert host.pump() == [(2, [0, 1, 2, 3])]
    host.entries = 6
    host.dispatcher.set_writable(2, is_writable=False)
    assert host.pump() == []
    host.dispatcher.set_writable(1, is_writable=True)
    assert host.pump() == [(1, [4, 5])]


# -- permits -----------------------------------------------------------------------------------


def test_a_batch_may_overshoot_the_permits() -> None:
    host = make(3)
    host.sizes = {0: 100, 1: 100, 2: 100}
    host.join(1, permits=101)
    assert host.pump() == [(1, [0, 1])]
    statistics = host.dispatcher.consumer_statistics(1)
    assert statistics is not None
    assert statistics.permits == -99
    assert statistics.messages_per_entry_average == 100
    host.dispatcher.add_permits(1, 99)
    assert host.pump() == []
    host.dispatcher.add_permits(1, 1)
    assert host.pump() == [(1, [2])]


def test_what_was_read_beyond_the_permits_waits_for_replay() -> None:
    host = make(3)
    host.sizes = {0: 10, 1: 10, 2: 10}
    host.join(1, permits=5)
    read = host.next_read()
    assert read is not None
    assert read.entries_max == 5
    assert read.messages_max == 5
    host.answer(read)
    assert host.dispatcher.statistics().replay_entries == 2
    host.dispatcher.add_permits(1, 15)
    assert host.pump() == [(1, [0]), (1, [1])]
    assert host.counts[1] == 0, "held back is not redelivered"


# -- owing too much ----------------------------------------------------------------------------


def test_a_consumer_is_blocked_at_its_limit_and_unblocked_at_half() -> None:
    host = make(20, unacked_messages_per_consumer_max=5)
    host.join(1, permits=100)
    assert host.pump() == [(1, [0, 1, 2, 3, 4])]
    assert not host.ack(1, 0)
    assert not host.ack(1, 1)
    assert host.pump() == []
    assert host.ack(1, 2)
    assert host.pump() == [(1, [5, 6, 7])]


def test_a_blocked_consumer_without_permits_is_unblocked_too() -> None:
    host = make(10, unacked_messages_per_consumer_max=2)
    host.sizes = dict.fromkeys(range(10), 3)
    host.join(1, permits=1)
    assert host.pump() == [(1, [0])]
    host.dispatcher.acked(1, at(0))
    host.dispatcher.add_permits(1, 10)
    assert host.pump() == [(1, [1])]


def test_giving_something_back_unblocks() -> None:
    host = make(20, unacked_messages_per_consumer_max=4)
    host.join(1, permits=100)
    host.join(2)
    host.pump()
    host.dispatcher.redeliver(1, [at(3)])
    assert host.pump() == [(1, [3])], "room for one"
    assert host.pump() == []


def test_the_subscription_stops_normal_reads_at_its_limit_but_not_replays() -> None:
    host = make(20, unacked_messages_per_subscription_max=6)
    host.join(1, permits=100)
    host.join(2, permits=100)
    host.dispatcher.set_writable(2, is_writable=False)
    read = host.next_read()
    assert read is not None
    host.unread = 6
    host.dispatcher.assign(read, EntriesRead([at(n) for n in range(6)]))
    assert host.dispatcher.statistics().is_blocked_on_unacked_messages
    assert host.pump() == []
    host.dispatcher.redeliver(1, [at(5)])
    assert host.pump() == [(1, [5])]
    assert not host.ack(1, 0, 1, 2)
    assert host.pump() == [], "three is not below half of six"
    assert host.ack(1, 3)
    assert len(host.pump()[0][1]) > 0


def test_limits_may_change_at_run_time() -> None:
    host = make(20, unacked_messages_per_consumer_max=2)
    host.join(1, permits=100)
    assert host.pump() == [(1, [0, 1])]
    host.dispatcher.configure(DispatchLimits(unacked_messages_per_consumer_max=0))
    host.dispatcher.check()
    assert len(host.pump()[0][1]) == 18
    host.dispatcher.configure(DispatchLimits(unacked_messages_per_consumer_max=3))
    host.dispatcher.check()
    statistics = host.dispatcher.consumer_statistics(1)
    assert statistics is not None
    assert statistics.is_blocked_on_unacked_messages


@pytest.mark.parametrize("limits", [{"read_entries_max": 0}, {"failover_delay_ms": -1}])
def test_impossible_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        DispatchLimits(**limits)


# -- counting batches (numbers as in Pulsar's BatchMessageWithBatchIndexLevelTest) --------------


def test_unacked_counts_follow_acked_indexes_and_given_back_batches() -> None:
    host = make(2)
    host.sizes = {0: 20, 1: 20}
    host.join(1, permits=100)
    host.pump()
    assert host.unacked(1) == 40
    host.dispatcher.acked_partly(1, at(0), 18)
    assert host.unacked(1) == 38
    host.dispatcher.acked_partly(1, at(0), 16)
    host.dispatcher.acked_partly(1, at(0), 16)
    assert host.unacked(1) == 36
    host.dispatcher.redeliver(1, [at(0)])
    assert host.unacked(1) == 20
    host.sizes[0] = 16
    assert host.pump() == [(1, [0])]
    assert host.unacked(1) == 36
    assert host.counts[0] == 1


def test_even_indexes_acked_and_odd_ones_given_back_leave_half() -> None:
    host = make(1)
    host.sizes = {0: 20}
    host.join(1, permits=1_000)
    host.pump()
    for remaining in range(19, 9, -1):
        host.dispatcher.acked_partly(1, at(0), remaining)
        host.sizes[0] = remaining
        host.dispatcher.redeliver(1, [at(0)])
        host.pump()
    assert host.unacked(1) == 10
    assert host.counts[0] == 10


def test_a_batch_half_acked_comes_back_smaller_and_costs_fewer_permits() -> None:
    host = make(1)
    host.sizes = {0: 100}
    host.join(1, permits=100)
    host.pump()
    host.dispatcher.acked_partly(1, at(0), 98)
    host.join(2, permits=100)
    host.dispatcher.remove_consumer(1, 0)
    host.sizes[0] = 98
    assert host.pump() == [(2, [0])]
    assert host.unacked(2) == 98
    statistics = host.dispatcher.consumer_statistics(2)
    assert statistics is not None
    assert statistics.permits == 2


def test_an_ack_that_comes_while_a_replay_is_read_takes_it_out() -> None:
    host = make(2)
    host.join(1, permits=10)
    host.pump()
    host.dispatcher.redeliver(1, None)
    read = host.next_read()
    assert read is not None
    host.dispatcher.acked(1, at(0))
    deliveries = host.dispatcher.assign(read, EntriesRead([at(0), at(1)]))
    assert [list(delivery.indexes) for delivery in deliveries] == [[1]]
    host.dispatcher.check()


# -- redelivery --------------------------------------------------------------------------------


def test_replays_come_by_position_before_new_entries_and_are_counted() -> None:
    host = make(6)
    host.join(1, permits=4)
    host.pump()
    host.dispatcher.redeliver(1, [at(3), at(1), at(77)])
    host.dispatcher.add_permits(1, 4)
    assert host.pump() == [(1, [1, 3]), (1, [4, 5])]
    assert host.counts == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 0}
    assert host.dispatcher.redelivery_count(at(3)) == 1
    host.ack(1, 3)
    assert host.dispatcher.redelivery_count(at(3)) == 0


def test_only_the_owner_gives_back() -> None:
    host = make(2)
    host.join(1, permits=2)
    host.pump()
    host.join(2, permits=2)
    host.dispatcher.redeliver(2, [at(0)])
    assert host.pump() == []
    assert [host.dispatcher.holder(at(number)) for number in range(3)] == [1, 1, None]


def test_what_a_closed_consumer_had_goes_to_the_others_uncounted() -> None:
    host = make(4)
    host.join(1, permits=4)
    host.pump()
    host.join(2, permits=10)
    host.ack(1, 2)
    assert host.dispatcher.remove_consumer(1, 0) == ()
    assert host.pump() == [(2, [0, 1, 3])]
    assert host.counts[0] == 0


def test_the_last_consumer_leaves_nothing_and_the_next_one_rewinds() -> None:
    host = make(4)
    host.join(1, permits=8)
    host.pump()
    host.dispatcher.redeliver(1, None)
    read = host.next_read() or pytest.fail("no read")
    assert host.dispatcher.remove_consumer(1, 0) == ()
    assert host.dispatcher.statistics().replay_entries == 0
    assert host.dispatcher.redelivery_count(at(0)) == 0
    assert host.dispatcher.add_consumer(2, ConsumerSpec("again"), 0) == (Rewind(),)
    host.unread = 0
    host.dispatcher.add_permits(2, 4)
    assert host.dispatcher.assign(read, EntriesRead([at(0)])) == [], "stale"
    assert host.pump() == [(2, [0, 1, 2, 3])]


def test_an_ack_by_another_consumer_counts_for_the_one_who_has_it() -> None:
    host = make(2)
    host.join(1, permits=2)
    host.join(2)
    host.pump()
    host.dispatcher.acked(2, at(0))
    host.dispatcher.acked(None, at(1))
    assert host.unacked(1) == 0


def test_everything_up_to_a_position_may_go_at_once() -> None:
    host = make(6)
    host.join(1, permits=6)
    host.pump()
    host.dispatcher.redeliver(1, [at(1), at(4)])
    host.dispatcher.acked_through(at(3))
    assert host.dispatcher.statistics().in_flight_entries == 1
    assert host.dispatcher.statistics().replay_entries == 1
    assert host.dispatcher.statistics().redelivered_entries == 1
    host.dispatcher.check()


# -- reads -------------------------------------------------------------------------------------


def test_one_read_at_a_time() -> None:
    host = make(4)
    host.join(1, permits=4)
    read = host.next_read()
    assert read is not None
    assert host.next_read() is None
    assert host.dispatcher.assign(read, NOTHING_READ) == []
    assert host.next_read() is not None


def test_a_failed_read_goes_back_and_a_failed_replay_is_still_queued() -> None:
    host = make(4)
    host.join(1, permits=2)
    read = host.next_read() or pytest.fail("no read")
    assert host.dispatcher.read_failed(read, [at(0), at(1)]) == (ReadFrom(at(0)),)
    assert host.pump() == [(1, [0, 1])]
    host.dispatcher.redeliver(1, None)
    host.dispatcher.add_permits(1, 2)
    read = host.next_read() or pytest.fail("no read")
    assert read.kind is ReadKind.REPLAY
    assert host.dispatcher.read_failed(read) == ()
    assert host.pump()[0] == (1, [0, 1])


def test_a_replay_that_is_not_there_any_more_leaves_the_queue() -> None:
    host = make(2)
    host.join(1, permits=2)
    host.pump()
    host.dispatcher.redeliver(1, None)
    host.dispatcher.add_permits(1, 2)
    read = host.next_read() or pytest.fail("no read")
    host.dispatcher.assign(read, EntriesRead([at(1)]))
    assert host.dispatcher.statistics().replay_entries == 0


def test_a_reset_forgets_what_was_and_makes_the_read_stale() -> None:
    host = make(4)
    host.join(1, permits=10)
    host.pump()
    host.dispatcher.redeliver(1, [at(2)])
    read = host.next_read() or pytest.fail("no read")
    host.dispatcher.reset()
    host.dispatcher.check()
    assert host.dispatcher.statistics().unacked_messages == 0
    assert host.dispatcher.assign(read, EntriesRead([at(2)])) == []
    host.unread = 0
    assert host.pump() == [(1, [0, 1, 2, 3])]


def test_the_late_answer_of_a_stale_read_does_not_end_the_one_under_way() -> None:
    host = make(4)
    host.join(1, permits=10)
    stale = host.next_read() or pytest.fail("no read")
    host.dispatcher.reset()
    read = host.next_read() or pytest.fail("no read")
    assert host.dispatcher.assign(stale, EntriesRead([at(0)])) == []
    assert host.dispatcher.read_failed(stale, [at(0)]) == ()
    assert host.next_read() is None, "one is under way"
    assert len(host.dispatcher.assign(read, EntriesRead([at(0)]))) == 1


# -- the gate ----------------------------------------------------------------------------------


def test_a_shut_gate_holds_normal_reads_and_lets_replays_through() -> None:
    host = make(4)
    host.join(1, permits=2)
    host.pump()
    host.dispatcher.add_permits(1, 2)
    assert host.pump(gate_open=False) == []
    host.dispatcher.redeliver(1, [at(1)])
    assert host.pump(gate_open=False) == [(1, [1])]
    assert host.pump() == [(1, [2])]


def test_entries_below_acked_ones_are_read_through_a_shut_gate() -> None:
    host = make(10)
    host.join(1, permits=10)
    read = host.next_read(gate_open=False, holes_up_to=at(5))
    assert read is not None
    assert read.kind is ReadKind.NORMAL
    assert read.up_to == at(5)


def test_the_budget_bounds_a_normal_read() -> None:
    host = make(10)
    host.join(1, permits=10)
    read = host.next_read(entry_budget=3)
    assert read is not None
    assert read.entries_max == 3
    host.dispatcher.read_failed(read)
    assert host.next_read(entry_budget=0) is None
    assert host.next_read(entry_budget=0, gate_open=False, holes_up_to=at(3)) is None


@pytest.mark.parametrize("hole_closing_first", [True, False])
def test_replays_that_close_holes_go_first_while_the_gate_is_shut(hole_closing_first: bool) -> None:
    host = make(12, hole_closing_redelivery_first=hole_closing_first)
    host.join(1, permits=12)
    host.pump()
    host.ack(1, 4, 7, 9)  # acked: 4, 7, 9; holes: 0-3, 5-6, 8, 10-11
    host.dispatcher.redeliver(1, [at(1), at(5), at(6), at(8), at(10)])
    host.dispatcher.add_permits(1, 5)
    expected = [8, 5, 6, 1, 10] if hole_closing_first else [1, 5, 6, 8, 10]
    got = host.pump(gate_open=False, is_acked=lambda where: where.entry_id in host.acked)
    assert got == [(1, expected)]


# -- chunked messages --------------------------------------------------------------------------


def test_all_pieces_of_a_chunked_message_go_to_one_consumer() -> None:
    host = make(8, round_robin_entries_max=1)
    host.chunks = {1: Chunk("x", False), 3: Chunk("x", False), 6: Chunk("x", True)}
    host.join(1, permits=100)
    host.join(2, permits=100)
    got = host.pump()
    assert len({to for to, numbers in got if {1, 3, 6} & set(numbers)}) == 1
    assert sorted(n for _, numbers in got for n in numbers) == list(range(8))


def test_pieces_wait_for_the_consumer_that_has_the_first_one() -> None:
    host = make(4, round_robin_entries_max=1)
    host.chunks = {n: Chunk("x", n == 3) for n in range(4)}
    host.join(1, permits=2)
    host.join(2, permits=2)
    assert host.pump() == [(1, [0]), (1, [1])]
    host.dispatcher.add_permits(2, 50)
    assert host.pump() == []
    host.dispatcher.add_permits(1, 2)
    assert host.pump() == [(1, [2]), (1, [3])]


def test_pieces_of_a_consumer_that_left_go_to_another_one_together() -> None:
    host = make(3)
    host.chunks = {n: Chunk("x", n == 2) for n in range(3)}
    host.join(1, permits=2)
    host.join(2)
    host.pump()
    host.dispatcher.remove_consumer(1, 0)
    host.dispatcher.add_permits(2, 5)
    assert [n for to, numbers in host.pump() for n in numbers if to == 2] == [0, 1, 2]


# -- unknown consumers -------------------------------------------------------------------------


def test_unknown_consumers_change_nothing() -> None:
    dispatcher = SharedDispatcher(DispatchLimits())
    dispatcher.add_permits(9, 5)
    dispatcher.set_writable(9, is_writable=False)
    assert dispatcher.remove_consumer(9, 0) == ()
    assert dispatcher.redeliver(9, None) == ()
    assert not dispatcher.acked(9, at(0))
    assert not dispatcher.acked_many(9, [at(0)])
    assert not dispatcher.acked_partly(9, at(0), 1)
    assert dispatcher.consumer_statistics(9) is None
    assert dispatcher.next_deadline_ms is None
    assert dispatcher.advance(5) == ()
    assert dispatcher.active_consumer is None
    assert dispatcher.key_hash is None
    dispatcher.check()


def test_what_is_held_waits_nowhere_until_it_is_due_and_was_counted() -> None:
    host = Host(SharedDispatcher(DispatchLimits()), 3)
    host.join(1, 10)
    host.pump()
    assert host.dispatcher.hold(1, [at(2), at(0), at(7)]) == [at(2), at(0)]
    assert host.unacked(1) == 1
    assert host.pump() == []
    host.dispatcher.queue_due([at(0)])
    assert host.dispatcher.waiting_entries == 1
    assert host.pump(gate_open=False) == [(1, [0])], "due entries pass the shut gate"
    assert host.counts[0] == 1


def test_what_is_in_flight_or_waits_falls_due_no_more() -> None:
    host = Host(SharedDispatcher(DispatchLimits()), 3)
    host.join(1, 10)
    host.pump()
    host.dispatcher.redeliver(1, [at(1)])
    host.dispatcher.queue_due([at(0), at(1), at(2)])
    assert host.dispatcher.waiting_entries == 1
    assert host.pump() == [(1, [1])]


def test_nothing_falls_due_while_there_is_no_consumer() -> None:
    dispatcher = SharedDispatcher(DispatchLimits())
    dispatcher.queue_due([at(0)])
    assert dispatcher.waiting_entries == 0
