"""Durable adds: one journal for all ledgers of a bookie, against a file with a sync of its own each.

Both take the same rounds: every ledger adds a batch of 20 entries of 100 bytes, with four rounds in
flight. The journal gathers whatever waits; the other design gathers the four batches of its ledger.
It neither encodes nor checks its entries: its figures are what a log per ledger can reach at best.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from ackgate.persistence import BookieLedgerClient, LedgerOptions, MemoryMetadataStore, open_bookies

PAYLOAD: Final = bytes(100)
BATCH: Final = 20
"""Entries that a ledger adds at a time."""

IN_FLIGHT: Final = 4
"""Rounds that are not yet durable, as with a client that has a window."""

SYNC_THREADS: Final = 16
"""Threads that sync files at the same time in the design with a file per ledger."""


def run(*, smoke: bool) -> dict[str, Any]:
    """Durable adds a second for 1, 10 and 1,000 ledgers, by design."""
    counts = (1, 5) if smoke else (1, 10, 1_000)
    entries = 2_000 if smoke else 200_000
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory:
        for count in counts:
            rounds = max(IN_FLIGHT, entries // (count * BATCH))
            place = Path(directory) / str(count)
            journal = asyncio.run(_journal(place / "journal", count, rounds))
            alone = _file_per_ledger(place / "files", count, rounds // IN_FLIGHT)
            figures[f"{count}_ledgers"] = {
                "journal_adds_per_s": round(journal),
                "file_per_ledger_adds_per_s": round(alone),
                "ratio": round(journal / alone, 2),
            }
    return figures


async def _journal(directory: Path, count: int, rounds: int) -> float:
    client = BookieLedgerClient(await open_bookies([directory]), MemoryMetadataStore())
    try:
        writers = await asyncio.gather(*(client.create(LedgerOptions()) for _ in range(count)))
        payloads = [PAYLOAD] * BATCH
        began = time.perf_counter()
        waiting: list[asyncio.Future[None]] = []
        for _ in range(rounds):
            waiting += [writer.append(payloads).durable for writer in writers]
            if len(waiting) >= IN_FLIGHT * count:
                await asyncio.gather(*waiting[:count])
                del waiting[:count]
        await asyncio.gather(*waiting)
        return count * BATCH * rounds / (time.perf_counter() - began)
    finally:
        await client.close()


def _file_per_ledger(directory: Path, count: int, rounds: int) -> float:
    directory.mkdir(parents=True)
    files = [
        os.open(directory / str(index), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for index in range(count)
    ]
    block = PAYLOAD * BATCH * IN_FLIGHT

    def add(descriptor: int) -> None:
        os.write(descriptor, block)
        os.fdatasync(descriptor)

    try:
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            began = time.perf_counter()
            for _ in range(rounds):
                list(pool.map(add, files))
            return count * BATCH * rounds / (time.perf_counter() - began)
    finally:
        for descriptor in files:
            os.close(descriptor)
