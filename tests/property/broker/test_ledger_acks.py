"""Cells against counting one entry after the other."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from ackgate.broker.stats.holes import CELLS_MAX, FULL, LEDGERS_MAX, ack_picture
from ackgate.commands.stats.look import ASCII, hole_picture
from ackgate.cursor import Position
from ackgate.errors import CallerError


@given(
    entries=st.integers(1, 300),
    passed=st.integers(0, 300),
    acked=st.sets(st.integers(0, 299)),
    cells=st.integers(1, CELLS_MAX),
)
def test_every_cell_tells_its_slice(entries: int, passed: int, acked: set[int], cells: int) -> None:
    passed = min(passed, entries)
    above = {entry for entry in acked if passed < entry < entries}
    mark_delete = Position(7, passed - 1)
    picture = ack_picture([(7, entries)], mark_delete, {7: BitMap(above)}, cells)
    (ledger,) = picture.ledgers

    done = [entry < passed or entry in above for entry in range(entries)]
    width = min(cells, entries)
    edges = [entries * cell // width for cell in range(width + 1)]
    assert len(ledger.cells) == width
    assert ledger.acked == sum(done)
    assert ledger.ranges == sum(1 for entry in above if entry - 1 not in above)
    for cell, (start, stop) in enumerate(pairwise(edges)):
        slice_ = done[start:stop]
        assert (ledger.cells[cell] == FULL) == all(slice_)
        assert (ledger.cells[cell] == 0) == (not any(slice_))
        assert abs(ledger.cells[cell] / FULL - sum(slice_) / len(slice_)) <= 1 / FULL

    read = Position(7, min(entries, passed + 3))
    passed_run, after = hole_picture(ledger, mark_delete, read, ASCII)
    assert len(passed_run) + len(after) == width
    for cell, glyph in enumerate(passed_run + after):
        slice_ = done[edges[cell] : edges[cell + 1]]
        assert (glyph in {ASCII.passed, ASCII.densities[-1]}) == all(slice_)
        assert (glyph in {ASCII.unread, ASCII.densities[0]}) == (not any(slice_))


def test_a_single_hole_in_a_million_shows() -> None:
    acked = BitMap(range(1_000_000))
    acked.remove(700_123)
    picture = ack_picture([(1, 1_000_000)], Position(1, -1), {1: acked}, 100)
    assert [cell for cell in picture.ledgers[0].cells if cell != FULL] == [FULL - 1]


def test_ledgers_before_the_mark_delete_and_empty_ones_are_not_shown() -> None:
    counts = [(1, 5), (2, 5), (3, 0), (4, 5)]
    picture = ack_picture(counts, Position(2, 4), {4: BitMap([1])}, 10)
    assert [ledger.ledger_id for ledger in picture.ledgers] == [2, 4]


def test_the_answer_is_bounded() -> None:
    counts = [(ledger_id, 5) for ledger_id in range(1, 200)]
    picture = ack_picture(counts, Position(1, -1), {}, 10)
    assert len(picture.ledgers) == LEDGERS_MAX
    assert picture.ledgers_omitted == 199 - LEDGERS_MAX


@pytest.mark.parametrize("cells", [0, CELLS_MAX + 1])
def test_too_many_cells_are_refused(cells: int) -> None:
    with pytest.raises(CallerError, match=str(cells)):
        ack_picture([], Position(1, -1), {}, cells)
