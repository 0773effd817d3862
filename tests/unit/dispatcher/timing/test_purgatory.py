"""The purgatory: try, watch, try again; completed once; lists shortened when it is worth it."""

from __future__ import annotations

import random

import pytest

from ackgate.dispatcher.timing import PURGE_INTERVAL, Purgatory
from ackgate.errors import CallerError

NOW = 1_700_000_000_123
LATER = NOW + 30_000


class Wait:
    """An operation that is complete when it is told so."""

    def __init__(self, *, completable: bool = False) -> None:
        self.completable = completable
        self.asked = 0

    def try_complete(self) -> bool:
        self.asked += 1
        return self.completable


def test_what_is_complete_is_not_watched() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    assert purgatory.try_complete_else_watch(Wait(completable=True), ["a"], LATER) is None
    assert (purgatory.stats.size, purgatory.stats.watched, purgatory.stats.completed) == (0, 0, 1)
    assert purgatory.next_deadline_ms is None
    purgatory.check()


def test_it_is_asked_again_once_it_is_watched() -> None:
    class Second(Wait):
        def try_complete(self) -> bool:
            super().try_complete()
            return self.asked == 2

    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    assert purgatory.try_complete_else_watch(Second(), ["a", "b"], LATER) is None
    assert purgatory.next_deadline_ms is None
    assert purgatory.check_and_complete("a") == []
    assert list(purgatory.advance(LATER)) == []
    purgatory.check()


def test_completed_ones_vanish_from_a_list_when_it_is_touched() -> None:
    """Kafka's DelayedOperationTest.testRequestPurge: 6, 4, 2, 1."""
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    timers = [
        purgatory.try_complete_else_watch(Wait(), keys, LATER)
        for keys in (["1"], ["1", "2"], ["1", "2", "3"])
    ]
    assert (purgatory.stats.size, purgatory.stats.watched) == (3, 6)
    purgatory.complete(timers[1])
    assert purgatory.stats.size == 2
    purgatory.complete(timers[2])
    assert (purgatory.stats.size, purgatory.stats.watched) == (1, 6)
    for key, left in (("1", 4), ("2", 2), ("3", 1)):
        assert purgatory.check_and_complete(key) == []
        assert purgatory.stats.watched == left
        purgatory.check()
    assert purgatory.stats.purged == 5


def test_a_key_completes_what_is_complete_and_leaves_the_rest() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    waits = [Wait() for _ in range(4)]
    for wait in waits:
        purgatory.try_complete_else_watch(wait, ["a", "b"], LATER)
    waits[1].completable = waits[3].completable = True
    assert purgatory.check_and_complete("a") == [waits[1], waits[3]]
    assert purgatory.check_and_complete("b") == []
    assert purgatory.check_and_complete("nobody") == []
    assert list(purgatory.advance(LATER)) == [waits[0], waits[2]]
    stats = purgatory.stats
    assert (stats.size, stats.completed, stats.expired) == (0, 2, 2)
    purgatory.check()


def test_expired_or_completed_never_both() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    waits = [Wait() for _ in range(3)]
    timers = [purgatory.try_complete_else_watch(wait, ["a"], LATER) for wait in waits]
    expired = []
    for wait in purgatory.advance(LATER):
        expired.append(wait)
        if wait is waits[0]:  # carrying out one of them completes another one that is due
            waits[1].completable = True
            assert purgatory.check_and_complete("a") == [waits[1]]
    assert expired == [waits[0], waits[2]]
    assert [purgatory.complete(timer) for timer in timers] == [None] * 3


def test_one_key_twice_completes_once() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    wait = Wait()
    purgatory.try_complete_else_watch(wait, ["a", "a"], LATER)
    wait.completable = True
    assert purgatory.check_and_complete("a") == [wait]
    assert purgatory.stats.watched == 0
    purgatory.check()


def test_the_timer_is_gone_at_the_moment_of_completion() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    timer = purgatory.try_complete_else_watch(Wait(), ["a"], LATER)
    assert purgatory.next_deadline_ms is not None
    assert purgatory.complete(timer) is not None
    assert purgatory.next_deadline_ms is None


@pytest.mark.parametrize("interval", [0, 3, 100])
def test_a_purge_begins_when_the_estimate_is_over_the_timers_by_more_than_the_interval(
    interval: int,
) -> None:
    purgatory: Purgatory[int, Wait] = Purgatory(start_ms=NOW, purge_interval=interval)
    for number in range(10):
        purgatory.try_complete_else_watch(Wait(), [-1 - number], LATER)
    for number in range(500):
        timer = purgatory.try_complete_else_watch(Wait(), [2 * number, 2 * number + 1], LATER)
        stats = purgatory.stats
        assert stats.estimated_total - stats.size <= interval
        assert stats.watched <= 10 + 2 * (interval + 1)
        purgatory.complete(timer)
    assert purgatory.stats.purged >= 2 * (500 - interval - 1)
    purgatory.check()


def test_many_pending_ones_are_not_walked_over_and_over() -> None:
    """The old purgatory purged by the length of its lists, however little there was to purge."""
    purgatory: Purgatory[int, Wait] = Purgatory(start_ms=NOW)
    for number in range(10 * PURGE_INTERVAL):
        purgatory.try_complete_else_watch(Wait(), [number], LATER)
    assert purgatory.stats.purged == 0
    for _ in range(8 * PURGE_INTERVAL):
        purgatory.complete(purgatory.try_complete_else_watch(Wait(), [-1], LATER))
    assert purgatory.stats.purged == 0
    for _ in range(4 * PURGE_INTERVAL):
        purgatory.complete(purgatory.try_complete_else_watch(Wait(), [-1], LATER))
    assert purgatory.stats.purged > 10 * PURGE_INTERVAL
    assert purgatory.stats.watched <= 12 * PURGE_INTERVAL


def test_take_all_empties_a_key() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    waits = [Wait() for _ in range(3)]
    purgatory.try_complete_else_watch(waits[0], ["a"], LATER)
    purgatory.try_complete_else_watch(waits[1], ["a", "b"], LATER)
    purgatory.try_complete_else_watch(waits[2], ["b"], LATER)
    assert purgatory.take_all("a") == waits[:2]
    assert purgatory.take_all("a") == []
    assert purgatory.take_all("b") == waits[2:]
    assert len(purgatory) == 0
    purgatory.check()


def test_one_that_raises_when_asked_changes_nothing() -> None:
    class Broken(Wait):
        def try_complete(self) -> bool:
            if self.completable:
                raise ZeroDivisionError
            return False

    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    waits = [Wait(), Broken(), Wait()]
    for wait in waits:
        purgatory.try_complete_else_watch(wait, ["a"], LATER)
        wait.completable = True
    with pytest.raises(ZeroDivisionError):
        purgatory.check_and_complete("a")
    purgatory.check()
    waits[1].completable = False
    assert purgatory.check_and_complete("a") == [waits[0], waits[2]]


def test_bad_operations_are_refused_by_name() -> None:
    purgatory: Purgatory[str, Wait] = Purgatory(start_ms=NOW)
    with pytest.raises(CallerError, match="under no key"):
        purgatory.try_complete_else_watch(Wait(), [], LATER)
    with pytest.raises(CallerError, match="nan"):
        purgatory.try_complete_else_watch(Wait(), ["a"], float("nan"))
    with pytest.raises(CallerError, match="purge_interval"):
        Purgatory(purge_interval=-1)
    assert (purgatory.stats.size, purgatory.stats.watched) == (0, 0)
    purgatory.check()


def test_random_life_against_counting() -> None:
    random_ = random.Random(5)
    purgatory: Purgatory[int, Wait] = Purgatory(start_ms=NOW, slots_per_level=8, purge_interval=20)
    pending: dict[Wait, int] = {}
    done: list[Wait] = []
    now = NOW
    for _ in range(3_000):
        wait = Wait(completable=random_.random() < 0.1)
        deadline = now + random_.randrange(300)
        keys = random_.sample(range(20), 3)
        if purgatory.try_complete_else_watch(wait, keys, deadline) is None:
            assert wait.completable
            done.append(wait)
        else:
            pending[wait] = deadline
        for wait in random_.sample(list(pending), min(2, len(pending))):
            wait.completable = True
        for wait in purgatory.check_and_complete(random_.randrange(20)):
            del pending[wait]
            done.append(wait)
        now += random_.randrange(4)
        for wait in purgatory.advance(now):
            assert pending.pop(wait) <= now
            done.append(wait)
        assert len(purgatory) == len(pending)
        assert all(deadline > now for deadline in pending.values())
    purgatory.check()
    assert len(set(done)) == len(done)
    stats = purgatory.stats
    assert stats.completed + stats.expired == len(done)
    assert stats.purged > 0
