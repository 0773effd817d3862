"""Topics over HTTP, as connected clients live through it."""

from __future__ import annotations

import pulsar
import pytest

from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import numbered, payloads, receive

N = "persistent/public/default"


def test_a_terminated_topic_takes_nothing_more_and_gives_the_rest(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    consumer = pulsar_client.subscribe("ended", "s")
    producer = pulsar_client.create_producer("ended", batching_enabled=False)
    for payload in numbered(3):
        producer.send(payload)
    last = broker.ask("POST", f"{N}/ended/terminate")
    assert last.status == 200
    assert last.value["entryId"] == 2
    with pytest.raises(pulsar.PulsarException):
        pulsar_client.create_producer("ended")
    assert payloads(receive(consumer, 3)) == numbered(3)
    assert broker.ask("POST", f"{N}/ended/terminate").value == last.value
    assert broker.get(f"{N}/ended/internalStats")["state"] == "Terminated"
    broker.ask("PUT", f"{N}/ended/unload")
    assert broker.get(f"{N}/ended/internalStats")["state"] == "Terminated"


def test_clients_come_back_after_an_unload(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    consumer = pulsar_client.subscribe("unloaded", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = pulsar_client.create_producer("unloaded", batching_enabled=False)
    producer.send(b"before")
    message = consumer.receive(60_000)
    assert broker.ask("PUT", f"{N}/unloaded/unload").status == 204
    producer.send(b"after")
    got = payloads(receive(consumer, 2))  # what was not acked comes again
    assert got == [message.data(), b"after"]


def test_a_topic_in_use_is_deleted_by_force_only(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    consumer = pulsar_client.subscribe("used", "s")
    refused = broker.ask("DELETE", f"{N}/used")
    assert (refused.status, refused.value) == (
        412,
        {"reason": "Topic has 1 connected producers/consumers"},
    )
    assert broker.ask("DELETE", f"{N}/used/subscription/s").status == 412
    consumer.close()
    assert broker.ask("DELETE", f"{N}/used").status == 204
    assert broker.ask("GET", f"{N}/used/stats").status == 404


def test_a_subscription_with_consumers_is_deleted_by_force(
    broker: InProcessBroker, pulsar_client: pulsar.Client
) -> None:
    reader = pulsar_client.create_reader("forced", pulsar.MessageId.earliest)
    (name,) = broker.get(f"{N}/forced/subscriptions")
    assert broker.ask("DELETE", f"{N}/forced/subscription/{name}").status == 412
    reader.close()
    assert broker.get(f"{N}/forced/subscriptions") == []


@pytest.mark.slow
def test_an_administrator_makes_what_clients_may_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings: dict[str, object] = {
        "allowAutoTopicCreation": "false",
        "allowAutoSubscriptionCreation": "false",
    }
    with InProcessBroker(tmp_path_factory.mktemp("strict"), settings) as strict:
        client = pulsar.Client(
            strict.server.service_url,
            operation_timeout_seconds=1,  # the client tries again until then
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("t")
        assert strict.ask("PUT", f"{N}/t/subscription/s").status == 404
        assert strict.ask("PUT", f"{N}/t").status == 204
        with pytest.raises(pulsar.PulsarException):
            client.subscribe("t", "s")
        assert strict.ask("PUT", f"{N}/t/subscription/s").status == 204
        consumer = client.subscribe("t", "s")
        client.create_producer("t").send(b"m")
        assert consumer.receive(60_000).data() == b"m"
        client.shutdown()


def test_a_broker_that_is_told_twice_says_the_same_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("again")
    key = "brokers/configuration/dispatcherMaxReadBatchSize"
    retention = {"retentionTimeInMinutes": 3, "retentionSizeInMB": -1}
    with InProcessBroker(directory) as first:
        assert first.ask("POST", f"{key}/7").status == 200
        assert first.ask("PUT", "tenants/acme").status == 204
        assert first.ask("PUT", "namespaces/acme/ns").status == 204
        assert first.ask("POST", "namespaces/acme/ns/retention", retention).status == 204
        assert first.ask("PUT", "persistent/acme/ns/t/partitions", 2).status == 204
    with InProcessBroker(directory) as second:
        assert second.get("brokers/configuration/values") == {"dispatcherMaxReadBatchSize": "7"}
        assert second.get("brokers/configuration/runtime")["dispatcherMaxReadBatchSize"] == "7"
        assert second.get("tenants") == ["acme", "public"]
        assert second.get("namespaces/acme") == ["acme/ns"]
        assert second.get("namespaces/acme/ns/retention") == retention
        assert second.get("namespaces/acme/ns")["retention_policies"] == retention
        assert second.get("persistent/acme/ns/partitioned") == ["persistent://acme/ns/t"]
        assert second.ask("DELETE", "persistent/acme/ns/t/partitions").status == 204
        assert second.ask("DELETE", "namespaces/acme/ns").status == 204
        assert second.ask("DELETE", "tenants/acme").status == 204
        assert second.get("tenants") == ["public"]


def test_a_partition_has_no_policies_of_its_own(broker: InProcessBroker) -> None:
    """As Pulsar: one that is set there would apply to the whole topic."""
    topic = "persistent/public/default/whole"
    assert broker.ask("PUT", f"{topic}/partitions", 2).status == 204
    for method, body in (("GET", None), ("POST", {}), ("DELETE", None)):
        answer = broker.ask(method, f"{topic}-partition-0/retention", body)
        assert answer.status == 412
        assert "for a partition" in answer.value["reason"]
    assert broker.ask("DELETE", f"{topic}/partitions").status == 204
