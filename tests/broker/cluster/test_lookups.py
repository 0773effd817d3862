"""Whatever broker a client knows, it finds the one that serves its topic."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from ackgate.broker.wire.errors import NotOwnedError
from ackgate.broker.wire.names import TopicName
from ackgate.testing.ports import free_ports
from tests.broker.cluster.conftest import MemoryCluster
from tests.support.wire_client import RefusedError, WireClient

Connect = Callable[[str], pulsar.Client]
EARLIEST = pulsar.InitialPosition.Earliest
N = "persistent/public/default"


def owned_by_first_and_second(cluster: MemoryCluster, connect: Connect) -> tuple[str, str]:
    """Names of two topics, found by a client that knows the first broker alone."""
    client = connect(cluster.brokers[0].service_url)
    names: dict[str, str] = {}
    for number in range(20):
        name = f"topic-{number}"
        client.create_producer(name).close()
        owner = cluster.owner(name)
        assert owner is not None
        names.setdefault(owner.broker_id, name)
    first, second = (names[broker.broker_id] for broker in cluster.brokers)
    return first, second


def test_a_client_of_one_broker_reaches_the_topics_of_the_other(
    cluster: MemoryCluster, connect: Connect
) -> None:
    names = owned_by_first_and_second(cluster, connect)
    for broker in cluster.brokers:
        client = connect(broker.service_url)
        for name in names:
            consumer = client.subscribe(name, f"of-{broker.http_port}", initial_position=EARLIEST)
            client.create_producer(name).send(b"hello")
            assert consumer.receive(10_000).data() == b"hello"


def test_a_client_that_names_a_listener_gets_its_addresses_of_every_broker(tmp_path: Path) -> None:
    with MemoryCluster(tmp_path, {"bindAddress": "0.0.0.0"}) as cluster:
        for port in free_ports(2):
            outside = f"outside:pulsar://127.0.0.2:{port}"
            cluster.start(
                brokerServicePort=port,
                advertisedListeners=f"inside:pulsar://127.0.0.1:{port},{outside}",
            )
        first = cluster.brokers[0]
        client = pulsar.Client(
            f"pulsar://127.0.0.2:{first.protocol_port}",
            listener_name="outside",
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            producers = {
                f"t-{number}": client.create_producer(f"t-{number}") for number in range(8)
            }
            owners = {name: cluster.owner(name) for name in producers}
            assert len(set(owners.values())) == 2
            for name, owner in owners.items():
                assert owner is not None
                for listener, host in (
                    ("outside", "127.0.0.2"),
                    ("inside", "127.0.0.1"),
                    ("", "127.0.0.1"),
                ):
                    path = f"/lookup/v2/topic/{N}/{name}?listenerName={listener}"
                    told = cluster.get(first, path)["brokerUrl"]
                    assert told == f"pulsar://{host}:{owner.protocol_port}"
            assert cluster.ask(first, "PUT", "namespaces/public/default/unload").status == 204
            for producer in producers.values():
                producer.send(b"after it was moved")
        finally:
            client.close()


def test_a_client_that_knows_http_alone_reaches_them_too(
    cluster: MemoryCluster, connect: Connect
) -> None:
    for broker in cluster.brokers:
        client = connect(broker.web_url)
        for number in range(8):
            consumer = client.subscribe(f"http-{number}", f"of-{broker.http_port}")
            client.create_producer(f"http-{number}").send(b"hello")
            assert consumer.receive(10_000).data() == b"hello"
    assert len({cluster.owner(f"http-{number}") for number in range(8)}) == 2


def test_who_comes_to_the_wrong_broker_is_told_to_look_up_again(
    cluster: MemoryCluster, connect: Connect
) -> None:
    name, _ = owned_by_first_and_second(cluster, connect)
    wrong = cluster.brokers[1]
    with pytest.raises(NotOwnedError, match="redo the lookup"):
        cluster.run(wrong.registry.topic(TopicName.parse(name), create=True))

    async def answers() -> tuple[str, str]:
        client = await WireClient.connect("127.0.0.1", wrong.protocol_port)
        refusals = []
        for attempt in (client.producer(name), client.subscribe(name, "s")):
            try:
                await attempt
            except RefusedError as error:
                refusals.append(str(error))
        await client.close()
        first, second = refusals
        return first, second

    for refusal in cluster.run(answers()):
        assert refusal.startswith("SERVICE_NOT_READY")


def test_bundles_spread_evenly_and_stay_when_a_broker_joins(
    tmp_path: Path, connect: Connect
) -> None:
    settings: dict[str, object] = {"defaultNumberOfNamespaceBundles": 16}
    with MemoryCluster(tmp_path, settings) as cluster:
        cluster.start(3)
        client = connect(cluster.brokers[0].service_url)
        for number in range(100):
            client.create_producer(f"spread-{number}").close()
        owned = {broker.broker_id: set(broker.ownership.owned) for broker in cluster.brokers}
        counts = sorted(len(bundles) for bundles in owned.values())
        assert sum(counts) == 16
        assert counts[-1] - counts[0] <= 1

        joined = cluster.start()
        late = connect(joined.service_url)
        for number in range(100):
            late.create_producer(f"spread-{number}").close()
        now = {broker.broker_id: set(broker.ownership.owned) for broker in cluster.brokers}
        assert now == {**owned, joined.broker_id: set()}


def test_many_who_ask_everywhere_at_once_agree(tmp_path: Path) -> None:
    with MemoryCluster(tmp_path) as cluster:
        cluster.start(3)
        names = [TopicName.parse(f"race-{number}") for number in range(60)]

        async def locate_all() -> list[tuple[str, ...]]:
            async def of(name: TopicName) -> tuple[str, ...]:
                found = await asyncio.gather(*(b.ownership.locate(name) for b in cluster.brokers))
                return tuple(location.broker_id for location in found)

            return list(await asyncio.gather(*map(of, names)))

        for said in cluster.run(locate_all()):
            assert len(set(said)) == 1
        held = Counter(bundle for broker in cluster.brokers for bundle in broker.ownership.owned)
        assert set(held.values()) <= {1}


def test_every_broker_knows_the_others(cluster: MemoryCluster, connect: Connect) -> None:
    first, second = cluster.brokers
    names = owned_by_first_and_second(cluster, connect)
    for broker in cluster.brokers:
        assert cluster.get(broker, "brokers/standalone") == sorted(
            [first.broker_id, second.broker_id]
        )
        assert cluster.get(broker, "brokers/leaderBroker")["brokerId"] == first.broker_id
        for owner, name in zip(cluster.brokers, names, strict=True):
            owned = cluster.get(broker, f"brokers/standalone/{owner.broker_id}/ownedNamespaces")
            bundle = cluster.ask(broker, "GET", f"/lookup/v2/topic/{N}/{name}/bundle").text
            assert f"public/default/{bundle}" in owned
            found = cluster.get(broker, f"/lookup/v2/topic/{N}/{name}")
            assert found["brokerUrl"] == owner.service_url
        assert cluster.get(broker, "namespaces/public/default/bundles") == {
            "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
            "numBundles": 4,
        }
    assert cluster.ask(first, "GET", "brokers/standalone/nobody:1/ownedNamespaces").status == 404


@pytest.mark.parametrize(
    "name",
    ["0x00000000", "0x00000000_0x00000001", "everything", "0xZ_0x1", "0x00000000_0x4000000g"],
)
def test_what_is_no_bundle_is_refused(cluster: MemoryCluster, name: str) -> None:
    answer = cluster.ask(cluster.brokers[0], "PUT", f"namespaces/public/default/{name}/unload")
    assert answer.status == 412
    assert "bundle" in json.loads(answer.text)["reason"]


def test_a_destination_that_does_not_live_is_refused(cluster: MemoryCluster) -> None:
    path = "namespaces/public/default/0x00000000_0x40000000/unload?destinationBroker=nobody:1"
    answer = cluster.ask(cluster.brokers[0], "PUT", path)
    assert answer.status == 412
    assert "nobody:1" in answer.text
