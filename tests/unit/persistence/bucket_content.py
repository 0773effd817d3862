"""Buckets of delayed entries to write and read back."""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap

from ackgate.cursor import Position, SegmentMetadata, SnapshotSegment

KEY = 512
BASE_MS = 1_700_000_000_000 // KEY * KEY


def segment(*entries: tuple[int, int, int]) -> SnapshotSegment:
    """Of (key, ledger, entry), in any order."""
    columns = np.array(sorted(entries), dtype=np.int64).reshape(-1, 3).T
    return SnapshotSegment(columns[0], columns[1], columns[2])


def summary_of(columns: SnapshotSegment) -> SegmentMetadata:
    positions: dict[int, BitMap] = {}
    for ledger_id in np.unique(columns.ledger_ids):
        ids = columns.entry_ids[columns.ledger_ids == ledger_id]
        positions[int(ledger_id)] = BitMap(ids.tolist())
    return SegmentMetadata(
        int(columns.keys_ms[0]), int(columns.keys_ms[-1]), columns.keys_ms.size, positions
    )


def bucket(
    entries: int, *, segment_entries: int = 50, ledger_entries: int = 1_000, seed: int | None = None
) -> tuple[Position, Position, list[SnapshotSegment]]:
    """Entries in order of time; with a seed, of times that have nothing to do with positions."""
    rows = np.arange(entries)
    keys = BASE_MS + rows // 10 * KEY
    if seed is not None:
        keys = np.random.default_rng(seed).permutation(keys)
    ledger_ids, entry_ids = 7 + rows // ledger_entries, rows % ledger_entries
    order = np.lexsort((entry_ids, ledger_ids, keys))
    columns = keys[order], ledger_ids[order], entry_ids[order]
    segments = [
        SnapshotSegment(*(column[start : start + segment_entries] for column in columns))
        for start in range(0, entries, segment_entries)
    ]
    return Position(7, 0), Position(int(ledger_ids[-1]), int(entry_ids[-1])), segments


def rows_of(columns: SnapshotSegment) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))
