"""The arithmetic of one ledger's holes, on the cases that the module draws."""

from __future__ import annotations

import numpy as np
import pytest

from ackgate.cursor.strict_budget import ENDLESS, gain_below, ledger_holes, part_gain, widest


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("length", range(1, 9))
def test_gain_of_one_hole_by_its_acked_neighbours(length: int):
    between = ledger_holes(ids(0, length + 1), ids(1, length + 2), low=0, high=length + 2,
                           touches_mark_delete=False)  # fmt: skip
    at_end = ledger_holes(ids(0), ids(1), low=0, high=length + 1, touches_mark_delete=False)
    alone = ledger_holes(ids(), ids(), low=0, high=length, touches_mark_delete=False)
    behind_mark = ledger_holes(ids(), ids(), low=4, high=4 + length, touches_mark_delete=True)
    assert between.gains.tolist() == [(length - 1) // 2]
    assert at_end.gains.tolist() == behind_mark.gains.tolist() == [length // 2]
    assert alone.gains.tolist() == [(length + 1) // 2]


def test_a_ledger_acked_from_end_to_end_has_no_holes():
    holes = ledger_holes(ids(0), ids(5), low=0, high=5, touches_mark_delete=False)
    assert holes.starts.size == 0
    assert gain_below(holes, ENDLESS) == (0, 0)
    assert widest([holes], 3) == 0


def test_an_empty_ledger_has_no_holes():
    holes = ledger_holes(ids(), ids(), low=7, high=7, touches_mark_delete=True)
    assert holes.starts.size == 0


def test_gain_below_a_boundary_inside_a_hole_counts_the_part():
    #           0 1 2 3 4 5 6 7 8 9
    #           M . . . # . . . . .
    holes = ledger_holes(ids(4), ids(5), low=1, high=ENDLESS, touches_mark_delete=True)
    assert gain_below(holes, 1) == (0, 0)
    assert gain_below(holes, 3) == (part_gain(2, has_left=True), 2)
    assert gain_below(holes, 4) == (1, 3)
    assert gain_below(holes, 8) == (1 + 1, 6)


def test_widest_takes_whole_holes_first_and_then_a_part():
    first = ledger_holes(ids(4), ids(5), low=1, high=6, touches_mark_delete=True)
    last = ledger_holes(ids(), ids(), low=0, high=ENDLESS, touches_mark_delete=False)
    # first: 3 entries gain 1, 1 entry gains 0; last: 1 entry gains 1.
    assert widest([first, last], 0) == 1  # 1:1; with 1:2 too, acking 1:2 alone would make a range
    assert widest([first, last], 1) == 4
    assert widest([first, last], 2) == 4 + 2
    assert widest([first, last], 3) == 4 + 4
