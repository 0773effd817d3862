"""The history of records equals the states of the cursor that wrote them, and a count by sets."""

from __future__ import annotations

import operator
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given, settings
from pyroaring import BitMap

from ackgate.cursor import ManagedCursor, Position
from ackgate.pipeline.jobs.ack_stats.history import (
    CursorRecordRow,
    PositionAxis,
    cursor_history,
    holes_of,
)
from tests.property.persistence.states import bitmaps, changes, message_ledgers

Step = tuple[list[Callable[[ManagedCursor], object]], bool]

steps = st.lists(
    st.tuples(st.lists(changes, min_size=1, max_size=5), st.booleans()), min_size=1, max_size=20
)


def unacked_below_last_ack(mark_delete: Position, acked: dict[int, BitMap]) -> set[Position]:
    """Entry by entry."""
    return {
        Position(ledger_id, entry_id)
        for ledger_id, bitmap in acked.items()
        for entry_id in range(bitmap.max())
        if entry_id not in bitmap and (ledger_id, entry_id) > mark_delete
    }


def runs(positions: set[Position]) -> int:
    return sum(Position(a, b - 1) not in positions for a, b in positions)


def written(cursor: ManagedCursor, at_ms: int, *, wants_snapshot: bool) -> CursorRecordRow:
    """The record that a store would write now."""
    growth = None if wants_snapshot else cursor.take_growth()
    taken = cursor.take_snapshot() if growth is None else growth
    return CursorRecordRow(
        owner_epoch=1,
        version=taken.version,
        base_version=None if growth is None else growth.base_version,
        written_ms=at_ms,
        mark_delete=taken.mark_delete,
        range_count=taken.range_count,
        ranges_in_memory=taken.range_count,
        entries_dropped=0,
        record_bytes=1,
        cursor_ledger_id=9,
        entry_id=at_ms,
        acked=taken.acked,
    )


@given(steps, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_each_state_is_the_one_that_the_cursor_had(lived: list[Step], shuffle):
    cursor = ManagedCursor(message_ledgers(), Position(3, -1))
    rows, states = [], []
    for at_ms, (made, wants_snapshot) in enumerate(lived):
        for change in made:
            change(cursor)
        rows.append(written(cursor, at_ms, wants_snapshot=wants_snapshot or at_ms == 0))
        states.append(cursor.snapshot())
    shuffle.shuffle(rows)

    history = cursor_history(rows, time_bins_max=10_000, place_bins_max=10_000)

    assert history.records_unlinked == 0
    assert len(history.bins) == len(states)
    for one, state in zip(history.bins, states, strict=True):
        unacked = unacked_below_last_ack(state.mark_delete, dict(state.acked))
        assert one.state is not None
        assert (one.version, one.range_count) == (state.version, state.range_count)
        assert one.state.acked_entries == sum(map(len, state.acked.values()))
        assert (one.state.holes, one.state.hole_entries) == (runs(unacked), len(unacked))
        places = {
            history.axis.place(int(at)) for at in one.state.hole_entries_by_place.nonzero()[0]
        }
        assert places == unacked
        assert one.state.oldest_hole is None or one.state.oldest_hole in unacked
    assert history.open_holes is not None
    since_ms = history.open_holes.since_ms.tolist()
    overtaken = [
        overtaken_since(states, history.open_holes.holes.position(number))
        for number in range(len(since_ms))
    ]
    # A reset makes some acks forgotten; then holes may be taken for younger ones.
    assert all(map(operator.ge, since_ms, overtaken))
    assert since_ms == overtaken or any(map(is_set_back, states, states[1:]))


def is_set_back(before, after) -> bool:
    """Whether something that was acked is not any more."""
    return any(
        position > after.mark_delete and entry not in after.acked.get(ledger, ())
        for ledger, entries in before.acked.items()
        for entry in entries
        for position in [Position(ledger, entry)]
    )


def overtaken_since(states, hole: Position) -> int:
    """The first state from which on there was always an acked entry behind it."""
    since = len(states)
    while since and max(states[since - 1].acked.get(hole.ledger_id, [-1])) > hole.entry_id:
        since -= 1
    return since


small = st.builds(BitMap, st.sets(st.integers(0, 200), min_size=1, max_size=60))


@given(st.dictionaries(st.integers(1, 6), small, max_size=4), st.integers(1, 12))
def test_holes_by_place_are_the_sets_count(acked: dict[int, BitMap], bins_max: int):
    mark_delete = Position(1, -1)
    axis = PositionAxis.over(
        {ledger: (0, bits.max() + 1) for ledger, bits in acked.items()}, bins_max
    )
    holes = holes_of(mark_delete, acked)
    line = [(ledger, entry) for ledger in sorted(acked) for entry in range(acked[ledger].max() + 1)]
    expected = [0] * axis.bin_count
    for position in unacked_below_last_ack(mark_delete, acked):
        expected[line.index(position) // axis.bin_entries] += 1

    assert axis.bin_count <= bins_max
    assert axis.unacked_by_bin(holes).tolist() == expected


@given(bitmaps(st.integers(0, 2**32 - 1)))
@settings(max_examples=50)
def test_holes_of_any_bitmap_add_up(bitmap: BitMap):
    holes = holes_of(Position(0, 5), {1: bitmap})

    assert holes.entries + len(bitmap) == bitmap.max() + 1
