"""How long a broker takes from SIGTERM to its end: with clients, with clients that read nothing, with topics.

Our broker in a process of its own. The topics have acks that were applied and are not written yet; the
clients have a consumer each, with messages on their way.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.testing import BrokerProcess
from tests.support.wire_client import EARLIEST, WireClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PREFIX: Final = "persistent://public/default/"
AT_ONCE: Final = 50
MESSAGES: Final = 6
LARGE_BYTES: Final = 1_000_000


def run(*, smoke: bool) -> dict[str, Any]:
    """Seconds, each on a broker of its own."""
    clients, topics = (5, 10) if smoke else (100, 1_000)
    return {
        f"{clients}_clients_s": _stopped(lambda port: _clients(port, clients)),
        f"{clients}_clients_that_read_nothing_s": _stopped(lambda port: _deaf(port, clients)),
        f"{topics}_topics_with_unwritten_acks_s": _stopped(lambda port: _topics(port, topics)),
    }


def _stopped(prepare: Callable[[int], Awaitable[list[WireClient]]]) -> float:
    async def main(broker: BrokerProcess) -> float:
        clients = await prepare(broker.port)
        began = time.perf_counter()
        code = await asyncio.to_thread(broker.stop, 120.0)
        seconds = time.perf_counter() - began
        if code:
            raise RuntimeError(f"exit code {code}: {broker.log[-2000:]}")
        for client in clients:
            await client.close()
        return round(seconds, 2)

    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        BrokerProcess(Path(directory) / "data") as broker,
    ):
        return asyncio.run(main(broker))


async def _clients(port: int, count: int) -> list[WireClient]:
    clients = []
    for number in range(count):
        client = await WireClient.connect("127.0.0.1", port)
        clients.append(client)
        await _work(client, f"{PREFIX}t-{number % 10}", f"s-{number}")
    return clients


async def _deaf(port: int, count: int) -> list[WireClient]:
    topic = f"{PREFIX}large"
    clients = [await WireClient.connect("127.0.0.1", port)]
    producer = await clients[0].producer(topic)
    for _ in range(20):
        await producer.send(bytes(LARGE_BYTES))
    for number in range(count):
        client = await WireClient.connect("127.0.0.1", port)
        clients.append(client)
        consumer = await client.subscribe(topic, f"s-{number}", initial_position=EARLIEST)
        client.pause_reading()
        consumer.flow(1_000)
    return clients


async def _topics(port: int, count: int) -> list[WireClient]:
    client = await WireClient.connect("127.0.0.1", port)
    topics = [f"{PREFIX}t-{number}" for number in range(count)]
    for at in range(0, count, AT_ONCE):
        await asyncio.gather(*(_work(client, topic, "s") for topic in topics[at : at + AT_ONCE]))
    return [client]


async def _work(client: WireClient, topic: str, subscription: str) -> None:
    consumer = await client.subscribe(topic, subscription, initial_position=EARLIEST)
    consumer.flow(2 * MESSAGES)
    producer = await client.producer(topic)
    for _ in range(MESSAGES):
        await producer.send(b"x")
    consumer.ack_without_receipt(*(await consumer.receive_many(MESSAGES))[::2])
