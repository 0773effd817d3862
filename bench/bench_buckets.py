"""The bucket tracker at size: memory, restart, and whether merges hold anything up.

``python -m bench --only bench_buckets`` (or ``python -m bench.bench_buckets --entries N``)

Snapshots go to files in a temporary directory, written and read for every plan, so that nothing of
them stays in this process but what the tracker itself keeps. Every part runs in a fresh process;
memory is its resident set, interpreter and libraries included.

size      N delayed messages in ledgers of 50,000, each to be delivered at a random time within the
          next 30 days; whatever falls due meanwhile is delivered
restart   a new tracker over the same snapshots: how long until it dispatches, and until it knows all
merging   in real time: messages fall due every millisecond while buckets are merged without end
merged    a tenth of N, with buckets merged as they come: memory while that goes on
"""

from __future__ import annotations

import argparse
import gc
import json
import pickle
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ackgate.cursor import BucketRecord, SnapshotSegment, StoredSnapshot
from ackgate.dispatcher.buckets import (
    BucketSettings,
    BucketTracker,
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    Done,
    LoadMetadata,
    LoadSegments,
    MetadataLoaded,
    OperationType,
    Outcome,
    Plan,
    SegmentsLoaded,
    metadata_of,
)
from ackgate.dispatcher.delayed import DelaySettings
from bench.usage import peak_bytes, resident_bytes

ENTRIES = 100_000_000
LEDGER_ENTRIES = 50_000
START_MS = 1_800_000_000_000
DAYS_30_MS = 30 * 86_400_000
PUBLISH_MS = 3_600_000
"""All are published within an hour."""


def run(*, smoke: bool) -> dict[str, Any]:
    return measure(400_000, 3) if smoke else measure(ENTRIES, 30)


def measure(entries: int, seconds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        figures = {
            "size": in_child("size", directory, entries),
            "restart": in_child("restart", directory, entries),
            "merging": in_child("merging", directory, seconds),
        }
    with tempfile.TemporaryDirectory() as directory:
        figures["merged"] = in_child("merged", directory, entries // 10)
    return figures


def in_child(part: str, directory: str, number: int) -> dict[str, Any]:
    """Run one part in a fresh process; what it prints is its figures."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_buckets", "--part", part, directory, str(number)],
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


# -- a storage of files --------------------------------------------------------------------------


class Files:
    """Carries out plans at once. A snapshot is a file: bounds, then three columns."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.registry: dict[int, BucketRecord] = {}
        self.last_id = 0
        self.bytes_written = 0
        self.loads = 0

    def pump(self, tracker: BucketTracker, clock: Any) -> float:
        """Carry out what is asked for, and what is asked for then. The longest call's seconds."""
        spent = 0.0
        while plans := self.wanted(tracker, clock):
            for plan in plans:
                outcome = self.carry_out(plan)
                began = time.process_time()
                tracker.answer(plan.plan, outcome, clock())
                spent = max(spent, time.process_time() - began)
                del outcome
        return spent

    def wanted(self, tracker: BucketTracker, clock: Any) -> list[Plan]:
        """What is asked for, when what is done in pieces is done."""
        for later_ms in range(1_000):
            work_ms = tracker.next_work_ms
            if work_ms is None or work_ms > clock() + later_ms + 1:
                break
            tracker.pop_due(work_ms, 0)
        return tracker.take_plans()

    def carry_out(self, plan: Plan) -> Outcome:
        """Do it now."""
        match plan:
            case CreateSnapshot():
                return self.create(plan)
            case ChangeRegistry(_, add, remove):
                for snapshot_id in remove:
                    self.registry.pop(snapshot_id, None)
                self.registry.update({record.snapshot_id: record for record in add})
                return Done()
            case LoadMetadata(_, snapshot_id):
                bounds, columns = self.read(snapshot_id)
                return MetadataLoaded(metadata_of(columns, bounds.tolist()), 0)
            case LoadSegments(_, snapshot_id, first, stop):
                self.loads += 1
                bounds, columns = self.read(snapshot_id, first, stop)
                cuts = (bounds - bounds[0]).tolist()
                return SegmentsLoaded(
                    tuple(
                        SnapshotSegment(*(column[a:b] for column in columns))
                        for a, b in pairwise(cuts)
                    )
                )
            case DeleteSnapshot(_, snapshot_id):
                self.path(snapshot_id).unlink(missing_ok=True)
                return Done()

    def path(self, snapshot_id: int) -> Path:
        """Where a snapshot lies."""
        return self.directory / f"{snapshot_id}.snapshot"

    def create(self, plan: CreateSnapshot) -> StoredSnapshot:
        """Write one."""
        self.last_id += 1
        sizes = [segment.keys_ms.size for segment in plan.segments]
        with self.path(self.last_id).open("wb") as file:
            np.array([len(sizes), sum(sizes)], np.int64).tofile(file)
            np.cumsum([0, *sizes]).astype(np.int64).tofile(file)
            for column in zip(*plan.segments, strict=True):
                np.concatenate(column).tofile(file)
            size = file.tell()
        self.bytes_written += size
        return StoredSnapshot(self.last_id, size)

    def read(
        self, snapshot_id: int, first: int = 0, stop: int | None = None
    ) -> tuple[np.ndarray, SnapshotSegment]:
        """Some segments: where each starts, and where the last one stops; their rows."""
        path = self.path(snapshot_id)
        segments, rows = np.fromfile(path, np.int64, 2).tolist()
        stop = segments if stop is None else stop
        bounds = np.fromfile(path, np.int64, stop - first + 1, offset=16 + 8 * first)
        columns_at = 16 + 8 * (segments + 1)
        low, high = bounds[0].item(), bounds[-1].item()
        return bounds, SnapshotSegment(
            *(
                np.fromfile(path, np.int64, high - low, offset=columns_at + 8 * (n * rows + low))
                for n in range(3)
            )
        )


# -- the parts -----------------------------------------------------------------------------------


def times_of(ledger_id: int, entries: int, total: int) -> np.ndarray:
    """When the entries of a ledger are to be delivered."""
    published = START_MS + PUBLISH_MS * ledger_id * LEDGER_ENTRIES // total
    chance = np.random.default_rng(ledger_id)
    return published + chance.integers(1_000, DAYS_30_MS, entries)


def measure_merged(directory: str, entries: int) -> dict[str, Any]:
    return measure_size(directory, entries, BucketSettings(buckets_max=20))


def measure_size(
    directory: str, entries: int, settings: BucketSettings | None = None
) -> dict[str, Any]:
    files = Files(directory)
    at_start = resident_mb()
    tracker = BucketTracker(DelaySettings(), settings, seed=1)
    began = time.perf_counter()
    in_tracker = longest = 0.0
    popped = 0
    ledgers = -(-entries // LEDGER_ENTRIES)
    for ledger_id in range(ledgers):
        count = min(LEDGER_ENTRIES, entries - ledger_id * LEDGER_ENTRIES)
        times = times_of(ledger_id, count, entries)
        now_ms = START_MS + PUBLISH_MS * ledger_id * LEDGER_ENTRIES // entries
        before = time.process_time()
        tracker.add_many(ledger_id, np.arange(count), times, now_ms)
        while due := tracker.pop_due(now_ms, 10_000):
            popped += len(due)
        spent = time.process_time() - before
        in_tracker += spent
        longest = max(longest, spent, files.pump(tracker, lambda now_ms=now_ms: now_ms))
    full = resident_mb()
    seconds = time.perf_counter() - began
    statistics = tracker.statistics()
    # Go on for an hour: loads, pops, and nothing comes in.
    pops = 0
    hour = time.perf_counter()
    end_ms = START_MS + 2 * PUBLISH_MS
    now_ms = START_MS + PUBLISH_MS
    late_ms = 0
    while now_ms < end_ms:
        deadline = tracker.next_deadline_ms
        now_ms = max(now_ms + 500, deadline or 0)
        while due := tracker.pop_due(now_ms, 10_000):
            pops += len(due)
        files.pump(tracker, lambda now_ms=now_ms: now_ms)
        late_ms = max(late_ms, 0 if deadline is None else now_ms - deadline)
    hour = time.perf_counter() - hour
    after = resident_mb()
    tracker_bytes = tracker.byte_estimate
    with (Path(directory) / "registry").open("wb") as file:
        pickle.dump((files.registry, tracker.entry_count), file)
    return {
        "delayed messages": tracker.entry_count + pops,
        "resident MB, before anything": at_start,
        "resident MB, all tracked": full,
        "resident MB, an hour later": after,
        "resident MB, at most": peak_mb(),
        "of it the tracker's, by its estimate": round(tracker_bytes / 1e6, 1),
        "buckets": statistics.buckets,
        "entries in memory": statistics.loaded_entries,
        "snapshots on disk, MB": round(files.bytes_written / 1e6),
        "seconds to take them in": round(seconds, 1),
        "add_many, seal and pop, ns an entry": round(in_tracker / entries * 1e9),
        "longest single call, ms of CPU": round(longest * 1e3),
        "merges": statistics.operations[OperationType.MERGE].succeeded,
        "popped in that hour": pops,
        "loads in it": files.loads,
        "us a popped entry, loads included": round(hour / max(pops, 1) * 1e6, 1),
    }


def measure_restart(directory: str, entries: int) -> dict[str, Any]:
    files = Files(directory)
    with (Path(directory) / "registry").open("rb") as file:
        files.registry, tracked = pickle.load(file)
    now_ms = START_MS + 2 * PUBLISH_MS
    gc.collect()
    began = time.perf_counter()
    tracker = BucketTracker(DelaySettings(), BucketSettings(), seed=2)
    tracker.recover(files.registry.values(), now_ms)
    ledgers = -(-entries // LEDGER_ENTRIES)
    count = min(LEDGER_ENTRIES, entries)
    taken = tracker.add_many(ledgers, np.arange(1_000), times_of(0, count, entries)[:1_000], now_ms)
    tracker.pop_due(now_ms, 1_000)
    ready = time.perf_counter() - began
    in_tracker = longest = 0.0
    while tracker.is_recovering:
        for plan in tracker.take_plans():
            outcome = files.carry_out(plan)
            before = time.perf_counter()
            tracker.answer(plan.plan, outcome, now_ms)
            tracker.pop_due(now_ms, 1_000)
            longest = max(longest, time.perf_counter() - before)
            in_tracker += time.perf_counter() - before
            del outcome
    known = time.perf_counter() - began
    tracker.take_plans()
    return {
        "buckets": len(files.registry),
        "ready to dispatch, ms": round(ready * 1e3, 1),
        "entries taken meanwhile": int(taken.sum()),
        "index complete, s": round(known, 1),
        "of it in the tracker, s": round(in_tracker, 1),
        "longest single call, ms": round(longest * 1e3, 1),
        "entries": tracker.entry_count,
        "as many as before": tracked <= tracker.entry_count + 100_000,
        "resident MB, at most": peak_mb(),
    }


def measure_merging(directory: str, seconds: int) -> dict[str, Any]:
    """As in real time, but nothing else on the machine matters.

    The clock is the CPU time that this process has used; idle time is skipped. Storage answers in
    turn with dispatching.
    """
    files = Files(directory)
    delays = DelaySettings(tick_ms=1_000, is_strict=True)
    settings = BucketSettings(buckets_max=2, entries_min=40_000, entries_max=40_000)
    tracker = BucketTracker(delays, settings, seed=3)
    began = time.process_time()
    idle = 0.0

    def elapsed() -> float:
        return time.process_time() - began + idle

    def clock() -> int:
        return START_MS + int(elapsed() * 1e3)

    chance = np.random.default_rng(1)
    times: dict[int, np.ndarray] = {}
    late: list[int] = []
    longest = 0.0
    ledger_id = 0
    waiting: list[Plan] = []
    published = 0.0
    while elapsed() < seconds:
        # 5,000 entries every 100 ms; every fifth is due within seconds, the others in 30 days.
        if elapsed() >= published:
            published += 0.1
            at = chance.integers(5_000, DAYS_30_MS, 5_000) + clock()
            at[::5] = clock() + chance.integers(1_000, 8_000, 1_000)
            times[ledger_id] = at
            tracker.add_many(ledger_id, np.arange(at.size), at, clock())
            ledger_id += 1
        before = time.process_time()
        now_ms = clock()
        due = tracker.pop_due(now_ms, 1_000)
        longest = max(longest, time.process_time() - before)
        late += [now_ms - int(times[at.ledger_id][at.entry_id]) for at in due]
        waiting += tracker.take_plans()
        if waiting:
            # As the broker does: a load never waits behind a create.
            waiting.sort(key=lambda plan: not isinstance(plan, LoadSegments))
            plan = waiting.pop(0)
            outcome = files.carry_out(plan)
            before = time.process_time()
            tracker.answer(plan.plan, outcome, clock())
            longest = max(longest, time.process_time() - before)
        elif not due:
            idle += 0.001
    operations = {
        operation.value: counted for operation, counted in tracker.statistics().operations.items()
    }
    return {
        "seconds": seconds,
        "messages taken in": ledger_id * 5_000,
        "merges": operations["merge"].succeeded,
        "delivered": len(late),
        "late at most, ms (key width 512, tick 1,000)": max(late, default=0),
        "late, median, ms": int(np.median(late)) if late else 0,
        "early": sum(value < 0 for value in late),
        "longest single call, ms of CPU": round(longest * 1e3),
        "resident MB, at most": peak_mb(),
    }


def resident_mb() -> float:
    gc.collect()
    return round(resident_bytes() / 2**20, 1)


def peak_mb() -> float:
    return round(peak_bytes() / 2**20, 1)


PARTS = {
    "size": measure_size,
    "restart": measure_restart,
    "merging": measure_merging,
    "merged": measure_merged,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--seconds", type=int, default=30, help="of merging in real time")
    parser.add_argument("--part", nargs=3, metavar=("PART", "DIRECTORY", "NUMBER"))
    arguments = parser.parse_args()
    if arguments.part:
        part, directory, number = arguments.part
        print(json.dumps(PARTS[part](directory, int(number))))
        return
    print(json.dumps(measure(arguments.entries, arguments.seconds), indent=2))


if __name__ == "__main__":
    main()
