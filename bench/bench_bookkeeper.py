"""Our client of BookKeeper beside its own Java client, on the same real bookies, in turns.

Adds with 1,000 unanswered for some seconds: entries a second, and milliseconds from the add to its
confirmation. Reads of what was added, from the first entry to the last. Recovery of ledgers whose writer
left 1,000 adds behind the last add confirmed. Three bookies, a ZooKeeper server and both clients share the
machine. The Java client speaks wire protocol v2, as Pulsar's does; its first turn is left out, for its
compiler's sake.

Without the bookies (scripts/ensure-bookkeeper.sh) it says so and measures nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

from ackgate.bookkeeper import BookKeeperClient, BookKeeperSettings, LedgerOptions
from tests.support.bookkeeper import JavaClient, RealBookKeeper, missing

UNANSWERED: Final = 1_000
QUORUMS: Final = ((3, 3, 2), (3, 2, 2), (1, 1, 1))
PAYLOAD_BYTES: Final = (100, 1_024)
READ_STEP: Final = 100
"""Entries that one read asks for where there are no batches."""

TURNS: Final = 3
JVM: Final = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")


def run(*, smoke: bool) -> dict[str, Any]:
    """By quorums and payload: figures of each client, medians of the turns, and ours by Java's."""
    if why := missing():
        return {"skipped": why}
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        RealBookKeeper(Path(directory, "cluster")) as cluster,
    ):
        java = JavaClient(cluster, Path(directory, "java"), *JVM)
        try:
            return _figures(cluster, java, smoke=smoke)
        finally:
            java.close()


def _figures(cluster: RealBookKeeper, java: JavaClient, *, smoke: bool) -> dict[str, Any]:
    turns, seconds = (1, 0.2) if smoke else (TURNS, 4.0)
    figures: dict[str, Any] = {}
    if not smoke:
        _java_adds(java, QUORUMS[0], PAYLOAD_BYTES[0], seconds)
    for quorums in QUORUMS[-1:] if smoke else QUORUMS:
        for size in PAYLOAD_BYTES[:1] if smoke else PAYLOAD_BYTES:
            ours: list[dict[str, float]] = []
            theirs: list[dict[str, float]] = []
            for _ in range(turns):
                theirs.append(_java_adds(java, quorums, size, seconds))
                ours.append(_with_client(cluster, _our_adds, quorums, size, seconds))
            name = "/".join(map(str, quorums)) + f"_{size}_bytes"
            figures[name] = _beside(ours, theirs)
    figures["recovery"] = _beside(
        [_with_client(cluster, _our_recovery, java) for _ in range(turns)],
        [_with_client(cluster, _java_recovery, java) for _ in range(turns)],
    )
    return figures


def _beside(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key in ours[0]:
        our, their = median(turn[key] for turn in ours), median(turn[key] for turn in theirs)
        rows[key] = f"{our:,.1f}   java {their:,.1f}   ratio {our / their:.2f}"
    return rows


def _with_client(cluster: RealBookKeeper, work: Any, *arguments: Any) -> Any:
    async def main() -> Any:
        settings = BookKeeperSettings(timeout_seconds=30)
        client = await BookKeeperClient.connect(cluster.uri, settings=settings)
        try:
            return await work(client, *arguments)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def _our_adds(
    client: BookKeeperClient, quorums: tuple[int, int, int], size: int, seconds: float
) -> dict[str, float]:
    writer = await client.create(LedgerOptions(*quorums))
    loop = asyncio.get_running_loop()
    payload, taken = (bytes(size),), list[float]()
    all_done = loop.create_future()
    begun = time.perf_counter()
    left, end = UNANSWERED, begun + seconds

    def add() -> None:
        sent = time.perf_counter()

        def done(durable: asyncio.Future[None]) -> None:
            nonlocal left
            durable.result()
            now = time.perf_counter()
            taken.append(now - sent)
            if now < end:
                add()
            else:
                left -= 1
                if not left:
                    all_done.set_result(None)

        writer.append(payload).durable.add_done_callback(done)

    for _ in range(UNANSWERED):
        add()
    await all_done
    took = time.perf_counter() - begun
    taken.sort()
    await writer.close()
    reader = await client.open(writer.ledger_id)
    step = 10_000 if quorums[0] == quorums[1] else READ_STEP
    begun = time.perf_counter()
    for first in range(0, len(taken), step):
        await reader.read(first, min(first + step, len(taken)) - 1)
    return {
        "adds_per_s": len(taken) / took,
        "add_p50_ms": taken[len(taken) // 2] * 1000,
        "add_p99_ms": taken[int(len(taken) * 0.99)] * 1000,
        "reads_per_s": len(taken) / (time.perf_counter() - begun),
    }


def _java_adds(
    java: JavaClient, quorums: tuple[int, int, int], size: int, seconds: float
) -> dict[str, float]:
    numbers = (*quorums, size, seconds, UNANSWERED)
    [answer] = java.ask("adds", "CRC32C", "", *map(str, numbers))
    ledger_id, count, took, middle, high = answer.split()
    step = 0 if quorums[0] == quorums[1] else READ_STEP
    [scanned] = java.ask("scan", "CRC32C", "", ledger_id, str(step))
    return {
        "adds_per_s": int(count) / float(took),
        "add_p50_ms": float(middle),
        "add_p99_ms": float(high),
        "reads_per_s": int(count) / float(scanned),
    }


async def _left_ledger(client: BookKeeperClient) -> int:
    """A ledger of 1,000 entries, none of which says that one before it is confirmed."""
    writer = await client.create(LedgerOptions(3, 3, 2))
    await writer.append([bytes(100)] * UNANSWERED).durable
    return writer.ledger_id


async def _our_recovery(client: BookKeeperClient, _: JavaClient) -> dict[str, float]:
    ledger_id = await _left_ledger(client)
    begun = time.perf_counter()
    reader = await client.open(ledger_id)
    took = time.perf_counter() - begun
    assert reader.last_add_confirmed == UNANSWERED - 1
    return {"recovery_ms": took * 1000}


async def _java_recovery(client: BookKeeperClient, java: JavaClient) -> dict[str, float]:
    ledger_id = await _left_ledger(client)
    [took] = await asyncio.to_thread(java.ask, "open", "CRC32C", "", str(ledger_id))
    return {"recovery_ms": float(took) * 1000}
