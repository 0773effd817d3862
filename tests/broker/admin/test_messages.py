"""Single messages over HTTP, as Pulsar 4.0.7 answers its own admin clients."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pulsar
import pytest

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from tests.broker.admin.conftest import InProcessBroker
from tests.support.wire_client import WireClient

N = "persistent/public/default"
EARLIEST = {"ledgerId": -1, "entryId": -1}
PARTITIONED = {
    "subscription/s/position/1": "Peek messages on a partitioned topic is not allowed",
    "ledger/1/entry/0": "GetMessageById is not allowed on partitioned-topic",
    "examinemessage": "Examine messages on a partitioned topic is not allowed, please try examine "
    "message on specific topic partition",
    "messageid/0": "Get message ID by timestamp on a partitioned topic is not allowed, please try do "
    "it on specific topic partition",
}


class Told(NamedTuple):
    body: bytes
    headers: Mapping[str, str]
    """The headers that begin with ``X-Pulsar-``, without that."""


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def read(broker: InProcessBroker, path: str) -> Told:
    with urllib.request.urlopen(f"{broker.url}/admin/v2/{N}/{path}", timeout=60) as response:
        headers = {
            name.removeprefix("X-Pulsar-"): value
            for name, value in response.headers.items()
            if name.startswith("X-Pulsar-")
        }
        return Told(response.read(), headers)


def publish(client: pulsar.Client, topic: str, *messages: Mapping[str, Any], **how: Any) -> None:
    """Publish messages, each given as arguments of `send`; in one batch if that is enabled."""
    producer = client.create_producer(
        topic, producer_name="p", **{"batching_enabled": False, **how}
    )
    for message in messages:
        producer.send_async(callback=lambda *_: None, **message)
    producer.flush()
    producer.close()


def publish_raw(broker: InProcessBroker, topic: str, payload: bytes, **metadata: Any) -> None:
    """Publish an entry with metadata of any kind."""

    async def run() -> None:
        port = urlsplit(broker.server.service_url).port
        assert port is not None
        async with await WireClient.connect("127.0.0.1", port) as client:
            producer = await client.producer(f"persistent://public/default/{topic}")
            await producer.send(payload, **metadata)

    asyncio.run(run())


def publish_numbers(client: pulsar.Client, topic: str, count: int) -> None:
    publish(client, topic, *({"content": b"%d" % number} for number in range(count)))


def subscribed(broker: InProcessBroker, topic: str) -> str:
    path = f"{N}/{topic}/subscription/s"
    assert broker.ask("PUT", path, EARLIEST).status == 204
    return path


def refused(broker: InProcessBroker, path: str) -> tuple[int, str]:
    answer = broker.ask("GET", f"{N}/{path}")
    return answer.status, answer.value["reason"]


def test_what_is_known_of_a_message_stands_in_headers(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    subscribed(broker, topic)
    message = {
        "content": b"one",
        "properties": {"a": "1", "B c": "ü\n"},
        "partition_key": "kk",
        "ordering_key": "ok",
        "event_timestamp": 1_700_000_000_120,
        "deliver_at": 4_000_000_000_000,
        "disable_replication": True,
    }
    publish(pulsar_client, topic, message)
    body, headers = read(broker, f"{topic}/subscription/s/position/1")
    assert body == b"one"
    ledger_id, entry_id = headers["Message-ID"].split(":")
    assert json.loads(headers["PROPERTY"]) == {"a": "1", "B c": "ü\n"}
    assert headers["PROPERTY"].isascii()
    assert headers == {
        "Message-ID": f"{ledger_id}:{entry_id}",
        "PROPERTY": headers["PROPERTY"],
        "publish-time": headers["publish-time"],
        "event-time": "2023-11-14T22:13:20.12Z",
        "deliver-at-time": "2096-10-02T07:06:40Z",
        "Is-Encrypted": "false",
        "producer-name": "p",
        "sequence-id": "0",
        "partition-key": "kk",
        "replicated-to": "__local__",
        "Base64-ordering-key": "b2s=",
        "txn-uncommitted": "false",
    }
    assert read(broker, f"{topic}/ledger/{ledger_id}/entry/{entry_id}") == (body, headers)


def test_a_batch_comes_as_a_whole_and_decompressed(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    subscribed(broker, topic)
    publish(
        pulsar_client,
        topic,
        {"content": b"c" * 50, "properties": {"i": "0"}},
        {"content": b"d" * 50, "properties": {"i": "1"}},
        batching_enabled=True,
        batching_max_publish_delay_ms=10_000,
        compression_type=pulsar.CompressionType.ZLib,
    )
    body, headers = read(broker, f"{topic}/subscription/s/position/1")
    assert headers["num-batch-message"] == "2"
    assert headers["compression"] == "ZLIB"
    assert headers["uncompressed-size"] == str(len(body))
    # Pulsar counts what lies in front of the metadata, and the payload as it is stored.
    assert 10 < int(headers["batch-size"]) < len(body)
    first = 4 + int.from_bytes(body[:4], "big")
    assert body[first : first + 50] == b"c" * 50
    assert body.endswith(b"d" * 50)


def test_pieces_of_a_message_come_as_they_are_stored(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    subscribed(broker, topic)
    large = {"content": bytes(6_000_000)}
    publish(
        pulsar_client,
        topic,
        large,
        chunking_enabled=True,
        compression_type=pulsar.CompressionType.NONE,
    )
    pieces = [read(broker, f"{topic}/subscription/s/position/{number}") for number in (1, 2)]
    assert sum(len(piece.body) for piece in pieces) == 6_000_000
    for number, piece in enumerate(pieces):
        assert piece.headers["PROPERTY-TOTAL-CHUNKS"] == "2"
        assert piece.headers["PROPERTY-CHUNK-ID"] == str(number)
        assert piece.headers["num-chunks-from-msg"] == "2"
        assert piece.headers["chunk-id"] == str(number)
        assert piece.headers["total-chunk-msg-size"] == "6000000"


def test_an_encrypted_payload_comes_as_it_is_stored(broker: InProcessBroker, topic: str) -> None:
    keys = [pb.EncryptionKeys(key=name, value=name.encode()) for name in ("k1", "k2")]
    publish_raw(
        broker,
        topic,
        b"secret",
        compression=pb.CompressionType.LZ4,
        uncompressed_size=100,
        encryption_keys=keys,
        encryption_param=b"p",
    )
    body, headers = read(broker, f"{topic}/examinemessage")
    assert body == b"secret"
    assert headers["Is-Encrypted"] == "true"
    assert headers["Base64-encryption-param"] == "cA=="
    with urllib.request.urlopen(f"{broker.url}/admin/v2/{N}/{topic}/examinemessage") as response:
        told = response.headers.get_all("X-Pulsar-Base64-encryption-keys")
    assert [base64.b64decode(each) for each in told] == [key.SerializeToString() for key in keys]


def test_a_payload_that_does_not_decompress_is_refused(broker: InProcessBroker, topic: str) -> None:
    for size in (100, 2**31):
        publish_raw(
            broker, topic, b"x", compression=pb.CompressionType.ZLIB, uncompressed_size=size
        )
        assert refused(broker, f"{topic}/examinemessage")[0] == 412


def test_what_a_producer_sends_adds_no_header(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    message = {
        "content": b"x",
        "partition_key": "a\r\nX-Pulsar-Evil: 1",
        "event_timestamp": 2**62,
        "properties": {"k": "v\r\nX-Pulsar-Evil: 1"},
    }
    publish(pulsar_client, topic, message)
    headers = read(broker, f"{topic}/examinemessage").headers
    assert "Evil" not in headers
    assert headers["partition-key"] == "a  X-Pulsar-Evil: 1"
    assert headers["event-time"] == str(2**62)


def test_peeking_counts_what_is_not_acked_and_changes_nothing(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    path = subscribed(broker, topic)
    publish_numbers(pulsar_client, topic, 5)
    consumer = pulsar_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    received = [consumer.receive(60_000) for _ in range(5)]
    for number in (0, 2):
        consumer.acknowledge(received[number])
    consumer.close()
    before = broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]["msgBacklog"]
    peeked = [read(broker, f"{topic}/subscription/s/position/{n}").body for n in (1, 2, 3)]
    assert peeked == [b"1", b"3", b"4"]
    assert refused(broker, f"{topic}/subscription/s/position/4") == (404, "Message not found")
    assert broker.ask("GET", f"{path}/position/0").status == 400
    assert broker.get(f"{N}/{topic}/stats")["subscriptions"]["s"]["msgBacklog"] == before == 3


def test_peeking_for_a_subscription_that_is_not_there_does_not_create_it(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    publish_numbers(pulsar_client, topic, 2)
    assert read(broker, f"{topic}/subscription/s/position/2").body == b"1"
    assert refused(broker, f"{topic}/subscription/s/position/3") == (404, "Message not found")
    assert broker.get(f"{N}/{topic}/subscriptions") == []


def test_positions_without_a_message(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    publish_numbers(pulsar_client, topic, 1)
    ledger_id = broker.get(f"{N}/{topic}/lastMessageId")["ledgerId"]
    for place in (f"{ledger_id}/entry/1", f"{ledger_id}/entry/-1", "-1/entry/-1", "999999/entry/0"):
        assert refused(broker, f"{topic}/ledger/{place}") == (404, "Message id not found")
    assert refused(broker, "nope/ledger/1/entry/0")[0] == 404


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", b"2"),
        ("?messagePosition=0", b"2"),
        ("?initialPosition=latest&messagePosition=3", b"0"),
        ("?initialPosition=earliest", b"0"),
        ("?initialPosition=earliest&messagePosition=2", b"1"),
        ("?initialPosition=earliest&messagePosition=99", b"2"),
        ("?initialPosition=unknown", b"2"),
    ],
)
def test_examining(
    broker: InProcessBroker, pulsar_client: pulsar.Client, query: str, found: bytes
) -> None:
    if broker.ask("PUT", f"{N}/examined").status == 204:
        publish_numbers(pulsar_client, "examined", 3)
    assert read(broker, f"examined/examinemessage{query}").body == found


def test_examining_beyond_the_messages(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    broker.ask("PUT", f"{N}/{topic}")
    assert refused(broker, f"{topic}/examinemessage") == (
        412,
        "Could not examine messages due to the total message is zero",
    )
    publish_numbers(pulsar_client, topic, 2)
    assert refused(broker, f"{topic}/examinemessage?messagePosition=3")[0] == 412


def test_the_first_message_of_a_time(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    publish_numbers(pulsar_client, topic, 3)
    last = broker.get(f"{N}/{topic}/lastMessageId")
    first = {**last, "entryId": 0}
    assert broker.get(f"{N}/{topic}/messageid/0") == first
    assert broker.get(f"{N}/{topic}/messageid/-5") == first
    assert broker.get(f"{N}/{topic}/messageid/4000000000000") == {**last, "entryId": 3}


def test_a_partition_is_asked_by_its_own_name(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str
) -> None:
    assert broker.ask("PUT", f"{N}/{topic}/partitions", 2).status == 204
    for path, reason in PARTITIONED.items():
        assert refused(broker, f"{topic}/{path}") == (405, reason)
    partition = f"{topic}-partition-1"
    publish_numbers(pulsar_client, partition, 1)
    assert read(broker, f"{partition}/examinemessage").body == b"0"
    assert broker.get(f"{N}/{partition}/messageid/0")["partitionIndex"] == 1
