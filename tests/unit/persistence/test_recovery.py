"""The fold and the scan: examples. Every prefix and every damaged byte is in tests/property."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from ackgate.cursor.position import Position
from ackgate.cursor.snapshot import CursorGrowth, CursorSnapshot
from ackgate.errors import UnknownFormatError
from ackgate.persistence import envelope
from ackgate.persistence.chunks import cut
from ackgate.persistence.codec import NEWEST_FORMAT, encode_record
from ackgate.persistence.envelope import Packing
from ackgate.persistence.ports import LedgerEntry
from ackgate.persistence.records import CursorRecord, DeltaRecord, SnapshotRecord
from ackgate.persistence.recovery import NOTES_MAX, StoredState, TailScan, fold, newest


def snap(version: int, acked: dict[int, list[int]] | None = None, epoch: int = 1) -> SnapshotRecord:
    bitmaps = {ledger: BitMap(ids) for ledger, ids in (acked or {}).items()}
    return SnapshotRecord(
        epoch, 0, CursorSnapshot(version, Position(3, 0), bitmaps, len(bitmaps)), 0, 0, 0
    )


def grow(base: int, version: int, entry: int, *, mark_delete: int = 0) -> DeltaRecord:
    growth = CursorGrowth(base, version, Position(3, mark_delete), {3: BitMap([entry])}, 1)
    return DeltaRecord(1, 0, growth)


def entries_of(*records: CursorRecord | bytes, entry_bytes_max: int = 10**6) -> list[LedgerEntry]:
    payloads: list[bytes] = []
    for record in records:
        if isinstance(record, bytes):
            payloads.append(record)
        else:
            encoded = encode_record(record, Packing())
            payloads += cut(encoded, record.stamp, entry_bytes_max)
    return [LedgerEntry(i, payload) for i, payload in enumerate(payloads)]


def scanned(entries: list[LedgerEntry]) -> tuple[StoredState | None, tuple[str, ...]]:
    scan = TailScan()
    scan.feed(reversed(entries))
    return scan.finish(), scan.notes


def version_of(state: StoredState | None) -> int:
    assert state is not None
    return state.record.stamp.version


def test_fold_unites_moves_and_overlays() -> None:
    base = SnapshotRecord(
        1,
        0,
        CursorSnapshot(
            1,
            Position(3, 0),
            {3: BitMap([5, 7]), 4: BitMap([2])},
            3,
            {Position(3, 8): 0b111, Position(3, 9): 0b11, Position(4, 1): 0b1},
            {"a": 1},
        ),
        3,
        0,
        3,
    )
    deltas = [
        DeltaRecord(1, 5, CursorGrowth(1, 2, Position(3, 0), {3: BitMap([6, 9])}, 3)),
        DeltaRecord(
            1,
            6,
            CursorGrowth(
                2, 4, Position(3, 6), {5: BitMap([1])}, 4, {Position(3, 8): 0b100}, {"b": 2}
            ),
        ),
    ]
    state = fold(base, deltas)
    snapshot = state.record.snapshot
    assert snapshot == CursorSnapshot(
        4,
        Position(3, 6),
        {3: BitMap([7, 9]), 4: BitMap([2]), 5: BitMap([1])},
        4,
        {Position(3, 8): 0b100, Position(4, 1): 0b1},
        {"b": 2},
    )
    assert (state.records_applied, state.record.written_ms) == (3, 6)
    assert state.record.ranges_in_memory == 4


def test_a_ledger_that_the_mark_delete_passed_is_gone() -> None:
    state = fold(snap(1, {3: [5]}), [DeltaRecord(1, 0, CursorGrowth(1, 2, Position(4, -1), {}, 0))])
    assert state.record.snapshot.acked == {}


def test_the_newest_chain_wins_and_what_is_before_it_is_not_looked_at() -> None:
    state, notes = scanned(
        entries_of(snap(1), b"garbage", snap(5, {3: [9]}), grow(5, 6, 11), grow(6, 8, 13))
    )
    assert version_of(state) == 8
    assert state is not None
    assert state.record.snapshot.acked == {3: BitMap([9, 11, 13])}
    assert notes == ()


def test_a_torn_tail_is_skipped_and_reported() -> None:
    entries = entries_of(snap(1), grow(1, 2, 5), grow(2, 3, 7))
    torn = [*entries[:2], LedgerEntry(2, entries[2].payload[:-3])]
    state, notes = scanned(torn)
    assert version_of(state) == 2
    assert notes == ("entry 2: the record's checksum does not match",)


def test_deltas_behind_a_torn_one_do_not_count() -> None:
    state, notes = scanned(entries_of(snap(1), grow(1, 2, 5), b"torn", grow(3, 4, 9)))
    assert version_of(state) == 2
    assert notes == (
        "entry 2: 4 bytes are too few for a record",
        "entry 3: epoch 1 version 4 builds on epoch 1 version 3, which is missing",
    )


def test_a_torn_snapshot_leaves_the_chain_before_it() -> None:
    state, notes = scanned(entries_of(snap(1), grow(1, 2, 5), b"a torn snapshot", grow(7, 8, 1)))
    assert version_of(state) == 2
    assert len(notes) == 2


def test_a_chunked_snapshot_counts_only_with_its_last_chunk() -> None:
    wide = snap(9, {3: list(range(1, 3000, 2))})
    entries = entries_of(snap(1), wide, entry_bytes_max=500)
    assert len(entries) > 5
    assert version_of(scanned(entries)[0]) == 9
    state, notes = scanned(entries[:-1])
    assert version_of(state) == 1
    assert all("not committed" in note for note in notes)


def test_a_chunked_record_that_lost_a_chunk_does_not_hide_the_one_before() -> None:
    first, second = (snap(v, {3: list(range(1, 3000, 2))}) for v in (8, 9))
    entries = entries_of(first, second, entry_bytes_max=500)
    half = len(entries) // 2
    for lost in range(half, len(entries)):
        damaged = [e if e.entry_id != lost else LedgerEntry(lost, b"x" * 50) for e in entries]
        state, notes = scanned(damaged)
        assert version_of(state) == 8
        assert notes


def test_chunks_of_a_record_whose_first_ones_never_came_do_not_hide_the_one_before() -> None:
    first, second = (snap(v, {3: list(range(1, 3000, 2))}) for v in (8, 9))
    entries = entries_of(first, second, entry_bytes_max=500)
    half = len(entries) // 2
    state, notes = scanned([*entries[:half], *entries[half + 1 :]])
    assert version_of(state) == 8
    assert len(notes) == 1
    assert "is missing" in notes[0]


def test_a_ledger_without_a_snapshot_has_no_state_and_says_why() -> None:
    state, notes = scanned(entries_of(grow(1, 2, 5), grow(2, 3, 7)))
    assert state is None
    assert notes[0] == "entry 1: the snapshot below delta epoch 1 version 3 is missing"


def test_an_entry_that_no_bookie_gives_is_skipped() -> None:
    entries = entries_of(snap(1), grow(1, 2, 5), grow(2, 3, 7))
    scan = TailScan()
    scan.skip(2, "no copy left")
    scan.feed(reversed(entries[:2]))
    assert version_of(scan.finish()) == 2
    assert scan.notes == ("entry 2: no copy left",)


def test_a_newer_format_fails_instead_of_being_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of(snap(1))
    monkeypatch.setattr(envelope, "FORMAT_VERSION", NEWEST_FORMAT + 1)
    newer = entries_of(snap(1), snap(2))[1]
    monkeypatch.undo()
    with pytest.raises(UnknownFormatError, match=r"entry 1: .*format 3"):
        scanned([*entries, newer])


def test_notes_are_bounded() -> None:
    state, notes = scanned(entries_of(snap(1), *([b"junk"] * 300)))
    assert version_of(state) == 1
    assert len(notes) == NOTES_MAX + 1
    assert notes[-1] == "and 200 more"


def test_the_newer_of_ledger_and_node_wins_and_a_tie_goes_to_the_ledger() -> None:
    def stored(epoch: int, version: int) -> StoredState:
        return StoredState(snap(version, epoch=epoch), 1)

    old, new, later_owner = stored(1, 5), stored(1, 6), stored(2, 1)
    assert newest(old, new) is new
    assert newest(new, old) is new
    assert newest(new, later_owner) is later_owner
    assert newest(later_owner, new) is later_owner
    tie = stored(1, 5)
    assert newest(tie, old) is tie
    assert newest(None, old) is old
    assert newest(old, None) is old
    assert newest(None, None) is None
