"""What the gate is told of writes: by the one place that tells it, from the store's own figures."""

from __future__ import annotations

from ackgate.cursor import MessageLedgers, Position
from ackgate.dispatcher import GateSettings, PauseReason
from ackgate.persistence import PersistOutcome, PersistWhere
from ackgate.subscription import EntryRead, Subscription

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


def test_a_failure_that_is_told_of_again_and_again_began_once() -> None:
    ledgers = MessageLedgers()
    ledgers.open_ledger(1)
    gate = GateSettings(enabled=True, persist_failure_pause_ms=1000)
    subscription: Subscription[str, EntryRead] = Subscription(ledgers, gate=gate)
    subscription.persisted(OUTCOME, now_ms=100)
    for now_ms in (500, 1400, 1600, 9000):
        subscription.persist_failed(500, now_ms=now_ms)
        subscription.ready(now_ms=now_ms)
    reasons = dict(subscription.statistics().gate.reasons)
    assert reasons == {PauseReason.PERSIST_FAILING: 1600}, "since it was shut, once"
    subscription.persisted(OUTCOME, now_ms=9500)
    assert subscription.gate.is_open
