"""The entry cache against a dictionary that is never full."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ackgate.broker.wire.entry import Entry
from ackgate.cursor import Position
from ackgate.persistence.messages.cache import ENTRY_OVERHEAD_BYTES, EntryCache

BYTES_MAX = 30 * (ENTRY_OVERHEAD_BYTES + 10)


def entries(ledger_id: int, start: int, count: int) -> list[Entry]:
    return [Entry(Position(ledger_id, start + i), b"x" * 10, 1) for i in range(count)]


def test_what_was_inserted_is_found_whole_or_not_at_all() -> None:
    cache = EntryCache(BYTES_MAX)
    cache.insert(1, entries(1, 0, 10))
    found = cache.get(1, 3, 7)
    assert found is not None
    assert [entry.position.entry_id for entry in found] == [3, 4, 5, 6]
    assert cache.get(1, 8, 12) is None
    assert cache.get(2, 0, 1) is None


def test_a_dropped_head_leaves_the_rest() -> None:
    cache = EntryCache(BYTES_MAX)
    cache.insert(1, entries(1, 0, 10))
    cache.drop_through(1, 5)
    assert cache.get(1, 5, 6) is None
    found = cache.get(1, 6, 10)
    assert found is not None
    assert len(found) == 4


class CacheMachine(RuleBasedStateMachine):
    """Random inserts, drops and reads: what is answered is right, and memory is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EntryCache(BYTES_MAX)
        self.next_entry = {1: 0, 2: 0, 3: 0}

    @rule(ledger_id=st.integers(1, 3), count=st.integers(1, 12))
    def insert(self, ledger_id: int, count: int) -> None:
        self.cache.insert(ledger_id, entries(ledger_id, self.next_entry[ledger_id], count))
        self.next_entry[ledger_id] += count

    @rule(ledger_id=st.integers(1, 3), gap=st.integers(1, 3))
    def skip(self, ledger_id: int, gap: int) -> None:
        self.next_entry[ledger_id] += gap

    @rule(ledger_id=st.integers(1, 3), back=st.integers(0, 20))
    def drop_through(self, ledger_id: int, back: int) -> None:
        through = self.next_entry[ledger_id] - 1 - back
        self.cache.drop_through(ledger_id, through)
        if through >= 0:
            assert self.cache.get(ledger_id, through, through + 1) is None

    @rule(ledger_id=st.integers(1, 3))
    def drop_ledger(self, ledger_id: int) -> None:
        self.cache.drop_ledger(ledger_id)

    @rule(ledger_id=st.integers(1, 3), start=st.integers(0, 60), count=st.integers(1, 10))
    def get(self, ledger_id: int, start: int, count: int) -> None:
        found = self.cache.get(ledger_id, start, start + count)
        if found is not None:
            assert [e.position for e in found] == [
                Position(ledger_id, start + i) for i in range(count)
            ]

    @invariant()
    def is_bounded_and_counts_right(self) -> None:
        assert 0 <= self.cache.size_bytes <= BYTES_MAX
        held = sum(
            1
            for ledger_id, end in self.next_entry.items()
            for entry_id in range(end)
            if self.cache.get(ledger_id, entry_id, entry_id + 1)
        )
        assert held * (ENTRY_OVERHEAD_BYTES + 10) == self.cache.size_bytes


TestCache = CacheMachine.TestCase
