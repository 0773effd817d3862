"""What a user of Pulsar knows a cursor to do, one sentence a test."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pyroaring import BitMap

from ackgate.cursor import (
    ARRAY_PATH_POSITIONS_MIN,
    EARLIEST,
    ENTRY_ID_MAX,
    LATEST,
    ManagedCursor,
    MessageLedgers,
    Position,
    Span,
)
from ackgate.cursor.message_ledgers import ENTRIES_PER_LEDGER_MAX
from ackgate.errors import CallerError, CursorClosedError, PositionError
from tests.unit.cursor.topics import at, cursor_over, ledgers_of

UNKNOWN = [
    Position(1, 5),  # behind the ledger's last entry
    Position(2, 3),  # behind the last entry of all
    Position(3, 0),  # no such ledger
    Position(1, -1),
    Position(1, -7),
    Position(1, 2**32),
    Position(2**63, 0),
    Position(-1, 0),
    LATEST,
]


# -- individual acks


def test_acks_out_of_order_reach_the_mark_delete_when_the_hole_closes():
    cursor = cursor_over(10)
    backlog = []
    for position in at("1:3", "1:2", "1:1", "1:0"):
        assert cursor.ack(position)
        backlog.append(cursor.backlog_entries)
    assert backlog == [9, 8, 7, 6]
    assert cursor.mark_delete == Position(1, 3)
    assert cursor.range_count == 0


def test_random_order_counts_the_backlog_down_one_by_one():
    cursor = cursor_over(40, 0, 30)
    entries = [Position(1, e) for e in range(40)] + [Position(3, e) for e in range(30)]
    random.Random(7).shuffle(entries)
    for acked, position in enumerate(entries, start=1):
        assert cursor.ack(position)
        assert cursor.is_acked(position)
        assert cursor.backlog_entries == len(entries) - acked
    assert cursor.mark_delete == Position(3, 29)


def test_the_same_entry_twice_counts_once_and_is_no_error():
    cursor = cursor_over(5)
    assert cursor.ack(Position(1, 2))
    version = cursor.version
    assert not cursor.ack(Position(1, 2))
    assert cursor.ack_individual(at("1:2", "1:2")) == 0
    assert cursor.ack_many(1, [2, 2]) == 0
    assert cursor.version == version


@pytest.mark.parametrize("position", UNKNOWN, ids=str)
def test_an_unknown_position_fails_the_whole_call_and_changes_nothing(position: Position):
    cursor = cursor_over(5, 3)
    cursor.ack_individual(at("1:0", "1:2"))
    before = cursor.snapshot()
    many = [Position(1, 3)] * ARRAY_PATH_POSITIONS_MIN
    calls = [
        lambda: cursor.ack(position),
        lambda: cursor.ack_individual([Position(1, 1), position]),
        lambda: cursor.ack_individual([*many, position]),
        lambda: cursor.ack_mixed([(Position(1, 1), None), (position, 0b1)]),
        lambda: cursor.ack_many_pairs([1, position.ledger_id], [1, position.entry_id]),
        lambda: cursor.ack_cumulative(position, unacked_mask=0b1),
    ]
    for call in calls:
        with pytest.raises(PositionError) as caught:
            call()
        words = str(caught.value)
        named = (str(position.entry_id), str(position.ledger_id), "float64")  # numpy's way out
        assert any(name in words for name in named)
        assert cursor.snapshot() == before


def test_an_entry_below_the_mark_delete_is_acked_even_if_its_ledger_is_gone():
    ledgers = ledgers_of(2, 2, 5)
    cursor = ManagedCursor(ledgers, Position(3, 1))
    ledgers.trim_ledger(1)
    cursor.ledger_trimmed(1)
    assert not cursor.ack(Position(1, 1))
    assert not cursor.ack(Position(1, 77))
    assert cursor.ack_individual(at("1:0", "2:1", "3:3")) == 1
    assert cursor.ack_many(1, [0, 1, 77]) == 0


def test_entries_of_the_mark_deletes_own_trimmed_ledger_are_acked_up_to_it():
    ledgers = ledgers_of(4, 4)
    cursor = ManagedCursor(ledgers, Position(1, 3))
    ledgers.trim_ledger(1)
    cursor.ledger_trimmed(1)
    assert cursor.ack_many(1, [0, 3]) == 0
    with pytest.raises(PositionError, match="entry id 4 is unknown"):
        cursor.ack_many(1, [0, 4])


def test_absorbing_goes_over_borders_and_over_empty_and_trimmed_ledgers():
    ledgers = ledgers_of(2, 0, 2, 2, 3)
    cursor = ManagedCursor(ledgers, Position(1, -1))
    cursor.ack_individual(at("1:1", "3:0", "3:1", "5:0"))
    ledgers.trim_ledger(4)
    cursor.ledger_trimmed(4)
    assert cursor.range_count == 3
    assert cursor.hole_count == 1
    cursor.ack(Position(1, 0))
    assert cursor.mark_delete == Position(5, 0)
    cursor.check()


def test_the_first_entry_behind_an_empty_ledger_moves_the_mark_delete():
    cursor = cursor_over(2, 0, 2)
    cursor.ack_cumulative(Position(1, 1))
    cursor.ack(Position(3, 0))
    assert cursor.mark_delete == Position(3, 0)


def test_a_run_over_a_border_is_two_ranges_and_no_hole_between():
    cursor = cursor_over(4, 4)
    cursor.ack_individual(at("1:2", "1:3", "2:0", "2:1"))
    assert cursor.range_count == 2
    assert cursor.hole_count == 1
    assert cursor.ranges_text(10) == "[(1:1..1:3],(2:-1..2:1]]"
    assert cursor.ranges_text(1) == "[(1:1..1:3],...]"
    assert cursor.last_acked_position() == Position(2, 1)


def test_arrays_and_single_acks_come_to_the_same():
    entries = np.random.default_rng(3).permutation(5000)[:2500]
    by_one, by_list, by_array, by_pairs = (cursor_over(5000) for _ in range(4))
    for entry_id in entries.tolist():
        by_one.ack(Position(1, entry_id))
    assert by_list.ack_individual([Position(1, e) for e in entries.tolist()]) == 2500
    assert by_array.ack_many(1, entries) == 2500
    assert by_pairs.ack_many_pairs(np.ones(2500, dtype=np.int32), entries) == 2500
    for cursor in (by_one, by_list, by_array, by_pairs):
        cursor.check()
        assert cursor.range_count == by_one.range_count
        assert cursor.snapshot().acked == by_one.snapshot().acked


def test_bulk_acks_drop_the_batch_sets_of_what_they_ack():
    cursor = cursor_over(10)
    cursor.ack_mixed([(Position(1, 4), 0b1), (Position(1, 6), 0b1)])
    cursor.ack_many(1, [3, 4])
    assert cursor.unacked_mask(Position(1, 4)) is None
    assert cursor.unacked_mask(Position(1, 6)) == 0b1


def test_the_very_last_entry_id_can_be_acked():
    ledgers = MessageLedgers()
    ledgers.open_ledger(1)
    ledgers.close_ledger(1, ENTRIES_PER_LEDGER_MAX)
    cursor = ManagedCursor(ledgers, Position(1, ENTRY_ID_MAX - 4))
    assert cursor.ack(Position(1, ENTRY_ID_MAX))
    assert cursor.ack_many(1, np.array([ENTRY_ID_MAX - 1], dtype=np.uint32)) == 1
    assert cursor.range_count == 1
    assert cursor.unacked_spans(EARLIEST, 10) == [Span(1, ENTRY_ID_MAX - 3, ENTRY_ID_MAX - 1)]
    cursor.check()
    assert cursor.skip(2) == 2
    assert cursor.mark_delete == Position(1, ENTRY_ID_MAX)
    cursor.check()


def test_a_run_of_one_at_the_very_last_entry_is_absorbed():
    ledgers = MessageLedgers()
    ledgers.open_ledger(1)
    ledgers.close_ledger(1, ENTRIES_PER_LEDGER_MAX)
    cursor = ManagedCursor(ledgers, Position(1, ENTRY_ID_MAX - 2))
    ledgers.open_ledger(2)
    ledgers.add_entries(2, 9)
    cursor.ack_individual([Position(1, ENTRY_ID_MAX), Position(2, 5), Position(2, 7)])
    cursor.ack(Position(1, ENTRY_ID_MAX - 1))
    assert cursor.mark_delete == Position(1, ENTRY_ID_MAX)
    cursor.check()


# -- cumulative acks


def test_a_cumulative_ack_absorbs_the_run_behind_it_and_leaves_later_acks():
    cursor = cursor_over(12)
    cursor.ack_individual(at("1:2", "1:5", "1:6", "1:9"))
    cursor.ack_cumulative(Position(1, 4))
    assert cursor.mark_delete == Position(1, 6)
    assert cursor.range_count == 1
    assert cursor.is_acked(Position(1, 9))


def test_a_cumulative_ack_must_not_go_back_but_may_repeat():
    cursor = cursor_over(5)
    cursor.ack_cumulative(Position(1, 2))
    version = cursor.version
    cursor.ack_cumulative(Position(1, 2))
    assert cursor.version == version
    with pytest.raises(PositionError, match="1:1 goes back: the mark-delete is 1:2"):
        cursor.ack_cumulative(Position(1, 1))
    assert cursor.mark_delete == Position(1, 2)


def test_a_cumulative_ack_may_stand_before_a_ledgers_first_entry():
    cursor = cursor_over(2, 0, 0)
    cursor.ack_cumulative(Position(2, -1))
    assert cursor.mark_delete == Position(2, -1)
    assert cursor.backlog_entries == 0
    cursor.check()


def test_cumulative_properties_replace_and_none_keeps_them():
    cursor = cursor_over(5)
    cursor.ack_cumulative(Position(1, 0), properties={"a": 1})
    cursor.ack_cumulative(Position(1, 1))
    assert cursor.properties == {"a": 1}
    version = cursor.version
    cursor.ack_cumulative(Position(1, 1), properties={"b": 2})
    assert cursor.properties == {"b": 2}
    assert cursor.version > version


# -- batch indexes


def test_a_partial_ack_is_a_change_of_its_own():
    cursor = cursor_over(5)
    version = cursor.version
    assert cursor.ack_mixed([(Position(1, 2), 0b110)]) == 0
    assert cursor.version > version
    assert cursor.partly_acked_count == 1
    assert not cursor.is_acked(Position(1, 2))


def test_the_same_partial_ack_again_is_no_change():
    cursor = cursor_over(5)
    cursor.ack_mixed([(Position(1, 2), 0b110)])
    version = cursor.version
    cursor.ack_mixed([(Position(1, 2), 0b110), (Position(1, 2), 0b111)])
    assert cursor.version == version


def test_the_last_index_acks_the_entry():
    cursor = cursor_over(5)
    cursor.ack_mixed([(Position(1, 0), 0b110)])
    assert cursor.ack_mixed([(Position(1, 0), 0b001)]) == 1
    assert cursor.mark_delete == Position(1, 0)
    assert cursor.partly_acked_count == 0


def test_a_whole_ack_and_a_passing_mark_delete_drop_the_set():
    cursor = cursor_over(8)
    cursor.ack_mixed([(Position(1, e), 0b1) for e in (1, 3, 5)])
    cursor.ack(Position(1, 3))
    assert cursor.unacked_mask(Position(1, 3)) is None
    cursor.ack_cumulative(Position(1, 2))
    assert cursor.snapshot().unacked_indexes == {Position(1, 5): 0b1}
    cursor.reset(Position(1, 0))
    assert cursor.partly_acked_count == 0


def test_a_cumulative_ack_inside_a_batch_never_rolls_back():
    cursor = cursor_over(5)
    cursor.ack_cumulative(Position(1, 2), unacked_mask=0b1000)
    assert cursor.mark_delete == Position(1, 1)
    cursor.ack_cumulative(Position(1, 2), unacked_mask=0b1110)
    assert cursor.unacked_mask(Position(1, 2)) == 0b1000
    cursor.ack_cumulative(Position(1, 2), unacked_mask=0)
    assert cursor.mark_delete == Position(1, 2)


def test_without_batch_index_acks_a_partial_set_is_ignored_and_an_empty_one_is_a_full_ack():
    cursor = ManagedCursor(ledgers_of(5), Position(1, -1), batch_index_acks=False)
    assert cursor.ack_mixed([(Position(1, 2), 0b10)]) == 0
    assert cursor.version == 0
    assert cursor.ack_mixed([(Position(1, 2), 0)]) == 1
    cursor.ack_cumulative(Position(1, 1), unacked_mask=0b10)
    assert cursor.mark_delete == Position(1, 0)


def test_a_negative_set_of_indexes_is_refused():
    cursor = cursor_over(5)
    with pytest.raises(PositionError, match="-1"):
        cursor.ack_mixed([(Position(1, 2), None), (Position(1, 2), -1)])
    with pytest.raises(PositionError, match="-1"):
        cursor.ack_cumulative(Position(1, 2), unacked_mask=-1)
    assert cursor.version == 0


def test_in_order_batches_leave_nothing_behind():
    cursor = cursor_over(1000)
    for entry_id in range(1000):
        cursor.ack_mixed([(Position(1, entry_id), 0b10)])
        cursor.ack_mixed([(Position(1, entry_id), 0b01)])
    assert cursor.partly_acked_count == 0
    assert not cursor._state.batches._lowest_first, "sets below the mark-delete pile up"


# -- skip, clear, reset, seek, rewind


def test_skip_counts_unacked_entries_only():
    cursor = cursor_over(5, 5)
    cursor.ack_individual(at("1:1", "1:3", "2:0"))
    assert cursor.skip(3) == 3
    assert cursor.mark_delete == Position(2, 0), "1:0, 1:2, 1:4 and what touches them"
    assert cursor.skip(100) == 4
    assert cursor.mark_delete == Position(2, 4)
    assert cursor.skip(1) == 0
    with pytest.raises(CallerError, match="-1"):
        cursor.skip(-1)


def test_clear_backlog_acks_everything_there_is():
    cursor = cursor_over(5, 5)
    cursor.ack(Position(2, 1))
    assert cursor.clear_backlog() == 9
    assert cursor.backlog_entries == cursor.range_count == 0
    assert cursor.mark_delete == Position(2, 4)
    assert cursor.read_position == Position(2, 5)
    assert cursor.clear_backlog() == 0


def test_reset_leaves_no_old_holes():
    cursor = cursor_over(10)
    cursor.ack_individual(at("1:5", "1:7"))
    cursor.reset(Position(1, 0))
    snapshot = cursor.snapshot()
    assert (snapshot.mark_delete, snapshot.acked) == (Position(1, -1), {})
    assert cursor.read_position == Position(1, 0)
    assert cursor.unacked_spans(EARLIEST, 100) == [Span(1, 0, 10)]


@pytest.mark.parametrize(
    ("wanted", "mark_delete", "read_position"),
    [
        (EARLIEST, Position(1, -1), Position(1, 0)),
        (Position(1, 3), Position(1, 2), Position(1, 3)),
        (Position(1, 5), Position(1, 4), Position(3, 0)),
        (Position(2, 0), Position(1, 4), Position(3, 0)),
        (Position(3, 99), Position(3, 1), Position(3, 2)),
        (Position(9, 0), Position(3, 1), Position(3, 2)),
        (LATEST, Position(3, 1), Position(3, 2)),
    ],
)
def test_reset_moves_to_an_entry_or_to_the_next_one(
    wanted: Position, mark_delete: Position, read_position: Position
):
    cursor = cursor_over(5, 0, 2)
    cursor.ack(Position(1, 0))
    cursor.reset(wanted)
    assert (cursor.mark_delete, cursor.read_position) == (mark_delete, read_position)


def test_the_mark_delete_pushes_the_read_position_ahead():
    cursor = cursor_over(5, 5)
    cursor.ack_cumulative(Position(1, 4))
    assert cursor.read_position == Position(2, 0)
    cursor.seek(Position(2, 3))
    cursor.ack(Position(2, 0))
    assert cursor.read_position == Position(2, 3)


def test_seek_stays_above_the_mark_delete_unless_forced():
    cursor = cursor_over(10)
    cursor.ack_cumulative(Position(1, 4))
    cursor.seek(Position(1, 2))
    assert cursor.read_position == Position(1, 5)
    cursor.seek(Position(1, 2), force=True)
    assert cursor.read_position == Position(1, 2)
    cursor.ack(Position(1, 5))
    assert cursor.read_position == Position(1, 6)
    cursor.seek(LATEST)
    assert cursor.read_position == Position(1, 10)
    cursor.rewind()
    assert cursor.read_position == Position(1, 6)


def test_moving_the_read_position_is_not_a_change_of_the_ack_state():
    cursor = cursor_over(10)
    cursor.seek(Position(1, 5))
    cursor.rewind()
    cursor.reset(Position(1, 0))
    assert cursor.version == 0


def test_reading_hops_over_what_is_acked():
    cursor = cursor_over(5, 0, 300_000)
    cursor.ack_many(3, np.arange(1, 250_000))
    assert cursor.unacked_spans(Position(1, 3), 5) == [
        Span(1, 3, 5),
        Span(3, 0, 1),
        Span(3, 250_000, 250_002),
    ]
    assert cursor.unacked_spans(Position(1, 3), 0) == []
    assert cursor.unacked_spans(LATEST, 5) == []


def test_reading_through_scattered_acks_gives_each_hole():
    cursor = cursor_over(10_000)
    cursor.ack_many(1, np.arange(1, 10_000, 2))
    spans = cursor.unacked_spans(EARLIEST, 1000)
    assert spans == [Span(1, entry_id, entry_id + 1) for entry_id in range(0, 2000, 2)]


def test_a_hole_that_outgrows_the_window_is_one_span():
    cursor = cursor_over(20_000)
    cursor.ack_many(1, np.array([e for e in range(1, 1800) if e % 4] + [15_000]))
    spans = cursor.unacked_spans(EARLIEST, 1000)
    assert spans[:450] == [Span(1, entry_id, entry_id + 1) for entry_id in range(0, 1800, 4)]
    assert spans[450:] == [Span(1, 1800, 2350)]


def test_reading_hops_over_a_million_held_entries():
    cursor = cursor_over(*[50_000] * 21)
    held = {1: BitMap(range(10, 50_000)), **{n: BitMap(range(50_000)) for n in range(2, 21)}}
    asked = []

    def left_out(ledger_id):
        asked.append(ledger_id)
        return held.get(ledger_id)

    assert cursor.unacked_spans(Position(1, 0), 100, left_out=left_out) == [
        Span(1, 0, 10),
        Span(21, 0, 90),
    ]
    assert asked == list(range(1, 22)), "once for each ledger"


def test_small_gaps_are_read_through_but_not_more_than_was_asked_for():
    cursor = cursor_over(100)
    cursor.ack_many(1, np.array([3, 4, 20]))
    held = BitMap([7, 8, 9, 10])

    def spans(entries_max, gap):
        return cursor.unacked_spans(
            EARLIEST, entries_max, left_out=lambda _: held, gap_entries_max=gap
        )

    assert spans(20, 0) == [Span(1, 0, 3), Span(1, 5, 7), Span(1, 11, 20), Span(1, 21, 27)]
    assert spans(20, 2) == [Span(1, 0, 7), Span(1, 11, 27)]
    assert spans(20, 4) == [Span(1, 0, 27)]
    assert spans(6, 4) == [Span(1, 0, 12)]
    assert spans(5, 4) == [Span(1, 0, 7)], "nothing wanted lies behind the gap"
    cursor.ack_many(1, np.arange(11, 100, 2))
    assert spans(8, 5) == [Span(1, 0, 15), Span(1, 16, 17)], "two, five and one: eight in all"
    assert spans(6, 5)[-1] == Span(1, 12, 13), "with two read through, five more are too many"


def test_has_acked_above_tells_whether_a_hole_may_close():
    cursor = cursor_over(10)
    assert not cursor.has_acked_above(Position(1, 0))
    cursor.ack(Position(1, 5))
    assert cursor.has_acked_above(Position(1, 4))
    assert not cursor.has_acked_above(Position(1, 5))


# -- ledgers come and go


def test_a_trimmed_front_ledger_moves_a_cursor_that_was_left_in_it():
    ledgers = ledgers_of(5, 5, 5)
    cursor = ManagedCursor(ledgers, Position(1, 1))
    cursor.ack_individual(at("1:3", "2:0", "3:3"))
    for ledger_id in (1, 2):
        ledgers.trim_ledger(ledger_id)
        cursor.ledger_trimmed(ledger_id)
        cursor.check()
    assert cursor.mark_delete == Position(2, 4)
    assert cursor.read_position == Position(3, 0)
    assert (cursor.range_count, cursor.backlog_entries) == (1, 4)


def test_a_trimmed_ledger_below_the_mark_delete_changes_nothing():
    ledgers = ledgers_of(5, 5)
    cursor = ManagedCursor(ledgers, Position(1, 4))
    ledgers.trim_ledger(1)
    cursor.ledger_trimmed(1)
    assert (cursor.version, cursor.mark_delete) == (0, Position(1, 4))
    with pytest.raises(CallerError, match="ledger 2 exists"):
        cursor.ledger_trimmed(2)


def test_a_lost_ledger_with_nothing_but_a_batch_set_spoils_growth():
    ledgers = ledgers_of(5, 5, 5)
    cursor = ManagedCursor(ledgers, Position(1, 1))
    cursor.ack_mixed([(Position(2, 3), 0b1)])
    cursor.take_snapshot()
    version = cursor.version
    ledgers.trim_ledger(2)
    cursor.ledger_trimmed(2)
    assert cursor.partly_acked_count == 0
    assert cursor.version > version
    assert cursor.take_growth() is None


def test_a_cursor_cannot_begin_behind_the_last_entry():
    for beyond in (Position(1, 5), Position(2, -1), LATEST):
        with pytest.raises(PositionError, match="is after the last entry 1:4"):
            ManagedCursor(ledgers_of(5), beyond)
    assert ManagedCursor(ledgers_of(5), EARLIEST).backlog_entries == 5


# -- for persistence


def test_a_snapshot_shares_nothing_with_the_cursor():
    cursor = cursor_over(10)
    cursor.ack_mixed([(Position(1, 4), 0b1), (Position(1, 6), None)])
    cursor.set_properties({"a": 1})
    snapshot = cursor.snapshot()
    cursor.ack_individual(at("1:4", "1:8"))
    cursor.set_properties({"a": 2})
    assert snapshot.acked == {1: BitMap([6])}
    assert snapshot.unacked_indexes == {Position(1, 4): 0b1}
    assert snapshot.properties == {"a": 1}
    assert snapshot.version < cursor.version


def test_growth_holds_what_is_new_and_above_the_mark_delete():
    cursor = cursor_over(10, 10)
    cursor.ack(Position(1, 8))
    base = cursor.take_snapshot()
    cursor.ack_individual(at("1:0", "1:2", "1:5", "2:7"))
    cursor.ack_mixed([(Position(2, 1), 0b1), (Position(2, 2), 0b1), (Position(2, 2), None)])
    cursor.ack_cumulative(Position(1, 3))
    growth = cursor.take_growth()
    assert growth is not None
    assert (growth.base_version, growth.version) == (base.version, cursor.version)
    assert growth.mark_delete == Position(1, 3)
    assert growth.acked == {1: BitMap([5]), 2: BitMap([2, 7])}
    assert growth.unacked_indexes == {Position(2, 1): 0b1}
    assert growth.range_count == cursor.range_count == 4
    assert growth.properties is None
    following = cursor.take_growth()
    assert following is not None
    assert (following.base_version, following.acked) == (growth.version, {})


def test_growth_is_spoilt_until_the_next_snapshot_by_what_is_not_growth():
    for spoil in (lambda c: c.reset(Position(1, 3)), lambda c: c.clear_backlog()):
        cursor = cursor_over(10)
        assert cursor.take_growth() is None
        cursor.take_snapshot()
        cursor.ack(Position(1, 5))
        spoil(cursor)
        assert cursor.take_growth() is None
        assert cursor.take_growth() is None
        cursor.take_snapshot()
        assert cursor.take_growth() is not None


def test_a_cursor_that_is_never_persisted_tracks_no_growth():
    cursor = ManagedCursor(ledgers_of(9), Position(1, -1), track_growth=False)
    cursor.take_snapshot()
    cursor.ack(Position(1, 5))
    assert cursor.take_growth() is None


def test_taking_growth_does_not_share_bitmaps_with_the_cursor():
    cursor = cursor_over(100)
    cursor.take_snapshot()
    cursor.ack_many(1, [5, 7])
    growth = cursor.take_growth()
    assert growth is not None
    cursor.ack_many(1, [9])
    cursor.ack(Position(1, 11))
    assert growth.acked == {1: BitMap([5, 7])}


def test_the_byte_estimate_is_no_less_than_the_bitmaps():
    cursor = cursor_over(100_000, 100_000)
    random_ids = np.random.default_rng(1).permutation(100_000)
    for ids in (np.arange(1, 100, 2), np.arange(50_000, 90_000), random_ids[:30_000]):
        cursor.ack_many(1, ids)
        cursor.ack_many(2, ids)
        bitmaps = cursor.snapshot().acked.values()
        for bitmap in bitmaps:
            bitmap.run_optimize()
        encoded = sum(len(bitmap.serialize()) for bitmap in bitmaps)
        assert encoded * 0.9 < cursor.byte_estimate < encoded * 2 + 200


def test_statistics_say_everything_in_numbers():
    cursor = cursor_over(10, 5)
    cursor.ack_individual(at("1:0", "1:2", "1:9", "2:0"))
    cursor.ack_mixed([(Position(1, 3), 0b1)])
    cursor.seek(Position(1, 6))
    stats = cursor.statistics()
    assert stats.mark_delete == Position(1, 0)
    assert stats.read_position == Position(1, 6)
    assert stats.last_confirmed == Position(2, 4)
    assert (stats.backlog_entries, stats.unread_entries) == (11, 7)
    assert (stats.range_count, stats.hole_count, stats.acked_count) == (3, 2, 3)
    assert stats.partly_acked_count == 1
    assert stats.version == cursor.version
    assert stats.byte_estimate == cursor.byte_estimate > 0


# -- the strict budget


def test_the_budget_of_a_fresh_cursor_lets_every_second_entry_be_a_range():
    cursor = cursor_over(1000)
    assert cursor.entry_budget(0) == 1
    assert cursor.entry_budget(100) == 201


def test_acks_in_flight_never_make_the_budget_narrower():
    cursor = cursor_over(1000)
    cursor.seek(Position(1, cursor.entry_budget(10)))
    assert cursor.entry_budget(10) == 0
    cursor.ack_many(1, np.arange(1, 21, 2))
    assert cursor.range_count == 10
    assert cursor.entry_budget(10) == 0
    cursor.ack(Position(1, 0))
    assert cursor.entry_budget(10) == 2


def test_over_the_limit_what_makes_it_no_worse_may_still_be_sent():
    cursor = cursor_over(1000)
    cursor.ack_many(1, np.arange(1, 100, 2))
    assert cursor.entry_budget(5) == 51, "all of them close holes; 1:100 then widens a range"
    cursor.seek(Position(1, 101))
    assert cursor.entry_budget(5) == 0


def test_a_budget_that_is_wide_enough_is_answered_at_once():
    cursor = cursor_over(1000)
    assert cursor.entry_budget(10_000, entries_enough=100) == 100
    assert cursor.entry_budget(10, entries_enough=100) == 21


def test_unacked_entries_are_counted_from_the_mark_delete():
    cursor = cursor_over(10)
    for entry_id in (0, 1, 3, 5):
        cursor.ack(Position(1, entry_id))
    found = [cursor.nth_unacked(number) for number in range(1, 8)]
    assert found == [*(Position(1, entry_id) for entry_id in (2, 4, 6, 7, 8, 9)), None]


# ----------------------------------------------------------------------------------- the end


def test_a_sealed_cursor_refuses_every_change_and_can_be_read():
    changes = {
        "ack": (Position(1, 7),),
        "ack_individual": ([Position(1, 7)],),
        "ack_mixed": ([(Position(1, 7), None)],),
        "ack_many": (1, [7]),
        "ack_many_pairs": ([1], [7]),
        "ack_cumulative": (Position(1, 7),),
        "skip": (1,),
        "clear_backlog": (),
        "set_properties": ({"a": 1},),
        "reset": (Position(1, 0),),
        "catch_up": (99,),
    }
    cursor = cursor_over(10)
    cursor.ack(Position(1, 3))
    before = cursor.snapshot()
    cursor.seal("cursor x is closed")
    for name, arguments in changes.items():
        with pytest.raises(CursorClosedError, match="cursor x is closed"):
            getattr(cursor, name)(*arguments)
    with pytest.raises(CursorClosedError):
        cursor.ack(Position(1, 3))  # acked already, too
    cursor.seal("for another reason")
    with pytest.raises(CursorClosedError, match="cursor x is closed"):
        cursor.ack(Position(1, 7))
    assert cursor.snapshot() == before
    cursor.check()
    others = {
        name
        for name in dir(ManagedCursor)
        if not name.startswith("_") and callable(getattr(ManagedCursor, name))
    } - changes.keys()
    assert others == {
        "acked_entries",
        "check",
        "entry_budget",
        "from_snapshot",
        "has_acked_above",
        "is_acked",
        "last_acked_position",
        "last_partly_acked_position",
        "ledger_trimmed",  # what it forgets concerns nothing any more
        "nth_unacked",
        "ranges_text",
        "rewind",
        "seal",
        "seek",
        "snapshot",
        "statistics",
        "take_growth",
        "take_snapshot",
        "unacked_mask",
        "unacked_spans",
    }, "whatever is new changes nothing, or refuses when it is sealed"
