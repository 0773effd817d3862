"""The policy `redeliveryBackoff` with the real client: what it gives back comes later each time.

The client's own delay of negative acks is 100 ms here, or passed by: a request to deliver again all
that is in flight goes out at once. A real Pulsar has no such policy; there the first test holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from ackgate.testing import BrokerProcess
from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all

SHARED = pulsar.ConsumerType.Shared
KEY_SHARED = pulsar.ConsumerType.KeyShared
HOLDING = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)

LATE_MS = 30_000
"""A busy machine may be so late."""

TOO_LONG_MS = 120_000
"""A delay that would be noticed."""
"""How late a message may come: timer, and a machine that does other things."""

Policy = Callable[..., None]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def set_policy(target: Target, topic: str, policy: dict[str, Any] | None) -> None:
    """For the topic; returns when it holds."""
    path = topic.replace("://", "/") + "/redeliveryBackoff"
    if policy is None:
        target.admin("DELETE", path)
        eventually(lambda: target.admin("GET", path + "?applied=true") is None)
    else:
        target.admin("POST", path, policy)
        eventually(lambda: target.admin("GET", path + "?applied=true"))


@pytest.fixture
def policy(target: Target, topic, client) -> Policy:
    """Sets the topic's policy, and waits until it holds."""
    client.create_producer(topic).close()

    def put(first_ms: int, most_ms: int = 60_000, multiplier: float = 2, **more: float) -> None:
        set_policy(
            target,
            topic,
            {"minDelayMs": first_ms, "maxDelayMs": most_ms, "multiplier": multiplier, **more},
        )

    return put


def nothing_comes(consumer: pulsar.Consumer, ms: int = 150) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(ms)


def held(target: Target, topic: str) -> int:
    stats = target.admin("GET", topic.replace("://", "/") + "/delayed")
    return int(stats["subscriptions"]["s"]["heldNacks"])


@HOLDING
def test_without_a_policy_it_comes_at_once(client, topic, kind):
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    client.create_producer(topic).send(b"m", partition_key="k")
    for count in range(5):
        [message] = receive(consumer, 1)
        assert message.redelivery_count() == count
        began = now_ms()
        consumer.redeliver_unacknowledged_messages()
    receive(consumer, 1)
    assert now_ms() - began < LATE_MS


@HOLDING
def test_each_time_it_comes_later(client, topic, policy, kind):
    policy(200, 800)
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    client.create_producer(topic).send(b"m", partition_key="k")
    [message] = receive(consumer, 1)
    for count, delay_ms in enumerate((200, 400, 800, 800), 1):
        assert message.data() == b"m"
        began = now_ms()
        consumer.redeliver_unacknowledged_messages()
        [message] = receive(consumer, 1)
        waited = now_ms() - began
        assert message.redelivery_count() == count
        assert delay_ms - 200 / 16 - 1 <= waited < delay_ms + LATE_MS, (count, waited)
    consumer.acknowledge(message)


def test_negative_acks_wait_behind_the_clients_own_delay(client, topic, policy):
    policy(4_000)
    consumer = client.subscribe(
        topic, "s", consumer_type=SHARED, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(topic, batching_enabled=False)
    send_all(producer, numbered(20))
    messages = receive(consumer, 20)
    began = now_ms()
    for message in messages[::2]:
        consumer.negative_acknowledge(message)
    producer.send(b"prompt")
    assert payloads(receive(consumer, 1)) == [b"prompt"]
    again = receive(consumer, 10)
    assert payloads(again) == numbered(20)[::2]
    assert 3_800 <= now_ms() - began < 5_000 + LATE_MS
    assert {message.redelivery_count() for message in again} == {1}
    for message in messages[1::2] + again:
        consumer.acknowledge(message)


@HOLDING
def test_nobody_else_gets_it_early(client, topic, policy, kind):
    policy(5_000)
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    send_all(client.create_producer(topic, batching_enabled=False), numbered(10))
    receive(consumer, 10)
    began = now_ms()
    consumer.redeliver_unacknowledged_messages()
    consumer.close()
    other = client.subscribe(topic, "s", consumer_type=kind)
    nothing_comes(other)
    assert payloads(receive(other, 10)) == numbered(10)
    assert 4_600 <= now_ms() - began < 5_000 + LATE_MS


def test_an_ack_while_it_waits_is_the_end_of_it(client, topic, policy, target: Target):
    policy(8_000)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send_all(client.create_producer(topic, batching_enabled=False), numbered(10))
    messages = receive(consumer, 10)
    consumer.redeliver_unacknowledged_messages()
    eventually(lambda: held(target, topic) == 10)
    for message in messages[1:]:
        consumer.acknowledge(message)
    eventually(lambda: held(target, topic) == 1)
    assert payloads(receive(consumer, 1)) == [b"m0"]
    nothing_comes(consumer)


def test_part_of_a_batch_that_is_acked_does_not_come_again(client, topic, policy):
    policy(4_000)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_max_publish_delay_ms=200)
    send_all(producer, numbered(4))
    messages = receive(consumer, 4)
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[2])
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)
    assert payloads(receive(consumer, 2)) == [b"m0", b"m3"]


def test_the_namespaces_policy_holds_where_the_topic_has_none(client, make_client, target: Target):
    target.admin("PUT", "namespaces/public/backoff")
    path = "namespaces/public/backoff/redeliveryBackoff"
    target.admin("POST", path, {"minDelayMs": 600})
    topic = "persistent://public/backoff/t"
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    client.create_producer(topic).send(b"m")
    receive(consumer, 1)
    began = now_ms()
    consumer.redeliver_unacknowledged_messages()
    receive(consumer, 1)
    assert 560 <= now_ms() - began < 600 + LATE_MS
    set_policy(target, topic, {"minDelayMs": 100})
    consumer.redeliver_unacknowledged_messages()
    [message] = receive(consumer, 1)
    consumer.acknowledge(message)
    target.admin("POST", path, {"minDelayMs": TOO_LONG_MS})
    target.admin("DELETE", path)
    set_policy(target, topic, {"minDelayMs": TOO_LONG_MS})
    set_policy(target, topic, None)
    client.create_producer(topic).send(b"next")
    receive(consumer, 1)
    began = now_ms()
    consumer.redeliver_unacknowledged_messages()
    receive(consumer, 1)
    assert now_ms() - began < LATE_MS


def test_a_removed_policy_lets_what_waits_keep_its_time(client, topic, policy, target: Target):
    policy(6_000)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    client.create_producer(topic).send(b"m")
    receive(consumer, 1)
    began = now_ms()
    consumer.redeliver_unacknowledged_messages()
    eventually(lambda: held(target, topic) == 1)
    set_policy(target, topic, None)
    receive(consumer, 1)
    assert 5_600 <= now_ms() - began < 6_000 + LATE_MS
    set_policy(target, topic, {"minDelayMs": TOO_LONG_MS})
    set_policy(target, topic, None)
    began = now_ms()
    consumer.redeliver_unacknowledged_messages()
    receive(consumer, 1)
    assert now_ms() - began < LATE_MS


@HOLDING
def test_after_a_kill_it_still_waits(tmp_path, make_client, ackgate_topic, kind):
    with BrokerProcess(tmp_path / "own") as broker:
        target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
        client = make_client(broker.service_url)
        consumer = client.subscribe(ackgate_topic, "s", consumer_type=kind)
        send_all(client.create_producer(ackgate_topic, batching_enabled=False), numbered(50))
        messages = receive(consumer, 50)
        for message in messages[:40]:
            consumer.acknowledge(message)
        eventually(lambda: target.backlog(ackgate_topic, "s") == 10)
        set_policy(target, ackgate_topic, {"minDelayMs": 8_000})
        due = now_ms() + 8_000
        consumer.redeliver_unacknowledged_messages()
        eventually(lambda: held(target, ackgate_topic) == 10)
        consumer.close()
        time.sleep(1)  # the linger, and a write: nothing is told when it is durable
        broker.kill()
        broker.start()
        client = make_client(broker.service_url)  # one that need not find out first
        consumer = client.subscribe(ackgate_topic, "s", consumer_type=kind)
        assert held(target, ackgate_topic) == 10
        client.create_producer(ackgate_topic).send(b"prompt")
        assert payloads(receive(consumer, 1)) == [b"prompt"]
        again = receive(consumer, 10)
        assert now_ms() >= due - 250
        assert payloads(again) == numbered(50)[40:]
