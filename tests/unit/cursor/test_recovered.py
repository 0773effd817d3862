from __future__ import annotations

from typing import Any

from pyroaring import BitMap

from ackgate.cursor import EARLIEST, CursorSnapshot, ManagedCursor, Position, RecoveredStateReport
from tests.unit.cursor.topics import ledgers_of


def snapshot_of(mark_delete: Position, **fields: Any) -> CursorSnapshot:
    defaults: dict[str, Any] = {"version": 7, "acked": {}, "range_count": 0}
    return CursorSnapshot(mark_delete=mark_delete, **{**defaults, **fields})


def test_a_snapshot_that_fits_is_taken_as_it_is():
    snapshot = snapshot_of(
        Position(1, 2),
        acked={1: BitMap([4, 5]), 2: BitMap([0])},
        range_count=2,
        unacked_indexes={Position(2, 3): 0b101},
        properties={"a": 1},
    )
    cursor, report = ManagedCursor.from_snapshot(ledgers_of(6, 6), snapshot)
    assert report.is_clean
    assert cursor.snapshot() == snapshot
    assert cursor.read_position == Position(1, 3)


def test_acks_that_concern_nothing_are_dropped_and_counted():
    snapshot = snapshot_of(
        Position(2, 2),
        acked={
            1: BitMap([0, 1]),
            2: BitMap([1, 2, 4]),
            3: BitMap([4, 5, 6, 7]),
            9: BitMap([1, 2, 3]),
        },
        unacked_indexes={
            Position(1, 0): 1,  # below the mark-delete
            Position(2, 4): 1,  # acked as a whole
            Position(3, 9): 1,  # no such entry
            Position(3, 1): 0,  # no such set
            Position(3, 0): 1,
        },
    )
    cursor, report = ManagedCursor.from_snapshot(ledgers_of(5, 6, 6), snapshot)
    assert report == RecoveredStateReport(
        entries_below_mark_delete=4,
        entries_beyond_end=2,
        entries_of_unknown_ledgers=3,
        unknown_ledger_ids=(9,),
        batch_sets_dropped=4,
    )
    assert cursor.snapshot().acked == {2: BitMap([4]), 3: BitMap([4, 5])}
    assert cursor.unacked_mask(Position(3, 0)) == 1
    assert cursor.version == 8, "what was dropped makes it dirty"
    cursor.check()


def test_the_snapshot_is_not_changed_by_being_recovered():
    bitmap = BitMap([0, 1, 2, 99])
    ManagedCursor.from_snapshot(ledgers_of(9), snapshot_of(Position(1, 0), acked={1: bitmap}))
    assert bitmap == BitMap([0, 1, 2, 99])


def test_a_mark_delete_beyond_the_end_is_clamped():
    for beyond in (Position(2, 3), Position(2, 99), Position(7, -1), Position(7, 0)):
        cursor, report = ManagedCursor.from_snapshot(ledgers_of(4, 3), snapshot_of(beyond))
        assert cursor.mark_delete == Position(2, 2)
        assert report.mark_delete_was == beyond
        assert not report.is_clean


def test_a_mark_delete_beyond_its_ledger_is_clamped_to_the_ledger():
    cursor, report = ManagedCursor.from_snapshot(ledgers_of(4, 3), snapshot_of(Position(1, 50)))
    assert cursor.mark_delete == Position(1, 3)
    assert report.mark_delete_was == Position(1, 50)


def test_a_mark_delete_in_a_trimmed_ledger_or_before_everything_stays():
    ledgers = ledgers_of(4, 3, 3)
    ledgers.trim_ledger(1)
    for place in (EARLIEST, Position(1, 2), Position(2, -1)):
        cursor, report = ManagedCursor.from_snapshot(ledgers, snapshot_of(place))
        assert cursor.mark_delete == place
        assert report.is_clean
        assert cursor.backlog_entries == 6


def test_ranges_that_touch_the_mark_delete_are_absorbed():
    snapshot = snapshot_of(Position(1, 1), acked={1: BitMap([2, 3, 4]), 2: BitMap([0, 2])})
    cursor, _ = ManagedCursor.from_snapshot(ledgers_of(5, 5), snapshot)
    assert cursor.mark_delete == Position(2, 0)
    assert cursor.range_count == 1


def test_without_batch_index_acks_the_stored_sets_are_dropped():
    snapshot = snapshot_of(Position(1, 1), unacked_indexes={Position(1, 3): 0b1})
    cursor, report = ManagedCursor.from_snapshot(ledgers_of(5), snapshot, batch_index_acks=False)
    assert cursor.partly_acked_count == 0
    assert report.batch_sets_dropped == 1


def test_a_recovered_cursor_asks_for_a_snapshot_first():
    cursor, _ = ManagedCursor.from_snapshot(ledgers_of(5), snapshot_of(Position(1, 1)))
    assert cursor.take_growth() is None
    cursor.take_snapshot()
    assert cursor.take_growth() is not None
