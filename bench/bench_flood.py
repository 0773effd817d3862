"""A flood of large messages: what the broker holds in memory, and how long a small sender waits meanwhile.

30 connections send sixteen messages of 5.2 MB each, as fast as they are taken, and another one sends a
byte at a time, waiting for each receipt. The flood and the small sender are processes of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.persistence.messages.frame import seal_entry
from bench.brokers import Ackgate, Pulsar, pulsar_is_missing, running
from tests.support.wire_client import DisconnectedError, WireClient

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

PROCESSES: Final = multiprocessing.get_context("spawn")
LOOK_SECONDS: Final = 0.02
PAUSE_SECONDS: Final = 0.01
"""Between two sends of the small sender."""

FLOOD_SECONDS_MAX: Final = 300

CALM_SECONDS: Final = 1.0
"""How long the small sender is measured alone before the flood."""


class Sizes(NamedTuple):
    """How much work one run does."""

    connections: int
    messages: int
    message_bytes: int


FULL = Sizes(30, 16, 5_200_000)
SMOKE = Sizes(3, 4, 1_000_000)


def run(*, smoke: bool, with_peer: bool = True) -> dict[str, Any]:
    """All figures, by broker."""
    sizes = SMOKE if smoke else FULL
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        results["ackgate"] = _measure(Ackgate(Path(work) / "ackgate", {}), sizes)
        if with_peer and not smoke:
            missing = pulsar_is_missing()
            results["pulsar"] = (
                {"skipped": missing}
                if missing
                else _measure(Pulsar(Path(work) / "pulsar", {}), sizes)
            )
    return results


def _measure(broker: Ackgate | Pulsar, sizes: Sizes) -> dict[str, Any]:
    with running(broker):
        is_over = PROCESSES.Event()
        ours, theirs = PROCESSES.Pipe()
        small = PROCESSES.Process(target=_send_small, args=(broker.protocol_port, is_over, theirs))
        small.start()
        ours.recv()
        time.sleep(CALM_SECONDS)
        before = peak = broker.resident_bytes()
        began = time.time()
        flood = PROCESSES.Process(target=_flood, args=(broker.protocol_port, sizes))
        flood.start()
        while flood.is_alive() and time.time() < began + FLOOD_SECONDS_MAX:
            peak = max(peak, broker.resident_bytes())
            time.sleep(LOOK_SECONDS)
        seconds = time.time() - began
        is_over.set()
        sent = ours.recv()
        small.join()
        flood.kill()
        flood.join()
    if flood.exitcode:
        return {"skipped": f"the flood was not through after {seconds:.0f} s"}
    sent_bytes = sizes.connections * sizes.messages * sizes.message_bytes
    return {
        "flood_mb": sent_bytes // 1_000_000,
        "flood_mb_per_s": round(sent_bytes / 1e6 / seconds, 1),
        "resident_mb_before": before // 1_000_000,
        "resident_mb_peak": peak // 1_000_000,
        "small_sends_alone": _percentiles([took for at, took in sent if at < began]),
        "small_sends_during_the_flood": _percentiles([took for at, took in sent if at >= began]),
    }


def _percentiles(seconds: list[float]) -> dict[str, Any]:
    if len(seconds) < 2:
        return {"count": len(seconds)}
    hundredths = statistics.quantiles(seconds, n=100)
    return {
        "count": len(seconds),
        "p50_ms": round(hundredths[49] * 1000, 2),
        "p99_ms": round(hundredths[98] * 1000, 2),
        "max_ms": round(max(seconds) * 1000, 2),
    }


def _flood(port: int, sizes: Sizes) -> None:
    async def connection(number: int, entry: bytes) -> None:
        client = await WireClient.connect("127.0.0.1", port)
        topic = f"persistent://public/default/flood-{number}"
        await client.lookup(topic)
        producer = await client.producer(topic)
        for sequence_id in range(sizes.messages):
            await client.send_bulk(producer.raw_frame(entry, sequence_id))
        while producer.receipts < sizes.messages:
            if client.closed.done() or producer.errors:
                raise RuntimeError(f"connection {number}: {producer.errors or 'closed'}")
            await asyncio.sleep(LOOK_SECONDS)
        await client.close()

    async def main() -> None:
        metadata = pb.MessageMetadata(producer_name="flood", sequence_id=0, publish_time=1)
        entry = seal_entry(metadata.SerializeToString(), bytes(sizes.message_bytes))
        await asyncio.gather(*(connection(number, entry) for number in range(sizes.connections)))

    asyncio.run(main())


def _send_small(port: int, is_over: Event, pipe: Any) -> None:
    """Puts (when, seconds until the receipt) of each send into the pipe, when the flood is over.

    One that gets no answer in 30 s is the last.
    """

    async def main() -> None:
        topic = "persistent://public/default/small"
        async with await WireClient.connect("127.0.0.1", port) as client:
            await client.lookup(topic)
            producer = await client.producer(topic)
            await producer.send(b"x")
            pipe.send(None)
            sent: list[tuple[float, float]] = []
            is_answered = True
            while is_answered and not is_over.is_set():
                at, began = time.time(), time.perf_counter()
                try:
                    await producer.send(b"x")
                except (TimeoutError, DisconnectedError):
                    is_answered = False
                sent.append((at, time.perf_counter() - began))
                await asyncio.sleep(PAUSE_SECONDS)
            pipe.send(sent)

    asyncio.run(main())
