"""Nacks that wait each for its own time, in a consumer round the real client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pulsar
import pytest

from ackgate.client import MultiplierRedeliveryBackoff, NackingConsumer, NackSettings
from ackgate.errors import CallerError
from tests.broker.target import (
    RECEIVE_TIMEOUT_MS,
    Target,
    eventually,
    numbered,
    payloads,
    receive,
    send_all,
)

SHARED = pulsar.ConsumerType.Shared
EXACT = NackSettings(precision_bits=0)
LATE_MS = 30_000
"""What a busy machine may add; alone it is 75 ms."""

BATCH = {
    "batching_enabled": True,
    "batching_max_messages": 5,
    "batching_max_publish_delay_ms": 60_000,
}


@pytest.fixture
def subscribe(client: pulsar.Client, topic: str) -> Iterator[Callable[..., NackingConsumer]]:
    consumers: list[NackingConsumer] = []

    def make(settings: NackSettings = EXACT, **options: Any) -> NackingConsumer:
        options = {"consumer_type": SHARED, **options}
        consumers.append(
            NackingConsumer.subscribe(client, topic, "s", settings=settings, **options)
        )
        return consumers[-1]

    yield make
    for consumer in consumers:
        consumer.close()


def now_ms() -> float:
    return time.monotonic() * 1_000


def arrivals(consumer: NackingConsumer, count: int) -> dict[bytes, float]:
    """When each of the next messages came; they are acked."""
    times = {}
    for _ in range(count):
        message = consumer.receive(RECEIVE_TIMEOUT_MS)
        times[message.data()] = now_ms()
        consumer.acknowledge(message)
    return times


def assert_nothing_comes(consumer: NackingConsumer, within_ms: int) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(within_ms)


@pytest.mark.slow
def test_each_comes_at_its_own_time(client, topic, subscribe, target: Target):
    consumer = subscribe()
    send_all(client.create_producer(topic), numbered(6))
    delays = [3_600, 900, 2_700, 0, 1_800, 901]
    nacked_at = {}
    for message, delay in zip(receive(consumer, 6), delays, strict=True):
        nacked_at[message.data()] = now_ms()
        consumer.negative_acknowledge(message, delay)
    times = arrivals(consumer, 6)
    assert next(iter(times)) == b"m3"
    assert list(times)[-3:] == [b"m4", b"m2", b"m0"]
    for payload, delay in zip(numbered(6), delays, strict=True):
        waited = times[payload] - nacked_at[payload]
        assert max(delay, 100) - 1.5 <= waited <= delay + LATE_MS
    assert_nothing_comes(consumer, 300)
    assert consumer.pending_nacks == 0
    eventually(lambda: target.backlog(topic, "s") == 0)


@pytest.mark.slow
def test_precision_is_never_late_and_early_by_less_than_a_bucket(client, topic, subscribe):
    consumer = subscribe(NackSettings(delay_ms=1_000, precision_bits=9))
    send_all(client.create_producer(topic), numbered(20))
    nacked_at = {}
    for message in receive(consumer, 20):
        nacked_at[message.data()] = now_ms()
        consumer.negative_acknowledge(message)
        time.sleep(0.01)
    for payload, at in arrivals(consumer, 20).items():
        assert 1_000 - 512 <= at - nacked_at[payload] <= 1_000 + LATE_MS


@pytest.mark.slow
def test_steady_stream_of_nacks_does_not_hold_them_up(client, topic, subscribe):
    """The real client's timer begins anew with every nack."""
    consumer = subscribe()
    send_all(client.create_producer(topic), numbered(100))
    messages = receive(consumer, 100)
    nacked_at, times = {}, {}
    reader = threading.Thread(target=lambda: times.update(arrivals(consumer, 100)))
    reader.start()
    for message in messages:
        nacked_at[message.data()] = now_ms()
        consumer.negative_acknowledge(message, 150)
        time.sleep(0.01)
    reader.join()
    waits = [times[payload] - nacked_at[payload] for payload in nacked_at]
    assert min(waits) >= 148
    assert min(times.values()) < max(nacked_at.values()), "the client alone: after the last nack"


@pytest.mark.slow
def test_ack_takes_a_nack_away(client, topic, subscribe, target: Target):
    told: list[pulsar.MessageId] = []
    consumer = NackingConsumer.subscribe(
        client, topic, "s", settings=EXACT, consumer_type=SHARED, on_redeliver=told.extend
    )
    send_all(client.create_producer(topic), numbered(3))
    messages = receive(consumer, 3)
    for message in messages:
        consumer.negative_acknowledge(message, 400)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2].message_id())
    assert consumer.pending_nacks == 1
    assert payloads(receive(consumer, 1)) == [b"m1"]
    assert_nothing_comes(consumer, 300)
    assert [message_id.entry_id() for message_id in told] == [messages[1].message_id().entry_id()]
    consumer.close()


@pytest.mark.slow
def test_cumulative_ack_takes_nacks_away(client, topic, subscribe):
    consumer = subscribe(consumer_type=pulsar.ConsumerType.Exclusive)
    send_all(client.create_producer(topic), numbered(5))
    messages = receive(consumer, 5)
    for message in messages:
        consumer.negative_acknowledge(message, 300)
    consumer.acknowledge_cumulative(messages[3])
    assert consumer.pending_nacks == 1
    assert list(arrivals(consumer, 1)) == [b"m4"]
    assert_nothing_comes(consumer, 300)


@pytest.mark.slow
def test_nack_in_the_receive_loop_again_and_again(client, topic, subscribe):
    consumer = subscribe()
    send_all(client.create_producer(topic), numbered(20))
    seen: dict[bytes, int] = {}
    while sum(seen.values()) < 60:
        message = consumer.receive(RECEIVE_TIMEOUT_MS)
        seen[message.data()] = seen.get(message.data(), 0) + 1
        if seen[message.data()] < 3:
            assert message.redelivery_count() == seen[message.data()] - 1
            consumer.negative_acknowledge(message, 50)
        else:
            consumer.acknowledge(message)
    assert set(seen.values()) == {3}
    assert_nothing_comes(consumer, 300)


@pytest.mark.slow
def test_callback_may_nack_again(client, topic, subscribe):
    told = threading.Event()
    first: list[pulsar.Message] = []

    def nack_again(message_ids: Sequence[Any]) -> None:
        if len(message_ids) == 1 and not told.is_set():
            told.set()
            consumer.negative_acknowledge(first[0], 300)
            raise RuntimeError("an embedder's bug")

    consumer = NackingConsumer.subscribe(
        client, topic, "s", settings=EXACT, consumer_type=SHARED, on_redeliver=nack_again
    )
    send_all(client.create_producer(topic), numbered(2))
    first += receive(consumer, 2)
    began = now_ms()
    consumer.negative_acknowledge(first[1], 100)
    assert list(arrivals(consumer, 1)) == [b"m1"]
    assert told.is_set()
    assert arrivals(consumer, 1)[b"m0"] - began >= 299
    consumer.close()


@pytest.mark.slow
def test_backoff_grows_with_the_redelivery_count(client, topic, subscribe):
    backoff = MultiplierRedeliveryBackoff(150, 600)
    consumer = subscribe(NackSettings(backoff=backoff, precision_bits=0))
    send_all(client.create_producer(topic), [b"m"])
    message = consumer.receive(RECEIVE_TIMEOUT_MS)
    for delay in (150, 300, 600, 600):
        nacked_at = now_ms()
        consumer.negative_acknowledge(message)
        message = consumer.receive(RECEIVE_TIMEOUT_MS)
        assert delay - 1.5 <= now_ms() - nacked_at <= delay + LATE_MS
    assert message.redelivery_count() == 4


@pytest.mark.slow
@pytest.mark.parametrize("has_index_acks", [False, True])
def test_messages_of_a_batch_come_apart(
    client, topic, subscribe, target: Target, has_index_acks: bool
):
    consumer = subscribe(batch_index_ack_enabled=has_index_acks)
    send_all(client.create_producer(topic, **BATCH), numbered(5))
    messages = receive(consumer, 5)
    assert len({message.message_id().entry_id() for message in messages}) == 1
    nacked_at = now_ms()
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1], 3_000)
    consumer.negative_acknowledge(messages[2], 300)
    consumer.negative_acknowledge(messages[3], 300)
    times = arrivals(consumer, 3)
    assert list(times) == [b"m2", b"m3", b"m1"]
    assert 299 <= times[b"m2"] - nacked_at <= 300 + LATE_MS
    assert 2_999 <= times[b"m1"] - nacked_at <= 3_000 + LATE_MS
    assert_nothing_comes(consumer, 300)
    consumer.acknowledge(messages[4])
    eventually(lambda: target.backlog(topic, "s") == 0)


@pytest.mark.slow
def test_listener_is_given_what_has_come_due(client, topic, subscribe):
    seen: list[tuple[bytes, int]] = []

    def listener(consumer: NackingConsumer, message: pulsar.Message) -> None:
        seen.append((message.data(), message.redelivery_count()))
        if message.redelivery_count() == 0:
            consumer.negative_acknowledge(message, 100 if message.data() == b"m1" else 500)
        else:
            consumer.acknowledge(message)

    send_all(client.create_producer(topic), numbered(2))
    subscribe(message_listener=listener, initial_position=pulsar.InitialPosition.Earliest)
    eventually(lambda: len(seen) == 4)
    assert seen[2:] == [(b"m1", 1), (b"m0", 1)]


@pytest.mark.slow
def test_partitions_and_bare_message_ids(client, fresh_topic, target: Target):
    topic = fresh_topic()
    target.admin("PUT", topic.replace("://", "/") + "/partitions", 3)
    consumer = NackingConsumer.subscribe(client, topic, "s", settings=EXACT, consumer_type=SHARED)
    send_all(client.create_producer(topic), numbered(9))
    messages = receive(consumer, 9)
    assert len({message.topic_name() for message in messages}) == 3
    for number, message in enumerate(messages):
        message_id = message.message_id()
        wrapped = pulsar.MessageId.wrap(message_id)
        consumer.negative_acknowledge((message, message_id, wrapped)[number % 3], 200)
    assert sorted(arrivals(consumer, 9)) == numbered(9)
    consumer.close()


@pytest.mark.slow
def test_chunked_message_comes_whole(client, topic, subscribe):
    consumer = subscribe()
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    payload = bytes(range(256)) * 50_000
    producer.send(payload)
    message = consumer.receive(RECEIVE_TIMEOUT_MS)
    consumer.negative_acknowledge(message, 200)
    assert list(arrivals(consumer, 1)) == [payload]


@pytest.mark.slow
def test_what_comes_early_is_kept_back(client, topic, subscribe):
    """Another nack brings the client's whole batch, or a connection is lost: times still hold."""
    consumer = subscribe()
    send_all(client.create_producer(topic), numbered(2))
    messages = receive(consumer, 2)
    nacked_at = now_ms()
    consumer.negative_acknowledge(messages[0], 700)
    consumer._real.redeliver_unacknowledged_messages()  # behind its back
    assert list(arrivals(consumer, 1)) == [b"m1"]
    assert arrivals(consumer, 1)[b"m0"] - nacked_at >= 699


@pytest.mark.slow
def test_asking_for_everything_forgets_the_nacks(client, topic, subscribe):
    consumer = subscribe()
    send_all(client.create_producer(topic), numbered(3))
    for message in receive(consumer, 3):
        consumer.negative_acknowledge(message, 60_000)
    consumer.redeliver_unacknowledged_messages()
    assert sorted(arrivals(consumer, 3)) == numbered(3)
    assert consumer.pending_nacks == 0


def test_what_is_refused_changes_nothing(client, topic, subscribe):
    consumer = subscribe()
    send_all(client.create_producer(topic), [b"m"])
    message = consumer.receive(RECEIVE_TIMEOUT_MS)
    consumer.negative_acknowledge(message, 60_000)
    for delay in (-1, 2**63, 1.5, float("nan"), True, "5"):
        with pytest.raises(CallerError, match="delay"):
            consumer.negative_acknowledge(message, delay)
    with pytest.raises(CallerError, match="neither a message nor a message id: 'm'"):
        consumer.negative_acknowledge("m")
    with pytest.raises(CallerError, match=r"NackSettings\.delay_ms"):
        subscribe(negative_ack_redelivery_delay_ms=5)
    assert consumer.pending_nacks == 1
    assert consumer.pending_bytes > 0
    assert consumer.topic() == topic, "what is not its own is the real consumer's"
    consumer.close()
    with pytest.raises(CallerError, match="closed"):
        consumer.negative_acknowledge(message)


@pytest.mark.slow
def test_closing_gives_what_waits_to_others(client, make_client, topic, subscribe):
    with subscribe() as consumer:
        send_all(client.create_producer(topic), numbered(3))
        for message in receive(consumer, 3):
            consumer.negative_acknowledge(message, 60_000)
        other = make_client().subscribe(topic, "s", consumer_type=SHARED)
    assert sorted(payloads(receive(other, 3))) == numbered(3)
