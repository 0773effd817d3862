"""The four subscription types, where each begins, and what happens when consumers leave."""

from __future__ import annotations

import threading

import pulsar
import pytest

from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all

EARLIEST = pulsar.InitialPosition.Earliest
LATEST = pulsar.InitialPosition.Latest
ALL_TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


class Listener:
    """Gathers what a consumer's listener is given, and acks it."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.keys: set[str] = set()
        self._arrived = threading.Condition()

    def __call__(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        with self._arrived:
            self.payloads.append(message.data())
            self.keys.add(message.partition_key())
            self._arrived.notify_all()
        consumer.acknowledge(message)

    def wait_for(self, count: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.payloads) >= count, 60)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_every_type_delivers_in_order_to_its_only_consumer(client, topic, kind, target: Target):
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    send_all(client.create_producer(topic), numbered(100))
    messages = receive(consumer, 100)
    assert payloads(messages) == numbered(100)
    for message in messages:
        consumer.acknowledge(message)
    eventually(lambda: target.backlog(topic, "s") == 0)
    expected = {"KeyShared": "Key_Shared"}.get(kind.name, kind.name)
    assert target.subscription_stats(topic, "s")["type"] == expected


def test_a_new_subscription_begins_at_the_end_unless_told_otherwise(client, topic):
    producer = client.create_producer(topic)
    send_all(producer, numbered(10, "old"))
    late = client.subscribe(topic, "late", initial_position=LATEST)
    early = client.subscribe(topic, "early", initial_position=EARLIEST)
    producer.send(b"new")
    assert payloads(receive(early, 11)) == [*numbered(10, "old"), b"new"]
    assert payloads(receive(late, 1)) == [b"new"]


def test_a_subscription_keeps_what_comes_while_nobody_is_connected(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    for message in receive(consumer, 4):
        consumer.acknowledge(message)
    consumer.close()
    producer.send(b"while away")
    again = client.subscribe(topic, "s")
    assert payloads(receive(again, 7)) == [*numbered(10)[4:], b"while away"]


def test_subscriptions_of_one_topic_do_not_disturb_each_other(client, topic):
    consumers = [client.subscribe(topic, f"s{n}") for n in range(3)]
    send_all(client.create_producer(topic), numbered(20))
    for acked, consumer in enumerate(consumers):
        messages = receive(consumer, 20)
        assert payloads(messages) == numbered(20)
        for message in messages[: acked * 5]:
            consumer.acknowledge(message)
        consumer.close()
    for acked in range(3):
        rest = receive(client.subscribe(topic, f"s{acked}"), 20 - acked * 5)
        assert payloads(rest) == numbered(20)[acked * 5 :]


# ---------------------------------------------------------------- Exclusive


def test_an_exclusive_subscription_has_one_consumer(client, make_client, topic):
    consumer = client.subscribe(topic, "s")
    for other in (client, make_client()):
        with pytest.raises(pulsar.ConsumerBusy):
            other.subscribe(topic, "s")
    consumer.close()
    other.subscribe(topic, "s")


@pytest.mark.parametrize("second", ALL_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("first", ALL_TYPES, ids=lambda kind: kind.name)
def test_consumers_of_two_types_do_not_mix(client, topic, first, second):
    consumer = client.subscribe(topic, "s", consumer_type=first)
    if first == second and first != pulsar.ConsumerType.Exclusive:
        client.subscribe(topic, "s", consumer_type=second)
        return
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=second)
    consumer.close()
    client.subscribe(topic, "s", consumer_type=second)


# ---------------------------------------------------------------- Shared


def test_shared_consumers_share_the_messages(client, topic):
    shared = pulsar.ConsumerType.Shared
    listeners = [Listener() for _ in range(3)]
    for listener in listeners:
        client.subscribe(
            topic, "s", consumer_type=shared, message_listener=listener, receiver_queue_size=10
        )
    send_all(client.create_producer(topic), numbered(300))
    eventually(lambda: sum(len(listener.payloads) for listener in listeners) == 300)
    assert sorted(p for listener in listeners for p in listener.payloads) == sorted(numbered(300))
    assert all(listener.payloads for listener in listeners)


def test_what_a_shared_consumer_leaves_unacked_goes_to_the_others(client, topic):
    shared = pulsar.ConsumerType.Shared
    leaver = client.subscribe(topic, "s", consumer_type=shared, receiver_queue_size=50)
    send_all(client.create_producer(topic), numbered(50))
    for message in receive(leaver, 50)[::2]:
        leaver.acknowledge(message)
    heir = client.subscribe(topic, "s", consumer_type=shared)
    leaver.close()
    messages = receive(heir, 25)
    assert payloads(messages) == numbered(50)[1::2]
    assert {message.redelivery_count() for message in messages} == {0}  # not its own wish


def test_permits_bound_what_a_consumer_is_given(client, topic, target: Target):
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", consumer_type=shared, receiver_queue_size=10)
    send_all(client.create_producer(topic), numbered(100))
    eventually(lambda: target.subscription_stats(topic, "s")["unackedMessages"] == 10)
    assert payloads(receive(consumer, 100)) == numbered(100)


# ---------------------------------------------------------------- Failover


def active_consumer(target: Target, topic: str) -> str:
    """Which one it is follows from the topic's and the consumers' names."""
    return str(target.subscription_stats(topic, "s")["activeConsumerName"])


def test_a_failover_subscription_goes_over_to_the_other_consumer(
    client, make_client, topic, target: Target
):
    consumers = {
        name: make_client().subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name
        )
        for name in "ab"
    }
    producer = client.create_producer(topic)
    name = active_consumer(target, topic)
    send_all(producer, numbered(20))
    active = consumers.pop(name)
    messages = receive(active, 20)
    assert payloads(messages) == numbered(20)
    active.acknowledge_cumulative(messages[9])
    active.close()
    ((heir_name, heir),) = consumers.items()
    assert payloads(receive(heir, 10)) == numbered(20)[10:]
    assert active_consumer(target, topic) == heir_name
    producer.send(b"for the heir")
    assert payloads(receive(heir, 1)) == [b"for the heir"]


def test_only_the_active_failover_consumer_gets_messages(client, topic, target: Target):
    listeners = {name: Listener() for name in "abc"}
    for name, listener in listeners.items():
        client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.Failover,
            consumer_name=name,
            message_listener=listener,
        )
    producer = client.create_producer(topic)
    send_all(producer, numbered(100))
    eventually(lambda: target.backlog(topic, "s") == 0)
    active = listeners.pop(active_consumer(target, topic))
    assert active.payloads == numbered(100)
    assert all(not listener.payloads for listener in listeners.values())


# ---------------------------------------------------------------- Key_Shared


def test_key_shared_gives_all_messages_of_a_key_to_one_consumer_in_order(client, topic):
    listeners = [Listener() for _ in range(3)]
    for listener in listeners:
        client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.KeyShared,
            message_listener=listener,
        )
    producer = client.create_producer(topic)
    for number in range(600):
        producer.send_async(
            f"{number % 60}:{number}".encode(), None, partition_key=f"k{number % 60}"
        )
    producer.flush()
    eventually(lambda: sum(len(listener.payloads) for listener in listeners) == 600)
    for listener in listeners:
        assert listener.keys, "60 keys, and one of three consumers got none"
        by_key: dict[bytes, list[int]] = {}
        for payload in listener.payloads:
            key, place = payload.split(b":")
            by_key.setdefault(key, []).append(int(place))
        assert all(numbers == sorted(numbers) and len(numbers) == 10 for numbers in by_key.values())
    assert sum(len(listener.keys) for listener in listeners) == 60


def test_sticky_hash_ranges_are_kept(client, topic):
    def sticky(start: int, stop: int) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(start, stop)]
        )

    listeners = [Listener(), Listener()]
    for listener, policy in zip(
        listeners, (sticky(0, 19_999), sticky(20_000, 65_535)), strict=True
    ):
        client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.KeyShared,
            key_shared_policy=policy,
            message_listener=listener,
        )
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.KeyShared,
            key_shared_policy=sticky(10_000, 30_000),
        )
    producer = client.create_producer(topic)
    for number in range(400):
        producer.send_async(b"x", None, partition_key=f"k{number}")
    producer.flush()
    eventually(lambda: sum(len(listener.payloads) for listener in listeners) == 400)
    assert not listeners[0].keys & listeners[1].keys
    assert 60 < len(listeners[0].keys) < 200  # 30 % of 400


# ---------------------------------------------------------------- ending


def test_unsubscribe_removes_the_subscription(client, topic, target: Target):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    send_all(producer, numbered(5))
    consumer.unsubscribe()
    assert "s" not in target.stats(topic)["subscriptions"]
    again = client.subscribe(topic, "s", initial_position=LATEST)
    producer.send(b"new")
    assert payloads(receive(again, 1)) == [b"new"]


def test_nobody_unsubscribes_while_others_are_connected(client, topic):
    shared = pulsar.ConsumerType.Shared
    consumers = [client.subscribe(topic, "s", consumer_type=shared) for _ in range(2)]
    with pytest.raises(pulsar.PulsarException):
        consumers[0].unsubscribe()
    producer = client.create_producer(topic)
    producer.send(b"still there")
    # Either of the two has it.
    listened = [_has_one(consumer) for consumer in consumers]
    assert sum(listened) == 1


def _has_one(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(1000)
    except pulsar.Timeout:
        return False
    return True


def test_subscription_and_consumer_names_of_every_kind_work(client, topic):
    for name in ("with space", "ünïcödé", "a/b", "...", "%2e%2e", "a" * 200, "-partition-1"):
        consumer = client.subscribe(topic, name, consumer_name=name)
        assert consumer.subscription_name() == name
        consumer.close()
