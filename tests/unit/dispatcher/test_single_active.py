"""Exclusive and Failover: who is active, when that changes, and what is read again."""

from __future__ import annotations

import pytest

from ackgate.dispatcher import (
    ConsumerSpec,
    DispatchLimits,
    Rewind,
    SingleActiveDispatcher,
)
from ackgate.dispatcher.single_active import choose_active
from ackgate.errors import ConsumerAssignError
from tests.unit.dispatcher.host import Host, at

TOPIC = "persistent://public/default/orders"


def exclusive(entries: int = 0) -> Host:
    return Host(SingleActiveDispatcher(DispatchLimits(), is_exclusive=True, topic=TOPIC), entries)


def failover(entries: int = 0, *, partition_index: int | None = 0, delay_ms: int = 1_000) -> Host:
    dispatcher = SingleActiveDispatcher(
        DispatchLimits(failover_delay_ms=delay_ms),
        is_exclusive=False,
        topic=TOPIC,
        partition_index=partition_index,
    )
    return Host(dispatcher, entries)


# -- exclusive ---------------------------------------------------------------------------------


def test_all_goes_to_it_in_order_and_batches_overshoot() -> None:
    host = exclusive(3)
    host.sizes = {0: 10, 1: 10, 2: 10}
    host.join(1, permits=15)
    assert host.pump() == [(1, [0, 1, 2])]
    statistics = host.dispatcher.consumer_statistics(1)
    assert statistics is not None
    assert statistics.permits == -15
    assert statistics.unacked_messages == 0, "as Pulsar, not counted"


def test_giving_back_rewinds_and_keeps_the_newest_epoch() -> None:
    host = exclusive(3)
    host.dispatcher.add_consumer(1, ConsumerSpec("a", epoch=1), 0)
    host.dispatcher.add_permits(1, 10)
    read = host.next_read() or pytest.fail("no read")
    assert host.dispatcher.redeliver(1, [at(0)], epoch=3) == (Rewind(),)
    assert host.answer(read) == [], "stale"
    assert host.dispatcher.redeliver(1, None, epoch=2) == (Rewind(),)
    host.unread = 0
    (delivery,) = host.answer(host.next_read() or pytest.fail("no read"))
    assert delivery.epoch == 3
    assert host.dispatcher.redelivery_count(at(0)) == 0


def test_a_reader_with_hash_ranges_gets_only_its_keys() -> None:
    host = exclusive(4)
    host.hashes = {0: 5, 1: 50, 2: 7, 3: 51}
    host.dispatcher.add_consumer(1, ConsumerSpec("r", hash_ranges=((0, 10),)), 0)
    host.dispatcher.add_permits(1, 10)
    assert host.dispatcher.key_hash is not None
    assert host.pump() == [(1, [0, 2])]
    with pytest.raises(ConsumerAssignError):
        exclusive().dispatcher.add_consumer(1, ConsumerSpec("r", hash_ranges=((9, 1),)), 0)


def test_a_connection_that_takes_no_bytes_stops_reads() -> None:
    host = exclusive(2)
    host.join(1, permits=3)
    host.dispatcher.set_writable(1, is_writable=False)
    assert host.next_read() is None
    host.dispatcher.set_writable(1, is_writable=True)
    assert host.next_read() is not None


# -- failover ----------------------------------------------------------------------------------


def test_reads_stop_while_the_new_active_consumer_waits() -> None:
    host = failover(10)
    host.join(1, permits=2, name="b")
    host.dispatcher.advance(1_000)
    host.pump()
    read_before = host.dispatcher
    host.dispatcher.add_permits(1, 2)
    read = host.next_read() or pytest.fail("no read")
    assert host.dispatcher.add_consumer(2, ConsumerSpec("a"), 5_000) == ()
    assert host.answer(read) == [], "the old active consumer gets nothing more"
    assert read_before.redeliver(2, None) == (), "it will be rewound anyway"
    host.dispatcher.add_permits(2, 20)
    assert host.next_read() is None
    host.dispatcher.advance(6_000)
    host.unread = 0
    assert host.given_to(2) == list(range(10))


def test_only_the_active_consumer_may_ask_again() -> None:
    host = failover(3, delay_ms=0)
    host.join(1, permits=10)
    host.join(2, permits=10)
    assert host.dispatcher.redeliver(2, None) == ()
    assert host.dispatcher.redeliver(1, None) == (Rewind(),)
    assert host.dispatcher.redeliver(9, None) == ()


def test_partitions_spread_over_consumers_by_name() -> None:
    consumers = {1: ConsumerSpec("c"), 2: ConsumerSpec("a"), 3: ConsumerSpec("b")}

    def active(partition_index: int) -> int:
        return choose_active(
            consumers, topic=TOPIC, partition_index=partition_index, by_hash_ring=False
        )

    assert [active(index) for index in range(5)] == [2, 3, 1, 2, 3]


def test_only_the_highest_priority_counts() -> None:
    consumers = {1: ConsumerSpec("a", 1), 2: ConsumerSpec("c"), 3: ConsumerSpec("b")}
    chosen = {
        choose_active(consumers, topic=TOPIC, partition_index=index, by_hash_ring=False)
        for index in range(6)
    }
    assert chosen == {2, 3}


def test_topics_without_partitions_choose_on_a_ring_as_pulsar() -> None:
    consumers = {number: ConsumerSpec(f"c{number + 1}") for number in range(4)}
    chosen = "".join(
        str(
            choose_active(
                consumers,
                topic=f"persistent://public/default/topic-{number}",
                partition_index=None,
                by_hash_ring=False,
            )
        )
        for number in range(24)
    )
    assert chosen == "210000211320321331110232"


def test_acks_are_not_followed() -> None:
    host = exclusive()
    dispatcher = host.dispatcher
    dispatcher.add_permits(5, 1)
    dispatcher.set_writable(5, is_writable=False)
    assert not dispatcher.acked(1, at(0))
    assert not dispatcher.acked_many(1, [at(0)])
    assert not dispatcher.acked_partly(1, at(0), 1)
    assert not dispatcher.acked_through(at(9))
    dispatcher.reset()
    dispatcher.configure(DispatchLimits())
    assert dispatcher.consumer_count == 0
    assert dispatcher.consumer_statistics(1) is None
    dispatcher.check()
