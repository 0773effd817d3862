"""Held entries against a table of who holds what until when: nothing lost, nothing twice."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.dispatcher.delayed import DelaySettings, TimeBucketTracker
from ackgate.subscription import EntryRead
from ackgate.subscription.held import HeldEntries

POSITIONS = [Position(ledger_id, entry_id) for ledger_id in (3, 4, 9) for entry_id in range(8)]
ANY = st.sampled_from(POSITIONS)


class DumbNacks:
    """Held nacks: a table, and nothing quick about it."""

    byte_estimate = 0

    def __init__(self) -> None:
        self.due: dict[Position, int] = {}

    def __contains__(self, position: Position) -> bool:
        return position in self.due

    def tracked(self, ledger_id: int) -> BitMap | None:
        return BitMap(at.entry_id for at in self.due if at.ledger_id == ledger_id)

    @property
    def entry_count(self) -> int:
        return len(self.due)

    @property
    def next_deadline_ms(self) -> int | None:
        return min(self.due.values(), default=None)

    def has_due(self, now_ms: int) -> bool:
        return any(ms <= now_ms for ms in self.due.values())

    def pop_due(self, now_ms: int, entries_max: int) -> list[Position]:
        due = sorted(at for at, ms in self.due.items() if ms <= now_ms)[:entries_max]
        for position in due:
            del self.due[position]
        return due

    def discard(self, position: Position) -> bool:
        return self.due.pop(position, None) is not None

    def forget_through(self, mark_delete: Position) -> int:
        return sum(self.discard(at) for at in list(self.due) if at <= mark_delete)

    def clear(self) -> None:
        self.due.clear()

    def check(self) -> None:
        pass


class Held(RuleBasedStateMachine):
    """Every position is the cursor's (to be read), held, given, or acked."""

    def __init__(self) -> None:
        super().__init__()
        self.nacks = DumbNacks()
        self.held = HeldEntries(TimeBucketTracker, DelaySettings(tick_ms=1, is_strict=True))
        self.held.hold_nacks(self.nacks)
        self.now = 1_000
        self.read_position = POSITIONS[0]
        self.deliver_at = dict.fromkeys(POSITIONS, 0)
        self.delayed: dict[Position, int] = {}
        self.given: set[Position] = set()
        self.acked: set[Position] = set()

    @rule(position=ANY, delay=st.integers(-50, 500))
    def publish(self, position: Position, delay: int) -> None:
        """Its time is known before it is read first."""
        if position >= self.read_position and position not in self.delayed:
            self.deliver_at[position] = max(0, self.now + delay)

    @rule(count=st.integers(1, 10), reads_through=st.booleans(), is_active=st.booleans())
    def read(self, count: int, reads_through: bool, is_active: bool) -> None:
        left_out = self.held.left_out
        elsewhere = self.given | set(self.delayed) | set(self.nacks.due)
        wanted: list[EntryRead] = []
        for position in POSITIONS:
            if position < self.read_position or position in self.acked:
                continue
            bitmap = None if left_out is None else left_out(position.ledger_id)
            is_left_out = bitmap is not None and position.entry_id in bitmap
            assert is_left_out == (position in elsewhere), position
            if (reads_through or not is_left_out) and len(wanted) < count:
                wanted.append(EntryRead(position, deliver_at_ms=self.deliver_at[position]))
        if wanted:
            self.read_position = Position(wanted[-1].position[0], wanted[-1].position[1] + 1)
        got = [e.position for e in self.held.sift(wanted, self.now, is_active=is_active)]
        expected = []
        for entry in wanted:
            if entry.position in elsewhere:
                continue
            if is_active and entry.deliver_at_ms > self.now:
                self.delayed[entry.position] = entry.deliver_at_ms
            else:
                expected.append(entry.position)
        assert got == expected
        assert self.given.isdisjoint(got)
        self.given.update(got)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delay=st.integers(0, 500))
    def nack(self, data: st.DataObject, delay: int) -> None:
        position = data.draw(st.sampled_from(sorted(self.given)))
        self.given.remove(position)
        self.nacks.due[position] = self.now + delay

    @rule(passed=st.integers(0, 300))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(entries_max=st.integers(1, 10))
    def take_due(self, entries_max: int) -> None:
        held = {**self.delayed, **self.nacks.due}
        due = [position for position, ms in held.items() if ms <= self.now]
        got = self.held.take_due(self.now, entries_max, self.read_position)
        assert len(got) == min(len(due), entries_max)
        assert set(got) <= set(due)
        for position in got:
            self.delayed.pop(position, None)
        assert self.given.isdisjoint(got)
        self.given.update(got)

    @rule(positions=st.lists(ANY, max_size=5))
    def ack(self, positions: list[Position]) -> None:
        self.held.discard(positions)
        self._acked(positions)

    @rule(position=ANY)
    def ack_through(self, position: Position) -> None:
        self.held.forget_through(position)
        self._acked([at for at in POSITIONS if at <= position])

    def _acked(self, positions: list[Position]) -> None:
        self.acked.update(positions)
        self.given.difference_update(positions)
        for position in positions:
            self.delayed.pop(position, None)
            assert position not in self.nacks.due

    @rule()
    def rewind(self) -> None:
        """All consumers have left, and another came."""
        self.held.rewound()
        self.given.clear()
        self.read_position = POSITIONS[0]

    @invariant()
    def holds(self) -> None:
        self.held.check()
        assert self.held.entry_count == len(self.delayed) + len(self.nacks.due)
        for position in POSITIONS:
            assert (position in self.held) == (
                position in self.delayed or position in self.nacks.due
            )
        deadlines = [*self.delayed.values(), *self.nacks.due.values()]
        assert self.held.next_deadline_ms == min(deadlines, default=None)
        statistics = self.held.statistics()
        assert statistics.delayed_entries == len(self.delayed)
        assert statistics.held_nacks == len(self.nacks.due)


TestHeldEntries = Held.TestCase
