"""The strict budget against brute force: try every subset of acks and count."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import assume, given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ackgate.cursor import ManagedCursor, MessageLedgers, Position
from tests.property.cursor.cursor_model import CursorModel, TopicModel

CANDIDATES_MAX = 14  # 16,384 subsets


def worst_case(topic: TopicModel, cursor: CursorModel, candidates: list[Position]) -> int:
    """Most ranges over all subsets of the candidates, the mark-delete absorbing what it touches.

    All subsets at once: entry i of the topic is bit i, subset s of the candidates is number s.
    """
    entries = [entry for entry in topic.entries() if entry > cursor.mark_delete]
    bit = {entry: index for index, entry in enumerate(entries)}
    subsets = np.arange(1 << len(candidates), dtype=np.int64)
    states = np.full_like(subsets, sum(1 << bit[entry] for entry in cursor.acked))
    for index, candidate in enumerate(candidates):
        states |= ((subsets >> index) & 1) << bit[candidate]
    not_first = sum(1 << bit[entry] for entry in entries if entry.entry_id > 0)
    absorbed = states & ~(states + 1)  # the ones below the lowest zero: touched by the mark-delete
    states &= ~absorbed
    has_left = (states << 1) & not_first
    return int(np.bitwise_count((states & ~has_left).astype(np.uint64)).max())


@st.composite
def situations(draw: st.DrawFn) -> tuple[TopicModel, CursorModel, ManagedCursor]:
    """One to three ledgers, some acks, and a read position anywhere behind the mark-delete."""
    topic = TopicModel()
    ledgers = MessageLedgers()
    for ledger_id in range(1, draw(st.integers(2, 4))):
        count = draw(st.integers(0, 9))
        topic.ledgers[ledger_id] = count
        ledgers.open_ledger(ledger_id)
        ledgers.add_entries(ledger_id, count)
    entries = topic.entries()
    assume(entries)
    cursor = ManagedCursor(ledgers, Position(1, -1))
    model = CursorModel(topic, Position(1, -1))
    acked = draw(st.lists(st.sampled_from(entries), max_size=10))
    cursor.ack_individual(acked)
    model.ack(acked)
    position = draw(st.sampled_from(entries))
    cursor.seek(position)
    model.read_position = cursor.read_position
    return topic, model, cursor


@given(situation=situations(), limit=st.integers(0, 5))
def test_budget_is_the_most_that_no_acks_can_push_over_the_limit(
    situation: tuple[TopicModel, CursorModel, ManagedCursor], limit: int
) -> None:
    topic, model, cursor = situation
    budget = cursor.entry_budget(limit)
    # Entries to come count too: let the newest ledger have as many as it takes.
    topic.ledgers[max(topic.ledgers)] += budget + 1
    backlog = model.backlog()
    in_flight = [entry for entry in backlog if entry < model.read_position]
    further = [entry for entry in backlog if entry >= model.read_position]
    assume(len(in_flight) + budget + 1 <= CANDIDATES_MAX)
    allowed = max(limit, worst_case(topic, model, in_flight))
    assert worst_case(topic, model, in_flight + further[:budget]) <= allowed
    assert worst_case(topic, model, in_flight + further[: budget + 1]) > allowed
    if not in_flight:
        assert budget >= 1


@given(situation=situations(), limit=st.integers(0, 30), enough=st.integers(0, 20))
def test_a_hurried_budget_is_never_wider(
    situation: tuple[TopicModel, CursorModel, ManagedCursor], limit: int, enough: int
) -> None:
    _, _, cursor = situation
    full = cursor.entry_budget(limit)
    hurried = cursor.entry_budget(limit, entries_enough=enough)
    assert hurried in {full, enough}
    assert hurried <= full


class StrictDelivery(RuleBasedStateMachine):
    """A dispatcher that never sends more than the budget, and consumers that ack as they like."""

    @initialize(limit=st.integers(0, 4), count=st.integers(0, 6))
    def create(self, limit: int, count: int) -> None:
        self.limit = limit
        self.ledgers = MessageLedgers()
        self.ledgers.open_ledger(1)
        self.ledgers.add_entries(1, count)
        self.cursor = ManagedCursor(self.ledgers, Position(1, -1))
        self.in_flight: list[Position] = []

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        self.ledgers.add_entries(self.ledgers.ledger_ids[-1], count)

    @rule()
    def roll_over(self) -> None:
        self.ledgers.open_ledger(self.ledgers.ledger_ids[-1] + 1)

    @rule(wanted=st.integers(1, 8))
    def send(self, wanted: int) -> None:
        entries = min(wanted, self.cursor.entry_budget(self.limit, entries_enough=wanted))
        spans = self.cursor.unacked_spans(self.cursor.read_position, entries)
        for ledger_id, start, stop in spans:
            self.in_flight += [Position(ledger_id, entry) for entry in range(start, stop)]
            self.cursor.seek(Position(ledger_id, stop))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(position)
        assert self.cursor.ack(position)

    @precondition(lambda self: self.in_flight)
    @rule()
    def ack_all(self) -> None:
        self.cursor.ack_individual(self.in_flight)
        self.in_flight.clear()

    @invariant()
    def limit_is_kept(self) -> None:
        assert self.cursor.range_count <= self.limit

    @invariant()
    def delivery_can_go_on(self) -> None:
        if not self.in_flight:
            assert self.cursor.entry_budget(self.limit) >= 1


TestStrictDelivery = StrictDelivery.TestCase
