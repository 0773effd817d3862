"""Backoff, receipts and the pace of writes: pure, so time is just a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackgate.persistence.backoff import backoff_seconds
from ackgate.persistence.receipts import Receipts
from ackgate.persistence.write_pace import RETRY_SECONDS_MAX, WritePace
from tests.unit.persistence.store_world import Heard


@given(st.integers(1, 10**6), st.integers(0, 2**32))
def test_backoff_doubles_within_bounds_and_repeats(attempt: int, seed: int) -> None:
    delay = backoff_seconds(attempt, first=0.1, longest=30, seed=seed)
    full = min(30.0, 0.1 * 2 ** min(attempt - 1, 20))
    assert full / 2 <= delay <= full
    assert delay == backoff_seconds(attempt, first=0.1, longest=30, seed=seed)


def test_cursors_that_failed_together_come_back_apart() -> None:
    delays = {backoff_seconds(9, first=0.1, longest=30, seed=seed) for seed in range(100)}
    assert len(delays) > 90


def test_receipts_are_taken_from_the_front_up_to_the_version() -> None:
    receipts = Receipts()
    heard = [Heard() for _ in range(4)]
    for done, version in zip(heard, (3, 3, 7, 9), strict=True):
        receipts.add(version, 10.0 + version, done)
    assert receipts.take_durable(2) == []
    assert receipts.take_durable(8) == heard[:3]
    assert len(receipts) == 1
    assert receipts.take_durable(9) == heard[3:]
    assert receipts.next_deadline is None
    assert len(receipts) == 0


def test_a_version_out_of_order_is_answered_later_never_earlier() -> None:
    receipts = Receipts()
    first, second = Heard(), Heard()
    receipts.add(9, 1.0, first)
    receipts.add(4, 2.0, second)
    assert receipts.take_durable(8) == []
    assert receipts.take_durable(9) == [first, second]


def test_overdue_receipts_are_taken_once() -> None:
    receipts = Receipts()
    early, late = Heard(), Heard()
    receipts.add(1, 5.0, early)
    receipts.add(1, 6.0, late)
    assert receipts.take_overdue(4.9) == []
    assert receipts.take_overdue(5.0) == [early]
    assert receipts.take_all() == [late]
    assert receipts.take_all() == []


def test_a_working_ledger_may_be_written_at_once() -> None:
    pace = WritePace(seed=1)
    pace.begin(10, writes_per_second=0)
    pace.ledger_wrote(100)
    assert pace.due_at(is_dirty=True) == 0
    assert (pace.ledger.writes, pace.ledger.bytes_written) == (1, 100)


def test_the_rate_limit_spaces_writes_and_a_hurry_ignores_it() -> None:
    pace = WritePace(seed=1)
    pace.begin(10, writes_per_second=4)
    pace.ledger_wrote(1)
    assert pace.due_at(is_dirty=True) == 10.25
    pace.hurry()
    assert pace.due_at(is_dirty=True) == 0


def test_after_a_ledger_failure_the_node_may_be_written_at_once_then_at_its_rate() -> None:
    pace = WritePace(seed=1)
    pace.begin(10, writes_per_second=0)
    pace.ledger_failed(10)
    assert pace.due_at(is_dirty=True) == 0
    pace.node_wrote(50, 10, writes_per_second=0.5)
    assert pace.is_on_fallback
    assert pace.node.try_at == 12
    # The ledger's first retry comes before the node's next turn.
    assert 10.05 <= pace.due_at(is_dirty=True) <= 10.1
    assert pace.due_at(is_dirty=False) == pace.ledger.try_at
    pace.ledger_wrote(1)
    assert not pace.is_on_fallback


def test_when_both_fail_the_waits_grow_to_the_bound() -> None:
    pace = WritePace(seed=1)
    now, waits = 0.0, []
    for _ in range(20):
        pace.begin(now, writes_per_second=0)
        pace.ledger_failed(now)
        pace.node_failed(now)
        waits.append(pace.due_at(is_dirty=True) - now)
        now = pace.due_at(is_dirty=True)
    assert 0.05 <= waits[0] <= 0.1
    assert RETRY_SECONDS_MAX / 2 <= waits[-1] <= RETRY_SECONDS_MAX
    assert pace.ledger.errors == pace.node.errors == 20
