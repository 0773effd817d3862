"""Moving cursors over HTTP, seen through the real client."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import payloads, receive

N = "persistent/public/default"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def publish(
    client: pulsar.Client, topic: str, count: int, *, batch: bool = False
) -> list[pulsar.MessageId]:
    producer = client.create_producer(
        topic, batching_enabled=batch, batching_max_messages=1000, batching_max_publish_delay_ms=50
    )
    ids: list[pulsar.MessageId] = []
    for number in range(count):
        if batch:
            producer.send_async(b"%d" % number, lambda _, message_id: ids.append(message_id))
        else:
            ids.append(producer.send(b"%d" % number))
    producer.flush()
    producer.close()
    return ids


def read(client: pulsar.Client, topic: str, count: int) -> list[bytes]:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    got = payloads(receive(consumer, count))
    consumer.close()
    return got


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def subscribed(broker: InProcessBroker, topic: str) -> str:
    path = f"{N}/{topic}/subscription/s"
    assert broker.ask("PUT", path, {"ledgerId": -1, "entryId": -1}).status == 204
    return path


def test_skip(broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str) -> None:
    path = subscribed(broker, topic)
    publish(pulsar_client, topic, 10)
    assert broker.ask("POST", f"{path}/skip/7").status == 204
    assert read(pulsar_client, topic, 3) == numbers(7, 8, 9)
    assert broker.ask("POST", f"{path}/skip/100").status == 204
    assert broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]["msgBacklog"] == 0


def test_skip_all(broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str) -> None:
    path = subscribed(broker, topic)
    publish(pulsar_client, topic, 10)
    assert broker.ask("POST", f"{path}/skip_all").status == 204
    assert broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.parametrize(("excluded", "first"), [(False, 4), (True, 5)])
def test_reset_to_a_position(
    broker: InProcessBroker,
    pulsar_client: pulsar.Client,
    topic: str,
    excluded: bool,
    first: int,
) -> None:
    topic = f"reset-{first}"
    path = subscribed(broker, topic)
    ids = publish(pulsar_client, topic, 10)
    broker.ask("POST", f"{path}/skip_all")
    body = {"ledgerId": ids[4].ledger_id(), "entryId": ids[4].entry_id(), "excluded": excluded}
    assert broker.ask("POST", f"{path}/resetcursor", body).status == 204
    assert read(pulsar_client, topic, 10 - first) == numbers(*range(first, 10))


@pytest.mark.parametrize(
    ("index", "excluded", "first"), [(0, False, 0), (3, False, 3), (3, True, 4), (9, True, 10)]
)
def test_reset_into_a_batch(
    broker: InProcessBroker, pulsar_client: pulsar.Client, index: int, excluded: bool, first: int
) -> None:
    topic = f"batch-{first}"
    path = subscribed(broker, topic)
    (position,) = {
        (message_id.ledger_id(), message_id.entry_id())
        for message_id in publish(pulsar_client, topic, 10, batch=True)
    }
    publish(pulsar_client, topic, 1)
    body = {
        "ledgerId": position[0],
        "entryId": position[1],
        "batchIndex": index,
        "excluded": excluded,
    }
    assert broker.ask("POST", f"{path}/resetcursor", body).status == 204
    expected = [*range(first, 10), 0]
    assert read(pulsar_client, topic, len(expected)) == numbers(*expected)


def test_reset_to_a_time(broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str) -> None:
    path = subscribed(broker, topic)
    publish(pulsar_client, topic, 5)
    time.sleep(0.01)  # publish times are whole milliseconds of the wall clock
    between_ms = time.time_ns() // 1_000_000
    publish(pulsar_client, topic, 2)
    broker.ask("POST", f"{path}/skip_all")
    assert broker.ask("POST", f"{path}/resetcursor/{between_ms}").status == 204
    assert read(pulsar_client, topic, 2) == numbers(0, 1)
    assert broker.ask("POST", f"{path}/resetcursor/0").status == 204
    assert read(pulsar_client, topic, 7) == numbers(0, 1, 2, 3, 4, 0, 1)


def test_expire_by_age_and_by_position(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    path = subscribed(broker, topic)
    ids = publish(pulsar_client, topic, 10)
    assert broker.ask("POST", f"{path}/expireMessages/1000").status == 204
    stats = broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]
    assert (stats["msgBacklog"], stats["totalMsgExpired"]) == (10, 0)

    body = {"ledgerId": ids[3].ledger_id(), "entryId": ids[3].entry_id()}
    assert broker.ask("POST", f"{path}/expireMessages", body).status == 204
    stats = broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]
    assert (stats["msgBacklog"], stats["totalMsgExpired"]) == (6, 4)
    assert stats["lastExpireTimestamp"] > 0
    assert read(pulsar_client, topic, 6) == numbers(*range(4, 10))

    time.sleep(0.01)
    assert broker.ask("POST", f"{N}/{topic}/all_subscription/expireMessages/0").status == 204
    assert broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]["msgBacklog"] == 0


def test_what_was_moved_is_durable_when_it_is_answered(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    path = subscribed(broker, topic)
    publish(pulsar_client, topic, 10)
    broker.ask("POST", f"{path}/skip/6")
    state = broker.get(f"{path}/ackState")["stats"]["ackState"]
    assert state["store"]["dirtyVersions"] == 0
    broker.ask("PUT", f"{N}/{topic}/unload")
    assert read(pulsar_client, topic, 4) == numbers(6, 7, 8, 9)


def test_subscription_properties(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    path = subscribed(broker, topic)
    assert broker.get(f"{path}/properties") == {}
    assert broker.ask("PUT", f"{path}/properties", {"team": "ü"}).status == 204
    assert broker.ask("PUT", f"{path}/properties", {"team": 5}).status == 400
    broker.ask("PUT", f"{N}/{topic}/unload")
    assert broker.get(f"{path}/properties") == {"team": "ü"}
    stats = broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]
    assert stats["subscriptionProperties"] == {"team": "ü"}
