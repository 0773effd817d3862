"""Clients that are given the broker's HTTP address, and what a deleted topic leaves behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

from ackgate.broker.schemas import DEFINITION_BYTES_MAX
from tests.broker.admin.conftest import Answer, InProcessBroker

N = "persistent/public/default"
EARLIEST = pulsar.InitialPosition.Earliest


class Reading(Record):  # type: ignore[misc]  # the client has no types
    value = Integer()


@pytest.fixture
def http_client(broker: InProcessBroker) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.shutdown()


def test_a_topic_is_found_and_made(http_client: pulsar.Client) -> None:
    consumer = http_client.subscribe("plain", "s")
    http_client.create_producer("plain").send(b"hello")
    assert consumer.receive(60_000).data() == b"hello"


def test_partitions_are_found(broker: InProcessBroker, http_client: pulsar.Client) -> None:
    broker.ask("PUT", f"{N}/parted/partitions", 2)
    partitions = http_client.get_topic_partitions("parted")
    assert partitions == [f"persistent://public/default/parted-partition-{n}" for n in (0, 1)]


def test_topics_are_found_by_pattern(http_client: pulsar.Client) -> None:
    http_client.create_producer("pattern-1").send(b"1")
    pattern = re.compile("public/default/pattern-.*")
    consumer = http_client.subscribe(pattern, "s", initial_position=EARLIEST)
    assert consumer.receive(60_000).data() == b"1"


def test_schemas_are_found(broker: InProcessBroker, http_client: pulsar.Client) -> None:
    producer = http_client.create_producer("readings", schema=AvroSchema(Reading))
    producer.send(Reading(value=7))
    consumer = http_client.subscribe(
        "readings", "s", schema=AvroSchema(Reading), initial_position=EARLIEST
    )
    assert consumer.receive(60_000).value().value == 7

    path = "schemas/public/default/readings"
    schema = broker.get(f"{path}/schema")
    assert (schema["type"], schema["version"]) == ("AVRO", 0)
    assert json.loads(schema["data"])["name"] == "Reading"
    assert broker.get(f"{path}/schema/0") == schema
    assert broker.get(f"{path}/schemas") == {"getSchemaResponses": [schema]}
    for version in ("1", "-1", "-2", str(2**63 - 1)):
        answer = broker.ask("GET", f"{path}/schema/{version}")
        assert (answer.status, answer.value) == (404, {"reason": "Schema not found"})
    assert broker.ask("GET", "schemas/public/default/nope/schema").status == 404


def record(*fields: str) -> str:
    each = [{"name": name, "type": "int"} for name in fields]
    return json.dumps({"type": "record", "name": "Reading", "fields": each})


def test_a_schema_is_tried_and_deleted(broker: InProcessBroker) -> None:
    path = "schemas/public/default/tried"

    def tried(*fields: str) -> Answer:
        body = {"type": "AVRO", "schema": record(*fields), "properties": {}}
        return broker.ask("POST", f"{path}/compatibility", body)

    def uploaded(*fields: str) -> object:
        body = {"type": "AVRO", "schema": record(*fields), "properties": {}}
        return broker.ask("POST", f"{path}/schema", body).value

    absent = broker.ask("DELETE", f"{path}/schema")
    assert (absent.status, absent.value) == (200, {"version": 0})
    assert tried("a").value == {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
    assert broker.ask("GET", f"{path}/schema").status == 404  # nothing was changed
    assert uploaded("a") == {"version": {"version": 0}}
    assert tried("a").value["compatibility"] is True
    assert (tried("b").status, tried("b").value["compatibility"]) == (202, False)
    assert (
        broker.ask("POST", f"{path}/compatibility", {"type": "AVRO", "schema": "{"}).status == 422
    )

    gone = broker.ask("DELETE", f"{path}/schema")
    assert (gone.status, gone.value) == (200, {"version": 1})
    assert broker.ask("GET", f"{path}/schema").status == 404
    again = broker.ask("DELETE", f"{path}/schema")
    assert (again.status, again.value) == (200, {"version": 1})
    assert broker.get(f"{path}/schema/0")["data"] == record("a")  # for what was stored by it
    assert tried("b").value["compatibility"] is True
    assert uploaded("b") == {"version": {"version": 2}}
    assert [each["version"] for each in broker.get(f"{path}/schemas")["getSchemaResponses"]] == [2]

    for _ in range(2):
        assert broker.ask("DELETE", f"{path}/schema?force=true").value == {"version": -1}
    assert broker.ask("GET", f"{path}/schema/0").status == 404
    assert uploaded("a") == {"version": {"version": 0}}


def test_a_schema_is_uploaded_if_it_may_follow(
    broker: InProcessBroker, http_client: pulsar.Client
) -> None:
    path = "schemas/public/default/uploaded/schema"

    def upload(definition: object, kind: str = "AVRO", **more: object) -> Answer:
        body = {"type": kind, "schema": definition, "properties": {}, **more}
        return broker.ask("POST", path, body)

    own = AvroSchema(Reading).schema_info().schema()
    assert json.loads(upload(own).text) == {"version": {"version": 0}}
    assert json.loads(upload(own).text) == {"version": {"version": 0}}
    http_client.create_producer("uploaded", schema=AvroSchema(Reading)).close()
    assert broker.get(path)["version"] == 0  # the client's is the same
    for refused, status in (
        (upload("null", "STRING"), 409),
        (upload("{"), 422),
        (upload('["null", "int"]'), 422),
        (upload(record("a", "a")), 422),
        (upload("text", "STRING"), 422),
        (upload("{}", "PROTOBUF_NATIVE"), 422),
        (upload("", "BYTES"), 406),
        (upload("", "AUTO_CONSUME"), 400),
        (upload(7), 400),
        (upload("\ud800"), 400),
        (upload(own, properties={"\ud800": ""}), 400),
        (upload(own, properties={"k": "\ud800"}), 400),
        (upload('{"type": "fixed", "name": "F", "size": 1e999}'), 422),
        (upload(own, properties=[]), 400),
        (upload("[]", "KEY_VALUE"), 422),
    ):
        assert refused.status == status, refused.text
    pair = json.dumps({"key": "", "value": json.loads(own)})
    kinds = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    path = "schemas/public/default/uploaded-pair/schema"
    assert upload(pair, "KEY_VALUE", properties=kinds).status == 200
    assert json.loads(broker.get(path)["data"]) == json.loads(pair)


def test_a_schema_as_large_as_one_of_a_producer_is_uploaded(broker: InProcessBroker) -> None:
    path = "schemas/public/default/large/schema"
    head, tail = '{"type":"record","name":"R","fields":[],"doc":["', '"]}'
    words = (DEFINITION_BYTES_MAX - len(head + tail)) // 3 * '","'  # twice as long in JSON
    definition = head + words + tail
    answer = broker.ask("POST", path, {"type": "AVRO", "schema": definition})
    assert json.loads(answer.text) == {"version": {"version": 0}}
    assert broker.get(path)["data"] == definition
    larger = definition.replace(tail, " " * 3 + tail)
    assert broker.ask("POST", path, {"type": "AVRO", "schema": larger}).status == 409


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_deleted_topic_leaves_nothing_behind(
    broker: InProcessBroker, http_client: pulsar.Client, partitions: int
) -> None:
    name = f"gone-{partitions}"
    topic = f"{N}/{name}"
    if partitions:
        broker.ask("PUT", f"{topic}/partitions", partitions)
    http_client.create_producer(name, schema=AvroSchema(Reading)).close()
    broker.ask("PUT", f"{topic}/subscription/s")
    retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
    assert broker.ask("POST", f"{topic}/retention", retention).status == 204
    rest = "/partitions" if partitions else ""
    assert broker.ask("DELETE", f"{topic}{rest}").status == 204
    assert broker.ask("PUT", f"{topic}{rest}", partitions or None).status == 204
    assert broker.ask("GET", f"{topic}/retention").text == ""
    assert broker.ask("GET", f"schemas/public/default/{name}/schema").status == 404
    assert broker.get(f"{topic}/subscriptions") == []
