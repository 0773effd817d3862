"""Rows of the table `messages`, out of files that bookies have written."""

from __future__ import annotations

from typing import Any

import pytest

from ackgate.errors import CorruptRecordError
from ackgate.persistence import LedgerOptions
from ackgate.persistence.messages.frame import MAGIC
from ackgate.persistence.proto.message_pb2 import LZ4, MessageMetadata
from ackgate.pipeline.readers.messages import PublishTimes, read_messages
from ackgate.pipeline.schema.tables import MESSAGES, arrow_schema
from ackgate.pipeline.storage.damage import Damage
from tests.unit.pipeline.storage.conftest import Ledgers, Written

TOPIC = "persistent://public/default/orders"


def entry(
    sequence_id: int,
    payload: bytes = b"hello",
    properties: dict[str, str] | None = None,
    **fields: Any,
) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=sequence_id, publish_time=1000 + sequence_id, **fields
    )
    for key, value in (properties or {}).items():
        metadata.properties.add(key=key, value=value)
    inside = metadata.SerializeToString()
    return MAGIC + b"crcc" + len(inside).to_bytes(4) + inside + payload


def rows(written: Written, *names: str, **options: Any) -> list[dict[str, Any]]:
    columns = MESSAGES.select(names) if names else MESSAGES.columns
    found: list[dict[str, Any]] = []
    for part in written.ranges:
        for batch in read_messages(written.places, TOPIC, part, columns, **options):
            assert batch.schema == arrow_schema(columns)
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


async def test_a_row_says_what_the_producer_sent(ledgers: Ledgers) -> None:
    rich = entry(
        7,
        b"x" * 100,
        {"a": "1", "ü": ""},
        event_time=55,
        partition_key="kéy",
        ordering_key=b"\xff\0",
        deliver_at_time=9999,
        num_messages_in_batch=12,
        compression=LZ4,
        num_chunks_from_msg=3,
        chunk_id=0,
    )
    written = await ledgers.write([rich, entry(8)], LedgerOptions())
    first, second = rows(written)
    assert first == {
        "topic": TOPIC,
        "ledger_id": 1,
        "entry_id": 0,
        "producer": "p",
        "sequence_id": 7,
        "publish_time_ms": 1007,
        "event_time_ms": 55,
        "key": "kéy",
        "ordering_key": b"\xff\0",
        "properties": [("a", "1"), ("ü", "")],
        "redeliveries": None,
        "deliver_at_ms": 9999,
        "batch_size": 12,
        "chunk_id": 0,
        "chunk_count": 3,
        "compression": "LZ4",
        "entry_bytes": len(rich),
        "payload": b"x" * 100,
    }
    nothing = ("event_time_ms", "key", "ordering_key", "deliver_at_ms", "chunk_id", "chunk_count")
    assert all(second[name] is None for name in (*nothing, "compression"))
    assert (second["batch_size"], second["properties"], second["payload"]) == (1, [], b"hello")


async def test_only_the_columns_that_are_asked_for(ledgers: Ledgers) -> None:
    written = await ledgers.write([entry(i) for i in range(50)], LedgerOptions())
    found = rows(written, "sequence_id", "entry_id")
    assert found == [{"sequence_id": i, "entry_id": i} for i in range(50)]
    counted = [b.num_rows for b in read_messages(written.places, TOPIC, written.ranges[0], ())]
    assert sum(counted) == 50


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "expected"),
    [(1010, None, range(10, 50)), (None, 1003, range(4)), (1005, 1005, [5]), (2000, None, [])],
)
async def test_messages_of_a_time(
    ledgers: Ledgers, first_ms: int | None, last_ms: int | None, expected: range | list[int]
) -> None:
    written = await ledgers.write([entry(i) for i in range(50)], LedgerOptions())
    found = rows(written, "entry_id", publish_times=PublishTimes(first_ms, last_ms))
    assert [row["entry_id"] for row in found] == list(expected)


async def test_a_key_that_is_no_text_is_read_all_the_same(ledgers: Ledgers) -> None:
    made = entry(1, partition_key="kX")
    written = await ledgers.write([made.replace(b"kX", b"k\xff")], LedgerOptions())
    assert rows(written, "key") == [{"key": "k�"}]


async def test_metadata_that_cannot_be_parsed(ledgers: Ledgers) -> None:
    entries = [entry(0), b"\0\0\0\xffxx", entry(2), b""]
    written = await ledgers.write(entries, LedgerOptions())
    with pytest.raises(CorruptRecordError, match="ledger 1: entry 1"):
        rows(written)
    damages: list[Damage] = []
    found = rows(written, "entry_id", on_corrupt="skip", damages=damages)
    assert [row["entry_id"] for row in found] == [0, 2]
    assert [damage.entries_lost for damage in damages] == [1, 1]


async def test_redeliveries_are_what_a_client_has_noted(ledgers: Ledgers) -> None:
    """In a property of messages that it sent on to a retry or dead letter topic."""
    key = "RECONSUMETIMES"
    told: list[tuple[dict[str, str], int | None]] = [
        ({}, None),
        ({"a": "b", key: "3"}, 3),
        ({key: "16", "REAL_TOPIC": "orders"}, 16),
        ({"RECONSUMETIMEZ": "4"}, None),
        ({key: "-1"}, None),
        ({key: "many"}, None),
        ({key: ""}, None),
        ({key: "12345678901"}, None),
        ({"x": "y"}, None),
        ({key: "0"}, 0),
    ]
    entries = [entry(number, properties=given) for number, (given, _) in enumerate(told)]
    written = await ledgers.write([*entries, entry(99)], LedgerOptions())

    found = rows(written, "entry_id", "redeliveries")

    assert [row["redeliveries"] for row in found] == [*(times for _, times in told), None]
    assert [row["redeliveries"] for row in rows(written, "redeliveries", "key")] == [
        row["redeliveries"] for row in found
    ]
