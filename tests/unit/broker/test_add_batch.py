"""Entries on their way: what is cut off and what is put together keeps its times and sizes."""

from __future__ import annotations

from ackgate.persistence.messages.entries import AddBatch


def batch(first: int, count: int, deliver_at_ms: dict[int, int]) -> AddBatch:
    numbers = range(first, first + count)
    payloads = [b"%d" % n for n in numbers]
    size_bytes = sum(map(len, payloads))
    return AddBatch(payloads, [1] * count, list(numbers), deliver_at_ms, size_bytes)


def test_a_part_keeps_the_times_of_its_entries() -> None:
    whole = batch(0, 5, {0: 100, 2: 102, 4: 104})
    assert whole[:2] == batch(0, 2, {0: 100})
    assert whole[2:] == batch(2, 3, {0: 102, 2: 104})
    assert whole[5:] == AddBatch()


def test_batches_in_one_keep_them_too() -> None:
    joined = AddBatch.joined([batch(0, 2, {1: 101}), batch(2, 1, {}), batch(3, 2, {0: 103})])
    assert joined == batch(0, 5, {1: 101, 3: 103})
