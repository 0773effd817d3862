"""Rebuilt buckets are those that the broker's own tracker makes of the same entries, read in order."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from ackgate.cursor import Position, StoredSnapshot
from ackgate.dispatcher.buckets import (
    BucketSettings,
    BucketTracker,
    ChangeRegistry,
    CreateSnapshot,
    Done,
)
from ackgate.dispatcher.delayed import DelaySettings
from ackgate.persistence import PersistenceSettings
from ackgate.persistence.buckets.codec import NumberedSegment, SnapshotMetadata, decode_entry
from ackgate.persistence.nodes.paths import CANCELLED_CURSOR
from ackgate.pipeline.jobs.rebuild_delayed_index.bucket_borders import RunSize, plan_buckets
from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import (
    RUN_ENTRIES_MAX,
    AckedRanges,
    EntryRun,
    numbers_of,
    pack_runs,
    wanted_of,
)
from ackgate.pipeline.jobs.rebuild_delayed_index.sealing import seal
from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Target

NOW_MS = 1_000_000


class Case(NamedTuple):
    ledgers: list[list[tuple[int, int]]]
    """Entry ids and times, of ledgers 10, 12, 14 and on."""
    read: int
    """Entries that the broker reads at a time."""
    run: int
    """Entries of a run."""
    settings: BucketSettings
    delays: DelaySettings

    @property
    def entries(self) -> list[tuple[int, int, int]]:
        return [
            (10 + 2 * number, entry_id, time_ms)
            for number, ledger in enumerate(self.ledgers)
            for entry_id, time_ms in ledger
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    times = st.integers(NOW_MS - 50, NOW_MS) | st.integers(NOW_MS + 5_000, NOW_MS + 7_000)
    ledger = st.lists(times, max_size=40).flatmap(
        lambda found: st.lists(
            st.integers(0, 100), min_size=len(found), max_size=len(found), unique=True
        ).map(lambda ids: list(zip(sorted(ids), found, strict=True)))
    )
    return Case(
        draw(st.lists(ledger, max_size=8)),
        draw(st.integers(1, 30)),
        draw(st.integers(1, 30)),
        BucketSettings(
            entries_min=draw(st.integers(1, 30)),
            entries_max=draw(st.integers(1, 40)),
            segment_span_ms=draw(st.integers(1, 1_500)),
            segment_entries_max=draw(st.sampled_from([-1, 1, 3, 10])),
            draft_entries=draw(st.integers(1, 20)),
            age_max_ms=0,
            load_lead_ms=0,
        ),
        DelaySettings(tick_ms=draw(st.integers(1, 100)), is_strict=draw(st.booleans())),
    )


@given(cases())
def test_entries_borders_and_segments_are_the_trackers(case):
    tracker_made = made_by_tracker(case)

    rebuilt = [
        (bucket.first, bucket.last, decoded(number, bucket.payloads))
        for number, bucket in enumerate(rebuilt_of(case))
    ]

    assert rebuilt == tracker_made


def made_by_tracker(case: Case) -> list[tuple[Position, Position, list[Any]]]:
    """Everything that it wants stored, until it is closed."""
    tracker = BucketTracker(case.delays, case.settings)
    made: list[tuple[Position, Position, list[Any]]] = []

    def carry_out() -> None:
        while plans := tracker.take_plans():
            for plan in plans:
                if isinstance(plan, CreateSnapshot):
                    made.append((plan.first, plan.last, list(map(rows_of, plan.segments))))
                    tracker.answer(plan.plan, StoredSnapshot(len(made), 1), NOW_MS)
                else:
                    assert isinstance(plan, ChangeRegistry)
                    tracker.answer(plan.plan, Done(), NOW_MS)

    def work() -> None:
        carry_out()
        while tracker.next_work_ms is not None:  # a snapshot is described piece by piece
            tracker.pop_due(tracker.next_work_ms, 0)
            carry_out()

    for start in range(0, len(case.entries), case.read):
        read = defaultdict(list)
        for ledger_id, *entry in case.entries[start : start + case.read]:
            read[ledger_id].append(entry)
        for ledger_id, entries in read.items():
            ids, times = zip(*entries, strict=True)
            tracker.add_many(ledger_id, np.array(ids), np.array(times), NOW_MS)
            work()
    tracker.seal(NOW_MS)
    work()
    return made


def rebuilt_of(case: Case) -> list[Any]:
    target = Target(
        number=0,
        topic="t",
        cursor="s",
        path="/t/s",
        readers={"s": Position(-1, -1)},
        cancelled_through=None,
        tick_ms=case.delays.tick_ms,
        is_strict=case.delays.is_strict,
    )
    runs = {}
    for number, ledger in enumerate(case.ledgers):
        for start in range(0, len(ledger), case.run):
            ids, times = map(np.array, zip(*ledger[start : start + case.run], strict=True))
            run = EntryRun(10 + 2 * number, ids, times)
            runs[run.ledger_id, int(ids[0])] = wanted_of(run, target, {}, NOW_MS)
    sizes = [RunSize(*name, run.entry_ids.size) for name, run in runs.items()]
    buckets = defaultdict(list)
    for piece in plan_buckets(sizes, case.settings):
        whole = runs[piece.ledger_id, piece.first_entry_id]
        rows = slice(piece.start, piece.stop)
        buckets[piece.bucket].append(
            EntryRun(piece.ledger_id, whole.entry_ids[rows], whole.times_ms[rows])
        )
    assert list(buckets) == list(range(len(buckets)))
    return [
        seal(parts, number, case.settings, PersistenceSettings())
        for number, parts in buckets.items()
    ]


def rows_of(segment: Any) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in segment), strict=True))


def decoded(snapshot_id: int, payloads: list[bytes]) -> list[Any]:
    head, *rest = (decode_entry(payload, snapshot_id=snapshot_id) for payload in payloads)
    assert isinstance(head, SnapshotMetadata)
    segments = [found for found in rest if isinstance(found, NumberedSegment)]
    assert [found.number for found in segments] == list(range(len(head.segments)))
    assert len(segments) == len(rest)
    return [rows_of(found.columns) for found in segments]


# -- what is wanted ----------------------------------------------------------------------------------

POSITIONS = st.builds(Position, st.integers(4, 6), st.integers(-1, 30))


@given(
    ids=st.sets(st.integers(0, 30), min_size=1),
    marks=st.dictionaries(st.sampled_from("abc"), POSITIONS, min_size=1),
    acked=st.dictionaries(
        st.sampled_from(["a", "b", "c", "other", CANCELLED_CURSOR]), st.sets(st.integers(0, 30))
    ),
    cancelled=st.none() | POSITIONS,
    is_strict=st.booleans(),
    data=st.data(),
)
def test_wanted_is_what_some_reader_has_not_acked(ids, marks, acked, cancelled, is_strict, data):
    times = {i: data.draw(st.integers(NOW_MS - 20, NOW_MS + 20)) for i in ids}
    target = Target(0, "t", "s", "/t/s", marks, cancelled, tick_ms=8, is_strict=is_strict)
    run = EntryRun(5, np.array(sorted(ids)), np.array([times[i] for i in sorted(ids)]))

    kept = wanted_of(
        run, target, {name: ranges_of(done, data.draw) for name, done in acked.items()}, NOW_MS
    )

    def is_acked(cursor: str, mark: Position, entry_id: int) -> bool:
        return Position(5, entry_id) <= mark or entry_id in acked.get(cursor, ())

    expected = [
        i
        for i in sorted(ids)
        if times[i] > NOW_MS + (0 if is_strict else 8)
        and not all(is_acked(name, mark, i) for name, mark in marks.items())
        and not (cancelled is not None and is_acked(CANCELLED_CURSOR, cancelled, i))
    ]
    assert kept.entry_ids.tolist() == expected
    assert kept.times_ms.tolist() == [target.keys.key(times[i]) for i in expected]


def ranges_of(ids: set[int], draw: Any) -> AckedRanges:
    """Maximal ranges, in any order."""
    firsts = [i for i in ids if i - 1 not in ids]
    firsts = draw(st.permutations(sorted(firsts)))
    ends = [next(e for e in range(first + 1, 99) if e not in ids) for first in firsts]
    return AckedRanges.of(np.array(firsts, np.int64), np.array(ends, np.int64))


# -- runs --------------------------------------------------------------------------------------------


@given(
    ledgers=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6),
    batch_rows=st.integers(1, 12),
)
def test_packed_runs_hold_every_row_in_order(ledgers, batch_rows):
    rows = [
        (ledger_id, entry_id, 1_000 + entry_id * 7)
        for ledger_id, count in ledgers
        for entry_id in range(count)
    ]

    packed = list(pack_runs(batches_of(rows, batch_rows)))

    assert unpacked(packed) == rows
    for batch in packed:
        firsts = [numbers_of(batch.column("entry_ids"), row)[0] for row in range(batch.num_rows)]
        assert batch.column("first_entry_id").to_pylist() == firsts


def test_a_large_batch_is_cut():
    rows = [(1, i, i) for i in range(2 * RUN_ENTRIES_MAX + 5)]

    packed = list(pack_runs(batches_of(rows, len(rows))))

    assert [batch.column("entries").to_pylist() for batch in packed] == [
        [RUN_ENTRIES_MAX],
        [RUN_ENTRIES_MAX],
        [5],
    ]
    assert unpacked(packed) == rows


def batches_of(rows: list[tuple[int, int, int]], batch_rows: int) -> list[pa.RecordBatch]:
    names = ["ledger_id", "entry_id", "deliver_at_ms"]
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in zip(*part, strict=True)], names
        )
        for start in range(0, len(rows), batch_rows)
        if (part := rows[start : start + batch_rows])
    ]


def unpacked(batches: list[pa.RecordBatch]) -> list[tuple[int, int, int]]:
    return [
        (ledger_id, entry_id, time_ms)
        for batch in batches
        for row, ledger_id in enumerate(batch.column("ledger_id").to_pylist())
        for entry_id, time_ms in zip(
            numbers_of(batch.column("entry_ids"), row).tolist(),
            numbers_of(batch.column("times_ms"), row).tolist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize(("entries", "is_stored"), [(9, False), (10, True)])
def test_the_last_bucket_is_stored_when_it_is_worth_a_ledger(entries, is_stored):
    pieces = plan_buckets([RunSize(7, 0, entries)], BucketSettings(entries_min=100))

    assert bool(pieces) is is_stored
