"""The time buckets against a dict: strict and not, jumps of the clock, other ticks, seeks back."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ackgate.cursor import LATEST, Position
from ackgate.dispatcher.delayed import DelaySettings, TimeBucketTracker
from ackgate.dispatcher.held import held_positions
from tests.property.dispatcher.delayed.delay_model import DelayModel

POSITIONS = st.builds(Position, st.integers(0, 3), st.integers(0, 12))
TICKS = st.sampled_from([1, 2, 7, 8, 13, 100])
DELAYS = st.one_of(st.integers(-3, 40), st.integers(-3, 400))


class TimeBucketMachine(RuleBasedStateMachine):
    """One tracker; every call is made to the model, too."""

    @initialize(
        tick_ms=TICKS,
        is_strict=st.booleans(),
        lookahead=st.sampled_from([0, 2, 5]),
        stale_max=st.sampled_from([0, 5, 1_000]),
        moved_max=st.sampled_from([0, 3, 1_000]),
    )
    def start(
        self, tick_ms: int, is_strict: bool, lookahead: int, stale_max: int, moved_max: int
    ) -> None:
        self.now_ms = 1_000
        settings = DelaySettings(
            tick_ms=tick_ms, is_strict=is_strict, fixed_delay_lookahead=lookahead
        )
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(held_positions, "STALE_ENTRIES_MIN", stale_max)
        self.patch.setattr(held_positions, "MOVED_MAX", moved_max)
        self.tracker = TimeBucketTracker(settings)
        self.model = DelayModel(settings)
        self.times: dict[Position, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(position=POSITIONS, delay_ms=DELAYS)
    def add(self, position: Position, delay_ms: int) -> None:
        at_ms = self.now_ms + delay_ms
        assert self.tracker.add(position, at_ms, self.now_ms) == self.model.add(
            position, at_ms, self.now_ms
        )

    @rule(ledger_id=st.integers(0, 3), start=st.integers(0, 12), delays=st.lists(DELAYS))
    def add_run(self, ledger_id: int, start: int, delays: list[int]) -> None:
        self.add_array(ledger_id, list(enumerate(delays, start)))

    @rule(
        ledger_id=st.integers(0, 3),
        pairs=st.lists(st.tuples(st.integers(0, 12), DELAYS), max_size=8),
    )
    def add_many(self, ledger_id: int, pairs: list[tuple[int, int]]) -> None:
        self.add_array(ledger_id, pairs)

    def add_array(self, ledger_id: int, pairs: list[tuple[int, int]]) -> None:
        ids = np.array([entry_id for entry_id, _ in pairs], dtype=np.int64)
        times = np.array([self.now_ms + delay for _, delay in pairs], dtype=np.int64)
        tracked = self.tracker.add_many(ledger_id, ids, times, self.now_ms).tolist()
        assert tracked == [
            self.model.add(Position(ledger_id, entry_id), self.now_ms + delay, self.now_ms)
            for entry_id, delay in pairs
        ]

    @rule(ms=st.one_of(st.integers(0, 20), st.integers(0, 1_000)), count=st.integers(0, 12))
    def pop(self, ms: int, count: int) -> None:
        self.now_ms += ms
        due = self.model.due(self.now_ms)
        popped = self.tracker.pop_due(self.now_ms, count)
        assert popped == due[:count]
        for position in popped:
            deliver_at_ms = self.model.entries[position][1]
            if self.model.settings.is_strict:
                assert deliver_at_ms <= self.now_ms, "early"
            # Nothing that is popped could be taken back: no pop, read, add loop.
            assert deliver_at_ms <= self.model.keys.refused_through(self.now_ms)
        self.model.remove(popped)

    @rule(position=POSITIONS)
    def discard(self, position: Position) -> None:
        assert self.tracker.discard(position) == (position in self.model.entries)
        if position in self.model.entries:
            self.model.remove([position])

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def discard_tracked(self, data: Any) -> None:
        self.discard(data.draw(st.sampled_from(sorted(self.model.entries))))

    @rule(through=st.one_of(st.builds(Position, st.integers(-1, 4), st.integers(-1, 12))))
    def forget_through(self, through: Position) -> None:
        gone = [each for each in self.model.entries if each <= through]
        assert self.tracker.forget_through(through) == len(gone)
        if gone:
            self.model.remove(gone)

    @rule()
    def clear(self) -> None:
        self.tracker.clear()
        self.model.remove(list(self.model.entries))

    @rule(tick_ms=TICKS, lookahead=st.sampled_from([0, 2, 5]))
    def configure(self, tick_ms: int, lookahead: int) -> None:
        settings = DelaySettings(
            tick_ms=tick_ms,
            is_strict=self.model.settings.is_strict,
            fixed_delay_lookahead=lookahead,
        )
        self.tracker.configure(settings)
        self.model.configure(settings)

    @rule()
    def ask(self) -> None:
        """Questions may tidy up inside: they are asked only sometimes."""
        assert self.tracker.next_deadline_ms == self.model.next_deadline_ms()
        assert self.tracker.has_due(self.now_ms) == bool(self.model.due(self.now_ms))
        lookahead = self.model.settings.fixed_delay_lookahead
        assert self.tracker.pauses_reads(self.now_ms) == (
            0 < lookahead <= len(self.model.entries)
            and self.model.is_fixed
            and not self.model.due(self.now_ms)
        )

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tracker"):
            return
        self.tracker.check()
        assert self.tracker.entry_count == len(self.model.entries)
        assert self.tracker.byte_estimate > 0
        for ledger_id in range(4):
            ids = {entry for ledger, entry in self.model.entries if ledger == ledger_id}
            assert set(self.tracker.tracked(ledger_id) or ()) == ids
        assert Position(1, 3) in self.tracker or Position(1, 3) not in self.model.entries
        assert LATEST not in self.tracker


TestTimeBuckets = TimeBucketMachine.TestCase
