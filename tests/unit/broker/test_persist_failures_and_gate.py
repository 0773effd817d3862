"""What the gate is told of writes: by the one place that tells it, from the store's own figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ackgate.broker.journal.subscription_notes import SubscriptionNotes
from ackgate.broker.subscription import Subscription
from ackgate.cursor.position import Position
from ackgate.dispatcher.gate import Gate, GateSettings, PauseReason
from ackgate.persistence.outcome import PersistOutcome, PersistWhere

OUTCOME = PersistOutcome(
    version=3,
    mark_delete=Position(1, 0),
    where=PersistWhere.LEDGER,
    is_delta=False,
    ranges_in_memory=5,
    ranges_persisted=5,
    entries_dropped=0,
    batch_indexes_in_memory=0,
    batch_indexes_persisted=0,
    size_guard_hit=False,
    bytes_written=1,
    at_ms=0,
    duration_ms=0.0,
)


class Told:
    """A subscription that only hears of its store."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.store = SimpleNamespace(outcome=OUTCOME, failing_since_ms=None, why_stopped=None)
        self.gate = Gate(GateSettings(enabled=True, persist_failure_pause_ms=1000), 0)
        self.subscription = cast("Any", object.__new__(Subscription))
        self.subscription.store = self.store
        self.subscription.gate = self.gate
        self.subscription.journal = None
        self.subscription.notes = SubscriptionNotes(self.subscription)
        self.subscription.consumers = {}
        self.subscription.topic = SimpleNamespace(
            parts=SimpleNamespace(clock_ms=lambda: self.now_ms), on_persisted=lambda _: None
        )

    def at(self, now_ms: int, *, failing_since_ms: int | None) -> None:
        self.now_ms, self.store.failing_since_ms = now_ms, failing_since_ms
        self.subscription._on_outcome()
        self.gate.advance(now_ms)

    @property
    def reasons(self) -> dict[PauseReason, int]:
        return dict(self.gate.statistics().reasons)


def test_a_failure_that_is_told_of_again_and_again_began_once() -> None:
    told = Told()
    told.at(100, failing_since_ms=None)
    for now_ms in (500, 1400, 1600, 9000):
        told.at(now_ms, failing_since_ms=500)
    assert told.reasons == {PauseReason.PERSIST_FAILING: 1600}, "since it was shut, once"
    told.at(9500, failing_since_ms=None)
    assert told.gate.is_open
