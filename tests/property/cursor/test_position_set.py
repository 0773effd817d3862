"""A set of positions, with its ranges counted and without, against a set."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, LATEST, Position, PositionSet
from tests.property.cursor.cursor_model import runs

LEDGERS = st.integers(0, 3)
# Small ids, ids round the border of a Roaring container, and the very last ids.
ENTRIES = st.one_of(
    st.integers(0, 12), st.integers(65_530, 65_542), st.integers(ENTRY_ID_MAX - 8, ENTRY_ID_MAX)
)
MANY = st.lists(ENTRIES, max_size=8)
POSITIONS = st.builds(Position, LEDGERS, ENTRIES)
PLACES = st.one_of(
    st.builds(Position, st.integers(-1, 4), st.one_of(ENTRIES, st.just(-1))),
    st.builds(Position, LEDGERS, st.integers(0, 71_000)),
    st.just(LATEST),
)


class PositionSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plain = PositionSet()
        self.counting = PositionSet(counts_ranges=True)
        self.both = (self.plain, self.counting)
        self.model: set[Position] = set()

    def of_ledger(self, ledger_id: int) -> set[Position]:
        return {position for position in self.model if position.ledger_id == ledger_id}

    @rule(position=POSITIONS)
    def add(self, position: Position) -> None:
        for positions in self.both:
            assert positions.add(*position) == (position not in self.model)
        self.model.add(position)

    @rule(ledger_id=LEDGERS, start=st.integers(0, 70_000), length=st.integers(1, 1_000))
    def add_run(self, ledger_id: int, start: int, length: int) -> None:
        self.add_many(ledger_id, list(range(start, start + length)))

    @rule(ledger_id=LEDGERS, entry_ids=MANY)
    def add_many(self, ledger_id: int, entry_ids: list[int]) -> None:
        named = {Position(ledger_id, entry_id) for entry_id in entry_ids}
        for positions in self.both:
            new = positions.add_many(ledger_id, BitMap(entry_ids))
            assert {Position(ledger_id, entry_id) for entry_id in new} == named - self.model
        self.model |= named

    @rule(named=st.lists(POSITIONS, max_size=8))
    def add_positions(self, named: list[Position]) -> None:
        for positions in self.both:
            positions.add_positions(named)
        self.model.update(named)

    @rule(
        ledger_id=LEDGERS,
        entry_id=st.one_of(ENTRIES, st.just(-1), st.just(ENTRY_ID_MAX + 1)),
    )
    def discard(self, ledger_id: int, entry_id: int) -> None:
        position = Position(ledger_id, entry_id)
        for positions in self.both:
            assert positions.discard(ledger_id, entry_id) == (position in self.model)
        self.model.discard(position)

    @rule(ledger_id=LEDGERS, entry_ids=MANY)
    def discard_many(self, ledger_id: int, entry_ids: list[int]) -> None:
        named = {Position(ledger_id, entry_id) for entry_id in entry_ids}
        for positions in self.both:
            gone = positions.discard_many(ledger_id, BitMap(entry_ids))
            assert {Position(ledger_id, entry_id) for entry_id in gone} == named & self.model
        self.model -= named

    @rule(named=st.lists(POSITIONS, max_size=8))
    def discard_positions(self, named: list[Position]) -> None:
        for positions in self.both:
            positions.discard_positions(named)
        self.model.difference_update(named)

    @rule(ledger_id=LEDGERS)
    def pop_lowest_run(self, ledger_id: int) -> None:
        mine = runs(self.of_ledger(ledger_id))
        _, start, stop = mine[0] if mine else (ledger_id, 7, 7)
        assert self.counting.pop_run_at(ledger_id, start, ENTRY_ID_MAX + 1) == stop
        popped = [Position(ledger_id, entry_id) for entry_id in range(start, stop)]
        self.plain.discard_positions(popped)
        self.model.difference_update(popped)

    @rule(ledger_id=LEDGERS)
    def take_ledger(self, ledger_id: int) -> None:
        mine = self.of_ledger(ledger_id)
        for positions in self.both:
            assert positions.take_ledger(ledger_id) == BitMap(entry for _, entry in mine)
        self.model -= mine

    @rule(position=PLACES)
    def take_through(self, position: Position) -> None:
        expected = {each for each in self.model if each <= position}
        for positions in self.both:
            taken = positions.take_through(position)
            assert [ledger_id for ledger_id, _ in taken] == sorted({each[0] for each in taken})
            gone = {Position(ledger_id, entry_id) for ledger_id, ids in taken for entry_id in ids}
            assert gone == expected
        self.model -= expected

    @rule()
    def clear(self) -> None:
        for positions in self.both:
            positions.clear()
        self.model.clear()

    @rule(position=PLACES, count=st.integers(0, 12))
    def look(self, position: Position, count: int) -> None:
        assert (position in self.plain) == (position in self.model)
        assert self.plain.count_from(position) == sum(each >= position for each in self.model)
        assert self.plain.first(count) == tuple(sorted(self.model)[:count])

    @invariant()
    def agrees(self) -> None:
        in_order = sorted(self.model)
        for positions in self.both:
            positions.check()
            assert list(positions) == in_order
            assert positions.entry_count == len(in_order)
            assert positions.last() == (in_order[-1] if in_order else None)
            assert set(positions.ledger_ids) == {ledger_id for ledger_id, _ in self.model}
            assert (positions.byte_estimate == 0) == (not self.model)
            assert positions.copies() == dict(positions.bitmaps())
            assert all(positions.bitmap(id_) is bitmap for id_, bitmap in positions.bitmaps())
            assert Position(0, -1) not in positions
            assert Position(0, ENTRY_ID_MAX + 1) not in positions
        assert self.counting.range_count == len(runs(self.model))


TestPositionSet = PositionSetMachine.TestCase


def test_a_run_that_grew_entry_by_entry_is_small() -> None:
    tracked = PositionSet()
    for entry_id in range(60_000):
        tracked.add(1, entry_id)
    assert tracked.entry_count == 60_000
    assert tracked.byte_estimate < 1_500
