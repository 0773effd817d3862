from __future__ import annotations

import pytest

from ackgate.cursor import EARLIEST, LATEST, ManagedCursor, MessageLedgers, Position
from ackgate.cursor.message_ledgers import ENTRIES_PER_LEDGER_MAX
from ackgate.errors import PositionError
from tests.unit.cursor.topics import ledgers_of


def test_a_topic_without_ledgers_has_nothing():
    ledgers = MessageLedgers()
    assert ledgers.total_entries == 0
    assert ledgers.last_confirmed == ledgers.first_position == EARLIEST
    assert ledgers.count_after(EARLIEST) == 0
    ledgers.check()


def test_before_the_first_entry_the_last_confirmed_is_the_first_ledgers_begin():
    ledgers = ledgers_of(0)
    assert ledgers.last_confirmed == ledgers.first_position == Position(1, -1)
    assert ledgers.next_valid(Position(1, -1)) == Position(1, 0)


def test_next_valid_skips_empty_ledgers_and_ends_where_the_next_entry_is_expected():
    ledgers = ledgers_of(2, 0, 0, 1)
    assert ledgers.next_valid(EARLIEST) == Position(1, 0)
    assert ledgers.next_valid(Position(1, 1)) == Position(4, 0)
    assert ledgers.next_valid(Position(4, 0)) == Position(4, 1)
    assert ledgers.next_valid(LATEST) == Position(4, 1)


def test_previous_of_the_first_entry_is_just_before_it():
    ledgers = ledgers_of(0, 2)
    assert ledgers.previous(Position(2, 0)) == Position(2, -1)
    assert ledgers.previous(Position(2, 1)) == Position(2, 0)
    assert ledgers.previous(Position(2, 99)) == Position(2, 1)


def test_opening_a_ledger_seals_the_one_before():
    ledgers = ledgers_of(2, 0)
    with pytest.raises(PositionError, match="ledger 1 takes no entries"):
        ledgers.add_entries(1, 1)


def test_ledger_ids_ascend_even_over_trimmed_ones():
    ledgers = ledgers_of(1, 1)
    with pytest.raises(PositionError, match="ledger 2 cannot be opened after ledger 2"):
        ledgers.open_ledger(2)
    ledgers.trim_ledger(2)
    ledgers.trim_ledger(1)
    with pytest.raises(PositionError, match="after ledger 2"):
        ledgers.open_ledger(1)


def test_closing_adds_what_was_not_told_of():
    ledgers = ledgers_of(2)
    ledgers.close_ledger(1, 5)
    assert ledgers.last_confirmed == Position(1, 4)
    ledgers.close_ledger(1, 5)
    with pytest.raises(PositionError, match="5 are confirmed"):
        ledgers.close_ledger(1, 6)
    with pytest.raises(PositionError, match="takes no entries"):
        ledgers.add_entries(1, 1)


def test_a_ledger_cannot_shrink_or_outgrow_a_bitmap():
    ledgers = ledgers_of(2)
    with pytest.raises(PositionError, match="2 are confirmed"):
        ledgers.close_ledger(1, 1)
    with pytest.raises(PositionError, match="cannot be added"):
        ledgers.add_entries(1, -1)
    with pytest.raises(PositionError, match=str(ENTRIES_PER_LEDGER_MAX)):
        ledgers.add_entries(1, ENTRIES_PER_LEDGER_MAX)
    with pytest.raises(PositionError, match="ledger 9 cannot be closed"):
        ledgers.close_ledger(9, 0)
    assert ledgers.entry_count(1) == 2


def test_the_last_confirmed_stays_when_its_ledger_is_trimmed():
    ledgers = ledgers_of(2, 3, 0)
    ledgers.trim_ledger(1)
    ledgers.trim_ledger(2)
    ledgers.trim_ledger(2)
    assert ledgers.last_confirmed == ledgers.trimmed_through == Position(2, 2)
    assert ledgers.first_position == Position(3, -1)
    assert ledgers.count_after(EARLIEST) == 0


def test_a_ledger_lost_from_the_middle_is_passed_over():
    ledgers = ledgers_of(2, 3, 2)
    ledgers.trim_ledger(2)
    assert ledgers.trimmed_through == EARLIEST
    assert ledgers.count_between(Position(1, 0), Position(3, 0)) == 2
    assert ledgers.position_after(Position(1, 0), 2) == Position(3, 0)
    ledgers.trim_ledger(1)
    assert ledgers.trimmed_through == Position(2, 2)


def test_between_the_last_ledger_trimmed_and_the_next_one_nothing_goes_back():
    ledgers = MessageLedgers()
    ledgers.open_ledger(2)
    ledgers.add_entries(2, 14)
    ledgers.close_ledger(2, 14)
    ledgers.trim_ledger(2)
    assert not ledgers.ledger_ids
    for position in (Position(2, 7), Position(2, 13), Position(2, 14), Position(2, 20)):
        assert ledgers.at_or_after(position) == Position(2, 14)
        assert ledgers.next_valid(position) == Position(2, 14)
    assert ledgers.previous(Position(2, 14)) == Position(2, 13)
    assert ledgers.previous(Position(3, 0)) == Position(2, 13)
    cursor = ManagedCursor(ledgers, Position(2, 13))
    cursor.reset(Position(2, 7))
    assert cursor.mark_delete == Position(2, 13)
