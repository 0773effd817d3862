"""When a broker goes: how long until another one serves its topics, and a clean handover beside it.

A real ZooKeeper server, brokers as processes on shared bookies. A takeover is counted from the
moment of ``kill -9``; the session time-out, which is a setting, is in it and also taken off. The
handover is what the real ``pulsar-client`` sees: the longest silence between two messages while the
topic's bundle is unloaded under a steady stream.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from ackgate.testing import BrokerCluster, ZooKeeperFailedError
from ackgate.testing.cluster import SESSION_TIMEOUT_MS
from bench.bench_broker import load
from tests.support.wire_client import (
    EARLIEST,
    DisconnectedError,
    RefusedError,
    WireClient,
    WireConsumer,
)

MESSAGES_PER_TOPIC: Final = 4
AT_ONCE: Final = 200
"""Requests under way at a time, from one connection."""

PAUSE_SECONDS: Final = 0.01


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures."""
    try:
        return _run(smoke=smoke)
    except ZooKeeperFailedError as error:
        return {"skipped": str(error).splitlines()[0]}


def _run(*, smoke: bool) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        BrokerCluster(Path(directory), settings={"defaultNumberOfNamespaceBundles": 16}) as cluster,
    ):
        figures: dict[str, Any] = {
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "handover": _handovers(cluster, 2 if smoke else 20),
        }
        figures["takeover"] = asyncio.run(takeovers(cluster, 1 if smoke else 3))
        figures["many_topics"] = asyncio.run(_many_topics(cluster, 20 if smoke else 2_000))
    return figures


# ---------------------------------------------------------------------------------------- handover


def _handovers(cluster: BrokerCluster, rounds: int) -> dict[str, Any]:
    silences = load(
        "handover",
        url=cluster.service_url,
        admin=cluster.brokers[0].admin_url,
        topic="handover",
        rounds=rounds,
    )["silences_ms"]
    return {
        "rounds": rounds,
        "longest_silence_ms_median": round(statistics.median(silences), 1),
        "longest_silence_ms_max": round(max(silences), 1),
    }


# ---------------------------------------------------------------------------------------- takeover


async def takeovers(cluster: BrokerCluster, rounds: int) -> dict[str, Any]:
    """`kill -9` of the broker that serves a topic, to the first message from the other one."""
    seconds = []
    for number in range(rounds):
        topic = f"takeover-{number}"
        dead = cluster.brokers[cluster.owner(topic)]
        (survivor,) = (broker for broker in cluster.brokers if broker is not dead)
        async with await WireClient.connect("127.0.0.1", dead.port) as client:
            await client.subscribe(topic, "s", initial_position=EARLIEST)
            await (await client.producer(topic)).send(b"x")
        dead.kill()
        began = time.perf_counter()
        async with await WireClient.connect("127.0.0.1", survivor.port) as client:
            consumer = await _subscribe(client, topic, survivor.service_url)
            consumer.flow(1)
            await consumer.receive()
        seconds.append(time.perf_counter() - began)
        await asyncio.to_thread(dead.start)
    longest = max(seconds)
    return {
        "rounds": rounds,
        "kill_to_first_message_s_max": round(longest, 2),
        "beyond_the_session_s_max": round(longest - SESSION_TIMEOUT_MS / 1000, 2),
    }


async def _many_topics(cluster: BrokerCluster, count: int) -> dict[str, Any]:
    """`count` topics, each with a subscription that has acked out of order; one broker dies."""
    topics = [f"persistent://public/default/many-{number}" for number in range(count)]
    owners = await _prepare(cluster, topics)
    # Bundles stay where the rounds before have left them: perhaps all with one broker.
    survivor, dead = sorted(cluster.brokers, key=lambda broker: len(owners[broker.service_url]))
    of_dead = owners[dead.service_url]
    dead.kill()
    began = time.perf_counter()
    async with await WireClient.connect("127.0.0.1", survivor.port) as client:
        first = await _subscribe(client, of_dead[0], survivor.service_url)
        session_over = time.perf_counter()
        await first.close()
        await _each(of_dead, lambda topic: _receive_rest(client, topic, survivor.service_url))
    done = time.perf_counter()
    return {
        "topics_moved": len(of_dead),
        "kill_to_all_served_s": round(done - began, 2),
        "first_served_to_all_served_s": round(done - session_over, 2),
    }


async def _prepare(cluster: BrokerCluster, topics: list[str]) -> dict[str, list[str]]:
    """Messages and acks in every topic. Returns the topics of each broker."""
    clients = {
        broker.service_url: await WireClient.connect("127.0.0.1", broker.port)
        for broker in cluster.brokers
    }
    first = cluster.brokers[0].service_url
    owned: dict[str, str] = {}

    async def prepare(topic: str) -> None:
        owner = await _owner(clients[first], topic)
        owned[topic] = owner
        client = clients[owner]
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = await client.producer(topic)
        for _ in range(MESSAGES_PER_TOPIC):
            await producer.send(b"x")
        consumer.flow(MESSAGES_PER_TOPIC)
        messages = await consumer.receive_many(MESSAGES_PER_TOPIC)
        await consumer.ack(messages[1])
        await producer.close()
        await consumer.close()

    await _each(topics, prepare)
    for client in clients.values():
        await client.close()
    return {url: [topic for topic in topics if owned[topic] == url] for url in clients}


async def _owner(client: WireClient, topic: str) -> str:
    """The owner's URL; a redirect makes whom it names the owner."""
    answer = await client.lookup_answer(topic)
    if answer.authoritative:
        host, port = answer.brokerServiceUrl.removeprefix("pulsar://").split(":")
        async with await WireClient.connect(host, int(port)) as other:
            answer = await other.lookup_answer(topic, is_authoritative=True)
    return answer.brokerServiceUrl


async def _receive_rest(client: WireClient, topic: str, service_url: str) -> None:
    consumer = await _subscribe(client, topic, service_url)
    consumer.flow(MESSAGES_PER_TOPIC)
    await consumer.receive_many(MESSAGES_PER_TOPIC - 1)
    await consumer.close()


async def _subscribe(client: WireClient, topic: str, service_url: str) -> WireConsumer:
    """Subscribe as soon as this broker serves the topic."""
    while True:
        try:
            if (await client.lookup(topic)) == service_url:
                return await client.subscribe(topic, "s", initial_position=EARLIEST)
        except RefusedError:
            pass
        except DisconnectedError as error:
            raise RuntimeError(f"{service_url} went as well") from error
        await asyncio.sleep(PAUSE_SECONDS)


async def _each(topics: list[str], work: Any) -> None:
    waiting = iter(topics)

    async def worker() -> None:
        for topic in waiting:
            await work(topic)

    await asyncio.gather(*(worker() for _ in range(min(AT_ONCE, len(topics)))))


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
