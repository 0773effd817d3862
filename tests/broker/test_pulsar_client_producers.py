"""Who may produce: names, access modes, and duplicates that are discarded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pulsar
import pytest

from ackgate.testing.broker_process import BrokerProcess
from tests.broker.target import eventually, payloads, receive

SHARED = pulsar.ProducerAccessMode.Shared
EXCLUSIVE = pulsar.ProducerAccessMode.Exclusive
WAIT = pulsar.ProducerAccessMode.WaitForExclusive
FENCING = pulsar.ProducerAccessMode.ExclusiveWithFencing


def test_a_producer_name_is_taken_once(client, make_client, topic):
    producer = client.create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        make_client().create_producer(topic, producer_name="p")
    producer.close()
    make_client().create_producer(topic, producer_name="p").send(b"x")


def test_an_exclusive_producer_keeps_others_out(client, topic):
    producer = client.create_producer(topic, access_mode=EXCLUSIVE)
    for mode in (EXCLUSIVE, SHARED):
        with pytest.raises((pulsar.ProducerBusy, pulsar.ProducerFenced)):
            client.create_producer(topic, access_mode=mode)
    producer.send(b"mine")
    producer.close()
    client.create_producer(topic, access_mode=SHARED).send(b"anybody's")


def test_an_exclusive_producer_is_not_let_in_beside_others(client, topic):
    client.create_producer(topic, access_mode=SHARED)
    with pytest.raises((pulsar.ProducerBusy, pulsar.ProducerFenced)):
        client.create_producer(topic, access_mode=EXCLUSIVE)


def test_a_fencing_producer_drives_the_others_out(client, make_client, topic):
    consumer = client.subscribe(topic, "s")
    old = make_client().create_producer(topic, access_mode=EXCLUSIVE)
    old.send(b"old")
    new = client.create_producer(topic, access_mode=FENCING)
    new.send(b"new")
    with pytest.raises(pulsar.PulsarException):
        old.send(b"too late")
    new.send(b"new again")
    assert payloads(receive(consumer, 3)) == [b"old", b"new", b"new again"]


def test_a_waiting_producer_gets_its_turn(client, make_client, topic):
    holder = client.create_producer(topic, access_mode=EXCLUSIVE)
    consumer = client.subscribe(topic, "s")
    made: list[pulsar.Producer] = []
    waiting_client = make_client()
    waiter = threading.Thread(
        target=lambda: made.append(waiting_client.create_producer(topic, access_mode=WAIT))
    )
    waiter.start()
    holder.send(b"holder")
    assert not made
    holder.close()
    waiter.join(10)
    made[0].send(b"waiter")
    assert payloads(receive(consumer, 2)) == [b"holder", b"waiter"]


# ---------------------------------------------------------------- de-duplication


@pytest.fixture(scope="module")
def deduplicating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own that discards duplicates."""
    directory = tmp_path_factory.mktemp("deduplicating")
    with BrokerProcess(directory, settings={"brokerDeduplicationEnabled": True}) as broker:
        yield broker


def test_a_sequence_id_is_stored_once(deduplicating, make_client, ackgate_topic):
    client = make_client(deduplicating.service_url)
    consumer = client.subscribe(ackgate_topic, "s")
    producer = client.create_producer(ackgate_topic, producer_name="p")
    for sequence_id in (0, 1, 1, 0, 2, 5, 4, 6):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    assert payloads(receive(consumer, 5)) == [b"0", b"1", b"2", b"5", b"6"]


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_sequence_ids_are_remembered_over_a_restart(
    deduplicating, make_client, ackgate_topic, is_killed
):
    client = make_client(deduplicating.service_url)
    consumer = client.subscribe(ackgate_topic, "s")
    producer = client.create_producer(ackgate_topic, producer_name="p")
    for sequence_id in range(20):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    if is_killed:
        deduplicating.kill()
        deduplicating.start()
    else:
        deduplicating.restart()
    eventually(producer.is_connected)
    for sequence_id in (10, 19, 20):
        producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
    got = receive(consumer, 21)
    assert sorted({int(payload) for payload in payloads(got)}) == list(range(21))
    fresh = make_client(deduplicating.service_url).create_producer(ackgate_topic, producer_name="q")
    fresh.send(b"21")
    producer.close()
    again = make_client(deduplicating.service_url).create_producer(ackgate_topic, producer_name="p")
    assert again.last_sequence_id() == 20
