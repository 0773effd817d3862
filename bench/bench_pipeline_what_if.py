"""What-if: one setting against sixteen, over the journal of a real broker's run.

A broker with the delivery journal writes down how a client receives messages and acks them in random
order, each one by itself, a few in a millisecond; one of fifty it keeps for a while. So there are many
ranges, and a write of the cursor every few acks. Then the job runs over
it on Spark, under one setting and under sixteen (limits, compression, linger, all combinations), and the
replay alone in this process: what Spark takes to start its tasks is not in that. The best of several
runs counts: whoever else uses the machine only makes it slower.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.pipeline import register
from ackgate.pipeline.jobs.job import DataAddress, JobRun
from ackgate.pipeline.jobs.what_if import JOB
from ackgate.pipeline.jobs.what_if.events import events_of
from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay
from ackgate.pipeline.jobs.what_if.rows import EvenFeed
from ackgate.pipeline.jobs.what_if.variants import Variant, variants_of
from ackgate.pipeline.running.session import local_session
from bench.brokers import Ackgate, running
from tests.pipeline.small_plans import quick_spark
from tests.support.delivery_journals import read_stored_blocks
from tests.support.wire_client import EARLIEST, WireClient

if TYPE_CHECKING:
    from ackgate.persistence.deliveries.columns import EventColumns
    from tests.support.wire_client import Message

SEED: Final = 7
TOPIC: Final = "recorded"
SUBSCRIPTION: Final = "s"
SETTINGS: Final = {
    "deliveryJournalEnabled": "true",
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
}
GRID: Final = (
    "managedLedgerMaxUnackedRangesToPersist=100,1000,5000,20000",
    "managedCursorInfoCompressionType=NONE,ZSTD",
    "ackPersistLingerMs=2,20",
)
"""Sixteen, of which the job always replays the recorded one, too."""

WINDOW: Final = 500
KEPT_ONE_OF: Final = 50
KEPT_MAX: Final = 2_000
ACKED_TOGETHER: Final = 5


class Sizes(NamedTuple):
    """How much is recorded, and how often it is replayed."""

    messages: int
    runs: int


FULL: Final = Sizes(40_000, 3)
SMOKE: Final = Sizes(1_000, 1)


def run(*, smoke: bool) -> dict[str, Any]:
    """Seconds of one and of sixteen settings, and how many times as long."""
    sizes = SMOKE if smoke else FULL
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as name:
        work = Path(name)
        broker = Ackgate(work / "broker", SETTINGS)
        with running(broker):
            asyncio.run(_traffic(broker.protocol_port, sizes.messages))
            broker.process.terminate()  # and not killed: the journal is whole then
            broker.process.wait(timeout=60)
            data = work / "broker" / "data"
            path = delivery_journal_path("public", "default", TOPIC)
            blocks = [each.block for each in asyncio.run(read_stored_blocks(data, path))]
            alone = _alone(blocks, sizes.runs)
            on_spark = _on_spark(data, work, sizes)
    return {
        "messages": sizes.messages,
        "events": sum(map(len, blocks)),
        "writes": alone.pop("writes"),
        "alone": alone,
        "spark_2_cores": on_spark,
    }


async def _traffic(port: int, messages: int) -> None:
    """Publish, receive and ack."""
    rng = Random(SEED)
    async with await WireClient.connect("127.0.0.1", port) as client:
        consumer = await client.subscribe(TOPIC, SUBSCRIPTION, initial_position=EARLIEST)
        producer = await client.producer(TOPIC)
        await client.send_bulk(b"".join(producer.frame(bytes(100)) for _ in range(messages)))
        await producer.until_receipts(messages)
        kept: list[Message] = []
        for _ in range(0, messages, WINDOW):
            consumer.flow(WINDOW)
            window = await consumer.receive_many(WINDOW)
            rng.shuffle(window)
            kept += window[: WINDOW // KEPT_ONE_OF]
            acked = window[WINDOW // KEPT_ONE_OF :]
            if len(kept) > KEPT_MAX:
                acked, kept = acked + kept[: KEPT_MAX // 2], kept[KEPT_MAX // 2 :]
            for start in range(0, len(acked), ACKED_TOGETHER):
                for message in acked[start : start + ACKED_TOGETHER]:
                    consumer.ack_without_receipt(message)
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)


def _alone(blocks: list[EventColumns], runs: int) -> dict[str, Any]:
    """Without Spark, on one core."""
    sixteen = variants_of(GRID, None)[1:]
    one = min(_seconds(blocks, [Variant("recorded")]) for _ in range(runs))
    many = min(_seconds(blocks, sixteen) for _ in range(runs))
    events = sum(map(len, blocks))
    replay = _replayed(blocks, [Variant("recorded")])
    assert replay.differences.count == 0
    return {
        "writes": replay.differences.writes_compared,
        "one_s": round(one, 3),
        "one_events_per_s": round(events / one),
        "sixteen_s": round(many, 3),
        "sixteen_times_one": round(many / one, 2),
    }


def _seconds(blocks: list[EventColumns], variants: Any) -> float:
    began = time.perf_counter()
    _replayed(blocks, variants)
    return time.perf_counter() - began


def _replayed(blocks: list[EventColumns], variants: Any) -> SubscriptionReplay:
    feed = EvenFeed(SubscriptionReplay(list(variants)))
    for block in blocks:
        feed.feed(events_of(block, SUBSCRIPTION))
    return feed.finished()


def _on_spark(data: Path, work: Path, sizes: Sizes) -> dict[str, Any]:
    """The whole job, once Spark and its workers are warm."""
    scratch = work / "spark"
    scratch.mkdir()
    spark = local_session(
        "local[2]",
        app_name="bench",
        scratch=scratch,
        driver_memory="1g",
        settings=quick_spark() if sizes is SMOKE else None,
    )
    try:
        register(spark)
        if sizes is not SMOKE:
            _job_seconds(spark, data, work / "warm", ())
        one = min(_job_seconds(spark, data, work / f"one-{i}", ()) for i in range(sizes.runs))
        many = min(_job_seconds(spark, data, work / f"many-{i}", GRID) for i in range(sizes.runs))
    finally:
        spark.stop()
    return {
        "one_s": round(one, 3),
        "sixteen_s": round(many, 3),
        "sixteen_times_one": round(many / one, 2),
    }


def _job_seconds(spark: Any, data: Path, output: Path, grid: tuple[str, ...]) -> float:
    output.mkdir()
    arguments = Namespace(
        set=list(grid), variants=None, interval_seconds=3600, settings_groups=None
    )
    address = DataAddress({"path": str(data)})
    began = time.perf_counter()
    summary = JOB.run(JobRun(spark, address, output, arguments, "parquet", lambda _: None))
    seconds = time.perf_counter() - began
    assert summary.is_fine
    return seconds


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
