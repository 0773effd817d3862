"""The overview of 20,000 subscriptions, over HTTP and as the page in a real Chromium.

Over HTTP: time, size, and how long the broker is held up. The page: from its address to its rows, and what it
costs while it is watched.

The broker runs in this process. The subscriptions are readers', which cost a row as much as durable ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from ackgate.broker.collector import Collector
from ackgate.broker.topic import SubscriptionDriver
from ackgate.broker.wire.names import TopicName
from bench.brokers import in_this_process
from bench.usage import cpu_seconds
from tests.support.chromium import READY, Chromium, missing

if TYPE_CHECKING:
    from ackgate.broker.server import BrokerServer

PER_TOPIC: Final = 100
ROUNDS: Final = 5
WATCHED_SECONDS: Final = 60.0
ORDERS: Final = ("backlog", "ranges", "subscription", "topic", "consumers", "worst")
DRAWN: Final = """
new Promise(done => {
  const began = performance.now();
  document.querySelector(`[data-order=ORDER]`).click();
  const main = document.querySelector("main");
  const look = () => main.dataset.ready ? done(performance.now() - began) : requestAnimationFrame(look);
  look();
})
"""
"""Milliseconds from a click on a heading to the rows in that order."""


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures for 20,000 subscriptions (200 in a smoke run)."""
    return asyncio.run(_run(200, 1.0) if smoke else _run(20_000, WATCHED_SECONDS))


async def _run(count: int, watched_seconds: float) -> dict[str, Any]:
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
            why = missing()
            return {
                "subscriptions": count,
                "fresh_s": round(min(took for took, _ in fresh), 3),
                "from_snapshot_s": round(min(took for took, _ in again), 4),
                "answer_bytes": fresh[0][1],
                "longest_turn_s": round(longest, 3),
                "page": {"left_out": why}
                if why
                else await asyncio.to_thread(_page, broker.web.any, watched_seconds),
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


def _page(url: str, watched_seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-", ignore_cleanup_errors=True) as work,
        Chromium(Path(work, "profile")) as browser,
    ):
        browser.size(1_280, 900)
        opened = []
        for _ in range(ROUNDS):
            browser.open("about:blank")
            began = time.perf_counter()
            browser.open(f"{url}/")
            browser.until(READY)
            opened.append(time.perf_counter() - began)
        sorted_ms = [browser.ask(DRAWN.replace("ORDER", order)) for order in ORDERS]
        browser.command(
            "Network.disable"
        )  # this process would read a copy of all that the page gets
        broker = cpu_seconds(os.getpid())
        tabs = {pid: cpu_seconds(pid) for pid in browser.renderer_pids()}
        began = time.monotonic()
        time.sleep(watched_seconds)
        took = time.monotonic() - began
        tab = sum(cpu_seconds(pid) - tabs.get(pid, 0.0) for pid in browser.renderer_pids())
        broker = cpu_seconds(os.getpid()) - broker
        assert browser.errors == []
        return {
            "opened_s": round(statistics.median(opened), 2),
            "sorted_ms_max": round(max(sorted_ms)),
            "tab_cores_while_watched": round(tab / took, 3),
            "broker_cores_while_watched": round(broker / took, 3),
        }
