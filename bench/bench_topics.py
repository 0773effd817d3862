"""Many topics on one broker: memory of an idle subscription, and all cursors dirty at once.

The broker runs in this process, without sockets between it and the work, so that the figures are
those of topics and subscriptions and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from typing import TYPE_CHECKING, Any, cast

from ackgate.broker.topic import Producer
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.requests import InitialPosition, ProducerRequest, SentEntry
from ackgate.cursor import Position
from bench.brokers import in_this_process
from bench.usage import resident_bytes

if TYPE_CHECKING:
    from ackgate.broker.server import BrokerServer
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.ports import SessionPort

ENTRIES_PER_TOPIC = 4


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures for 1,000 topics (20 in a smoke run)."""
    return asyncio.run(_run(20 if smoke else 1_000))


async def _run(count: int) -> dict[str, Any]:
    async with in_this_process() as broker:
        await _topics(broker, "warm-up", count // 10 or 1)
        before = _resident_bytes()
        began = time.perf_counter()
        topics = await _topics(broker, "idle", count)
        created = time.perf_counter() - began
        await asyncio.sleep(0)  # until the tasks that made them are gone
        first = _resident_bytes()
        more = await _topics(broker, "more", count)
        await asyncio.sleep(0)
        second = _resident_bytes()
        dirty = await _make_dirty(topics)
        return {
            "topics": count,
            "create_s": round(created, 3),
            # The first leave memory behind that was in use while all were made at once.
            "bytes_per_idle_subscription_of_the_first": round((first - before) / count),
            "bytes_per_idle_subscription": round((second - first) / len(more)),
            "all_dirty_cursors_durable_s": round(dirty, 3),
        }


async def _topics(broker: BrokerServer, prefix: str, count: int) -> list[Topic]:
    topics = await asyncio.gather(
        *(
            broker.registry.topic(TopicName.parse(f"{prefix}-{index}"), create=True)
            for index in range(count)
        )
    )
    await asyncio.gather(*(topic.subscription("s", InitialPosition.EARLIEST) for topic in topics))
    return list(topics)


async def _make_dirty(topics: list[Topic]) -> float:
    """Store entries, ack one in the middle of each topic; seconds until all acks are durable."""
    loop = asyncio.get_running_loop()
    for topic in topics:
        request = ProducerRequest(topic.name, 0, "bench")
        producer = Producer(topic, cast("SessionPort", _Deaf()), request, "bench")
        metadata = pb.MessageMetadata()
        for sequence_id in range(ENTRIES_PER_TOPIC):
            producer.publish(SentEntry(sequence_id, 0, 1, b"\x00\x00\x00\x00", metadata))
    while any(topic.ledger.pending_adds for topic in topics):  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.001)
    began = time.perf_counter()
    durable = []
    for topic in topics:
        subscription = topic.subscriptions["s"]
        ledger_id = topic.ledger.ledgers.ledger_ids[-1]
        subscription.ack_elsewhere([Position(ledger_id, ENTRIES_PER_TOPIC - 2)])
        done: asyncio.Future[None] = loop.create_future()
        store = subscription.store
        assert store is not None
        store.when_durable(subscription.cursor.version, functools.partial(_settle, done))
        durable.append(done)
    await asyncio.gather(*durable)
    return time.perf_counter() - began


class _Deaf:
    """A session that wants no receipts."""

    is_open = True
    received_at = 0.0

    def send_receipts(self, producer_id: int, receipts: object) -> None:
        """They go nowhere."""


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _resident_bytes() -> int:
    gc.collect()
    return resident_bytes()
