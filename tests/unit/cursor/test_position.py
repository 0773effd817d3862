from __future__ import annotations

import pytest

from ackgate.cursor import (
    EARLIEST,
    ENTRY_ID_MAX,
    LATEST,
    LEDGER_ID_MAX,
    Position,
    check_position,
)
from ackgate.errors import PositionError


def test_positions_order_by_ledger_then_entry():
    assert EARLIEST < Position(0, -1) < Position(0, 9) < Position(1, -1) < LATEST


def test_text_reads_back():
    assert Position.parse(str(Position(17, 3))) == Position(17, 3)
    assert Position.parse("5:-1") == Position(5, -1)


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "1:2:3", "a:b", "1.0:2", "-2:0", "1:-2"])
def test_text_that_is_no_position_is_named(text: str):
    with pytest.raises(PositionError) as caught:
        Position.parse(text)
    assert text.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize(
    "position",
    [(-1, 0), (LEDGER_ID_MAX + 1, 0), (0, -2), (0, ENTRY_ID_MAX + 1)],
)
def test_ids_out_of_bounds_are_named(position: tuple[int, int]):
    with pytest.raises(PositionError) as caught:
        check_position(Position(*position))
    assert str(position[0] or position[1]) in str(caught.value)
