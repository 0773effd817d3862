"""Policies for unacked messages, and for what is made by being asked for: their values and their effect."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import receive

NAMESPACE = "namespaces/public/limits"
TOPICS = "persistent/public/limits"
TOPIC = f"{TOPICS}/orders"
UNACKED = [
    ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 50_000),
    ("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", 200_000),
]
AUTO_SUBSCRIPTION = "autoSubscriptionCreation"
ALLOWED, FORBIDDEN = ({"allowAutoSubscriptionCreation": allowed} for allowed in (True, False))
AUTO_TOPIC = f"{NAMESPACE}/autoTopicCreation"
NO_TOPICS = {"allowAutoTopicCreation": False}
PARTITIONED = {
    "allowAutoTopicCreation": True,
    "topicType": "partitioned",
    "defaultNumPartitions": 3,
}


@pytest.fixture(autouse=True)
def _made(broker: InProcessBroker) -> Iterator[None]:
    broker.ask("PUT", NAMESPACE)
    broker.ask("PUT", TOPIC)
    yield
    for at_namespace, at_topic, _ in UNACKED:
        assert broker.ask("DELETE", f"{NAMESPACE}/{at_namespace}").status == 204
        assert broker.ask("DELETE", f"{TOPIC}/{at_topic}").status == 204
    for level in (NAMESPACE, TOPIC):
        assert broker.ask("DELETE", f"{level}/{AUTO_SUBSCRIPTION}").status == 204
    assert broker.ask("DELETE", AUTO_TOPIC).status == 204


def full(name: str) -> str:
    return f"persistent://public/limits/{name}"


@pytest.mark.parametrize(("at_namespace", "at_topic", "of_broker"), UNACKED)
def test_limits_of_unacked_messages_are_told_as_pulsar_does(
    broker: InProcessBroker, at_namespace: str, at_topic: str, of_broker: int
) -> None:
    namespace, topic = f"{NAMESPACE}/{at_namespace}", f"{TOPIC}/{at_topic}"
    assert broker.get(namespace) is broker.get(topic) is None
    assert broker.get(f"{topic}?applied=true") == of_broker
    assert broker.ask("POST", namespace, 7).status == 204
    assert broker.get(namespace) == broker.get(f"{topic}?applied=true") == 7
    member = "max_unacked_messages_per_" + at_namespace.rpartition("Per")[2].lower()
    assert broker.get(NAMESPACE)[member] == 7
    assert broker.ask("POST", topic, 0).status == 204
    assert broker.get(topic) == broker.get(f"{topic}?applied=true") == 0
    assert broker.ask("POST", topic).status == 204
    assert broker.get(topic) is None
    answer = broker.ask("POST", namespace, -1)
    assert (answer.status, answer.value["reason"]) == (412, f"{at_namespace} must be 0 or more")
    answer = broker.ask("POST", topic, -1)
    assert (answer.status, answer.value["reason"]) == (412, "maxUnackedNum must be 0 or more")
    for level in (namespace, topic):
        assert broker.ask("POST", level, "x").status == 400
        assert broker.ask("POST", level, 2**31).status == 412
    assert broker.ask("POST", namespace).status == 400
    assert broker.get(namespace) == 7


@pytest.mark.parametrize(("at_namespace", "at_topic"), [row[:2] for row in UNACKED])
def test_a_limit_applies_to_consumers_that_are_connected(
    broker: InProcessBroker, pulsar_client: pulsar.Client, at_namespace: str, at_topic: str
) -> None:
    name = f"of-{at_topic}"
    consumer = pulsar_client.subscribe(
        full(name), "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1
    )
    assert broker.ask("POST", f"{NAMESPACE}/{at_namespace}", 2).status == 204
    producer = pulsar_client.create_producer(full(name), batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    received = receive(consumer, 2)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=200)
    assert broker.ask("POST", f"{TOPICS}/{name}/{at_topic}", 0).status == 204
    received += receive(consumer, 8)
    assert len(received) == 10


@pytest.mark.slow
def test_subscriptions_are_created_where_the_policy_allows_it(broker: InProcessBroker) -> None:
    client = pulsar.Client(
        broker.server.service_url,
        operation_timeout_seconds=1,  # it asks again for as long
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    namespace, topic = f"{NAMESPACE}/{AUTO_SUBSCRIPTION}", f"{TOPIC}/{AUTO_SUBSCRIPTION}"
    assert broker.get(namespace) is broker.get(topic) is None
    assert broker.get(f"{topic}?applied=true") == ALLOWED
    assert broker.ask("POST", namespace, FORBIDDEN).status == 204
    assert broker.get(namespace) == broker.get(f"{topic}?applied=true") == FORBIDDEN
    assert broker.get(NAMESPACE)["autoSubscriptionCreationOverride"] == FORBIDDEN
    with pytest.raises(pulsar.Timeout):
        client.subscribe(full("orders"), "by-client")
    assert broker.get(f"{TOPIC}/subscriptions") == []
    assert broker.ask("PUT", f"{TOPIC}/subscription/by-admin").status == 204
    client.subscribe(full("orders"), "by-admin").close()
    assert broker.ask("POST", topic, ALLOWED).status == 204
    assert broker.get(topic) == broker.get(f"{topic}?applied=true") == ALLOWED
    client.subscribe(full("orders"), "by-client").close()
    client.shutdown()


@pytest.mark.parametrize("level", [NAMESPACE, TOPIC])
@pytest.mark.parametrize(
    ("body", "told"),
    [({}, FORBIDDEN), ({"x": 1}, FORBIDDEN), (True, ALLOWED), (False, FORBIDDEN), (None, None)],
)
def test_forms_of_the_policy_for_subscriptions(
    broker: InProcessBroker, level: str, body: object, told: object
) -> None:
    path = f"{level}/{AUTO_SUBSCRIPTION}"
    assert broker.ask("POST", path, body).status == 204
    assert broker.get(path) == told
    assert broker.ask("POST", path, "yes").status == 400


def test_topics_are_created_where_the_policy_allows_it(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    assert broker.get(AUTO_TOPIC) is None
    assert broker.ask("POST", AUTO_TOPIC, NO_TOPICS).status == 204
    assert broker.get(AUTO_TOPIC) == NO_TOPICS
    assert broker.get(NAMESPACE)["autoTopicCreationOverride"] == NO_TOPICS
    with pytest.raises(pulsar.PulsarException, match="TopicNotFound"):
        pulsar_client.create_producer(full("made-by-client"))
    pulsar_client.create_producer(full("orders")).close()
    pulsar_client.create_producer("persistent://public/default/elsewhere").close()
    assert broker.ask("POST", AUTO_TOPIC, PARTITIONED).status == 204
    assert broker.get(AUTO_TOPIC) == PARTITIONED
    pulsar_client.create_producer(full("made-by-client")).close()
    assert broker.get(f"{TOPICS}/made-by-client/partitions")["partitions"] == 3
    assert broker.ask("POST", AUTO_TOPIC).status == 204
    assert broker.get(AUTO_TOPIC) is None
    pulsar_client.create_producer(full("made-as-before")).close()
    assert broker.get(f"{TOPICS}/made-as-before/partitions")["partitions"] == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"allowAutoTopicCreation": True}, "Unknown topic type [null]"),
        ({**PARTITIONED, "topicType": "x"}, "Unknown topic type [x]"),
        (
            {**PARTITIONED, "defaultNumPartitions": None},
            "[defaultNumPartitions] cannot be null when the type is partitioned.",
        ),
        (
            {**PARTITIONED, "defaultNumPartitions": 0},
            "[defaultNumPartitions] cannot be less than 1 for partition type.",
        ),
        (
            {**PARTITIONED, "topicType": "non-partitioned"},
            "[defaultNumPartitions] is not allowed to be set when the type is non-partition.",
        ),
    ],
)
def test_what_the_policy_for_topics_cannot_be(
    broker: InProcessBroker, body: object, why: str
) -> None:
    answer = broker.ask("POST", AUTO_TOPIC, body)
    reason = f"Invalid configuration for autoTopicCreationOverride. the detail is {why}"
    assert (answer.status, answer.value["reason"]) == (412, reason)
    assert broker.get(AUTO_TOPIC) is None


def test_more_forms_of_the_policy_for_topics(broker: InProcessBroker) -> None:
    for body in (True, [1]):
        assert broker.ask("POST", AUTO_TOPIC, body).status == 400
    for odd in ({"defaultNumPartitions": "3"}, {"defaultNumPartitions": 2**31}, {"topicType": 1}):
        assert broker.ask("POST", AUTO_TOPIC, {**PARTITIONED, **odd}).status == 412
    for body in ({}, {"allowAutoTopicCreation": None}):
        assert broker.ask("POST", AUTO_TOPIC, body).status == 204
        assert broker.get(AUTO_TOPIC) == NO_TOPICS
    whole = {**PARTITIONED, "allowAutoTopicCreation": False}
    assert broker.ask("POST", AUTO_TOPIC, whole).status == 204
    assert broker.get(AUTO_TOPIC) == whole
    assert broker.ask("GET", f"{TOPIC}/autoTopicCreation").status == 404
