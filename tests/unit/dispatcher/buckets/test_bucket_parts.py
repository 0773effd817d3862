"""The leaves of the bucket tracker: which buckets to merge, the registry's mirror, retries, states."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from ackgate.cursor import BucketRecord, Position
from ackgate.dispatcher.buckets import BucketSettings
from ackgate.dispatcher.buckets.merging import Candidate, choose
from ackgate.dispatcher.buckets.plans import RetryClock
from ackgate.dispatcher.buckets.registry import RegistryMirror
from ackgate.dispatcher.buckets.sealed_bucket import BucketState, SealedBucket
from ackgate.errors import IllegalTransitionError

# -- merging --------------------------------------------------------------------------------------


def chosen(
    counts: list[int],
    *,
    width: int = 4,
    entries_max: int = 1_000,
    keys: list[int] | None = None,
    busy: tuple[int, ...] = (),
) -> list[int]:
    candidates = [
        Candidate(count, keys[index] if keys else 0, index not in busy)
        for index, count in enumerate(counts)
    ]
    found = choose(candidates, width=width, entries_max=entries_max)
    return [] if found is None else list(found)


def test_the_two_smallest_neighbours_are_merged() -> None:
    """PIP-195's example: of 5 3 2 4 3 the second and the third."""
    assert chosen([5, 3, 2, 4, 3], width=2) == [1, 2]


def test_up_to_four_are_merged_at_once() -> None:
    assert chosen([5, 3, 2, 4, 3]) == [1, 2, 3, 4]
    assert chosen([5, 3, 2]) == [0, 1, 2]
    assert chosen([5, 3]) == [0, 1]


@pytest.mark.parametrize("counts", [[], [7]])
def test_fewer_than_two_are_not_merged(counts: list[int]) -> None:
    assert chosen(counts) == []


def test_of_equals_those_are_merged_that_are_needed_first() -> None:
    assert chosen([2, 2, 2, 2], width=2, keys=[50, 40, 30, 20]) == [2, 3]
    assert chosen([2, 2, 2, 2], width=2, keys=[50, 50, 50, 50]) == [0, 1]


def test_fewer_are_merged_where_more_are_too_many_or_busy() -> None:
    assert chosen([4, 4, 4, 4], entries_max=12) == [0, 1, 2]
    assert chosen([4, 4, 4, 4], entries_max=7) == []
    assert chosen([1, 1, 1, 9, 9], busy=(1,)) == [2, 3, 4]
    assert chosen([1, 1, 1], busy=(1,)) == []


# -- the registry ---------------------------------------------------------------------------------


def record(snapshot_id: int) -> BucketRecord:
    return BucketRecord(Position(snapshot_id, 0), Position(snapshot_id, 9), snapshot_id)


def test_one_change_at_a_time_and_what_came_up_meanwhile_with_the_next() -> None:
    mirror = RegistryMirror([record(1), record(2)])
    assert mirror.next_change() is None
    mirror.desired[3] = record(3)
    del mirror.desired[1]
    assert mirror.next_change() == ((record(3),), (1,))
    del mirror.desired[2]
    assert mirror.next_change() is None
    assert not mirror.names(3)
    mirror.done()
    assert mirror.names(3)
    assert mirror.next_change() == ((), (2,))


def test_a_change_that_failed_may_have_been_made() -> None:
    mirror = RegistryMirror([record(1)])
    mirror.desired = {2: record(2)}
    mirror.next_change()
    mirror.failed()
    assert mirror.may_name(1)
    assert mirror.may_name(2)
    assert not mirror.names(1)
    assert not mirror.names(2)
    assert mirror.next_change() == ((record(2),), (1,))
    mirror.done()
    assert not mirror.may_name(1)
    mirror.check()


def test_what_was_to_be_added_and_is_wanted_no_more_is_removed_again() -> None:
    mirror = RegistryMirror()
    mirror.desired[5] = record(5)
    mirror.next_change()
    mirror.failed()
    del mirror.desired[5]
    assert mirror.may_name(5)
    assert mirror.next_change() == ((), (5,))
    mirror.done()
    assert not mirror.may_name(5)


# -- retries --------------------------------------------------------------------------------------

RETRIES = BucketSettings(attempts_max=4, retry_ms=100, retry_ms_max=10_000)


def waits_of(seed: int) -> list[int]:
    clock = RetryClock(RETRIES, seed)
    waits = []
    for attempts in range(1, 6):
        clock.schedule(attempts, 1_000, lambda _now_ms: None)
        deadline = clock.next_deadline_ms
        assert deadline is not None
        waits.append(deadline - 1_000)
        assert len(list(clock.due(deadline))) == 1
    return waits


def test_waits_double_until_the_attempts_are_used_up() -> None:
    for seed in range(50):
        for wait, longest in zip(waits_of(seed), [100, 200, 400, 10_000, 10_000], strict=True):
            assert 0.75 * longest <= wait <= longest


def test_chance_is_the_seeds() -> None:
    assert waits_of(1) == waits_of(1)
    assert len({tuple(waits_of(seed)) for seed in range(20)}) == 20


def test_retries_come_in_the_order_of_their_times() -> None:
    clock = RetryClock(RETRIES, 0)
    called: list[int] = []

    def note(attempts: int, now_ms: int) -> None:
        called.append(attempts)

    for attempts in (3, 1, 2):
        clock.schedule(attempts, 0, partial(note, attempts))
    assert list(clock.due(50)) == []
    for retry in clock.due(1_000):
        retry(1_000)
    assert called == [1, 2, 3]
    assert clock.next_deadline_ms is None


# -- states ---------------------------------------------------------------------------------------


def test_a_bucket_goes_its_way_and_no_other() -> None:
    way = [
        *[BucketState.WAITING, BucketState.STORING, BucketState.REGISTERING],
        *[BucketState.STORED, BucketState.GONE],
    ]
    bucket = SealedBucket(1, Position(0, 0), Position(1, 0), way[0])
    for before, after in pairwise(way):
        for wrong in set(BucketState) - {after, BucketState.GONE, BucketState.WAITING}:
            with pytest.raises(IllegalTransitionError, match=f"from {before.value} to"):
                bucket.move_to(wrong)
        bucket.move_to(after)
    with pytest.raises(IllegalTransitionError, match=r"bucket 1 \(0:0\.\.1:0\)"):
        bucket.move_to(BucketState.STORED)
