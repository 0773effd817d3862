"""Reading a cursor ledger forwards gives what recovery finds in it from its tail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from ackgate.cursor import CursorGrowth, CursorSnapshot, Position, run_count
from ackgate.persistence import LedgerEntry
from ackgate.persistence.records.chunks import cut
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Packing
from ackgate.persistence.records.recovery import TailScan, recover
from ackgate.persistence.records.values import DeltaRecord, SnapshotRecord
from ackgate.pipeline.readers.ack_state import StateAt, state_of
from ackgate.pipeline.readers.damaged_records import DamagedRecords
from ackgate.pipeline.readers.stored_records import stored_records

CHUNK_BYTES = 96
LEDGER = 7


def snapshot(version: int, ids: set[int]) -> SnapshotRecord:
    bitmap = BitMap(ids)
    state = CursorSnapshot(version, Position(LEDGER, 0), {LEDGER: bitmap}, run_count(bitmap))
    return SnapshotRecord(1, version, state, state.range_count, 0, 0)


def delta(base: int, version: int, ids: set[int]) -> DeltaRecord:
    growth = CursorGrowth(base, version, Position(LEDGER, 0), {LEDGER: BitMap(ids)}, len(ids))
    return DeltaRecord(1, version, growth)


records = st.lists(
    st.tuples(
        st.booleans(),
        st.sets(st.integers(2, 3000), min_size=1, max_size=60),
        st.sampled_from(["whole", "whole", "whole", "torn", "damaged"]),
    ),
    min_size=1,
    max_size=12,
)


def ledger_of(steps) -> list[LedgerEntry]:
    payloads: list[bytes] = []
    for number, (is_snapshot, ids, fate) in enumerate(steps):
        version = number + 1
        record = snapshot(version, ids) if is_snapshot else delta(number, version, ids)
        entries = cut(encode_record(record, Packing()), record.stamp, CHUNK_BYTES)
        if fate == "torn":
            entries = entries[:-1]
        if fate == "damaged":
            entries[-1] = entries[-1][:-3] + b"???"
        payloads += entries
    return [LedgerEntry(entry_id, payload) for entry_id, payload in enumerate(payloads)]


@given(records)
def test_forwards_as_from_the_tail(steps):
    entries = ledger_of(steps)
    scan = TailScan()
    scan.feed(reversed(entries))
    expected = recover(scan.finish(), None).state
    found = (each.record for each in stored_records(9, entries, DamagedRecords("skip")))
    assert state_of(found, None) == expected


@given(records, st.integers(0, 12))
def test_at_a_version_it_is_as_if_nothing_had_come_behind_it(steps, version):
    found = (e.record for e in stored_records(9, ledger_of(steps), DamagedRecords("skip")))
    before = stored_records(9, ledger_of(steps[:version]), DamagedRecords("skip"))
    expected = state_of((each.record for each in before), None)
    assert state_of(found, None, StateAt(version=version)) == expected
