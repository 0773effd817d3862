"""Our client of BookKeeper beside its own Java client, on the same real bookies, in turns.

Adds with 1,000 unanswered for some seconds: entries a second, milliseconds from the add to its confirmation,
processor time of the client for each. These milliseconds are no comparison where the Java client's thread
does not come to keep 1,000 unanswered: fewer that wait wait less. So both clients also add at one steady
rate, and an add counts from the moment at which it was due. Reads of one ledger by both clients, from the
first entry to the last; in batches where each bookie has every entry. Recovery of ledgers whose writer left
1,000 adds behind the last add confirmed. Three bookies, a ZooKeeper server and both clients share the
machine. The Java client speaks wire protocol v2, as Pulsar's does; its first turns are left out, for its
compiler's sake.

``python -m bench.bench_bookkeeper --quorums 3/3/2 --bytes 100 --seconds 2 --turns 5`` measures one row.

Without the bookies (scripts/ensure-bookkeeper.sh) it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import uvloop

from ackgate.bookkeeper import BookKeeperClient, BookKeeperSettings, LedgerOptions
from bench.__main__ import show
from bench.usage import cpu_seconds
from tests.support.bookkeeper import JavaClient, RealBookKeeper, missing

UNANSWERED: Final = 1_000
QUORUMS: Final = ((3, 3, 2), (3, 2, 2), (1, 1, 1))
PAYLOAD_BYTES: Final = (100, 1_024)
STEADY_PER_SECOND: Final = 5_000
"""A third of what the slower client does here with 1,000 unanswered."""

READ_STEP: Final = 100
"""Entries that one read asks for where there are no batches."""

JVM: Final = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")
BOOKIE_JVM: Final = ("-XX:TieredStopAtLevel=4",)
"""All of Java's compilers: tests do without the better one, because it takes longer than they do."""


class Work(NamedTuple):
    """What is measured."""

    quorums: tuple[tuple[int, int, int], ...] = QUORUMS
    payload_bytes: tuple[int, ...] = PAYLOAD_BYTES
    turns: int = 3
    seconds: float = 4.0
    warm_turns: int = 2
    """Of the Java client alone, before the first that counts."""
    has_recovery: bool = True
    is_steady_only: bool = False


SMOKE: Final = Work(QUORUMS[-1:], PAYLOAD_BYTES[:1], turns=1, seconds=0.2, warm_turns=0)


def run(*, smoke: bool) -> dict[str, Any]:
    """By quorums and payload: figures of each client, medians of the turns, and ours by Java's."""
    return _measured(SMOKE if smoke else Work())


def _measured(work: Work) -> dict[str, Any]:
    if why := missing():
        return {"skipped": why}
    client_jvm, bookie_jvm = ((), ()) if work is SMOKE else (JVM, BOOKIE_JVM)
    with (
        tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory,
        RealBookKeeper(Path(directory, "cluster"), options=bookie_jvm) as cluster,
    ):
        java = JavaClient(cluster, Path(directory, "java"), *client_jvm)
        try:
            return _figures(cluster, java, work)
        finally:
            java.close()


def _figures(cluster: RealBookKeeper, java: JavaClient, work: Work) -> dict[str, Any]:
    seconds = work.seconds
    figures: dict[str, Any] = {}
    for _ in range(work.warm_turns):
        _java_adds(java, work.quorums[0], work.payload_bytes[0], seconds)
    for quorums in work.quorums:
        for size in work.payload_bytes:
            ours: list[dict[str, float]] = []
            theirs: list[dict[str, float]] = []
            for _ in range(work.turns):
                if work.is_steady_only:
                    theirs.append(_java_steady(java, quorums, size, seconds))
                    ours.append(_with_client(cluster, _our_steady, quorums, size, seconds))
                    continue
                before = cpu_seconds(java.pid)
                java_adds = _java_adds(java, quorums, size, seconds)
                used = cpu_seconds(java.pid) - before
                java_adds["cpu_us_per_add"] = used / java_adds["entries"] * 1e6
                before = cpu_seconds(os.getpid())
                ledger_id, our_adds = _with_client(cluster, _our_adds, quorums, size, seconds)
                used = cpu_seconds(os.getpid()) - before
                our_adds["cpu_us_per_add"] = used / our_adds["entries"] * 1e6
                java_adds |= _java_steady(java, quorums, size, seconds)
                our_adds |= _with_client(cluster, _our_steady, quorums, size, seconds)
                theirs.append(java_adds | _java_scan(java, ledger_id, quorums, our_adds["entries"]))
                ours.append(our_adds | _with_client(cluster, _our_scan, ledger_id, quorums))
            name = "/".join(map(str, quorums)) + f"_{size}_bytes"
            figures[name] = _beside(ours, theirs)
    if work.has_recovery:
        ours, theirs = [], []
        for _ in range(work.turns):
            ours.append(_with_client(cluster, _our_recovery, java))
            theirs.append(_with_client(cluster, _java_recovery, java))
        figures["recovery"] = _beside(ours, theirs)
    return figures


def _beside(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key in ours[0]:
        our, their = median(turn[key] for turn in ours), median(turn[key] for turn in theirs)
        ratio = f"   ratio {our / their:.2f}" if their else ""
        rows[key] = f"{our:,.1f}   java {their:,.1f}{ratio}"
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
) -> tuple[int, dict[str, float]]:
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
    return writer.ledger_id, {
        "entries": len(taken),
        "adds_per_s": len(taken) / took,
        "add_p50_ms": taken[len(taken) // 2] * 1000,
        "add_p99_ms": taken[int(len(taken) * 0.99)] * 1000,
    }


async def _our_steady(
    client: BookKeeperClient, quorums: tuple[int, int, int], size: int, seconds: float
) -> dict[str, float]:
    writer = await client.create(LedgerOptions(*quorums))
    payload, taken = (bytes(size),), list[float]()
    count = int(seconds * STEADY_PER_SECOND)
    all_done = asyncio.get_running_loop().create_future()
    begun = time.perf_counter()

    def done(due_at: float, durable: asyncio.Future[None]) -> None:
        durable.result()
        taken.append(time.perf_counter() - due_at)
        if len(taken) == count:
            all_done.set_result(None)

    sent = 0
    while sent < count:
        due = min(count, int((time.perf_counter() - begun) * STEADY_PER_SECOND))
        for number in range(sent, due):
            due_at = begun + number / STEADY_PER_SECOND
            writer.append(payload).durable.add_done_callback(partial(done, due_at))
        sent = due
        await asyncio.sleep(
            0.001
        )  # a timer of the loop has whole milliseconds, as Java's sleep has
    await all_done
    await writer.close()
    taken.sort()
    return {
        "steady_p50_ms": taken[count // 2] * 1000,
        "steady_p99_ms": taken[int(count * 0.99)] * 1000,
    }


async def _our_scan(
    client: BookKeeperClient, ledger_id: int, quorums: tuple[int, int, int]
) -> dict[str, float]:
    reader = await client.open(ledger_id)
    count = reader.last_add_confirmed + 1
    step = 10_000 if quorums[0] == quorums[1] else READ_STEP
    begun = time.perf_counter()
    for first in range(0, count, step):
        await reader.read(first, min(first + step, count) - 1)
    return {"reads_per_s": count / (time.perf_counter() - begun)}


def _java_adds(
    java: JavaClient, quorums: tuple[int, int, int], size: int, seconds: float
) -> dict[str, float]:
    numbers = (*quorums, size, seconds, UNANSWERED)
    [answer] = java.ask("adds", "CRC32C", "", *map(str, numbers))
    _, count, took, middle, high = answer.split()
    return {
        "entries": int(count),
        "adds_per_s": int(count) / float(took),
        "add_p50_ms": float(middle),
        "add_p99_ms": float(high),
    }


def _java_steady(
    java: JavaClient, quorums: tuple[int, int, int], size: int, seconds: float
) -> dict[str, float]:
    numbers = (*quorums, size, seconds, STEADY_PER_SECOND)
    [answer] = java.ask("steady", "CRC32C", "", *map(str, numbers))
    *_, middle, high = answer.split()
    return {"steady_p50_ms": float(middle), "steady_p99_ms": float(high)}


def _java_scan(
    java: JavaClient, ledger_id: int, quorums: tuple[int, int, int], count: float
) -> dict[str, float]:
    step = 0 if quorums[0] == quorums[1] else READ_STEP
    [took] = java.ask("scan", "CRC32C", "", str(ledger_id), str(step))
    return {"reads_per_s": count / float(took)}


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


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_bookkeeper")
    parser.add_argument("--quorums", default="3/3/2", help="ensemble, write and ack quorum")
    parser.add_argument("--bytes", type=int, default=PAYLOAD_BYTES[0], help="of each payload")
    parser.add_argument("--seconds", type=float, default=2.0, help="of adds in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--recovery", action="store_true", help="of 1,000 entries, too")
    parser.add_argument(
        "--steady", action="store_true", help="adds at the steady rate, nothing else"
    )
    arguments = parser.parse_args()
    ensemble, write, ack = map(int, arguments.quorums.split("/"))
    work = Work(
        ((ensemble, write, ack),),
        (arguments.bytes,),
        turns=arguments.turns,
        seconds=arguments.seconds,
        has_recovery=arguments.recovery,
        is_steady_only=arguments.steady,
    )
    show(_measured(work), "")


if __name__ == "__main__":
    _main()
