"""The stream in Spark itself: a checkpoint, a restart, kill -9, roll-over; each message once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulsar

from ackgate import open_embedded
from ackgate.persistence import LedgerOptions, topic_path
from ackgate.persistence.nodes.topic_node import (
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
)
from ackgate.persistence.proto.message_pb2 import MessageMetadata
from ackgate.pipeline import register
from ackgate.testing import BrokerProcess
from tests.pipeline.streaming_process import start_stream

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


KEPT = {
    "defaultRetentionSizeInMB": -1,
    "defaultRetentionTimeInMinutes": -1,
    "managedLedgerMaxEntriesPerLedger": 40,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
PAUSE_SECONDS = 0.02
MESSAGES = 150
"""At least; more are published as long as the stream takes to begin."""


def _wait_for_batches(scratch: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until so many batches of the stream are committed."""
    deadline = time.monotonic() + 300
    commits = scratch / "checkpoint" / "commits"
    while not commits.is_dir() or len([n for n in os.listdir(commits) if n.isdigit()]) < count:
        assert process.poll() is None, (scratch / "told.txt").read_text()[-2000:]
        assert time.monotonic() < deadline, "the stream does not begin"
        time.sleep(0.02)


def test_a_live_broker_is_followed_once_through_kill_9_of_the_stream(
    spark: Any, tmp_path: Path
) -> None:
    """The stream is killed amid its batches, and goes on in another process.

    Meanwhile a real client publishes, and ledgers roll over. Each confirmed message comes once.
    """
    published = itertools.count()
    is_enough = threading.Event()
    with BrokerProcess(tmp_path / "data", settings=KEPT) as broker:
        client = pulsar.Client(broker.service_url)
        producer = client.create_producer("orders", batching_enabled=False)

        def publish() -> None:
            while (number := next(published)) < MESSAGES or not is_enough.wait(PAUSE_SECONDS):
                producer.send(str(number).encode())

        producer.send(str(next(published)).encode())
        publishing = threading.Thread(target=publish)
        told = (tmp_path / "told.txt").open("wb")
        stream = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.pipeline.streaming_process",
                broker.data_directory,
                tmp_path,
            ],
            cwd=Path(__file__).parents[2],
            env=BrokerProcess.environment(),
            stderr=told,
            start_new_session=True,
        )
        try:
            publishing.start()
            _wait_for_batches(tmp_path, 2, stream)
        finally:
            is_enough.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(stream.pid, signal.SIGKILL)
            stream.wait()
            told.close()
            publishing.join()
        count = next(published) - 1
        for number in range(count, count + 50):
            producer.send(str(number).encode())
        client.close()
        assert broker.stop() == 0, broker.log
        query = start_stream(spark, str(broker.data_directory), tmp_path, {"availableNow": True})
        assert query.awaitTermination(120)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.payload) for row in rows) == list(range(count + 50))
    assert len({row.ledger_id for row in rows}) >= 3, "ledgers have rolled over"
