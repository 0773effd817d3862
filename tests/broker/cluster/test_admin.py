"""Every broker's admin interface answers for the whole cluster, or says who does."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from urllib.parse import urlsplit

import pulsar
import pytest

from ackgate.broker.server import BrokerServer
from ackgate.broker.wire.names import TopicName
from ackgate.commands.stats.query import query_stats
from ackgate.commands.terminal.admin_client import AdminClient
from tests.broker.cluster.conftest import MemoryCluster
from tests.broker.target import eventually

Connect = Callable[[str], pulsar.Client]
N = "persistent/public/default"
PARTITIONS = 8
EARLIEST = pulsar.InitialPosition.Earliest


def raw(broker: BrokerServer, method: str, path: str) -> tuple[int, str]:
    """Status and Location, no redirect followed."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers.get("Location") or ""
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "tail"),
    [
        ("GET", "/stats"),
        ("GET", "/internalStats?metadata=true"),
        ("GET", "/subscriptions"),
        ("GET", "/subscription/s/ackState?cells=4"),
        ("GET", "/lastMessageId"),
        ("GET", "/messageid/0"),
        ("PUT", "/unload"),
        ("POST", "/subscription/s/skip_all"),
        ("GET", "/delayed"),
        ("DELETE", "/subscription/s/delayedBucketSnapshots"),
        ("POST", "/terminate"),
        ("DELETE", "/subscription/s"),
        ("DELETE", "?force=true"),
        ("DELETE", ""),
    ],
)
def test_the_owner_of_a_topic_is_where_calls_are_sent(
    cluster: MemoryCluster, connect: Connect, method: str, tail: str
) -> None:
    client = connect(cluster.brokers[0].service_url)
    client.subscribe("sent-on", "s").close()
    owner = cluster.owner("sent-on")
    assert owner is not None
    path = f"/admin/v2/{N}/sent-on{tail}"
    status, location = raw(cluster.other(owner), method, path)
    assert (status, location) == (307, owner.web_url + path)
    parts = urlsplit(location)
    there = f"{parts.path}?{parts.query}" if parts.query else parts.path
    assert raw(owner, method, there)[0] < 300


def test_a_cancel_is_sent_on_with_its_body(cluster: MemoryCluster, connect: Connect) -> None:
    client = connect(cluster.brokers[0].service_url)
    sent = client.create_producer("waits").send(b"x", deliver_after=timedelta(hours=1))
    owner = cluster.owner("waits")
    assert owner is not None
    position = f"{sent.ledger_id()}:{sent.entry_id()}"
    for broker, outcome in ((cluster.other(owner), "cancelled"), (owner, "alreadyCancelled")):
        told = AdminClient(broker.web_url).ask(
            "POST", f"{N}/waits/delayed/cancel", body={"positions": [position]}
        )
        assert [each["outcome"] for each in told["outcomes"]] == [outcome]


def test_of_two_brokers_one_makes_a_topic_wherever_that_is_asked(cluster: MemoryCluster) -> None:
    for number in range(8):
        path = f"/admin/v2/{N}/made-{number}"
        for _ in range(2):
            status, location = raw(cluster.brokers[number % 2], "PUT", path)
            if status == 307:
                parts = urlsplit(location)
                asked = next(b for b in cluster.brokers if b.web_url == f"http://{parts.netloc}")
                status, _ = raw(asked, "PUT", f"{parts.path}?{parts.query}")
            assert status in {204, 409}
        assert raw(cluster.brokers[0], "PUT", path)[0] in {307, 409}
    assert len({cluster.owner(f"made-{number}") for number in range(8)}) == 2


def test_calls_for_a_namespace_reach_its_topics_on_all_brokers(
    cluster: MemoryCluster, connect: Connect
) -> None:
    first, second = cluster.brokers
    topics = [f"of-all-{number}" for number in range(8)]
    client = connect(first.service_url)
    for topic in topics:
        client.subscribe(topic, "s").close()
        client.create_producer(topic).send(b"x")
    assert {cluster.owner(topic) for topic in topics} == {first, second}

    namespace = "namespaces/public/default"
    assert cluster.ask(first, "POST", f"{namespace}/clearBacklog/s").status == 204
    for topic in topics:
        stats = cluster.get(second, f"{N}/{topic}/stats")
        assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert cluster.ask(second, "POST", f"{namespace}/unsubscribe/s").status == 204
    for topic in topics:
        assert cluster.get(second, f"{N}/{topic}/subscriptions") == []

    bounds = cluster.get(first, f"{namespace}/bundles")["boundaries"]
    sent_on = 0
    for low, high in pairwise(bounds):
        path = f"/admin/v2/{namespace}/{low}_{high}/clearBacklog"
        status, location = raw(first, "POST", path)
        sent_on += status == 307
        assert (status, location) in {(204, ""), (307, second.web_url + path)}
    assert 0 < sent_on < len(bounds) - 1


def test_calls_for_all_partitions_reach_them_all(cluster: MemoryCluster, connect: Connect) -> None:
    first, second = cluster.brokers
    parted = f"{N}/parted"
    assert cluster.ask(first, "PUT", f"{parted}/partitions", PARTITIONS).status == 204
    assert not list(first.registry)
    assert not list(second.registry)
    assert len(cluster.get(second, N)) == PARTITIONS

    client = connect(second.service_url)
    producer = client.create_producer(
        "parted",
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    assert cluster.ask(second, "PUT", f"{parted}/subscription/s").status == 204
    assert cluster.ask(first, "PUT", f"{parted}/subscription/s").status == 409
    for number in range(PARTITIONS * 2):
        producer.send(b"%d" % number)
    assert {cluster.owner(f"parted-partition-{n}") for n in range(PARTITIONS)} == {first, second}

    for broker in cluster.brokers:
        stats = cluster.get(broker, f"{parted}/partitioned-stats")
        assert stats["msgInCounter"] == PARTITIONS * 2
        assert stats["subscriptions"]["s"]["msgBacklog"] == PARTITIONS * 2
        assert len(stats["partitions"]) == PARTITIONS
        internal = cluster.get(broker, f"{parted}/partitioned-internalStats")
        assert sum(p["numberOfEntries"] for p in internal["partitions"].values()) == PARTITIONS * 2
        assert cluster.get(broker, f"{parted}/subscriptions") == ["s"]
        path = f"{parted}/subscription/s/properties"
        assert cluster.ask(broker, "PUT", path, {"who": broker.broker_id}).status == 204
        assert cluster.get(broker, path) == {"who": broker.broker_id}

    answer = query_stats(f"persistent://{'public/default'}/parted", url=first.web_url)
    assert len(answer.subscriptions) == PARTITIONS

    assert cluster.ask(first, "POST", f"{parted}/subscription/s/skip_all").status == 204
    stats = cluster.get(second, f"{parted}/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert cluster.ask(first, "POST", f"{parted}/subscription/s/resetcursor/0").status == 204
    stats = cluster.get(second, f"{parted}/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == PARTITIONS * 2
    assert cluster.ask(first, "DELETE", f"{parted}/partitions").status == 412
    assert cluster.ask(second, "PUT", f"{parted}/unload").status == 204
    assert cluster.ask(second, "POST", f"{parted}/partitions", PARTITIONS + 1).status == 204

    producer.close()
    assert cluster.ask(first, "DELETE", f"{parted}/subscription/s").status == 204
    assert cluster.ask(first, "DELETE", f"{parted}/subscription/s").status == 404
    assert cluster.ask(first, "DELETE", f"{parted}/partitions").status == 204
    assert cluster.get(second, N) == []


def test_a_namespace_is_unloaded_everywhere(cluster: MemoryCluster, connect: Connect) -> None:
    client = connect(cluster.brokers[0].service_url)
    consumers = [client.subscribe(f"un-{n}", "s", initial_position=EARLIEST) for n in range(8)]
    assert all(broker.ownership.owned for broker in cluster.brokers)
    epochs = cluster.run(epochs_of(cluster))
    assert cluster.ask(cluster.brokers[1], "PUT", "namespaces/public/default/unload").status == 204
    for number, consumer in enumerate(consumers):
        client.create_producer(f"un-{number}").send(b"back")
        assert consumer.receive(10_000).data() == b"back"
    assert cluster.run(epochs_of(cluster)) == dict.fromkeys(epochs, 2)


async def epochs_of(cluster: MemoryCluster) -> dict[str, int]:
    """The epoch of each bundle that is owned."""
    view = cluster.brokers[0].ownership.view
    return {str(bundle): owner.epoch for bundle, owner in view.owners.items()}


def test_a_policy_holds_at_every_broker(cluster: MemoryCluster, connect: Connect) -> None:
    client = connect(cluster.brokers[0].service_url)
    client.subscribe("governed", "s").close()
    owner = cluster.owner("governed")
    assert owner is not None
    other = cluster.other(owner)
    topic = cluster.call(lambda: owner.registry.loaded(TopicName.parse("governed")))
    assert topic is not None

    policy = "dispatcherPauseOnAckStatePersistent"
    assert cluster.ask(other, "POST", f"namespaces/public/default/{policy}").status == 204
    eventually(lambda: topic.pauses_on_ack_state)
    assert cluster.ask(other, "POST", f"{N}/governed/{policy}", body=False).status == 204
    eventually(lambda: not topic.pauses_on_ack_state)

    key = "brokers/configuration/dispatcherMaxReadBatchSize"
    assert cluster.ask(other, "POST", f"{key}/17").status == 200
    eventually(
        lambda: owner.services.settings.dispatcher.dispatcher_max_read_batch_size == 17,
    )
    assert cluster.get(owner, "brokers/configuration/values") == {
        "dispatcherMaxReadBatchSize": "17"
    }


def test_what_changed_while_the_session_was_lost_is_learned(
    cluster: MemoryCluster,
) -> None:
    first, second = cluster.brokers
    key = "brokers/configuration/dispatcherMaxReadBatchSize"
    cluster.call(cluster.session(first).expire)
    assert cluster.ask(second, "POST", f"{key}/18").status == 200
    eventually(lambda: first.services.settings.dispatcher.dispatcher_max_read_batch_size == 18)
    eventually(lambda: len(cluster.get(second, "brokers/standalone")) == 2)


def test_two_brokers_change_different_policies_at_once(cluster: MemoryCluster) -> None:
    for broker, policy in zip(cluster.brokers, ("messageTTL", "retention"), strict=True):
        body: object = (
            60
            if policy == "messageTTL"
            else {
                "retentionTimeInMinutes": 1,
                "retentionSizeInMB": 1,
            }
        )
        answer = cluster.ask(broker, "POST", f"namespaces/public/default/{policy}", body)
        assert answer.status == 204
    ttl = "namespaces/public/default/messageTTL"
    for broker in cluster.brokers:
        eventually(partial(cluster.get, broker, ttl))
        assert cluster.get(broker, "namespaces/public/default/retention")
