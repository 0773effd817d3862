"""The index of tracked positions against a set."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, LATEST, Position, PositionSet

LEDGERS = st.integers(0, 3)
ENTRIES = st.one_of(st.integers(0, 12), st.integers(ENTRY_ID_MAX - 3, ENTRY_ID_MAX))
MANY = st.lists(ENTRIES, max_size=8)


class TrackedPositionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracked = PositionSet()
        self.model: set[Position] = set()

    @rule(ledger_id=LEDGERS, entry_id=ENTRIES)
    def add(self, ledger_id: int, entry_id: int) -> None:
        position = Position(ledger_id, entry_id)
        assert self.tracked.add(ledger_id, entry_id) == (position not in self.model)
        self.model.add(position)

    @rule(ledger_id=LEDGERS, start=st.integers(0, 70_000), length=st.integers(1, 1_000))
    def add_run(self, ledger_id: int, start: int, length: int) -> None:
        run = {Position(ledger_id, entry_id) for entry_id in range(start, start + length)}
        new = self.tracked.add_many(ledger_id, BitMap(range(start, start + length)))
        assert {Position(ledger_id, entry_id) for entry_id in new} == run - self.model
        self.model |= run

    @rule(ledger_id=LEDGERS, entry_ids=MANY)
    def add_many(self, ledger_id: int, entry_ids: list[int]) -> None:
        self.tracked.add_many(ledger_id, BitMap(entry_ids))
        self.model.update(Position(ledger_id, entry_id) for entry_id in entry_ids)

    @rule(ledger_id=LEDGERS, entry_id=st.one_of(ENTRIES, st.just(-1), st.just(ENTRY_ID_MAX + 1)))
    def discard(self, ledger_id: int, entry_id: int) -> None:
        position = Position(ledger_id, entry_id)
        assert self.tracked.discard(ledger_id, entry_id) == (position in self.model)
        self.model.discard(position)

    @rule(ledger_id=LEDGERS, entry_ids=MANY)
    def discard_many(self, ledger_id: int, entry_ids: list[int]) -> None:
        gone = self.tracked.discard_many(ledger_id, BitMap(entry_ids))
        named = {Position(ledger_id, entry_id) for entry_id in entry_ids}
        assert {Position(ledger_id, entry_id) for entry_id in gone} == named & self.model
        self.model -= named

    @rule(
        position=st.one_of(
            st.builds(Position, st.integers(-1, 4), st.one_of(ENTRIES, st.just(-1))),
            st.builds(Position, LEDGERS, st.integers(0, 71_000)),
            st.just(LATEST),
        )
    )
    def take_through(self, position: Position) -> None:
        taken = self.tracked.take_through(position)
        assert [ledger_id for ledger_id, _ in taken] == sorted({each[0] for each in taken})
        gone = {Position(ledger_id, entry_id) for ledger_id, ids in taken for entry_id in ids}
        assert gone == {each for each in self.model if each <= position}
        self.model -= gone

    @rule()
    def clear(self) -> None:
        self.tracked.clear()
        self.model.clear()

    @invariant()
    def agrees(self) -> None:
        self.tracked.check()
        assert self.tracked.entry_count == len(self.model)
        assert set(self.tracked.ledger_ids) == {ledger_id for ledger_id, _ in self.model}
        assert (self.tracked.byte_estimate == 0) == (not self.model)
        for ledger_id, bitmap in self.tracked.bitmaps():
            assert bitmap == self.tracked.bitmap(ledger_id)
            assert bitmap == BitMap(entry for ledger, entry in self.model if ledger == ledger_id)
        assert all(position in self.tracked for position in list(self.model)[:20])
        assert Position(0, -1) not in self.tracked
        assert Position(0, ENTRY_ID_MAX + 1) not in self.tracked


TestTrackedPositions = TrackedPositionsMachine.TestCase


def test_a_run_that_grew_entry_by_entry_is_small() -> None:
    tracked = PositionSet()
    for entry_id in range(60_000):
        tracked.add(1, entry_id)
    assert tracked.entry_count == 60_000
    assert tracked.byte_estimate < 1_500
