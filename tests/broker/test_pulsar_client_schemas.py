"""Schemas: stored, versioned, checked for compatibility, used by producers and consumers."""

from __future__ import annotations

import pulsar
import pytest
from pulsar import schema

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.broker.bad_input.raw import RawConnection, Type
from tests.broker.target import Target, receive


class Order(schema.Record):  # type: ignore[misc]
    item = schema.String()
    count = schema.Integer()


class OrderWithNote(schema.Record):  # type: ignore[misc]
    item = schema.String()
    count = schema.Integer()
    note = schema.String(required_default=True)


class OrderWithCountAsText(schema.Record):  # type: ignore[misc]
    item = schema.String()
    count = schema.String()


def stored_schema(target: Target, topic: str) -> pb.CommandGetSchemaResponse:
    """What the broker answers to GET_SCHEMA, which the Python client cannot say."""
    with RawConnection(target.service_url) as connection:
        return connection.ask(Type.GET_SCHEMA, "getSchema", topic=topic).getSchemaResponse


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (schema.StringSchema(), "grüße"),
        (schema.BytesSchema(), b"\x00\x01"),
        (schema.JsonSchema(Order), Order(item="tea", count=3)),
        (schema.AvroSchema(Order), Order(item="tea", count=3)),
    ],
    ids=["string", "bytes", "json", "avro"],
)
def test_values_come_back_as_what_they_were(client, topic, kind, value):
    consumer = client.subscribe(topic, "s", schema=kind)
    producer = client.create_producer(topic, schema=kind)
    producer.send(value)
    assert receive(consumer, 1)[0].value() == value


def test_the_stored_schema_can_be_asked_for(client, topic, target: Target):
    producer = client.create_producer(topic, schema=schema.AvroSchema(Order))
    producer.send(Order(item="tea", count=1))
    reply = stored_schema(target, topic)
    assert reply.schema.type == pb.Schema.Avro
    assert reply.schema_version == bytes(8)
    assert b'"count"' in reply.schema.schema_data


def test_messages_say_which_version_they_were_written_with(client, topic):
    consumer = client.subscribe(topic, "s", schema=schema.AvroSchema(Order))
    first = client.create_producer(topic, schema=schema.AvroSchema(Order))
    second = client.create_producer(topic, schema=schema.AvroSchema(OrderWithNote))
    first.send(Order(item="tea", count=1))
    second.send(OrderWithNote(item="tea", count=2, note="hot"))
    versions = [message.schema_version() for message in receive(consumer, 2)]
    assert versions == [f"\0\0\0\0\0\0\0{number}" for number in "\0\1"]


def test_the_same_schema_twice_is_one_version(client, topic, target: Target):
    for _ in range(3):
        client.create_producer(topic, schema=schema.JsonSchema(Order)).close()
    assert stored_schema(target, topic).schema_version == bytes(8)


def test_a_schema_that_does_not_fit_is_refused(client, topic):
    client.create_producer(topic, schema=schema.AvroSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema.AvroSchema(OrderWithCountAsText))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema.AvroSchema(OrderWithCountAsText))


def test_a_schema_of_another_kind_is_refused(client, topic):
    client.create_producer(topic, schema=schema.AvroSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema.StringSchema())


def test_consumers_without_a_schema_read_topics_with_one(client, topic):
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic, schema=schema.StringSchema()).send("plain")
    assert receive(consumer, 1)[0].data() == b"plain"


def test_producers_without_a_schema_may_write_to_topics_with_one(client, topic):
    client.create_producer(topic, schema=schema.JsonSchema(Order))
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"bytes")
    assert receive(consumer, 1)[0].data() == b"bytes"
