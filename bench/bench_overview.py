"""The overview of 20,000 subscriptions over HTTP: its time and size, and how long the broker is held up.

The broker runs in this process. The subscriptions are readers', which cost a row as much as durable ones.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp

from ackgate.broker.collector import Collector
from ackgate.broker.topic import SubscriptionDriver
from ackgate.broker.wire.names import TopicName
from bench.brokers import in_this_process

if TYPE_CHECKING:
    from ackgate.broker.server import BrokerServer

PER_TOPIC = 100
ROUNDS = 5


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures for 20,000 subscriptions (200 in a smoke run)."""
    return asyncio.run(_run(200 if smoke else 20_000))


async def _run(count: int) -> dict[str, Any]:
    async with in_this_process() as broker:
        collecting = Collector().begin()
        try:
            for number in range(count // PER_TOPIC):
                await _topic(broker, number)
            await broker.sampler.sample(broker.registry)
            stalls: list[float] = []
            watching = asyncio.create_task(_watch(stalls))
            async with aiohttp.ClientSession() as client:
                fresh = [await _ask(client, broker, is_fresh=True) for _ in range(ROUNDS)]
                longest = max(stalls)
                again = [await _ask(client, broker, is_fresh=False) for _ in range(ROUNDS)]
            watching.cancel()
            return {
                "subscriptions": count,
                "fresh_s": round(min(took for took, _ in fresh), 3),
                "from_snapshot_s": round(min(took for took, _ in again), 4),
                "answer_bytes": fresh[0][1],
                "longest_turn_s": round(longest, 3),
            }
        finally:
            collecting.cancel()


async def _topic(broker: BrokerServer, number: int) -> None:
    name = TopicName.parse(f"persistent://public/default/topic-{number}")
    topic = await broker.registry.topic(name, create=True)
    ledgers = topic.ledger.ledgers
    first = ledgers.next_valid(ledgers.last_confirmed)
    for place in range(PER_TOPIC):
        driver = SubscriptionDriver.for_reader(topic, f"subscription-{place}", first)
        topic.subscriptions[driver.name] = driver


async def _ask(
    client: aiohttp.ClientSession, broker: BrokerServer, *, is_fresh: bool
) -> tuple[float, int]:
    """Seconds and bytes of one page of 50 rows."""
    if is_fresh:
        broker.overview.forget()
    began = time.perf_counter()
    async with client.get(f"{broker.web.any}/ackgate/overview?order=ranges") as answer:
        body = await answer.read()
    took = time.perf_counter() - began
    assert len(json.loads(body)["rows"]) == 50
    return took, len(body)


async def _watch(stalls: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        stalls.append(time.perf_counter() - began)
