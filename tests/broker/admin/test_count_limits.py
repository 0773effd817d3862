"""Policies for how many producers, consumers, subscriptions and topics there may be, and how large a message.

Statuses and words are those of Pulsar 4.0.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackgate.broker.wire import ServerError
from tests.broker.admin.conftest import InProcessBroker
from tests.support.wire_client import RefusedError, WireClient

NAMESPACE = "namespaces/public/counts"
TOPICS = "persistent/public/counts"
TOPIC = f"{TOPICS}/orders"
FULL = "persistent://public/counts/orders"
LIMITS = [
    ("maxProducersPerTopic", "maxProducers", "max_producers_per_topic"),
    ("maxConsumersPerTopic", "maxConsumers", "max_consumers_per_topic"),
    ("maxConsumersPerSubscription",) * 2 + ("max_consumers_per_subscription",),
    ("maxSubscriptionsPerTopic",) * 2 + ("max_subscriptions_per_topic",),
]
MAX_TOPICS = f"{NAMESPACE}/maxTopicsPerNamespace"
MAX_SIZE = f"{TOPIC}/maxMessageSize"
NO_ROOM = "Exceed maximum number of topics in namespace."


@pytest.fixture(autouse=True)
def _made(broker: InProcessBroker) -> Iterator[None]:
    broker.ask("PUT", NAMESPACE)
    assert broker.ask("PUT", TOPIC).status == 204
    yield
    assert broker.ask("DELETE", MAX_TOPICS).status == 204
    for at_namespace, _, _ in LIMITS:
        assert broker.ask("DELETE", f"{NAMESPACE}/{at_namespace}").status == 204
    assert broker.ask("DELETE", f"{TOPIC}?force=true").status == 204


@pytest.fixture
def client(broker: InProcessBroker) -> Iterator[WireClient]:
    client = broker.run(WireClient.connect("127.0.0.1", broker.server.protocol_port))
    yield client
    broker.run(client.close())


def refusal(broker: InProcessBroker, work: Any) -> tuple[int, str]:
    """The code and the words of the error that a client gets."""
    with pytest.raises(RefusedError) as refused:
        broker.run(work)
    return refused.value.code, str(refused.value).partition(": ")[2]


@pytest.mark.parametrize(("at_namespace", "at_topic", "member"), LIMITS)
def test_limits_are_set_shown_and_cleared(
    broker: InProcessBroker, at_namespace: str, at_topic: str, member: str
) -> None:
    namespace, topic = f"{NAMESPACE}/{at_namespace}", f"{TOPIC}/{at_topic}"
    assert broker.get(namespace) is broker.get(topic) is None
    assert broker.get(f"{topic}?applied=true") == 0
    assert broker.ask("POST", namespace, 7).status == 204
    assert broker.get(namespace) == broker.get(f"{topic}?applied=true") == 7
    assert broker.get(NAMESPACE)[member] == 7
    assert broker.ask("POST", topic, 5).status == 204
    assert broker.get(topic) == broker.get(f"{topic}?applied=true") == 5
    for level, words in (
        (namespace, f"{at_namespace} must be 0 or more"),
        (
            topic,
            "Invalid value for maxConsumersPerSubscription"
            if at_topic == "maxConsumersPerSubscription"
            else f"{at_topic} must be 0 or more",
        ),
    ):
        before = broker.get(level)
        answer = broker.ask("POST", level, -1)
        assert (answer.status, answer.value["reason"]) == (412, words)
        assert broker.ask("POST", level, "x").status == broker.ask("POST", level).status == 400
        assert broker.ask("POST", level, 2**31).status == 412
        assert broker.get(level) == before
        assert broker.ask("POST", level, 0).status == 204
        assert broker.get(level) == 0
        assert broker.ask("DELETE", level).status == 204
        assert broker.get(level) is None
    assert member not in broker.get(NAMESPACE)


def test_more_producers_than_the_policy_allows(broker: InProcessBroker, client: WireClient) -> None:
    assert broker.ask("POST", f"{NAMESPACE}/maxProducersPerTopic", 1).status == 204
    first = broker.run(client.producer(FULL))
    words = f"Topic '{FULL}' reached max producers limit"
    busy = (ServerError.PRODUCER_BUSY, words)
    assert refusal(broker, client.producer(FULL)) == busy
    assert broker.ask("POST", f"{TOPIC}/maxProducers", 2).status == 204
    broker.run(client.producer(FULL))
    assert refusal(broker, client.producer(FULL)) == busy
    broker.run(first.close())
    broker.run(client.producer(FULL))
    assert broker.ask("POST", f"{TOPIC}/maxProducers", 0).status == 204
    broker.run(client.producer(FULL))


def test_more_consumers_than_the_policies_allow(
    broker: InProcessBroker, client: WireClient
) -> None:
    assert broker.ask("POST", f"{NAMESPACE}/maxConsumersPerTopic", 2).status == 204
    assert broker.ask("POST", f"{TOPIC}/maxConsumersPerSubscription", 1).status == 204
    broker.run(client.subscribe(FULL, "s"))
    busy = (ServerError.CONSUMER_BUSY, "Subscription reached max consumers limit")
    assert refusal(broker, client.subscribe(FULL, "s")) == busy
    broker.run(client.subscribe(FULL, "other"))
    busy = (ServerError.CONSUMER_BUSY, "Topic reached max consumers limit")
    assert refusal(broker, client.subscribe(FULL, "third")) == busy
    assert broker.ask("POST", f"{TOPIC}/maxConsumers", 3).status == 204
    broker.run(client.subscribe(FULL, "third"))
    assert set(broker.get(f"{TOPIC}/subscriptions")) == {"s", "other", "third"}


def test_more_subscriptions_than_the_policy_allows(
    broker: InProcessBroker, client: WireClient
) -> None:
    assert broker.ask("POST", f"{TOPIC}/maxSubscriptionsPerTopic", 1).status == 204
    broker.run(client.subscribe(FULL, "s"))
    broker.run(client.subscribe(FULL, "s"))
    words = f"Exceed the maximum number of subscriptions of the topic: {FULL}"
    for is_durable in (True, False):
        work = client.subscribe(FULL, "more", durable=is_durable)
        assert refusal(broker, work) == (ServerError.NOT_ALLOWED, words)
    answer = broker.ask("PUT", f"{TOPIC}/subscription/more")
    assert (answer.status, answer.value["reason"]) == (409, words)
    assert broker.ask("DELETE", f"{TOPIC}/maxSubscriptionsPerTopic").status == 204
    broker.run(client.subscribe(FULL, "more", durable=False))


def test_more_topics_than_the_policy_allows(broker: InProcessBroker, client: WireClient) -> None:
    assert broker.get(MAX_TOPICS) == 0
    assert broker.ask("POST", MAX_TOPICS, 3).status == 204
    assert broker.get(MAX_TOPICS) == broker.get(NAMESPACE)["max_topics_per_namespace"] == 3
    broker.run(client.producer("persistent://public/counts/made-by-client"))
    answer = broker.ask("PUT", f"{TOPICS}/parted/partitions", 2)
    assert (answer.status, answer.value["reason"]) == (412, NO_ROOM)
    assert broker.ask("PUT", f"{TOPICS}/parted/partitions", 1).status == 204
    answer = broker.ask("PUT", f"{TOPICS}/more")
    assert (answer.status, answer.value["reason"]) == (409, NO_ROOM)
    not_allowed = (ServerError.NOT_ALLOWED, NO_ROOM)
    assert refusal(broker, client.producer("persistent://public/counts/more")) == not_allowed
    assert refusal(broker, client.subscribe("persistent://public/counts/more", "s")) == not_allowed
    assert refusal(broker, client.producer("persistent://public/counts/more-partition-0")) == (
        not_allowed
    )
    for there in ("made-by-client", "parted-partition-0", "orders"):
        assert broker.ask("PUT", f"{TOPICS}/{there}/unload").status == 204
        broker.run(client.producer(f"persistent://public/counts/{there}"))
    assert broker.ask("POST", f"{TOPICS}/parted/partitions", 3).status == 204, "as in Pulsar"
    broker.run(client.producer("persistent://public/counts/parted-partition-2"))
    assert broker.ask("DELETE", f"{TOPICS}/parted/partitions?force=true").status == 204
    assert broker.ask("PUT", f"{TOPICS}/more").status == 204
    for made in ("more", "made-by-client"):
        assert broker.ask("DELETE", f"{TOPICS}/{made}?force=true").status == 204
    assert broker.ask("GET", f"{TOPIC}/maxTopicsPerNamespace").status == 404


def test_the_brokers_own_limit_of_topics(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path, {"maxTopicsPerNamespace": 1}) as broker:
        assert broker.ask("PUT", "persistent/public/default/one").status == 204
        assert broker.ask("PUT", "persistent/public/default/two").status == 409
        broker.ask("POST", "namespaces/public/default/maxTopicsPerNamespace", 2)
        assert broker.ask("PUT", "persistent/public/default/two").status == 204
        broker.ask("POST", "namespaces/public/default/maxTopicsPerNamespace", 0)
        assert broker.ask("PUT", "persistent/public/default/three").status == 204


def test_larger_messages_than_the_policy_allows(
    broker: InProcessBroker, client: WireClient
) -> None:
    assert broker.get(MAX_SIZE) is None
    assert broker.get(f"{MAX_SIZE}?applied=true") == 5 * 1024 * 1024
    producer = broker.run(client.producer(FULL))
    broker.run(producer.send(b"x" * 5_000))
    assert broker.ask("POST", MAX_SIZE, 1_000).status == 204
    assert broker.get(MAX_SIZE) == broker.get(f"{MAX_SIZE}?applied=true") == 1_000
    broker.run(producer.send(b"x" * 900))
    too_large = (ServerError.NOT_ALLOWED, "Exceed maximum message size")
    assert refusal(broker, producer.send(b"x" * 1_000)) == too_large
    broker.run(producer.send(b"x" * 5_000, num_chunks_from_msg=2, total_chunk_msg_size=9_000))
    broker.run(producer.send(b"x"))
    assert broker.get(f"{TOPIC}/stats")["msgInCounter"] == 4
    assert broker.ask("PUT", f"{TOPIC}/unload").status == 204
    producer = broker.run(client.producer(FULL))
    assert refusal(broker, producer.send(b"x" * 1_000)) == too_large
    words = (
        "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that "
        "in the broker-level"
    )
    for size in (-1, 6_000_000):
        answer = broker.ask("POST", MAX_SIZE, size)
        assert (answer.status, answer.value["reason"]) == (412, words)
    assert broker.ask("POST", MAX_SIZE, 0).status == 204
    broker.run(producer.send(b"x" * 1_000))
    assert broker.ask("DELETE", MAX_SIZE).status == 204
    assert broker.ask("GET", f"{NAMESPACE}/maxMessageSize").status in {404, 405}
