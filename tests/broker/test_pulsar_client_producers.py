"""Who may produce: names and access modes."""

from __future__ import annotations

import threading

import pulsar
import pytest

from tests.broker.target import payloads, receive

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
    waiter.join(60)
    made[0].send(b"waiter")
    assert payloads(receive(consumer, 2)) == [b"holder", b"waiter"]
