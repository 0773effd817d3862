"""Durable individual acks: shuffled, one receipt each, as many outstanding as the client likes.

The broker is a process of its own; the client here speaks raw frames, all made beforehand, so that
the client's own work is reading answers and nothing else. Beside it the same with `applied`
receipts (Pulsar's promise), to show what durability costs.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.brokers import Ackgate, running
from tests.support.wire_client import EARLIEST, WireClient

SEED: Final = 20261121
OUTSTANDING: Final = 50_000
FIRST_REQUEST_ID: Final = 1_000_000


def run(*, smoke: bool) -> dict[str, Any]:
    """Acks per second with receipts `persisted` and `applied`."""
    count = 2_000 if smoke else 200_000
    figures: dict[str, Any] = {"acks": count, "outstanding": min(OUTSTANDING, count)}
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        for durability in ("persisted", "applied"):
            settings = {
                "ackReceiptDurability": durability,
                "managedLedgerMaxUnackedRangesToPersist": "200000",
                "maxUnackedMessagesPerConsumer": "0",
                "maxUnackedMessagesPerSubscription": "0",
            }
            with running(Ackgate(Path(work) / durability, settings)) as broker:
                _, seconds = asyncio.run(publish_and_ack(broker.protocol_port, count))
            figures[f"{durability}_acks_per_s"] = round(count / seconds)
    return figures


async def publish_and_ack(port: int, count: int) -> tuple[float, float]:
    """Seconds to the last receipt of `count` messages of 100 B, and to that of as many acks, shuffled."""
    async with await WireClient.connect("127.0.0.1", port) as client:
        consumer = await client.subscribe("acks", "s", initial_position=EARLIEST)
        producer = await client.producer("acks")
        frames = b"".join(producer.frame(b"x" * 100) for _ in range(count))
        began = time.perf_counter()
        await client.send_bulk(frames)
        await producer.until_receipts(count)
        published = time.perf_counter() - began
        consumer.flow(count)
        positions = [message.position for message in await consumer.receive_many(count)]
        random.Random(SEED).shuffle(positions)
        waves = [
            consumer.ack_frames(positions[start : start + OUTSTANDING], FIRST_REQUEST_ID + start)
            for start in range(0, count, OUTSTANDING)
        ]
        began = time.perf_counter()
        answered = 0
        for wave in waves:
            await client.send_bulk(wave)
            answered += min(OUTSTANDING, count - answered)
            expected = answered
            await client.until(lambda expected=expected: client.acks_answered >= expected)
        return published, time.perf_counter() - began
