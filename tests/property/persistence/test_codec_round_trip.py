"""Whatever a cursor hands over comes back from bytes the same, under every codec and cut."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ackgate.cursor import CursorGrowth, CursorSnapshot, NackImage, PendingNacks
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node, encode_cursor_node
from ackgate.persistence.records.chunks import BackwardJoiner, cut
from ackgate.persistence.records.codec import decode_record, encode_record
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import plan_snapshot
from ackgate.persistence.records.values import ChunkRecord, DeltaRecord, SnapshotRecord
from tests.property.persistence.states import pending_nacks, properties, snapshots

packings = st.builds(Packing, st.sampled_from(Compression), st.integers(0, 500))
UNLIMITED = PersistLimits(2**40, 2**40)


def record_of(
    snapshot: CursorSnapshot, nacks: PendingNacks | None = None, base: int | None = None
) -> SnapshotRecord:
    image = None if nacks is None else NackImage(1, nacks, nacks.entry_count)
    plan = plan_snapshot(
        snapshot,
        limits=UNLIMITED,
        owner_epoch=3,
        now_ms=5,
        nacks=image,
        base_snapshot_version=base,
    )
    assert isinstance(plan.record, SnapshotRecord)
    return plan.record


maybe_nacks = st.none() | pending_nacks()


@given(snapshots(), packings, maybe_nacks, st.booleans())
def test_snapshots(
    snapshot: CursorSnapshot, packing: Packing, nacks: PendingNacks | None, begins: bool
) -> None:
    base = None if begins else snapshot.version // 2
    record = record_of(snapshot, nacks, base)
    decoded = decode_record(encode_record(record, packing))
    # No nacks are no nacks, however precise.
    assert decoded == (record if nacks else record_of(snapshot, base=base))


@given(snapshots(), packings, st.none() | properties, maybe_nacks, st.booleans())
def test_deltas(
    snapshot: CursorSnapshot,
    packing: Packing,
    values: dict[str, int] | None,
    nacks: PendingNacks | None,
    names_its_descent: bool,
) -> None:
    growth = CursorGrowth(
        base_version=0,
        version=snapshot.version,
        mark_delete=snapshot.mark_delete,
        acked=snapshot.acked,
        range_count=snapshot.range_count,
        unacked_indexes=snapshot.unacked_indexes,
        properties=values,
    )
    record = DeltaRecord(1, 2, growth, nacks, 0 if names_its_descent else None)
    assert decode_record(encode_record(record, packing)) == record


@given(snapshots(), packings, st.integers(100, 2000))
def test_chunks(snapshot: CursorSnapshot, packing: Packing, entry_bytes_max: int) -> None:
    record = record_of(snapshot)
    encoded = encode_record(record, packing)
    entries = cut(encoded, record.stamp, entry_bytes_max)
    assert max(map(len, entries)) <= max(entry_bytes_max, len(encoded) * (len(entries) == 1))
    if len(entries) > 1:
        joiner = BackwardJoiner()
        joined = None
        for entry in reversed(entries):
            assert joined is None
            chunk = decode_record(entry)
            assert isinstance(chunk, ChunkRecord)
            joined = joiner.add(chunk)
        assert joined == encoded


@given(
    snapshots(), packings, st.none() | st.integers(0, 2**62), st.dictionaries(st.text(), st.text())
)
def test_nodes(
    snapshot: CursorSnapshot, packing: Packing, ledger_id: int | None, texts: dict[str, str]
) -> None:
    record = record_of(snapshot)
    node = CursorNode(9, ledger_id, encode_record(record, packing), texts)
    decoded = decode_cursor_node(encode_cursor_node(node, packing), path="/x")
    assert decoded == node
    state = decoded.stored_state()
    assert state is not None
    assert state.record == record
