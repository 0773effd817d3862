"""Images of pending nacks: what is kept of them, and what is left when they are laid over acks."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from ackgate.cursor import (
    MessageLedgers,
    NackedLedger,
    PendingNacks,
    Position,
    earliest_nacks,
    existing_nacks,
    unacked_nacks,
)
from ackgate.cursor.held_records import BITMAP_OVERHEAD_BYTES

IMAGE = PendingNacks(
    {
        256: {3: BitMap(range(100)), 5: BitMap([7])},
        512: {3: BitMap(range(0, 100_000, 3))},
        768: {8: BitMap([0, 1])},
    },
    8,
)


def of(nacks: PendingNacks) -> dict[int, dict[int, list[int]]]:
    return {
        key: {ledger_id: list(entry_ids) for ledger_id, entry_ids in ledgers.items()}
        for key, ledgers in nacks.buckets.items()
    }


@pytest.mark.parametrize("bytes_max", [0, 1, 40, 60, 100, 1_000, 5_000, 20_000, 100_000])
def test_the_earliest_are_kept_as_long_as_they_fit(bytes_max: int) -> None:
    kept = earliest_nacks(IMAGE, bytes_max, precision_bits=8)
    assert kept.stored_bytes <= bytes_max
    every = [(part.key_ms, part.ledger_id, entry) for part in IMAGE for entry in part.entry_ids]
    held = [(part.key_ms, part.ledger_id, entry) for part in kept for entry in part.entry_ids]
    assert held == every[: len(held)]
    if bytes_max == 100_000:
        assert held == every
        assert kept == IMAGE
    elif bytes_max in {1_000, 5_000}:
        # One more would not have fitted, or only by another kind of container.
        assert bytes_max - kept.stored_bytes <= BITMAP_OVERHEAD_BYTES + 4


def test_what_is_kept_is_a_copy() -> None:
    entry_ids = BitMap([1, 2])
    kept = earliest_nacks([NackedLedger(1, 2, entry_ids)], 1_000, precision_bits=0)
    entry_ids.add(3)
    assert of(kept) == {1: {2: [1, 2]}}


def test_what_is_acked_or_comes_twice_is_left_out() -> None:
    nacks = PendingNacks(
        {
            1: {2: BitMap([9]), 3: BitMap([1, 2, 3]), 4: BitMap([1])},
            2: {3: BitMap([3, 4, 5, 6]), 5: BitMap([1])},
        },
        4,
    )
    left = unacked_nacks(nacks, Position(3, 1), {3: BitMap([4, 6]), 5: BitMap([1])})
    assert of(left) == {1: {3: [2, 3], 4: [1]}, 2: {3: [5]}}
    assert left.precision_bits == 4
    assert nacks.entry_count == 10, "nothing was changed in place"


def test_what_does_not_exist_is_left_out() -> None:
    ledgers = MessageLedgers()
    ledgers.open_ledger(3)
    ledgers.close_ledger(3, 50)
    left = existing_nacks(IMAGE, ledgers)
    assert of(left) == {256: {3: list(range(50))}, 512: {3: list(range(0, 50, 3))}}


def test_nothing_is_false() -> None:
    assert not PendingNacks()
    assert IMAGE
    assert IMAGE.entry_count == 100 + 1 + 33_334 + 2
