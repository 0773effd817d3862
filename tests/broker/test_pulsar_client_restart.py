"""Clients that live through a restart of their broker, in good order or by `kill -9`."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from ackgate.testing import BrokerFailedError, BrokerProcess, free_ports
from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all

SHARED = pulsar.ConsumerType.Shared


@pytest.fixture
def own_broker(tmp_path) -> Iterator[BrokerProcess]:
    """A broker of this test alone."""
    with BrokerProcess(tmp_path / "data directory") as broker:
        yield broker


@pytest.fixture(params=["stopped", "killed"])
def bring_back(request, own_broker):
    """Ends the broker, one way or the other, and starts it again on the same ports."""

    def end_and_start() -> None:
        if request.param == "killed":
            own_broker.kill()
        else:
            assert own_broker.stop() == 0
        own_broker.start()

    return end_and_start


@pytest.fixture
def own_client(own_broker, make_client) -> pulsar.Client:
    return make_client(own_broker.service_url)


def test_a_producer_goes_on(own_client, bring_back, ackgate_topic):
    consumer = own_client.subscribe(ackgate_topic, "s")
    producer = own_client.create_producer(ackgate_topic)
    before = numbered(100, "before")
    send_all(producer, before)
    bring_back()
    after = numbered(100, "after")
    send_all(producer, after)
    assert payloads(receive(consumer, 200)) in (before + after, before + before + after)


def test_nothing_that_was_confirmed_is_lost_and_nothing_acked_comes_again(
    own_client, bring_back, ackgate_topic, own_broker
):
    target = Target(own_broker.service_url, own_broker.admin_url, is_ackgate=True)
    consumer = own_client.subscribe(ackgate_topic, "s", consumer_type=SHARED)
    send_all(own_client.create_producer(ackgate_topic), numbered(200))
    messages = receive(consumer, 200)
    for message in messages[::2]:
        consumer.acknowledge(message)
    # Acks of this client carry no receipt: once the stats count them, the linger has still to pass.
    eventually(lambda: target.backlog(ackgate_topic, "s") == 100)
    eventually(lambda: persisted_ranges(target, ackgate_topic) == 99)
    bring_back()
    again = receive(consumer, 100)
    assert payloads(again) == numbered(200)[1::2]
    for message in again:
        consumer.acknowledge(message)
    eventually(lambda: target.backlog(ackgate_topic, "s") == 0)


def persisted_ranges(target: Target, topic: str) -> int:
    return int(target.subscription_stats(topic, "s")["ackState"]["rangesPersisted"])


def test_a_reader_goes_on(own_client, bring_back, ackgate_topic):
    producer = own_client.create_producer(ackgate_topic)
    send_all(producer, numbered(10))
    reader = own_client.create_reader(ackgate_topic, pulsar.MessageId.earliest)
    first = [reader.read_next(60_000).data() for _ in range(5)]
    bring_back()
    producer.send(b"after")
    rest = [reader.read_next(60_000).data() for _ in range(6)]
    assert first + rest == [*numbered(10), b"after"]


def test_sigterm_makes_acks_durable_and_exits_with_0(own_client, own_broker, ackgate_topic):
    consumer = own_client.subscribe(ackgate_topic, "s", consumer_type=SHARED)
    send_all(own_client.create_producer(ackgate_topic), numbered(50))
    for message in receive(consumer, 50)[10:]:
        consumer.acknowledge(message)
    consumer.close()  # sends the acks that the client has gathered
    assert own_broker.stop() == 0
    own_broker.start()
    again = own_client.subscribe(ackgate_topic, "s", consumer_type=SHARED)
    assert payloads(receive(again, 10)) == numbered(50)[:10]
    target = Target(own_broker.service_url, own_broker.admin_url, is_ackgate=True)
    assert target.backlog(ackgate_topic, "s") == 10


def test_a_second_broker_on_the_same_directory_says_who_holds_it(own_broker):
    second = BrokerProcess(own_broker.data_directory)
    with pytest.raises(
        BrokerFailedError, match=f'held by another broker: .*"pid": {own_broker.pid}'
    ):
        second.start()
    assert own_broker.is_running


def test_a_port_that_is_taken_is_named(own_broker, tmp_path):
    second = BrokerProcess(tmp_path / "other", port=own_broker.port)
    with pytest.raises(BrokerFailedError, match=f"cannot listen on 127.0.0.1:{own_broker.port}"):
        second.start()


def test_told_to_stop_while_it_waits_for_its_metadata_store_it_stops(tmp_path):
    [nobody] = free_ports(1)
    url = f"zk:127.0.0.1:{nobody}"
    broker = BrokerProcess(tmp_path / "other", settings={"metadataStoreUrl": url})
    broker.launch()
    eventually(lambda: url in broker.log)
    assert broker.stop(timeout_seconds=60) == 0
    assert "stopped before it served" in broker.log
