"""The data source on a real Pulsar, planned and read as by Spark but in this process; a job on Spark."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar as client_library
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from ackgate.errors import CallerError
from ackgate.pulsar import PulsarCluster, PulsarTopic
from ackgate.pulsar.admin import acked_of
from tests.support.real_pulsar import RealPulsar

pytest.importorskip("pyspark")

Read = Callable[..., list[dict[str, Any]]]
KINDS = {
    "LZ4": client_library.CompressionType.LZ4,
    "ZLIB": client_library.CompressionType.ZLib,
    "ZSTD": client_library.CompressionType.ZSTD,
    "SNAPPY": client_library.CompressionType.SNAPPY,
    None: client_library.CompressionType.NONE,
}


class Order(Record):
    name = String()
    count = Integer()


@pytest.fixture
def read(real_pulsar: RealPulsar) -> Read:
    from ackgate.pipeline.source.data_source import AckgateDataSource

    def read(table: str, **options: str) -> list[dict[str, Any]]:
        source = AckgateDataSource({"pulsar": real_pulsar.metadata, "table": table, **options})
        reader = source.reader(source.schema())
        return [
            row
            for partition in reader.partitions()
            for batch in reader.read(pickle.loads(pickle.dumps(partition)))
            for row in batch.to_pylist()
        ]

    return read


def test_batches_in_every_compression(real_pulsar: RealPulsar, read: Read) -> None:
    client = real_pulsar.client()
    for kind in KINDS.values():
        producer = client.create_producer(
            "packed",
            compression_type=kind,
            batching_enabled=True,
            batching_max_messages=5,
            batching_max_publish_delay_ms=60_000,
        )
        for number in range(10):
            producer.send_async(
                b"payload %d " % number * 20,
                lambda *_: None,
                properties={"number": str(number)},
                partition_key=f"k{number % 3}",
                event_timestamp=1_000 + number,
            )
        producer.flush()
        producer.close()
    client.close()
    columns = "compression,batch_index,key,properties,event_time_ms,payload,is_encrypted"
    rows = read("unpacked_messages", topic="packed", columns=columns)
    assert rows == [
        {
            "compression": kind,
            "batch_index": number % 5,
            "key": f"k{number % 3}",
            "properties": [("number", str(number))],
            "event_time_ms": 1_000 + number,
            "payload": b"payload %d " % number * 20,
            "is_encrypted": False,
        }
        for kind in KINDS
        for number in range(10)
    ]
    entries = read("messages", topic="packed")
    assert [(row["batch_size"], row["compression"]) for row in entries] == [
        (5, kind) for kind in KINDS for _ in range(2)
    ]
    some = read("unpacked_messages", topic="packed", entryIds="1,3-4", columns="entry_id")
    assert [row["entry_id"] for row in some] == [1] * 5 + [3] * 5 + [4] * 5


def test_pieces_of_a_large_message(real_pulsar: RealPulsar, read: Read) -> None:
    client = real_pulsar.client()
    producer = client.create_producer("large", chunking_enabled=True, batching_enabled=False)
    producer.send(b"x" * 6_000_000)
    client.close()
    columns = "chunk_id,chunk_count,payload_bytes"
    rows = read("unpacked_messages", topic="large", columns=columns)
    assert [(row["chunk_id"], row["chunk_count"]) for row in rows] == [(0, 2), (1, 2)]
    assert sum(row["payload_bytes"] for row in rows) == 6_000_000


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the key")
def test_encrypted_messages_are_named_and_left_as_they_are(
    real_pulsar: RealPulsar, read: Read, tmp_path: Path
) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    for words in (
        ["genrsa", "-out", str(private), "2048"],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    client = real_pulsar.client()
    keys = client_library.CryptoKeyReader(str(public), str(private))
    producer = client.create_producer(
        "secret",
        encryption_key="key",
        crypto_key_reader=keys,
        batching_enabled=True,
        batching_max_messages=3,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(3):
        producer.send_async(b"nobody reads this %d" % number, lambda *_: None)
    producer.flush()
    client.close()
    columns = "is_encrypted,batch_index,producer,payload,value"
    [row] = read("unpacked_messages", topic="secret", columns=columns)
    assert (row["is_encrypted"], row["batch_index"], row["value"]) == (True, None, None)
    assert b"nobody" not in row["payload"]
    assert row["producer"]
    [entry] = read("messages", topic="secret")
    assert entry["batch_size"] == 3


def test_values_by_the_topics_schema(real_pulsar: RealPulsar, read: Read) -> None:
    client = real_pulsar.client()
    for name, schema in {"json": JsonSchema(Order), "avro": AvroSchema(Order)}.items():
        producer = client.create_producer(f"valued-{name}", schema=schema)
        for number in range(3):
            producer.send(Order(name=f"n{number}", count=number))
    client.create_producer("valued-text", schema=StringSchema()).send("hällo")
    client.create_producer("valued-raw").send(b"\0\1")
    client.close()
    for name in ("json", "avro"):
        rows = read("unpacked_messages", topic=f"valued-{name}", columns="value,schema_version")
        assert [row["value"] for row in rows] == [
            f'{{"name": "n{number}", "count": {number}}}' for number in range(3)
        ]
        assert {row["schema_version"] for row in rows} == {0}
    [row] = read("unpacked_messages", topic="valued-text", columns="value")
    assert row["value"] == '"hällo"'
    [row] = read("unpacked_messages", topic="valued-raw", columns="value,schema_version,payload")
    assert row == {"value": None, "schema_version": None, "payload": b"\0\1"}


def test_states_and_ledgers(real_pulsar: RealPulsar, read: Read) -> None:
    client = real_pulsar.client()
    consumer = client.subscribe(
        "states", "worker", consumer_type=client_library.ConsumerType.Shared
    )
    producer = client.create_producer("states", batching_enabled=False)
    for number in range(12):
        producer.send(b"%d" % number)
    for message in [consumer.receive(20_000) for _ in range(12)]:
        if message.message_id().entry_id() in {0, 1, 4, 5, 9}:
            consumer.acknowledge(message)

    async def settled() -> int:
        async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
            for _ in range(400):
                [cursor] = await cluster.cursors(PulsarTopic.parse("states"))
                if cursor.acks.acked_count == 3 and cursor.acks.mark_delete.entry_id == 1:
                    assert cursor.cursor_ledger_id is not None
                    return cursor.cursor_ledger_id
                await asyncio.sleep(0.05)
        raise AssertionError(cursor)

    cursor_ledger = asyncio.run(settled())
    client.close()

    rows = read("ack_state", topic="states")
    found = [(row["kind"], row["first_entry_id"], row["end_entry_id"]) for row in rows]
    assert found == [("mark_delete", 0, 2), ("range", 4, 6), ("range", 9, 10)]
    [row] = read("cursors", topic="states")
    assert (row["range_count"], row["hole_count"], row["backlog_entries"]) == (2, 2, 7)
    assert (row["source"], row["cursor_ledger_id"]) == ("ledger", cursor_ledger)
    records = read("cursor_records", topic="states", subscription="worker")
    assert [record["entry_id"] for record in records] == list(range(len(records)))
    assert records[-1]["range_count"] == 2
    times = [record["written_ms"] for record in records]
    assert times == sorted(times)
    ledgers = read("ledgers", topic="states")
    assert {(row["role"], row["subscription"]) for row in ledgers} == {
        ("messages", None),
        ("cursor", "worker"),
    }
    assert {row["topic"] for row in ledgers} == {"persistent://public/default/states"}
    assert read("delivery_journal", topic="states") == []
    assert read("delayed_index", topic="states") == []


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # PySpark's sockets
def test_the_job_ack_stats_beside_the_admin_interface(
    real_pulsar: RealPulsar, spark: Any, tmp_path: Path
) -> None:
    from ackgate.pipeline.command import run_pipeline

    client = real_pulsar.client()
    consumer = client.subscribe("holed", "worker", consumer_type=client_library.ConsumerType.Shared)
    producer = client.create_producer("holed", batching_enabled=False)
    keys: dict[tuple[int, int], str] = {}
    for number in range(120):  # a ledger takes 50
        key = f"k{number * number % 7}"
        sent = producer.send(b"%d" % number, partition_key=key)
        keys[sent.ledger_id(), sent.entry_id()] = key
    messages = [consumer.receive(20_000) for _ in range(120)]
    order = {at: number for number, at in enumerate(sorted(keys))}
    acked = {at for at, number in order.items() if number < 9 or number % 11 in {3, 4, 8}}
    for message in messages:
        found = message.message_id()
        if (found.ledger_id(), found.entry_id()) in acked:
            consumer.acknowledge(message)

    def of_the_broker() -> dict[str, Any]:
        path = "persistent/public/default/holed/internalStats"
        return real_pulsar.admin(path)["cursors"]["worker"]

    above = sum(1 for at in acked if order[at] >= 9)

    async def stored() -> None:
        async with await PulsarCluster.connect(real_pulsar.metadata) as cluster:
            [cursor] = await cluster.cursors(PulsarTopic.parse("holed"))
            while cursor.acks.acked_count != above:
                await asyncio.sleep(0.05)
                [cursor] = await cluster.cursors(PulsarTopic.parse("holed"))

    asyncio.run(stored())
    consumer.close()
    own = of_the_broker()
    client.close()
    words = ["--pulsar", real_pulsar.metadata, "--topic", "holed", "--limit", "30"]
    code = run_pipeline(["ack-stats", *words, "--output", str(tmp_path / "out")], spark=spark)

    def rows(name: str) -> list[dict[str, Any]]:
        found = spark.read.parquet(str(tmp_path / "out" / name)).collect()
        return [row.asDict() for row in found]

    [figures] = rows("subscriptions")
    holes = rows("holes")
    of_keys = {row["key"]: row["entries"] for row in rows("hole_keys")}
    counts = [row["range_count"] for row in sorted(rows("history"), key=lambda r: r["from_ms"])]
    assert code == 0
    assert figures["range_count"] == own["totalNonContiguousDeletedMessagesRange"] > 15
    assert figures["acked_entries"] == above
    assert figures["records"] == own["cursorLedgerLastEntry"] + 1
    assert (figures["range_limit"], figures["records_cut"]) == (30, 0)
    assert counts[-1] == figures["range_count"]
    # In each ledger: what lies before an acked entry, by the broker's own text.
    ranges = acked_of(own["individuallyDeletedMessages"])
    mark_delete = tuple(map(int, own["markDeletePosition"].split(":")))
    open_entries = {
        at
        for at in keys
        if at > mark_delete and at[1] < max(ranges.get(at[0], [-1])) and at[1] not in ranges[at[0]]
    }
    found = {
        (row["ledger_id"], entry_id)
        for row in holes
        for entry_id in range(row["first_entry_id"], row["end_entry_id"])
    }
    assert found == open_entries
    assert of_keys == Counter(keys[at] for at in open_entries)


def test_a_stream_of_an_open_topic(real_pulsar: RealPulsar) -> None:
    """As Spark drives it: over several ledgers, each message once, though the last one comes late."""
    from ackgate.pipeline.source.data_source import AckgateDataSource

    def opened() -> Any:
        source = AckgateDataSource(
            {
                "pulsar": real_pulsar.metadata,
                "table": "unpacked_messages",
                "topic": "flowing",
                "columns": "payload",
            }
        )
        return source.streamReader(source.schema())

    client = real_pulsar.client()
    client.subscribe("flowing", "keeper").close()  # or the broker trims what it has written
    producer = client.create_producer("flowing", batching_enabled=False)
    stream = opened()
    start = stream.initialOffset()
    read: list[bytes] = []
    numbers = itertools.count()
    for count in (30, 45, 60, 1):  # a ledger takes 50
        for _ in range(count):
            producer.send(b"%d" % next(numbers))
        end = stream.latestOffset()
        for partition in stream.partitions(start, end):
            batches = stream.read(pickle.loads(pickle.dumps(partition)))
            read += [row["payload"] for batch in batches for row in batch.to_pylist()]
        start = end
        stream = opened()  # as after a restart, with the offset of the checkpoint
    client.close()
    assert 135 <= len(read) <= 136
    assert read == [b"%d" % number for number in range(len(read))]
    everything = [
        row["payload"]
        for partition in stream.partitions(stream.initialOffset(), stream.latestOffset())
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]
    assert everything == read


def test_what_there_is_not(read: Read) -> None:
    with pytest.raises(CallerError, match="no topic persistent://public/default/nothing"):
        read("messages", topic="nothing")
    with pytest.raises(CallerError, match="no subscription 'nobody'"):
        read("ack_state", topic="states", subscription="nobody")
    with pytest.raises(CallerError, match="corrupt"):
        read("corrupt")
    with pytest.raises(CallerError, match="path"):
        read("messages", path="data")
