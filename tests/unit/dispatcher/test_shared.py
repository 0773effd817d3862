"""Shared: turns, priorities, permits, blocking, replays and the gate, one rule at a time."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.dispatcher import (
    NOTHING_READ,
    DispatchLimits,
    EntriesRead,
    MessageChunk,
    SharedDispatcher,
)
from ackgate.errors import ConfigurationError
from tests.unit.dispatcher.host import Host, at


def make(entries: int = 0, **limits: Any) -> Host:
    return Host(SharedDispatcher(DispatchLimits(**limits)), entries)


# -- whose turn --------------------------------------------------------------------------------


# -- permits -----------------------------------------------------------------------------------


# -- owing too much ----------------------------------------------------------------------------


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


# -- reads -------------------------------------------------------------------------------------


def test_one_read_at_a_time() -> None:
    host = make(4)
    host.join(1, permits=4)
    read = host.next_read()
    assert read is not None
    assert host.next_read() is None
    assert host.dispatcher.assign(read, NOTHING_READ) == []
    assert host.next_read() is not None


def test_a_replay_that_is_not_there_any_more_leaves_the_queue() -> None:
    host = make(2)
    host.join(1, permits=2)
    host.pump()
    host.dispatcher.redeliver(1, None)
    host.dispatcher.add_permits(1, 2)
    read = host.next_read() or pytest.fail("no read")
    host.dispatcher.assign(read, EntriesRead([at(1)]))
    assert host.dispatcher.statistics().replay_entries == 0


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


def test_pieces_of_a_consumer_that_left_go_to_another_one_together() -> None:
    host = make(3)
    host.chunks = {n: MessageChunk("x", n == 2) for n in range(3)}
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
