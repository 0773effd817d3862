"""Held nacks by themselves: how long each waits, what is taken out, and what images hold."""

from __future__ import annotations

from itertools import cycle

import pytest
from pyroaring import BitMap

from ackgate.cursor import NO_NACKS, PendingNacks, Position, run_of_positions
from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
from ackgate.subscription import HeldNacks

NOW = 1_000_000


def no_chance() -> float:
    raise AssertionError("nothing is left to chance")


def held(min_ms: int = 1_000, max_ms: int = 60_000, jitter: float = 0) -> HeldNacks:
    nacks = HeldNacks(NO_NACKS)
    nacks.configure(MultiplierRedeliveryBackoff(min_ms, max_ms, 2, jitter))
    return nacks


@pytest.mark.parametrize("count", [1, 40])
def test_each_time_it_waits_longer(count: int) -> None:
    for times, delay_ms in enumerate((1_000, 2_000, 4_000, 8_000)):
        nacks = held()
        positions = run_of_positions(3, 0, count)
        nacks.hold(positions, [times] * count, NOW, no_chance)
        due_ms = nacks.next_deadline_ms
        assert due_ms is not None
        assert delay_ms - 62 <= due_ms - NOW <= delay_ms
        assert nacks.pop_due(due_ms - 1, 1_000) == []
        assert nacks.pop_due(due_ms, 1_000) == positions
        assert nacks.entry_count == 0
        nacks.check()


def test_many_of_several_ledgers_and_counts_at_once() -> None:
    nacks = held()
    positions = [Position(ledger_id, entry_id) for entry_id in range(20) for ledger_id in (9, 3)]
    nacks.hold(positions, [entry_id % 3 for _, entry_id in positions], NOW, no_chance)
    assert nacks.entry_count == 40
    assert nacks.tracked(3) == BitMap(range(20))
    assert nacks.tracked(4) is None
    first = nacks.pop_due(NOW + 1_000, 1_000)
    assert set(first) == {position for position in positions if position[1] % 3 == 0}
    assert set(nacks.pop_due(NOW + 2_000, 1_000)) == {p for p in positions if p[1] % 3 == 1}
    nacks.check()


@pytest.mark.parametrize("count", [1, 40])
def test_what_cannot_wait_so_long_is_given_back(count: int) -> None:
    nacks = held()
    first, second = run_of_positions(3, 0, count), run_of_positions(4, 0, count)
    assert nacks.hold(first, [0] * count, NOW, no_chance) == []
    assert nacks.hold(second, [0] * count, NOW, no_chance, delay_ms=2**63 - NOW) == second
    assert nacks.entry_count == count
    nacks.configure(None)
    assert nacks.hold(second, [0] * count, NOW, no_chance) == second
    nacks.check()


@pytest.mark.parametrize("count", [1, 40])
def test_jitter_takes_its_share(count: int) -> None:
    nacks = held(jitter=0.5)
    chances = cycle([0.0, 1.0])
    nacks.hold(run_of_positions(3, 0, count), [0] * count, NOW, lambda: next(chances))
    assert len(nacks.pop_due(NOW + 600, 1_000)) == count // 2
    assert len(nacks.pop_due(NOW + 1_000, 1_000)) == (count + 1) // 2


@pytest.mark.parametrize(
    ("min_ms", "bits"), [(0, 0), (15, 0), (31, 0), (32, 1), (100, 2), (1_000, 5), (10_000, 8)]
)
def test_a_bucket_is_a_sixteenth_of_the_least_delay_at_most(min_ms: int, bits: int) -> None:
    assert held(min_ms).image(0).nacks.precision_bits == bits
    assert 1 << bits <= max(1, min_ms / 16)


def test_no_delay_is_due_at_once() -> None:
    nacks = held(0, 0)
    nacks.hold([Position(3, 1)], [5], NOW, no_chance)
    assert nacks.pop_due(NOW, 10) == [Position(3, 1)]


def test_without_a_policy_nothing_is_held_back_and_what_waits_keeps_its_time() -> None:
    nacks = held()
    nacks.hold([Position(3, 1)], [0], NOW, no_chance)
    due_ms = nacks.next_deadline_ms
    assert due_ms is not None
    nacks.configure(None)
    assert not nacks.is_active
    nacks.hold([Position(3, 2)], [0], NOW, no_chance)
    assert nacks.pop_due(due_ms - 1, 10) == []
    assert nacks.pop_due(due_ms, 10) == [Position(3, 1)]


def test_a_new_policy_is_for_what_comes_after_it() -> None:
    nacks = held()
    nacks.hold([Position(3, 1)], [0], NOW, no_chance)
    nacks.configure(MultiplierRedeliveryBackoff(10, 10, 2))
    nacks.hold([Position(3, 2)], [0], NOW, no_chance)
    assert nacks.pop_due(NOW + 10, 10) == [Position(3, 2)]
    assert nacks.pop_due(NOW + 1_000, 10) == [Position(3, 1)]


def test_what_is_acked_waits_no_more() -> None:
    nacks = held()
    nacks.hold(run_of_positions(3, 0, 5), [0] * 5, NOW, no_chance)
    assert nacks.discard(Position(3, 2))
    assert not nacks.discard(Position(3, 2))
    assert nacks.forget_through(Position(3, 0)) == 1
    assert Position(3, 0) not in nacks
    assert nacks.pop_due(NOW + 1_000, 10) == [Position(3, 1), Position(3, 3), Position(3, 4)]


def test_images_hold_all_there_is_and_new_ones_are_asked_for_by_new_nacks_alone() -> None:
    nacks = held(16_000)
    nacks.hold(run_of_positions(3, 0, 5), [0] * 5, NOW, no_chance)
    nacks.hold([Position(4, 9)], [1], NOW, no_chance)
    version = nacks.version
    nacks.discard(Position(3, 2))
    nacks.forget_through(Position(3, 0))
    assert nacks.version == version
    image = nacks.image(10_000)
    assert (image.version, image.entries_in_memory) == (version, 4)
    assert [list(part.entry_ids) for part in image.nacks] == [[1, 3, 4], [9]]
    assert image.nacks.precision_bits == 8
    assert nacks.entry_count == 4, "an image takes nothing out"
    nacks.clear()
    assert nacks.version > version
    assert not nacks.image(10_000).nacks
    nacks.check()


def test_what_is_recovered_is_held_until_its_time() -> None:
    stored = PendingNacks({256: {3: BitMap([1, 2])}, 1_024: {3: BitMap([7]), 5: BitMap([0])}}, 8)
    nacks = HeldNacks(stored)
    nacks.check()
    assert not nacks.is_active
    assert nacks.image(10_000).nacks == stored
    assert (nacks.entry_count, nacks.next_deadline_ms) == (4, 256)
    assert nacks.pop_due(1_000, 10) == [Position(3, 1), Position(3, 2)]
    assert nacks.pop_due(1_024, 10) == [Position(3, 7), Position(5, 0)]
    assert nacks.next_deadline_ms is None


def test_a_small_room_keeps_the_earliest() -> None:
    nacks = held(16_000)
    for times in range(3):
        nacks.hold(run_of_positions(3, 100 * times, 100 * times + 50), [times] * 50, NOW, no_chance)
    kept = nacks.image(50).nacks
    assert [list(part.entry_ids) for part in kept] == [list(range(50))]
    assert nacks.image(0).nacks.entry_count == 0
