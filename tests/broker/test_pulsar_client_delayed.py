"""`deliver_after` and `deliver_at` of the real client: what waits, what does not, and how it comes.

The broker is strict, with a tick of 100 ms. A real Pulsar needs the same settings to be compared::

    start.sh DIR isDelayedDeliveryDeliverAtTimeStrict=true delayedDeliveryTickTimeMillis=100
        managedLedgerMaxUnackedRangesToPersist=10
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

import pulsar
import pytest

from ackgate.broker.wire.errors import ServerError
from ackgate.testing import BrokerProcess
from tests.broker.target import (
    Target,
    eventually,
    numbered,
    payloads,
    receive,
    send_all,
)
from tests.support.wire_client import RefusedError, WireClient

SHARED = pulsar.ConsumerType.Shared
KEY_SHARED = pulsar.ConsumerType.KeyShared
EARLIEST = pulsar.InitialPosition.Earliest

TICK_MS = 100
LATE_MS = 30_000
"""How late a message may come: key, tick, timer, and a machine that does other things."""

SETTINGS = {
    "isDelayedDeliveryDeliverAtTimeStrict": True,
    "delayedDeliveryTickTimeMillis": TICK_MS,
    "managedLedgerMaxUnackedRangesToPersist": 10,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Iterator[Target]:
    """A broker with the settings above, or the one that the environment names."""
    service_url = os.environ.get("ACKGATE_TEST_SERVICE_URL")
    if service_url:
        yield Target(service_url, os.environ["ACKGATE_TEST_ADMIN_URL"], is_ackgate=False)
        return
    with BrokerProcess(tmp_path_factory.mktemp("delayed"), settings=SETTINGS) as broker:
        yield Target(broker.service_url, broker.admin_url, is_ackgate=True)


def after(ms: int) -> timedelta:
    return timedelta(milliseconds=ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_delayed(
    producer: pulsar.Producer, messages: list[bytes], delay_ms: int, **how: Any
) -> None:
    """Publish without waiting for each; all are stored when it returns."""
    for message in messages:
        producer.send_async(message, lambda *_: None, deliver_after=after(delay_ms), **how)
    producer.flush()


def nothing_comes(consumer: pulsar.Consumer, ms: int = 150) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(ms)


def arrivals(consumer: pulsar.Consumer, count: int) -> dict[bytes, int]:
    """The next messages, and when each came."""
    came: dict[bytes, int] = {}
    for _ in range(count):
        message = consumer.receive(60_000)
        assert message.data() not in came, "twice"
        came[message.data()] = now_ms()
        consumer.acknowledge(message)
    return came


def delayed(target: Target, topic: str) -> int:
    return int(target.subscription_stats(topic, "s")["msgDelayed"])


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_each_comes_in_its_time_and_none_early(client, topic, kind):
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic)
    due: dict[bytes, int] = {}
    for number in range(20):
        payload = b"%d" % number
        due[payload] = now_ms() + 300 + 40 * ((number * 7) % 20)
        producer.send(payload, deliver_at=due[payload], partition_key=str(number % 3))
    came = arrivals(consumer, 20)
    late = {payload: came[payload] - due[payload] for payload in due}
    assert min(late.values()) >= 0, late
    assert max(late.values()) < LATE_MS, late


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "reader"])
def test_who_is_promised_an_order_gets_everything_at_once(client, topic, kind):
    if kind == "reader":
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
    else:
        consumer = client.subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
    producer = client.create_producer(topic)
    began = now_ms()
    for number in range(10):
        producer.send(b"m%d" % number, deliver_after=after(600_000 if number % 2 else 300_000))
    if kind == "reader":
        got = [reader.read_next(60_000).data() for _ in range(10)]
    else:
        got = payloads(receive(consumer, 10))
    assert got == numbered(10)
    assert now_ms() - began < 120_000


def test_prompt_messages_among_delayed_ones_come_first_and_in_order(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"m%d" % number)
        producer.send(b"late%d" % number, deliver_after=after(6_000))
    messages = receive(consumer, 20)
    assert payloads(messages[:10]) == numbered(10)
    assert sorted(payloads(messages[10:])) == numbered(10, "late")


def test_reads_of_nothing_but_delayed_messages(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    send_delayed(producer, numbered(10), 5_000)
    nothing_comes(consumer)
    send_delayed(producer, numbered(10, "more"), 4_000)
    nothing_comes(consumer)
    assert sorted(arrivals(consumer, 20)) == sorted(numbered(10) + numbered(10, "more"))


def test_one_delay_for_all_keeps_the_order(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    send_delayed(producer, numbered(300), 700)
    assert payloads(receive(consumer, 300)) == numbered(300)


def test_a_short_receiver_queue_gets_them_all(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=1)
    send_delayed(client.create_producer(topic), numbered(300), 500)
    assert sorted(arrivals(consumer, 300)) == sorted(numbered(300))


def test_a_consumer_that_comes_back_finds_them_waiting_once(client, topic, target: Target):
    producer = client.create_producer(topic)
    client.subscribe(topic, "s", consumer_type=SHARED).close()
    producer.send(b"late", deliver_after=after(12_000))
    for _ in range(10):
        consumer = client.subscribe(topic, "s", consumer_type=SHARED)
        eventually(lambda: delayed(target, topic) == 1)
        consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    assert payloads(receive(consumer, 1)) == [b"late"]
    nothing_comes(consumer)
    assert delayed(target, topic) == 0


def test_skipping_all_leaves_nothing_delayed(client, topic, target: Target):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send_delayed(client.create_producer(topic), numbered(100), 4_000)
    eventually(lambda: delayed(target, topic) == 100)
    path = topic.replace("://", "/") + "/subscription/s/skip_all"
    target.admin("POST", path)
    eventually(lambda: delayed(target, topic) == 0)
    assert target.backlog(topic, "s") == 0
    nothing_comes(consumer, 4_500)


def test_a_seek_back_gives_what_is_due_at_once_and_holds_the_rest(client, topic):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    send_delayed(producer, numbered(5, "soon"), 200)
    send_delayed(producer, numbered(5, "late"), 8_000)
    came = arrivals(consumer, 5)
    assert sorted(came) == numbered(5, "soon")
    consumer.seek(pulsar.MessageId.earliest)
    came = arrivals(consumer, 5)
    assert sorted(came) == numbered(5, "soon")
    assert sorted(arrivals(consumer, 5)) == numbered(5, "late")
    nothing_comes(consumer)


def test_keys_keep_their_order_while_delayed_messages_come_between(client, topic):
    came: list[tuple[int, str, bytes]] = []

    def listener(who: int) -> Callable[[pulsar.Consumer, pulsar.Message], None]:
        def note(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            came.append((who, message.partition_key(), message.data()))
            consumer.acknowledge(message)

        return note

    for who in range(2):
        client.subscribe(topic, "s", consumer_type=KEY_SHARED, message_listener=listener(who))
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(b"%02d" % number, partition_key=str(number % 4), deliver_after=after(600))
        producer.send(b"p%02d" % number, partition_key=str(number % 4))
    eventually(lambda: len(came) == 80)
    for key in "0123":
        of_key = [(who, name) for who, its_key, name in came if its_key == key]
        assert len(of_key) == 20
        assert len({who for who, _ in of_key}) == 1, "a key at two consumers"
        for is_prompt in (True, False):
            of_stem = [name for _, name in of_key if name.startswith(b"p") == is_prompt]
            assert of_stem == sorted(of_stem)


def test_a_nacked_delayed_message_comes_again_without_another_delay(client, topic):
    consumer = client.subscribe(
        topic, "s", consumer_type=SHARED, negative_ack_redelivery_delay_ms=100
    )
    client.create_producer(topic).send(b"late", deliver_after=after(400))
    [message] = receive(consumer, 1)
    nacked = now_ms()
    consumer.negative_acknowledge(message)
    [again] = receive(consumer, 1)
    assert again.data() == b"late"
    assert again.redelivery_count() == 1
    assert now_ms() - nacked < 1000 + LATE_MS


def test_what_falls_due_passes_the_shut_gate_and_only_that(client, topic, target: Target):
    """Eleven holes shut the gate at a limit of ten."""
    client.subscribe(topic, "s", consumer_type=SHARED).close()
    path = topic.replace("://", "/") + "/dispatcherPauseOnAckStatePersistent"
    target.admin("POST", path)
    eventually(lambda: target.admin("GET", path + "?applied=true"))
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, numbered(30))
    messages = receive(consumer, 30)
    producer.send(b"late", deliver_after=after(8_000))
    nothing_comes(consumer)
    for message in messages[::2]:
        consumer.acknowledge(message)
    eventually(lambda: target.backlog(topic, "s") == 16)
    producer.send(b"prompt")
    nothing_comes(consumer)
    assert payloads(receive(consumer, 1)) == [b"late"]
    nothing_comes(consumer)
    for message in messages[1::2]:
        consumer.acknowledge(message)
    assert payloads(receive(consumer, 1)) == [b"prompt"]


def test_a_chunked_message_waits_with_all_its_pieces(client, topic):
    consumers = [client.subscribe(topic, "s", consumer_type=SHARED) for _ in range(2)]
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payload = bytes(6 * 1024 * 1024)
    due = now_ms() + 6_000
    producer.send(payload, deliver_at=due)
    producer.send(b"prompt")
    got: list[bytes] = []

    def look() -> bool:
        for consumer in consumers:
            try:
                got.append(consumer.receive(20).data())
            except pulsar.Timeout:
                continue
            if len(got) == 2:
                assert now_ms() >= due
        return len(got) == 2

    eventually(look)
    assert got == [b"prompt", payload]


# ---------------------------------------------------------------- policies


@pytest.fixture
def policy(target: Target, topic, client):
    """Sets the topic's policy, and waits until it holds."""
    client.create_producer(topic).close()
    path = topic.replace("://", "/") + "/delayedDelivery"

    def put(**fields: object) -> None:
        said = {"active": True, "tickTime": TICK_MS, "maxDeliveryDelayInMillis": 0, **fields}
        target.admin("POST", path, said)
        eventually(lambda: target.admin("GET", path + "?applied=true") == said)

    return put


def test_a_policy_switches_it_off_and_on(client, topic, policy):
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    policy(active=False)
    producer.send(b"at once", deliver_after=after(60_000))
    assert payloads(receive(consumer, 1)) == [b"at once"]
    policy(active=True)
    producer.send(b"late", deliver_after=after(4_000))
    nothing_comes(consumer)
    assert payloads(receive(consumer, 1)) == [b"late"]


async def connect(target: Target) -> WireClient:
    address = urlsplit(target.service_url)
    return await WireClient.connect(cast("str", address.hostname), cast("int", address.port))


async def test_what_is_to_wait_too_long_is_refused_and_nothing_else(target, topic, policy):
    policy(maxDeliveryDelayInMillis=5_000)
    async with await connect(target) as wire:
        producer = await wire.producer(topic)
        with pytest.raises(RefusedError) as refused:
            await producer.send(b"too late", deliver_at_time=now_ms() + 60_000)
        assert refused.value.code is ServerError.NOT_ALLOWED
        assert "Exceeds max allowed delivery delay of 5000 milliseconds" in str(refused.value)
        await producer.send(b"in time", deliver_at_time=now_ms() + 4_000)
        await producer.send(b"prompt")
        policy(active=False, maxDeliveryDelayInMillis=5_000)
        await producer.send(b"nothing waits", deliver_at_time=now_ms() + 60_000)


@pytest.mark.parametrize("deliver_at", [-(2**63), -1, 0, 1, 2**63 - 1])
async def test_times_beyond_reason(target, topic, deliver_at):
    """Past ones are delivered at once; who wants the end of time waits for it."""
    async with await connect(target) as wire:
        consumer = await wire.subscribe(topic, "s")
        consumer.flow(10)
        producer = await wire.producer(topic)
        await producer.send(b"odd", deliver_at_time=deliver_at)
        await producer.send(b"prompt")
        got = [(await consumer.receive()).payload]
        if deliver_at < 2**63 - 1:
            assert got == [b"odd"]
            got = [(await consumer.receive()).payload]
        assert got == [b"prompt"]


async def test_a_batch_waits_as_a_whole(target, topic):
    async with await connect(target) as wire:
        consumer = await wire.subscribe(topic, "s")
        consumer.flow(10)
        producer = await wire.producer(topic)
        due = now_ms() + 500
        batch = b"".join(b"\0\0\0\2\x18\1" + b"x" for _ in range(3))
        await producer.send(batch, deliver_at_time=due, num_messages_in_batch=3)
        message = await consumer.receive()
        assert 0 <= now_ms() - due < LATE_MS
        assert message.metadata.num_messages_in_batch == 3


# ---------------------------------------------------------------- restart


def test_after_a_kill_they_still_wait(tmp_path, make_client, ackgate_topic):
    with BrokerProcess(tmp_path / "own", settings=SETTINGS) as broker:
        client = make_client(broker.service_url)
        consumer = client.subscribe(ackgate_topic, "s", consumer_type=SHARED)
        producer = client.create_producer(ackgate_topic)
        due = now_ms() + 8_000
        for number in range(50):
            producer.send(b"m%d" % number, deliver_at=due)
        producer.send(b"prompt")
        [message] = receive(consumer, 1)
        assert message.data() == b"prompt"
        consumer.acknowledge(message)
        broker.kill()
        broker.start()
        came: dict[bytes, int] = {}
        while len(came.keys() - {b"prompt"}) < 50:  # the ack of that one may be lost
            came |= arrivals(consumer, 1)
        came.pop(b"prompt", None)
        assert sorted(came) == sorted(numbered(50))
        assert min(came.values()) >= due
