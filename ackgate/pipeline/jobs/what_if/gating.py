"""Replays the dispatch gate on the recorded acks and the replayed writes.

Pure. The gate need not see every ack: only those at which a count crosses one of its marks, and the
counts at the time when a write is durable.

    ranges      9 10 11 12 11 10  9  8       limit 10, resume mark 8
    observed          *        *      *
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ackgate.dispatcher import Gate, gate_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ackgate.config.settings import Settings
    from ackgate.dispatcher import GateSettings
    from ackgate.pipeline.jobs.what_if.moments import TapeWrites
    from ackgate.pipeline.jobs.what_if.tape import BudgetChange, Tape

PAUSING_TYPES = frozenset({"shared", "keyshared"})
"""Subscription types whose dispatch can pause, in lower case and without underscores."""


class ReplayedEdge(NamedTuple):
    """One change of the replayed gate: it shut or opened."""

    time_us: int
    calls: int
    """Number of the tape's calls before the change."""
    is_shut: bool
    reasons: frozenset[str]


class _Fact(NamedTuple):
    """One event that the gate must see. Sorted by time, then calls, then `order`."""

    time_us: int
    order: int
    """Kind of the event: call 0, budget 1, write 2, failing 3, change of type 4."""
    place: int
    """Index of the event among those of its kind."""
    calls: int

    def is_seen_with(self, other: _Fact) -> bool:
        """Whether both belong to one call, so that the gate gets both before its state is read."""
        is_one_call = (self.time_us, self.calls) == (other.time_us, other.calls)
        return is_one_call and (self.order, other.order) == (0, 1)


class ReplayedGate:
    """The gate of one life of a subscription under some settings."""

    def __init__(self, settings: Settings, start_us: int, *, ranges: int, batches: int) -> None:
        self._settings = settings
        self._is_pausing_type = False
        self.gate = Gate(self._gate_settings(), start_us // 1000)
        self._counts = (ranges, batches)
        self.gate.observe(ranges_live=ranges, batch_indexes_live=batches, now_ms=start_us // 1000)
        self._is_shut = not self.gate.is_open
        self._carried: list[ReplayedEdge] = []
        """Changes caused by new settings between two tapes; the next `run` returns them."""

    def configure(
        self, settings: Settings, now_us: int, *, is_budget_left: Callable[[int], bool]
    ) -> None:
        """Apply changed settings, between two tapes. `is_budget_left` answers for a limit."""
        self._settings = settings
        self.gate.configure(self._gate_settings(), now_us // 1000)
        if self.gate.settings.is_strict:
            self.gate.budget(1 if is_budget_left(self.limit) else 0, now_us // 1000)
        self._carried += self._edges(now_us, 0)

    @property
    def limit(self) -> int:
        return self.gate.settings.ranges_max

    def run(self, tape: Tape, written: TapeWrites) -> list[ReplayedEdge]:
        """Play the tape and its replayed writes to the gate; return each time it shut or opened."""
        edges, self._carried = self._carried, []
        budgets = tape.budgets.get(self.limit, ()) if self.gate.settings.is_strict else ()
        facts = self._facts(tape, written, budgets)
        for fact, following in zip_longest(facts, facts[1:]):
            edges += self._advance(fact.time_us, fact.calls)
            self._apply(fact, tape, written, budgets)
            if following is None or not fact.is_seen_with(following):
                edges += self._edges(fact.time_us, fact.calls)
        edges += self._advance(tape.end_us, len(tape))
        if len(tape):
            self._counts = (int(tape.ranges[-1]), int(tape.batch_indexes[-1]))
            self._observe(tape.end_us)
        return edges

    # ------------------------------------------------------------------------ facts

    def _facts(
        self, tape: Tape, written: TapeWrites, budgets: Sequence[BudgetChange]
    ) -> list[_Fact]:
        facts = [
            _Fact(int(tape.times_us[call]), 0, call, call + 1)
            for call in self._crossings(tape).tolist()
        ]
        for order, each in (
            (2, [(write.durable_us, write.calls) for write in written.writes]),
            (3, [(failing.time_us, failing.calls) for failing in written.failings]),
            (1, [(change.time_us, change.calls) for change in budgets]),
            (4, [(change.time_us, change.calls) for change in tape.type_changes]),
        ):
            facts += [_Fact(time, order, i, calls) for i, (time, calls) in enumerate(each)]
        facts.sort(key=lambda fact: (fact.time_us, fact.calls, fact.order, fact.place))
        return facts

    def _crossings(self, tape: Tape) -> np.ndarray:
        """Indexes of the calls at which a count crosses a mark, in either state of the gate."""
        settings = self.gate.settings
        ranges_before, batches_before = self._counts
        ranges = np.concatenate(([ranges_before], tape.ranges))
        batches = np.concatenate(([batches_before], tape.batch_indexes))
        sides = (
            ranges > settings.ranges_max,
            ranges > settings.resume_mark,
            batches > settings.batch_indexes_max,
        )
        crossed = np.zeros(len(tape), dtype=np.bool_)
        for side in sides:
            crossed |= side[1:] != side[:-1]
        return np.flatnonzero(crossed)

    def _apply(
        self, fact: _Fact, tape: Tape, written: TapeWrites, budgets: Sequence[BudgetChange]
    ) -> None:
        gate, now_ms = self.gate, fact.time_us // 1000
        if fact.calls:
            self._counts = (
                int(tape.ranges[fact.calls - 1]),
                int(tape.batch_indexes[fact.calls - 1]),
            )
        self._observe(fact.time_us)
        if fact.order == 2:
            gate.persisted(written.writes[fact.place].outcome, now_ms)
        elif fact.order == 3:
            gate.persist_failing(written.failings[fact.place].since_ms, now_ms)
        elif fact.order == 1:
            gate.budget(1 if budgets[fact.place].is_left else 0, now_ms)
        elif fact.order == 4:
            type_name = tape.type_changes[fact.place].type_name
            if type_name is not None:
                self._is_pausing_type = type_name.lower().replace("_", "") in PAUSING_TYPES
            gate.configure(self._gate_settings(), now_ms)

    def _observe(self, now_us: int) -> None:
        ranges, batches = self._counts
        self.gate.observe(ranges_live=ranges, batch_indexes_live=batches, now_ms=now_us // 1000)

    def _advance(self, now_us: int, calls: int) -> Iterator[ReplayedEdge]:
        """Advance the gate to its own deadline if that has passed by `now_us`; yield the change."""
        deadline_ms = self.gate.next_deadline_ms
        if deadline_ms is not None and deadline_ms * 1000 <= now_us:
            self.gate.advance(deadline_ms)
            yield from self._edges(deadline_ms * 1000, calls)

    def _edges(self, now_us: int, calls: int) -> Iterator[ReplayedEdge]:
        is_shut = not self.gate.is_open
        if is_shut != self._is_shut:
            self._is_shut = is_shut
            reasons = frozenset(reason.value for reason in self.gate.reasons)
            yield ReplayedEdge(now_us, calls, is_shut, reasons)

    def _gate_settings(self) -> GateSettings:
        is_on = self._settings.dispatcher.dispatcher_pause_on_ack_state_persistent_enabled
        return gate_settings(self._settings, is_pausing=is_on and self._is_pausing_type)
