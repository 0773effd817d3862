from __future__ import annotations

from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.cursor.ack_state import BatchAcks


def test_acks_only_clear_bits():
    batches = BatchAcks()
    assert batches.restrict(Position(1, 0), 0b11101) == 0b11101
    assert batches.restrict(Position(1, 0), 0b10111) == 0b10101
    assert batches.restrict(Position(1, 0), 0b11111) == 0b10101
    batches.check()


def test_an_emptied_set_is_gone():
    batches = BatchAcks()
    batches.restrict(Position(1, 0), 0b01)
    assert batches.restrict(Position(1, 0), 0b10) == 0
    assert not batches.unacked
    batches.check()


def test_batches_of_thousands_of_messages_keep_every_bit():
    batches = BatchAcks()
    mask = (1 << 5000) - 1
    assert batches.restrict(Position(1, 0), mask ^ (1 << 4321)).bit_count() == 4999


def test_dropping_below_a_position_keeps_what_is_above():
    batches = BatchAcks()
    for entry_id in (5, 1, 9, 3):
        batches.restrict(Position(1, entry_id), 0b1)
    batches.discard(Position(1, 3))
    batches.drop_through(Position(1, 5))
    assert list(batches.unacked) == [Position(1, 9)]
    batches.check()


def test_bulk_acks_drop_the_sets_of_their_ledger_whichever_side_is_smaller():
    for acked in (BitMap([2]), BitMap(range(100))):
        batches = BatchAcks()
        batches.replace({Position(1, 2): 1, Position(2, 2): 1, Position(1, 200): 1})
        batches.discard_bitmap(1, acked)
        assert sorted(batches.unacked) == [Position(1, 200), Position(2, 2)]
        batches.check()


def test_a_lost_ledger_takes_its_sets_along():
    batches = BatchAcks()
    batches.replace({Position(1, 2): 1, Position(2, 2): 1})
    assert batches.drop_ledger(1)
    assert not batches.drop_ledger(1)
    assert list(batches.unacked) == [Position(2, 2)]
