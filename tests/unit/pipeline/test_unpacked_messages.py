"""Single messages of our own ledgers: batches unpacked, payloads decompressed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ackgate import open_embedded
from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.proto.message_pb2 import MessageMetadata, SingleMessageMetadata
from ackgate.persistence.records.envelope import Compression, compressed
from tests.unit.pipeline.table_reads import PUBLISHED_MS, message, put_ledger, read_table


def batch(first: int, count: int) -> bytes:
    body = b""
    for number in range(first, first + count):
        value = b"message %d" % number
        single = SingleMessageMetadata(
            payload_size=len(value), partition_key=f"k{number}", sequence_id=number
        )
        single.properties.add(key="n", value=str(number))
        head = single.SerializeToString()
        body += len(head).to_bytes(4, "big") + head + value
    about = MessageMetadata(
        producer_name="p",
        sequence_id=first,
        publish_time=PUBLISHED_MS + first,
        num_messages_in_batch=count,
        compression=int(Compression.ZSTD),
        uncompressed_size=len(body),
    )
    return seal_entry(about.SerializeToString(), compressed(body, Compression.ZSTD))


async def test_batches_are_unpacked(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as storage:
        await put_ledger(storage, "orders", [message(0), batch(1, 4), batch(5, 2)])
    columns = "entry_id,batch_index,sequence_id,key,properties,payload,compression"
    rows = read_table(tmp_path, "unpacked_messages", columns=columns)
    assert rows[0] == {
        "entry_id": 0,
        "batch_index": None,
        "sequence_id": 0,
        "key": "k0",
        "properties": [],
        "payload": b"text",
        "compression": None,
    }
    assert rows[1:] == [
        {
            "entry_id": 1 if number < 5 else 2,
            "batch_index": number - 1 if number < 5 else number - 5,
            "sequence_id": number,
            "key": f"k{number}",
            "properties": [("n", str(number))],
            "payload": b"message %d" % number,
            "compression": "ZSTD",
        }
        for number in range(1, 7)
    ]
    late = read_table(
        tmp_path, "unpacked_messages", minPublishTimeMs=str(PUBLISHED_MS + 5), columns="entry_id"
    )
    assert late == [{"entry_id": 2}] * 2
    with pytest.raises(CallerError, match="option pulsar is missing"):
        read_table(tmp_path, "cursors")


async def test_a_payload_that_does_not_decompress(tmp_path: Path) -> None:
    damaged = batch(0, 3)[:-4]
    async with open_embedded(tmp_path) as storage:
        await put_ledger(storage, "orders", [damaged, message(5)])
    with pytest.raises(CorruptRecordError, match=r"entry \d+:0"):
        read_table(tmp_path, "unpacked_messages")
    rows = read_table(tmp_path, "unpacked_messages", onCorrupt="skip")
    assert [row["entry_id"] for row in rows] == [1]
