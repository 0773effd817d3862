"""Hole order, hash ring and in-flight entries against sets, sorting and counting."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ackgate.cursor import Position
from ackgate.dispatcher.delivery_book import InFlight
from ackgate.dispatcher.keys import HashRing, auto_split_hash
from ackgate.dispatcher.shared import holes_first

POSITIONS = st.builds(Position, st.integers(0, 2), st.integers(0, 9))
MANY = st.lists(POSITIONS, max_size=8)


class InFlightMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight()
        self.model: dict[Position, int] = {}

    @rule(entries=st.dictionaries(POSITIONS, st.integers(1, 3), max_size=5), single=st.booleans())
    def add(self, entries: dict[Position, int], single: bool) -> None:
        new = {at: 1 if single else n for at, n in entries.items() if at not in self.model}
        messages = self.in_flight.add(list(new), None if single else list(new.values()))
        assert messages == sum(new.values())
        self.model |= new

    @rule(position=POSITIONS)
    def take(self, position: Position) -> None:
        assert self.in_flight.take(position) == self.model.pop(position, 0)

    @rule(positions=MANY)
    def take_many(self, positions: list[Position]) -> None:
        expected = [self.model.pop(position, 0) for position in positions]
        assert self.in_flight.take_many(positions) == expected

    @rule(position=POSITIONS, remaining=st.integers(1, 3))
    def lower(self, position: Position, remaining: int) -> None:
        had = self.model.get(position, 0)
        assert self.in_flight.lower(position, remaining) == max(had - remaining, 0)
        if had:
            self.model[position] = min(had, remaining)

    @rule(position=POSITIONS)
    def take_through(self, position: Position) -> None:
        expected = [each for each in self.model if each <= position]
        assert self.in_flight.take_through(position) == expected
        for each in expected:
            del self.model[each]

    @rule()
    def take_all(self) -> None:
        assert self.in_flight.take_all() == list(self.model)
        self.model.clear()

    @invariant()
    def agrees(self) -> None:
        self.in_flight.check()
        assert list(self.in_flight) == list(self.model)
        assert self.in_flight.messages == sum(self.model.values())


class HashRingMachine(RuleBasedStateMachine):
    """The model walks all claims: lowest claimed point at or above, who claimed it first."""

    POINTS = 4

    def __init__(self) -> None:
        super().__init__()
        self.ring = HashRing(self.POINTS)
        self.claims: list[tuple[int, int]] = []
        self.names: dict[int, tuple[str, int]] = {}
        self.serial = 0

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def add(self, name: str) -> None:
        self.serial += 1
        index = 0
        while (name, index) in self.names.values():
            index += 1
        self.names[self.serial] = (name, index)
        for point in range(self.POINTS):
            key_hash = auto_split_hash(f"{name}\0{index}\0{point}".encode())
            self.claims.append((key_hash, self.serial))
        self.ring.add(self.serial, name, ())

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.names:
            consumer = data.draw(st.sampled_from(list(self.names)))
            del self.names[consumer]
            self.claims = [claim for claim in self.claims if claim[1] != consumer]
            self.ring.remove(consumer)

    def owner(self, key_hash: int) -> int | None:
        if not self.claims:
            return None
        above = [point for point, _ in self.claims if point >= key_hash]
        target = min(above) if above else min(point for point, _ in self.claims)
        return next(consumer for point, consumer in self.claims if point == target)

    @invariant()
    def agrees(self) -> None:
        self.ring.check()
        edges = {point + step for point, _ in self.claims for step in (-1, 0, 1)}
        for key_hash in {1, 65_535} | {edge for edge in edges if 1 <= edge <= 65_535}:
            assert self.ring.owner(key_hash) == self.owner(key_hash)
        covered = sorted(
            (first, last, consumer)
            for consumer, ranges in self.ring.ranges().items()
            for first, last in ranges
        )
        if self.names:
            assert covered[0][0] == 1
            assert covered[-1][1] == 65_535
            for (_, last, _), (first, _, _) in pairwise(covered):
                assert first == last + 1
            for first, last, consumer in covered:
                assert self.owner(first) == self.owner(last) == consumer


@given(
    waiting=st.sets(POSITIONS, max_size=20),
    in_flight=st.sets(POSITIONS, max_size=10),
    count=st.integers(1, 12),
)
def test_holes_first_keeps_the_set_and_closes_the_short_holes_first(
    waiting: set[Position], in_flight: set[Position], count: int
) -> None:
    unacked = waiting | in_flight
    chosen = holes_first(sorted(waiting), count, lambda at: at not in unacked)
    assert len(chosen) == min(count, len(waiting))
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= waiting

    def hole(at: Position) -> list[Position]:
        first = last = at.entry_id
        while first > 0 and Position(at.ledger_id, first - 1) in unacked:
            first -= 1
        while Position(at.ledger_id, last + 1) in unacked:
            last += 1
        return [Position(at.ledger_id, entry) for entry in range(first, last + 1)]

    def rank(at: Position) -> tuple[int, Position]:
        run = hole(at)
        closes = run[0].entry_id > 0 and all(each in waiting for each in run)
        return (len(run) if closes else 1_000_000, at)

    assert list(chosen) == sorted(waiting, key=rank)[:count]


TestInFlight = InFlightMachine.TestCase
TestHashRing = HashRingMachine.TestCase
