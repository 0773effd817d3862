"""Clearing and deleting the subscriptions of all topics of a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pulsar
import pytest

from tests.broker.admin.conftest import InProcessBroker

EARLIEST = {"ledgerId": -1, "entryId": -1}
TOPICS = tuple(f"t{number}" for number in range(8))
"""So many that several bundles have some."""


@pytest.fixture
def namespace(broker: InProcessBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """One with topics that all have the subscriptions `a` and `b`."""
    name = f"public/{request.node.name}"
    assert broker.ask("PUT", f"namespaces/{name}").status == 204
    for topic in TOPICS:
        broker.ask("PUT", f"persistent/{name}/{topic}")
        for subscription in ("a", "b"):
            path = f"persistent/{name}/{topic}/subscription/{subscription}"
            assert broker.ask("PUT", path, EARLIEST).status == 204
    yield name
    for topic in TOPICS:
        broker.ask("DELETE", f"persistent/{name}/{topic}?force=true")


def publish(client: pulsar.Client, namespace: str) -> None:
    for topic in TOPICS:
        producer = client.create_producer(f"persistent://{namespace}/{topic}")
        producer.send(b"x")
        producer.close()


def backlogs(broker: InProcessBroker, namespace: str) -> dict[str, set[str]]:
    """The topics where a subscription has a backlog, by its name."""
    found: dict[str, set[str]] = {"a": set(), "b": set()}
    for topic in TOPICS:
        stats = broker.get(f"persistent/{namespace}/{topic}/stats")["subscriptions"]
        for subscription in stats:
            if stats[subscription]["msgBacklog"]:
                found[subscription].add(topic)
    return found


def post(broker: InProcessBroker, namespace: str, path: str) -> int:
    return broker.ask("POST", f"namespaces/{namespace}/{path}").status


def test_clearing_all_subscriptions(
    broker: InProcessBroker, pulsar_client: pulsar.Client, namespace: str
) -> None:
    publish(pulsar_client, namespace)
    assert backlogs(broker, namespace) == {"a": set(TOPICS), "b": set(TOPICS)}
    assert post(broker, namespace, "clearBacklog") == 204
    assert backlogs(broker, namespace) == {"a": set(), "b": set()}


def test_topics_that_are_not_loaded_are_cleared_too(
    broker: InProcessBroker, pulsar_client: pulsar.Client, namespace: str
) -> None:
    publish(pulsar_client, namespace)
    assert broker.ask("PUT", f"namespaces/{namespace}/unload").status == 204
    assert post(broker, namespace, "clearBacklog/b") == 204
    assert backlogs(broker, namespace) == {"a": set(TOPICS), "b": set()}


def test_clearing_a_bundle_at_a_time(
    broker: InProcessBroker, pulsar_client: pulsar.Client, namespace: str
) -> None:
    publish(pulsar_client, namespace)
    bounds = broker.get(f"namespaces/{namespace}/bundles")["boundaries"]
    left = [len(TOPICS)]
    for low, high in pairwise(bounds):
        assert post(broker, namespace, f"{low}_{high}/clearBacklog/a") == 204
        left.append(len(backlogs(broker, namespace)["a"]))
    assert left[-1] == 0
    assert len(set(left)) > 2, "all topics are in one bundle"
    assert backlogs(broker, namespace)["b"] == set(TOPICS)
    for low, high in pairwise(bounds):
        assert post(broker, namespace, f"{low}_{high}/clearBacklog") == 204
    assert backlogs(broker, namespace)["b"] == set()


def test_unsubscribing(broker: InProcessBroker, namespace: str) -> None:
    bounds = broker.get(f"namespaces/{namespace}/bundles")["boundaries"]
    assert post(broker, namespace, "unsubscribe/a") == 204
    assert post(broker, namespace, "unsubscribe/a") == 204, "it is gone"
    for topic in TOPICS:
        assert broker.get(f"persistent/{namespace}/{topic}/subscriptions") == ["b"]
    for low, high in pairwise(bounds):
        assert post(broker, namespace, f"{low}_{high}/unsubscribe/b") == 204
    for topic in TOPICS:
        assert broker.get(f"persistent/{namespace}/{topic}/subscriptions") == []


def test_a_subscription_with_a_consumer_stays(
    broker: InProcessBroker, pulsar_client: pulsar.Client, namespace: str
) -> None:
    consumer = pulsar_client.subscribe(f"persistent://{namespace}/t3", "a")
    answer = broker.ask("POST", f"namespaces/{namespace}/unsubscribe/a")
    assert (answer.status, answer.value["reason"]) == (
        412,
        "Subscription has active connected consumers",
    )
    consumer.close()
    for topic in TOPICS:
        there = ["a", "b"] if topic == "t3" else ["b"]
        assert sorted(broker.get(f"persistent/{namespace}/{topic}/subscriptions")) == there


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("public/nope/clearBacklog", 404),
        ("public/nope/clearBacklog/a", 404),
        ("public/nope/unsubscribe/a", 404),
        ("public/nope/0x00000000_0xffffffff/clearBacklog", 404),
        ("public/default/0x00000000_0x00000001/clearBacklog", 412),
        ("public/default/nope/unsubscribe/a", 412),
        ("public/default/clearBacklog/not-there", 204),
    ],
)
def test_what_is_not_there(broker: InProcessBroker, path: str, status: int) -> None:
    assert broker.ask("POST", f"namespaces/{path}").status == status
