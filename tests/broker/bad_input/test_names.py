"""Names from outside become nodes and table cells: tricks with them must lead nowhere."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request

import pulsar
import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.broker.bad_input.raw import RawConnection, Type

NO_TOPICS = [
    "",
    " ",
    "/",
    "//",
    "a/b",
    "a/b/c/d/e",
    "persistent://",
    "persistent://public",
    "persistent://public/default",
    "persistent://public/default/",
    "persistent:///default/t",
    "persistent://public//t",
    "persistent://../default/t",
    "persistent://public/../t",
    "-partition-5",
    "persistent://public/default/..",
    "persistent://public/default/.",
    "persistent://pub lic/default/t",
    "persistent://public/de%2ffault/t",
    "persistent://public/default/a\x00b",
    "persistent://public/default/a\nb",
    "file:///etc/passwd",
    "http://public/default/t",
    "persistent://public/default/" + "x" * 2000,
    "persistent://public/default/../../../../etc/passwd",
]

ODD_TOPICS = [
    "persistent://public/default/..%2f..%2fetc%2fpasswd",
    "persistent://public/default/%2e%2e",
    "persistent://public/default/...",
    "persistent://public/default/~",
    "persistent://public/default/-rf *",
    "persistent://public/default/$(reboot)",
    "persistent://public/default/'; DROP TABLE nodes; --",
    "persistent://public/default/a\\b\\..\\c",
    "persistent://public/default/ünïcödé-日本語-🦉",
    "persistent://public/default/" + "x" * 1000,
    "persistent://public/default/CON",
    "persistent://-/:/=",
]

ODD_SUBSCRIPTIONS = ["../..", "/", "a/b", "%2f", "..%2f", "日本語", "'; --", " padded ", "x" * 1000]

NO_SUBSCRIPTIONS = ["", "  ", ".", "..", "a\x00b", "a\nb", "x" * 2000]


@pytest.fixture(autouse=True)
def nothing_steps_out(fence, bystander):
    yield
    assert [path.name for path in fence.iterdir()] == ["a"]
    assert [path.name for path in (fence / "a").iterdir()] == ["b"]
    assert [path.name for path in (fence / "a" / "b").iterdir()] == ["data"]
    found = {path.name for path in (fence / "a" / "b" / "data").iterdir()}
    assert {name for name in found if not name.startswith("metadata.sqlite")} == {
        "lock",
        "bookies",
        "reserve",
    }


def produce(connection: RawConnection, topic: str) -> pb.BaseCommand:
    return connection.ask(
        Type.PRODUCER, "producer", topic=topic, producer_id=connection._request_id + 1
    )


def subscribe(connection: RawConnection, topic: str, subscription: str) -> pb.BaseCommand:
    return connection.ask(
        Type.SUBSCRIBE,
        "subscribe",
        topic=topic,
        subscription=subscription,
        subType=pb.CommandSubscribe.Shared,
        consumer_id=connection._request_id + 1,
    )


@pytest.mark.parametrize("topic", NO_TOPICS, ids=ascii)
def test_what_is_no_topic_is_refused_by_name(connect, topic):
    connection: RawConnection = connect()
    for reply in (
        produce(connection, topic),
        subscribe(connection, topic, "s"),
        connection.ask(Type.LOOKUP, "lookupTopic", topic=topic),
        connection.ask(Type.PARTITIONED_METADATA, "partitionMetadata", topic=topic),
    ):
        failure = next(part for field, part in reply.ListFields() if field.name != "type")
        assert failure.error == pb.InvalidTopicName, reply
        assert "invalid" in failure.message
    assert connection.is_alive()


def create_namespace(admin_url: str, tenant: str, namespace: str) -> None:
    for path, body in ((f"tenants/{tenant}", b"{}"), (f"namespaces/{tenant}/{namespace}", b"{}")):
        request = urllib.request.Request(
            f"{admin_url}/admin/v2/{path}",
            data=body,
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        with contextlib.suppress(urllib.error.HTTPError):  # 409: it is there
            urllib.request.urlopen(request).close()


@pytest.mark.parametrize("topic", ODD_TOPICS, ids=ascii)
def test_an_odd_topic_name_is_just_a_name(connect, topic, abused):
    tenant, namespace, _ = topic.removeprefix("persistent://").split("/", 2)
    create_namespace(abused.admin_url, tenant, namespace)
    connection: RawConnection = connect()
    assert produce(connection, topic).type == Type.PRODUCER_SUCCESS
    assert subscribe(connection, topic, "s").type == Type.SUCCESS
    reply = connection.ask(
        Type.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace=f"{tenant}/{namespace}"
    )
    assert topic in reply.getTopicsOfNamespaceResponse.topics


@pytest.mark.parametrize("name", ODD_SUBSCRIPTIONS, ids=ascii)
def test_an_odd_subscription_name_is_just_a_name(connect, ackgate_topic, name, abused):
    connection: RawConnection = connect()
    assert subscribe(connection, ackgate_topic, name).type == Type.SUCCESS
    path = ackgate_topic.replace("://", "/")
    with urllib.request.urlopen(f"{abused.admin_url}/admin/v2/{path}/subscriptions") as answer:
        assert json.load(answer) == [name]


@pytest.mark.parametrize("name", NO_SUBSCRIPTIONS, ids=ascii)
def test_what_is_no_subscription_name_is_refused(connect, ackgate_topic, name):
    connection: RawConnection = connect()
    reply = subscribe(connection, ackgate_topic, name)
    assert reply.type == Type.ERROR
    assert "invalid subscription name" in reply.error.message
    assert connection.is_alive()


@pytest.mark.parametrize("name", ["..", "a\x00b", "\n", "x" * 2000], ids=ascii)
def test_what_is_no_producer_name_is_refused(connect, ackgate_topic, name):
    connection: RawConnection = connect()
    reply = connection.ask(
        Type.PRODUCER, "producer", topic=ackgate_topic, producer_id=1, producer_name=name
    )
    assert reply.type == Type.ERROR
    assert "invalid producer name" in reply.error.message


@pytest.mark.parametrize(
    "path",
    [
        "persistent/public/default/%2e%2e/stats",
        "persistent/public/default/..%2f..%2fetc%2fpasswd/stats",
        "persistent/%2e%2e/default/t/stats",
        "persistent/public/%2e%2e%2f%2e%2e/t/stats",
        "persistent/public/default/a%00b/stats",
        "persistent/public/default/" + "x" * 2000 + "/stats",
        "../../../../etc/passwd",
    ],
)
def test_tricks_with_admin_paths_find_nothing(bystander, abused, path):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{abused.admin_url}/admin/v2/{path}")
    assert error.value.code in {400, 404, 412}
    error.value.close()


@pytest.mark.parametrize("topic", ["persistent://a b/c/d", "a/b"])
def test_the_real_client_hears_of_it(bystander, abused, topic):
    client = pulsar.Client(
        abused.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.shutdown()
