"""Snapshots of delayed entries: bytes an entry in storage, and time to encode and decode.

    python -m bench.bench_bucket_snapshots [--entries 200000]

A bucket of so many entries over ledgers of 50,000, cut into segments as by default (5,000 entries,
300 s). "In order": each message is delayed by the same time. "Jitter": by that and up to a minute.
"Shuffled": times have nothing to do with positions, over an hour, a day, 30 days. Beside it what
Pulsar's protobuf format needs for the same (one message per index: tags, timestamp, ledger, entry).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Literal

import numpy as np
from pyroaring import BitMap  # noqa: TC002

from ackgate.cursor import Position, SegmentMetadata, SnapshotSegment, bitmap_of
from ackgate.persistence import BucketSnapshots, PersistenceSettings
from ackgate.testing import MemoryLedgerClient, MemoryLedgers

KEY_MS = 512
SEGMENT_MS = 300_000
SEGMENT_ENTRIES = 5_000
LEDGER_ENTRIES = 50_000
BASE_MS = 1_800_000_000_000


def segments_of(delays_ms: np.ndarray, rate: float) -> list[SnapshotSegment]:
    """Cut as a tracker does."""
    rows = np.arange(delays_ms.size)
    keys = (BASE_MS + rows * 1000 / rate + delays_ms).astype(np.int64) // KEY_MS * KEY_MS
    ledger_ids, entry_ids = 1000 + rows // LEDGER_ENTRIES, rows % LEDGER_ENTRIES
    order = np.lexsort((entry_ids, ledger_ids, keys))
    keys, ledger_ids, entry_ids = keys[order], ledger_ids[order], entry_ids[order]
    found, start = [], 0
    while start < keys.size:
        stop = min(
            start + SEGMENT_ENTRIES, int(np.searchsorted(keys, keys[start] + SEGMENT_MS, "left"))
        )
        found.append(
            SnapshotSegment(keys[start:stop], ledger_ids[start:stop], entry_ids[start:stop])
        )
        start = stop
    return found


def summary_of(columns: SnapshotSegment) -> SegmentMetadata:
    positions: dict[int, BitMap] = {
        int(ledger_id): bitmap_of(columns.entry_ids[columns.ledger_ids == ledger_id])
        for ledger_id in np.unique(columns.ledger_ids)
    }
    return SegmentMetadata(
        int(columns.keys_ms[0]), int(columns.keys_ms[-1]), columns.keys_ms.size, positions
    )


def protobuf_bytes(segments: list[SnapshotSegment]) -> int:
    """DelayedIndex {timestamp, ledger_id, entry_id}: a tag each, varints, its length and tag."""
    total = 0
    for columns in segments:
        sizes = np.full(columns.keys_ms.size, 5, dtype=np.int64)
        for column in columns:
            bits = np.maximum(np.ceil(np.log2(column + 1)), 1)
            sizes += np.ceil(bits / 7).astype(np.int64)
        total += int(sizes.sum())
    return total


async def measure(
    name: str, segments: list[SnapshotSegment], compression: Literal["NONE", "ZSTD"]
) -> None:
    settings = PersistenceSettings(managed_cursor_info_compression_type=compression)
    storage = MemoryLedgers()
    snapshots = BucketSnapshots(MemoryLedgerClient(storage), "/t/sub", settings)
    summaries = [summary_of(columns) for columns in segments]
    entries = sum(columns.keys_ms.size for columns in segments)
    began = time.perf_counter()
    stored = await snapshots.create(Position(0, 0), Position(2**40, 0), segments, summaries)
    wrote = time.perf_counter()
    await snapshots.metadata(stored.snapshot_id)
    read_metadata = time.perf_counter()
    await snapshots.segments(stored.snapshot_id, 0, len(segments))
    read = time.perf_counter()
    head = len(storage.ledgers[stored.snapshot_id].entries[0][0])
    print(
        f"{name:22} {compression:5} {len(segments):6,} segments"
        f"  segments {(stored.bytes_stored - head) / entries:6.2f} B  metadata {head / entries:6.2f} B"
        f"  protobuf {protobuf_bytes(segments) / entries:5.1f} B an entry"
        f"   write {(wrote - began) * 1e9 / entries:4.0f} ns"
        f"  read {(read - read_metadata) * 1e9 / entries:4.0f} ns"
        f"  metadata {(read_metadata - wrote) * 1e3:5.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=200_000)
    count = parser.parse_args().entries
    rng = np.random.default_rng(1)
    cases = {
        "in order, 1,000/s": segments_of(np.full(count, 3_600_000), 1_000),
        "jitter, 1,000/s": segments_of(3_600_000 + rng.integers(0, 60_000, count), 1_000),
        "shuffled over 1 h": segments_of(rng.integers(0, 3_600_000, count), 1_000),
        "shuffled over 1 d": segments_of(rng.integers(0, 86_400_000, count), 1_000),
        "shuffled over 30 d": segments_of(rng.integers(0, 30 * 86_400_000, count), 1_000),
    }
    for name, segments in cases.items():
        for compression in ("NONE", "ZSTD"):
            asyncio.run(measure(name, segments, compression))


if __name__ == "__main__":
    main()
