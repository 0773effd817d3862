"""Persistence of cursors: how large, how fast, how many at once, and what comes back.

Sizes and times of records are taken in memory; whatever says "durable" goes through real bookies and
a real SQLite file in a temporary directory, with real syncs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ackgate.cursor import ManagedCursor, MessageLedgers, Position
from ackgate.persistence import (
    BookieLedgerClient,
    CursorStore,
    LedgerEntry,
    MemoryMetadataStore,
    PersistenceSettings,
    SqliteMetadataStore,
    cursor_path,
    open_bookies,
    topic_path,
)
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import plan_delta, plan_snapshot
from ackgate.persistence.records.recovery import TailScan, recover
from ackgate.testing import MemoryLedgerClient, MemoryLedgers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from numpy.typing import NDArray

    from ackgate.persistence import LedgerClient, MetadataStore

SEED: Final = 20261121
MESSAGES: Final = 3
"""Id of the message ledger."""
UNLIMITED: Final = PersistLimits(2**40, 2**40)
_IN_A_ROW: Final = {
    "ack_persist_linger_ms": 0,
    "managed_ledger_max_unacked_ranges_to_persist": 10**6,
}
ZSTD: Final = Packing(Compression.ZSTD, 256)


class Sizes(NamedTuple):
    """How much work one run does."""

    random_entries: int
    alternating_entries: int
    recovered_holes: int
    huge_ranges: int
    groups: int
    cursors: int
    repeats: int


FULL = Sizes(
    random_entries=1_000_000,
    alternating_entries=100_000,
    recovered_holes=500_000,
    huge_ranges=10_000_000,
    groups=3_000,
    cursors=1_000,
    repeats=5,
)
SMOKE = Sizes(
    random_entries=1_000,
    alternating_entries=1_000,
    recovered_holes=500,
    huge_ranges=10_000,
    groups=20,
    cursors=10,
    repeats=1,
)


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures."""
    sizes = SMOKE if smoke else FULL
    return {
        "snapshot_bytes": _snapshot_sizes(sizes),
        f"recovery_of_{sizes.recovered_holes}_acked_holes": _recovery(sizes),
        "delta_encode_us": _delta_costs(sizes),
        **asyncio.run(_durable(sizes)),
    }


# ----------------------------------------------------------------------------- in memory


def _snapshot_sizes(sizes: Sizes) -> dict[str, int]:
    half = np.random.default_rng(SEED).random(sizes.random_entries) < 0.5
    every_second = np.arange(0, sizes.alternating_entries, 2)
    return {
        f"{sizes.random_entries}_half_acked_at_random": len(
            _snapshot_of(np.flatnonzero(half), sizes.random_entries)
        ),
        f"{sizes.alternating_entries}_alternating": len(
            _snapshot_of(every_second + 1, sizes.alternating_entries + 1)
        ),
    }


def _recovery(sizes: Sizes) -> dict[str, float]:
    acked = _with_gaps(sizes.recovered_holes)
    entries = int(acked[-1]) + 1
    encoded = _snapshot_of(acked, entries)

    def fold() -> None:
        scan = TailScan()
        scan.feed([LedgerEntry(0, encoded)])
        state = recover(scan.finish(), None).state
        assert state is not None
        cursor, report = ManagedCursor.from_snapshot(_topic(entries), state.record.snapshot)
        assert report.is_clean
        assert cursor.range_count == sizes.recovered_holes

    return {"ms": round(_best_us(fold, sizes.repeats) / 1000, 3)}


def _delta_costs(sizes: Sizes) -> dict[str, float]:
    """Taking the growth, planning, Avro, checksum: all of a write but the ledger."""
    costs = {}
    for acks in (1, 10, 1_000):
        cursor = ManagedCursor(_topic(4_000_000), Position(MESSAGES, -1))
        cursor.take_snapshot()
        order = np.random.default_rng(SEED).permutation(np.arange(1, 4_000_000, 2))
        best = float("inf")
        for start in range(0, acks * sizes.repeats * 20, acks):
            cursor.ack_many(MESSAGES, order[start : start + acks])
            began = time.perf_counter()
            growth = cursor.take_growth()
            assert growth is not None
            plan = plan_delta(
                growth, partly_acked_count=0, limits=UNLIMITED, owner_epoch=1, now_ms=0
            )
            assert plan is not None
            encode_record(plan.record, ZSTD)
            best = min(best, time.perf_counter() - began)
        costs[f"{acks}_acks"] = round(best * 1e6, 1)
    return costs


def _snapshot_of(acked: NDArray[np.int64], entries: int) -> bytes:
    cursor = ManagedCursor(_topic(entries), Position(MESSAGES, -1))
    cursor.ack_many(MESSAGES, acked)
    plan = plan_snapshot(cursor.take_snapshot(), limits=UNLIMITED, owner_epoch=1, now_ms=0)
    return encode_record(plan.record, ZSTD)


def _with_gaps(count: int) -> NDArray[np.int64]:
    """Single entries, one to four unacked ones between them: no pattern that compresses away."""
    return np.cumsum(np.random.default_rng(SEED).integers(2, 6, count))


def _topic(entries: int) -> MessageLedgers:
    ledgers = MessageLedgers()
    ledgers.open_ledger(MESSAGES)
    ledgers.add_entries(MESSAGES, entries)
    return ledgers


def _best_us(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1e6


# ------------------------------------------------------------------------------- durable


async def _durable(sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "one_write_without_disk_us": await _write_cost(sizes),
        "idle_bytes": await _idle_bytes(sizes),
    }
    for name, measure in (
        (f"{sizes.huge_ranges}_ranges", _huge),
        ("groups_of_shuffled_acks", _groups),
        (f"{sizes.cursors}_dirty_cursors", _many),
    ):
        with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory:
            figures[name] = await measure(Path(directory), sizes)
    return figures


async def _write_cost(sizes: Sizes) -> dict[str, float]:
    """Processor time of acks, a delta, the turns of the loop and receipts; the ledger is memory."""
    costs = {}
    for group in (1, 16):
        stores = (MemoryLedgerClient(MemoryLedgers()), MemoryMetadataStore())
        store = await _open(stores, "memory", _topic(4 * group * sizes.groups), **_IN_A_ROW)
        order = np.random.default_rng(SEED).permutation(np.arange(group * sizes.groups) * 2 + 1)
        positions = [Position(MESSAGES, int(entry)) for entry in order]
        began = time.process_time()
        for start in range(0, len(positions), group):
            for position in positions[start : start + group]:
                store.cursor.ack(position)
                store.notify()
                store.when_durable(store.cursor.version, _ignore)
            await store.flush()
        spent = time.process_time() - began
        costs[f"{group}_acks"] = round(spent / store.statistics().ledger_writes * 1e6, 1)
        await store.close()
    return costs


def _ignore(error: BaseException | None) -> None:
    assert error is None


@contextlib.asynccontextmanager
async def _stores(directory: Path) -> AsyncIterator[tuple[LedgerClient, MetadataStore]]:
    metadata = await SqliteMetadataStore.open(directory / "metadata.sqlite")
    client = BookieLedgerClient(await open_bookies([directory / "bookie"]), metadata)
    try:
        yield client, metadata
    finally:
        await client.close()
        await metadata.close()


async def _open(
    stores: tuple[LedgerClient, MetadataStore],
    name: str,
    ledgers: MessageLedgers,
    *,
    epoch: int = 1,
    **settings: Any,
) -> CursorStore:
    client, metadata = stores
    return await CursorStore.open(
        path=cursor_path(topic_path("bench", "bench", name), "sub"),
        ledgers=ledgers,
        ledger_client=client,
        metadata=metadata,
        settings=PersistenceSettings(**settings),
        batch_index_acks=True,
        owner_epoch=epoch,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        create_at=Position(MESSAGES, -1),
    )


async def _huge(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """So many ranges, with holes of random width: written whole, and there again after a crash."""
    acked = _with_gaps(sizes.huge_ranges)
    ledgers = _topic(int(acked[-1]) + 1)
    limit = {"managed_ledger_max_unacked_ranges_to_persist": sizes.huge_ranges}
    async with _stores(directory) as stores:
        store = await _open(stores, "huge", ledgers, **limit)
        store.cursor.ack_many(MESSAGES, acked)
        began = time.perf_counter()
        await store.flush()
        persisted = time.perf_counter() - began
        outcome = store.outcome
        assert outcome is not None
        assert outcome.is_complete
        began = time.perf_counter()
        again = await _open(stores, "huge", ledgers, epoch=2, **limit)
        recovered = time.perf_counter() - began
        assert again.report.lost is None
        assert again.cursor.snapshot().acked == store.cursor.snapshot().acked
        return {
            "ranges": outcome.ranges_persisted,
            "bytes": outcome.bytes_written,
            "persist_ms": round(persisted * 1000, 1),
            "recover_ms": round(recovered * 1000, 1),
        }


async def _groups(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """Write after write, 16 acks with a receipt each: what a group costs in time and processor."""
    group = 16
    ledgers = _topic(4 * group * sizes.groups)
    order = np.random.default_rng(SEED).permutation(np.arange(group * sizes.groups) * 2 + 1)
    positions = [Position(MESSAGES, int(entry)) for entry in order]
    async with _stores(directory) as stores:
        store = await _open(stores, "groups", ledgers, **_IN_A_ROW)
        answered = 0

        def done(error: BaseException | None) -> None:
            nonlocal answered
            assert error is None
            answered += 1

        wall, processor = time.perf_counter(), time.process_time()
        for start in range(0, len(positions), group):
            for position in positions[start : start + group]:
                store.cursor.ack(position)
                store.notify()
                store.when_durable(store.cursor.version, done)
            await store.flush()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        assert answered == len(positions)
        statistics = store.statistics()
        await store.close()
        return {
            "acks_per_s": round(len(positions) / wall),
            "writes_per_s": round(statistics.ledger_writes / wall),
            "processor_us_per_write": round(processor / statistics.ledger_writes * 1e6, 1),
            "bytes_per_ack": round(statistics.bytes_written / len(positions), 1),
        }


async def _idle_bytes(sizes: Sizes) -> dict[str, int]:
    """Memory of a cursor nobody acks on, and of its store; what storage itself keeps is not it."""
    ledgers = _topic(1_000)
    stores = (MemoryLedgerClient(MemoryLedgers()), MemoryMetadataStore())
    numbers = range(sizes.cursors)
    for number in numbers:
        await _open(stores, f"topic-{number}", ledgers)
    gc.collect()
    tracemalloc.start()
    opened = [await _open(stores, f"topic-{number}", ledgers) for number in numbers]
    gc.collect()
    both = tracemalloc.get_traced_memory()[0]
    cursors = [ManagedCursor(ledgers, Position(MESSAGES, -1)) for _ in opened]
    alone = tracemalloc.get_traced_memory()[0] - both
    tracemalloc.stop()
    return {
        "store": round((both - alone) / len(opened)),
        "cursor": round(alone / len(cursors)),
    }


async def _many(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """All cursors become dirty at once, each without a ledger yet; then again with one."""
    ledgers = _topic(1_000)
    async with _stores(directory) as stores:
        opened = await asyncio.gather(
            *(_open(stores, f"topic-{number}", ledgers) for number in range(sizes.cursors))
        )
        figures: dict[str, Any] = {}
        for label, entry in (("first_write_with_new_ledger", 1), ("next_write", 3)):
            figures[f"{label}_ms"] = await _dirty_all(opened, entry)
        began = time.perf_counter()
        await asyncio.gather(*(store.close() for store in opened))
        figures["close_ms"] = round((time.perf_counter() - began) * 1000, 1)
        began = time.perf_counter()
        again = await asyncio.gather(
            *(_open(stores, f"topic-{n}", ledgers, epoch=2) for n in range(sizes.cursors))
        )
        figures["open_again_ms"] = round((time.perf_counter() - began) * 1000, 1)
        assert all(store.cursor.acked_count == 2 for store in again)
        return figures


async def _dirty_all(stores: list[CursorStore], entry: int) -> float:
    waiting = len(stores)
    all_durable = asyncio.Event()

    def done(error: BaseException | None) -> None:
        nonlocal waiting
        assert error is None
        waiting -= 1
        if not waiting:
            all_durable.set()

    began = time.perf_counter()
    for store in stores:
        store.cursor.ack(Position(MESSAGES, entry))
        store.notify()
        store.when_durable(store.cursor.version, done)
    await all_durable.wait()
    return round((time.perf_counter() - began) * 1000, 1)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
