"""The stream in Spark itself: a checkpoint, a restart, a roll-over; each message once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ackgate.persistence.embedded import open_embedded
from ackgate.persistence.paths import topic_path
from ackgate.persistence.ports import LedgerOptions
from ackgate.persistence.proto.message_pb2 import MessageMetadata
from ackgate.persistence.topic_node import (
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
)
from ackgate.pipeline import register

PATH = topic_path("public", "default", "orders")


async def _write_ledger(data: Path, sequence_ids: range) -> None:
    """One more message ledger of the topic, closed."""
    async with open_embedded(data) as storage:
        writer = await storage.ledger_client.create(LedgerOptions())
        for number in sequence_ids:
            metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
            encoded = metadata.SerializeToString()
            await writer.add_entry(len(encoded).to_bytes(4, "big") + encoded)
        await writer.close()
        stored = await storage.metadata.get(PATH)
        before = decode_topic_node(stored.value, path=PATH).ledgers if stored else ()
        record = MessageLedgerRecord(writer.ledger_id, len(sequence_ids), 0, 0, 0)
        node = encode_topic_node(TopicNode((*before, record)))
        await storage.metadata.put(PATH, node, expected_version=None)


def _run(spark: Any, data: Path, scratch: Path) -> list[int]:
    """Start the query, let it read what there is, stop it; all that was ever written by it."""
    rows = spark.readStream.format("ackgate").option("path", str(data)).option("topic", "orders")
    query = (
        rows.load()
        .select("sequence_id")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(scratch / "out"))
    )
    assert query.awaitTermination(60)
    return sorted(row.sequence_id for row in spark.read.parquet(str(scratch / "out")).collect())


def test_each_message_once_through_checkpoint_and_restart(spark: Any, tmp_path: Path) -> None:
    register(spark)
    data = tmp_path / "data"
    asyncio.run(_write_ledger(data, range(10)))
    assert _run(spark, data, tmp_path) == list(range(10))
    asyncio.run(_write_ledger(data, range(10, 25)))
    assert _run(spark, data, tmp_path) == list(range(25))
    assert _run(spark, data, tmp_path) == list(range(25))
