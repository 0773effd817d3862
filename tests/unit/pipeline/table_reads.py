"""Tables read as Spark reads them, but in this process; and small data directories to read."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ackgate import EmbeddedStorage
from ackgate.persistence import LedgerOptions, topic_path
from ackgate.persistence.nodes.topic_node import (
    TOPIC_PATH_KEY,
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
)
from ackgate.persistence.proto.message_pb2 import MessageMetadata

PUBLISHED_MS = 1_700_000_000_000
"""When the first entry of each ledger was published; each further one a millisecond later."""


def read_table(path: Path | str, table: str, **options: str) -> list[dict[str, Any]]:
    """All rows, by way of the same pickled partitions."""
    from ackgate.pipeline.source.data_source import AckgateDataSource

    source = AckgateDataSource({"path": str(path), "table": table, **options})
    reader = source.reader(source.schema())
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def message(sequence_id: int, *, with_magic: bool = False, payload: bytes = b"text") -> bytes:
    """An entry as a broker stores it; `with_magic`: with a checksum in front, as newer clients send."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=sequence_id,
        publish_time=PUBLISHED_MS + sequence_id,
        partition_key=f"k{sequence_id % 3}",
    ).SerializeToString()
    head = len(metadata).to_bytes(4, "big")
    return (b"\x0e\x01" + bytes(4) if with_magic else b"") + head + metadata + payload


async def put_ledger(
    storage: EmbeddedStorage,
    topic: str,
    entries: Iterable[bytes],
    options: LedgerOptions | None = None,
    *,
    is_closed: bool = True,
) -> int:
    """One more message ledger of a topic in ``embedded/default``."""
    path = topic_path("embedded", "default", topic)
    given = options or LedgerOptions()
    writer = await storage.ledger_client.create(
        LedgerOptions(
            given.ensemble_size,
            given.write_quorum,
            given.ack_quorum,
            custom_metadata={TOPIC_PATH_KEY: path.encode()},
        )
    )
    for entry in entries:
        await writer.add_entry(entry)
    if is_closed:
        await writer.close()
    stored = await storage.metadata.get(path)
    before = decode_topic_node(stored.value, path=path).ledgers if stored else ()
    record = MessageLedgerRecord(writer.ledger_id, writer.last_add_confirmed + 1, 0, 0, 0)
    node = encode_topic_node(TopicNode((*before, record)))
    await storage.metadata.put(path, node, expected_version=None)
    return writer.ledger_id
