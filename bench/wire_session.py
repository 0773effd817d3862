"""How fast is the wire alone: SENDs in, MESSAGEs out, ACKs with receipts, on one connection.

A protocol server with topics in memory runs in this process, a client with prepared frames in
another. Rates are given by the clock and by the processor time of the server (what one core carries
when nothing else competes for it).

    python -m bench.wire_session [--messages 200000] [--payload 100]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import uvloop

from ackgate.broker.schemas.registry import SchemaRegistry
from ackgate.broker.wire.protocol_server import ProtocolServer
from ackgate.config.broker import BrokerSettings
from ackgate.cursor import Position
from ackgate.persistence import MemoryMetadataStore
from tests.support.memory_topics import LEDGER_ID, MemoryRegistry, ServedHere
from tests.support.wire_client import EARLIEST, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 500
"""Frames that the client hands to its socket at a time."""

PIPES = multiprocessing.get_context("spawn")


class Phase:
    """Times one phase of the client, and the server's processor time in it."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.clock = self.processor = 0.0

    def __enter__(self) -> Self:
        self.clock, self.processor = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        clock = time.perf_counter() - self.clock
        processor = time.process_time() - self.processor
        print(
            f"{self.name:32} {self.count / clock:>10,.0f}/s by the clock"
            f" {self.count / processor:>10,.0f}/s of a core"
            f" {processor / self.count * 1e6:6.2f} us each"
        )


async def serve(messages: int, payload: int) -> None:
    """Serve, and measure what the client process does phase by phase."""
    settings: Any = SimpleNamespace(settings=SimpleNamespace(broker=BrokerSettings()))
    server = ProtocolServer(
        settings,
        MemoryRegistry(keeps_acks=False),
        SchemaRegistry(MemoryMetadataStore()),
        ServedHere(),
    )
    port = await server.listen("127.0.0.1", 0)
    ours, theirs = PIPES.Pipe()
    client = PIPES.Process(target=run_client, args=(theirs, port, messages, payload))
    client.start()
    loop = asyncio.get_running_loop()

    async def said(word: str) -> None:
        heard = await loop.run_in_executor(None, ours.recv)
        assert heard == word, heard

    for name in ("SEND in, receipts out", "MESSAGE out", "ACK in, ACK_RESPONSE out"):
        await said("ready")
        with Phase(name, messages):
            ours.send("go")
            await said("done")
    await server.close()
    await loop.run_in_executor(None, client.join)


def run_client(pipe: Any, port: int, messages: int, payload: int) -> None:
    """The other process."""
    uvloop.run(drive(pipe, port, messages, payload))


async def drive(pipe: Any, port: int, messages: int, payload: int) -> None:
    """Publish, consume, acknowledge."""
    client = await WireClient.connect("127.0.0.1", port)
    producer = await client.producer("bench")
    loop = asyncio.get_running_loop()

    async def phase(work: Callable[[], Any]) -> None:
        pipe.send("ready")
        await loop.run_in_executor(None, pipe.recv)
        await work()
        pipe.send("done")

    frames = [producer.frame(bytes(payload)) for _ in range(messages)]
    chunks = [b"".join(frames[i : i + CHUNK]) for i in range(0, messages, CHUNK)]

    async def publish() -> None:
        for chunk in chunks:
            await client.send_bulk(chunk)
        await producer.until_receipts(messages)

    await phase(publish)
    consumer = await client.subscribe("bench", "bench", initial_position=EARLIEST)

    async def consume() -> None:
        consumer.flow(messages)
        await client.until(lambda: len(consumer.received) >= messages)

    await phase(consume)
    positions = [Position(LEDGER_ID, index) for index in range(messages)]
    acks = [
        consumer.ack_frames(positions[i : i + CHUNK], 1_000_000 + i)
        for i in range(0, messages, CHUNK)
    ]

    async def acknowledge() -> None:
        for chunk in acks:
            await client.send_bulk(chunk)
        await client.until(lambda: client.acks_answered >= messages)

    await phase(acknowledge)
    await client.close()


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--payload", type=int, default=100)
    given = parser.parse_args()
    uvloop.run(serve(given.messages, given.payload))


if __name__ == "__main__":
    main()
