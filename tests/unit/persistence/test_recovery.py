"""The fold and the scan: examples. Every prefix and every damaged byte is in tests/property."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from ackgate.cursor import CursorGrowth, CursorSnapshot, Position
from ackgate.errors import UnknownFormatError
from ackgate.persistence import LedgerEntry
from ackgate.persistence.records.chunks import cut
from ackgate.persistence.records.codec import NEWEST_FORMAT, encode_record
from ackgate.persistence.records.envelope import Packing, seal
from ackgate.persistence.records.recovery import (
    NOTES_MAX,
    Recovered,
    StoredState,
    TailScan,
    VersionGap,
    fold_records,
    recover,
)
from ackgate.persistence.records.values import CursorRecord, DeltaRecord, RecordKind, SnapshotRecord


def snap(
    version: int,
    acked: dict[int, list[int]] | None = None,
    epoch: int = 1,
    *,
    descends_from: int | None = None,
    cut: int = 0,
) -> SnapshotRecord:
    bitmaps = {ledger: BitMap(ids) for ledger, ids in (acked or {}).items()}
    snapshot = CursorSnapshot(version, Position(3, 0), bitmaps, len(bitmaps))
    in_memory = len(bitmaps) + cut
    return SnapshotRecord(
        epoch, 0, snapshot, in_memory, cut, 0, base_snapshot_version=descends_from
    )


def grow(
    base: int,
    version: int,
    entry: int,
    *,
    mark_delete: int = 0,
    descends_from: int | None = None,
) -> DeltaRecord:
    """`descends_from` None: as builds wrote it that knew of no descents."""
    growth = CursorGrowth(base, version, Position(3, mark_delete), {3: BitMap([entry])}, 1)
    return DeltaRecord(1, 0, growth, base_snapshot_version=descends_from)


def entries_of(*records: CursorRecord | bytes, entry_bytes_max: int = 10**6) -> list[LedgerEntry]:
    payloads: list[bytes] = []
    for record in records:
        if isinstance(record, bytes):
            payloads.append(record)
        else:
            encoded = encode_record(record, Packing())
            payloads += cut(encoded, record.stamp, entry_bytes_max)
    return [LedgerEntry(i, payload) for i, payload in enumerate(payloads)]


def recovered(entries: list[LedgerEntry], node: SnapshotRecord | None = None) -> Recovered:
    scan = TailScan()
    scan.feed(reversed(entries))
    return recover(scan.finish(), node)


def scanned(entries: list[LedgerEntry]) -> tuple[StoredState | None, tuple[str, ...]]:
    scan = TailScan()
    scan.feed(reversed(entries))
    tail = scan.finish()
    return recover(tail, None).state, tail.notes


def acked_in(recovery: Recovered) -> list[int]:
    assert recovery.state is not None
    return list(recovery.state.record.snapshot.acked.get(3, ()))


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
    state = fold_records([base, *deltas], None).state()
    assert state is not None
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
    passing = DeltaRecord(1, 0, CursorGrowth(1, 2, Position(4, -1), {}, 0))
    state = fold_records([snap(1, {3: [5]}), passing], None).state()
    assert state is not None
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


def test_a_torn_snapshot_leaves_the_chain_before_it() -> None:
    state, notes = scanned(entries_of(snap(1), grow(1, 2, 5), b"a torn snapshot"))
    assert version_of(state) == 2
    assert len(notes) == 1


# ------------------------------------------------------------------ damage in the middle


def test_deltas_behind_a_damaged_one_count_and_what_it_alone_held_is_named() -> None:
    recovery = recovered(
        entries_of(
            snap(1, {3: [5]}),
            grow(1, 2, 7, descends_from=1),
            b"damaged",
            grow(6, 7, 11, descends_from=1),
            grow(7, 8, 13, descends_from=1),
        )
    )
    assert acked_in(recovery) == [5, 7, 11, 13]
    assert version_of(recovery.state) == 8
    assert recovery.missing.gaps == (VersionGap(2, 6),)
    assert recovery.missing.versions == 4
    assert recovery.missing.text(8) == "versions 3 to 6"


def test_a_damaged_snapshot_between_deltas_of_one_descent_loses_only_what_it_added() -> None:
    recovery = recovered(
        entries_of(
            snap(1, {3: [5]}),
            grow(1, 2, 7, descends_from=1),
            b"a snapshot was here",
            grow(3, 4, 11, descends_from=1),
        )
    )
    assert acked_in(recovery) == [5, 7, 11]
    assert recovery.missing.text(4) == "version 3"


def test_acks_from_before_a_lost_reset_are_not_brought_back() -> None:
    recovery = recovered(
        entries_of(
            snap(1, {3: [5]}),
            grow(1, 2, 7, descends_from=1),
            b"a reset was here",
            grow(3, 4, 11, descends_from=3),
            grow(4, 5, 13, mark_delete=2, descends_from=3),
        ),
        snap(1, {3: [5]}),
    )
    assert acked_in(recovery) == [11, 13]
    assert recovery.state is not None
    assert recovery.state.record.mark_delete == Position(3, 2)
    assert recovery.missing.versions is None
    assert recovery.missing.text(5) == "what was acked above the mark-delete up to version 3"
    assert not recovery.is_from_node


def test_a_reset_that_is_there_hides_what_was_before_it() -> None:
    entries = entries_of(
        snap(1, {3: [5]}),
        grow(1, 2, 7, descends_from=1),
        snap(3, {3: [1]}),
        grow(3, 4, 11, descends_from=3),
    )
    recovery = recovered(entries)
    assert acked_in(recovery) == [1, 11]
    assert recovery.missing.is_nothing


def test_the_node_replaces_a_damaged_snapshot() -> None:
    deltas = [grow(v, v + 1, 2 * v + 5, descends_from=1) for v in range(1, 4)]
    recovery = recovered(entries_of(b"damaged", *deltas), snap(1, {3: [5]}))
    assert acked_in(recovery) == [5, 7, 9, 11]
    assert recovery.missing.is_nothing
    assert not recovery.is_from_node


def test_a_node_that_had_no_room_for_all_replaces_a_damaged_snapshot_in_part() -> None:
    delta = grow(1, 2, 7, descends_from=1)
    recovery = recovered(entries_of(b"damaged", delta), snap(1, {3: [5]}, cut=4))
    assert acked_in(recovery) == [5, 7]
    assert recovery.missing.versions is None
    assert recovery.missing.text(2) == "4 acked entries that did not fit into the node"


def test_deltas_alone_are_a_state_of_what_they_say() -> None:
    recovery = recovered(
        entries_of(b"damaged", grow(4, 5, 9, descends_from=1), grow(5, 6, 11, descends_from=1))
    )
    assert acked_in(recovery) == [9, 11]
    assert recovery.missing.text(6) == "what was acked above the mark-delete up to version 4"


def test_a_ledger_whose_only_record_is_damaged_loses_nothing_that_its_node_has() -> None:
    wide = snap(1, {3: list(range(1, 3000, 2))})
    pieces = entries_of(wide, entry_bytes_max=500)
    for entries in ([LedgerEntry(0, b"damaged")], [LedgerEntry(0, b"damaged"), *pieces[1:]]):
        recovery = recovered(entries, snap(1, {3: [5]}))
        assert recovery.is_from_node
        assert recovery.missing.is_nothing


def test_damage_at_the_end_takes_along_nobody_knows_what() -> None:
    delta = grow(1, 2, 7, descends_from=1)
    recovery = recovered(entries_of(snap(1), delta, b"damaged"))
    assert version_of(recovery.state) == 2
    assert recovery.missing.versions is None
    assert recovery.missing.text(2) == "whatever came after version 2"


def test_many_gaps_are_counted_and_some_named() -> None:
    deltas = [grow(3 * n, 3 * n + 1, n, descends_from=1) for n in range(1, 30)]
    recovery = recovered(entries_of(snap(1), *deltas))
    assert recovery.missing.versions == 58
    assert recovery.missing.text(88).startswith("versions 2 to 3, versions 5 to 6, ")
    assert recovery.missing.text(88).endswith(", 19 more gaps")


def test_deltas_of_earlier_builds_count_only_on_top_of_their_base() -> None:
    old = entries_of(snap(1, {3: [5]}), grow(1, 2, 7), b"damaged", grow(3, 4, 9), grow(4, 5, 11))
    recovery = recovered(old)
    assert acked_in(recovery) == [5, 7]
    assert recovery.missing.gaps == (VersionGap(2, 5),)
    assert recovery.missing.versions == 3
    old = entries_of(b"damaged", grow(1, 2, 7), grow(2, 3, 9))
    recovery = recovered(old, snap(1, {3: [5]}))
    assert acked_in(recovery) == [5, 7, 9]
    assert recovery.missing.is_nothing
    assert recovered(old).state is None


def test_of_one_stamp_the_ledgers_record_counts() -> None:
    recovery = recovered(entries_of(snap(5, {3: [5, 7]})), snap(5, {3: [5]}, cut=1))
    assert acked_in(recovery) == [5, 7]
    assert recovery.missing.is_nothing
    assert not recovery.is_from_node


# --------------------------------------------------------------------------- chunks


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


def test_a_ledger_of_an_earlier_build_without_a_snapshot_has_no_state() -> None:
    state, notes = scanned(entries_of(grow(1, 2, 5), grow(2, 3, 7)))
    assert state is None
    assert notes == ()


def test_an_entry_that_no_bookie_gives_is_skipped() -> None:
    entries = entries_of(snap(1), grow(1, 2, 5), grow(2, 3, 7))
    scan = TailScan()
    scan.skip(2, "no copy left")
    scan.feed(reversed(entries[:2]))
    tail = scan.finish()
    assert version_of(recover(tail, None).state) == 2
    assert tail.notes == ("entry 2: no copy left",)


def test_a_newer_format_fails_instead_of_being_skipped() -> None:
    newer = seal(
        RecordKind.SNAPSHOT, b"of another time", Packing(), format_version=NEWEST_FORMAT + 1
    )
    entries = entries_of(snap(1), newer)
    with pytest.raises(UnknownFormatError, match=rf"entry 1: .*format {NEWEST_FORMAT + 1}"):
        scanned(entries)


def test_notes_are_bounded() -> None:
    state, notes = scanned(entries_of(snap(1), *([b"junk"] * 300)))
    assert version_of(state) == 1
    assert len(notes) == NOTES_MAX + 1
    assert notes[-1] == "and 200 more"


def test_the_newer_of_ledger_and_node_wins() -> None:
    def winner(ledger: SnapshotRecord, node: SnapshotRecord) -> tuple[int, bool]:
        recovery = recovered(entries_of(ledger), node)
        return version_of(recovery.state), recovery.is_from_node

    assert winner(snap(5), snap(6)) == (6, True)
    assert winner(snap(6), snap(5)) == (6, False)
    assert winner(snap(6), snap(1, epoch=2)) == (1, True)
    assert winner(snap(1, epoch=2), snap(6)) == (1, False)
    assert recovered([], snap(6)).is_from_node
    assert recovered([], None).state is None
