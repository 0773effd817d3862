"""The shared index: what the tests of apache/pulsar#24927 ask for, and what is better here."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap

from ackgate.cursor import EARLIEST, Position
from ackgate.dispatcher.delayed import (
    DelayedTracker,
    DelaySettings,
    SharedIndex,
    SharedView,
    TimeBucketTracker,
)
from ackgate.errors import CallerError, PositionError


def index_of(tick_ms: int = 1, *, is_strict: bool = True) -> SharedIndex:
    settings = DelaySettings(tick_ms=tick_ms, is_strict=is_strict)
    return SharedIndex(TimeBucketTracker(settings), settings)


def joined(
    index: SharedIndex, mark_delete: Position = EARLIEST, acked: BitMap | None = None
) -> SharedView:
    return index.join(mark_delete, lambda _: acked)


def test_a_view_is_a_delayed_tracker() -> None:
    view: DelayedTracker = joined(index_of())
    assert view.entry_count == 0
    assert view.next_deadline_ms is None
    assert not view.has_due(10**9)
    assert not view.pauses_reads(0)
    assert view.pop_due(10**9, 10) == []


def test_what_comes_through_two_views_is_there_once() -> None:
    index = index_of()
    first, second = joined(index), joined(index)
    assert first.add(Position(1, 1), 50, 0)
    assert second.add(Position(1, 1), 50, 0)
    assert index.tracker.entry_count == 1
    assert first.entry_count == second.entry_count == 1
    assert first.pop_due(60, 10) == [Position(1, 1)]
    assert first.entry_count == 0
    assert second.has_due(60), "the other has not popped it"
    assert second.next_deadline_ms == 60
    assert second.pop_due(60, 10) == [Position(1, 1)]
    assert second.pop_due(60, 10) == first.pop_due(60, 10) == []


def test_what_lies_below_a_mark_delete_is_due_for_the_others_only() -> None:
    """Upstream said that there was something, and then gave nothing."""
    index = index_of()
    behind, ahead = joined(index), joined(index, Position(1, 5))
    index.add_published(1, np.arange(10), np.full(10, 50), 0)
    assert (behind.entry_count, ahead.entry_count) == (10, 4)
    assert ahead.tracked(1) == BitMap(range(6, 10))
    assert ahead.forget_through(Position(1, 8)) == 3
    assert ahead.pop_due(50, 10) == [Position(1, 9)]
    assert not ahead.has_due(50)
    assert len(behind.pop_due(50, 100)) == 10


def test_what_all_have_passed_leaves_the_index_and_a_view_that_stays_behind_keeps_it() -> None:
    index = index_of()
    first, second, third = (joined(index) for _ in range(3))
    index.add_published(1, [1, 2, 3], [50, 60, 70], 0)
    first.forget_through(Position(1, 2))
    second.forget_through(Position(1, 3))
    assert index.tracker.entry_count == 3
    third.forget_through(Position(1, 2))
    assert index.tracker.entry_count == 1
    first.discard(Position(1, 3))
    assert index.tracker.entry_count == 1
    third.discard(Position(1, 3))
    assert index.tracker.entry_count == 0
    index.check()


def test_what_was_acked_one_by_one_is_not_given_again_at_every_poll() -> None:
    index = index_of()
    acked = BitMap([2, 4])
    view, other = joined(index, acked=acked), joined(index)
    index.add_published(1, np.arange(6), np.full(6, 50), 0)
    assert [entry_id for _, entry_id in view.pop_due(60, 100)] == [0, 1, 3, 5]
    assert len(other.pop_due(60, 100)) == 6


def test_a_late_view_has_what_waits_and_nothing_of_what_fell_due_before() -> None:
    index = index_of()
    early = joined(index)
    index.add_published(1, [1, 2], [50, 90], 0)
    assert early.pop_due(50, 10) == [Position(1, 1)]
    late = joined(index)
    assert late.entry_count == 1, "the other one its cursor reads"
    assert late.pop_due(90, 10) == early.pop_due(90, 10) == [Position(1, 2)]


def test_the_order_is_by_time_and_then_by_position_in_every_view() -> None:
    index = index_of()
    views = [joined(index) for _ in range(2)]
    index.add_published(5, [1, 2, 3], [70, 50, 60], 0)
    index.add_published(4, [9], [60], 0)
    expected = [Position(5, 2), Position(4, 9), Position(5, 3), Position(5, 1)]
    assert views[0].pop_due(65, 2) + views[0].pop_due(70, 9) == expected
    assert views[1].pop_due(100, 9) == expected


def test_a_cleared_view_takes_what_it_reads_again_and_others_are_not_touched() -> None:
    """Upstream's clear did nothing."""
    index = index_of()
    first, second = joined(index), joined(index)
    index.add_published(1, [1, 2], [50, 60], 0)
    first.clear()
    assert (first.entry_count, second.entry_count) == (0, 2)
    assert first.add_many(1, [1, 2], [50, 60], 10).all()
    assert first.pop_due(60, 9) == second.pop_due(60, 9) == [Position(1, 1), Position(1, 2)]


def test_a_view_that_has_left_takes_nothing_and_the_last_one_empties_the_index() -> None:
    index = index_of()
    first, second = joined(index), joined(index)
    index.add_published(1, [1], [50], 0)
    index.leave(first)
    index.leave(first)
    with pytest.raises(CallerError, match="left"):
        first.add(Position(1, 2), 50, 0)
    with pytest.raises(CallerError, match="left"):
        first.pop_due(60, 10)
    assert first.entry_count == 0
    assert second.entry_count == 1
    index.leave(second)
    assert index.tracker.entry_count == 0
    index.add_published(1, [2], [50], 0)
    assert index.tracker.entry_count == 0, "nobody waits for it"


def test_a_shorter_tick_holds_for_all_views() -> None:
    index = index_of(100, is_strict=False)
    first, second = joined(index), joined(index)
    assert not first.add(Position(1, 1), 1_050, 1_000)
    second.configure(DelaySettings(tick_ms=10))
    assert first.add(Position(1, 1), 1_050, 1_000)
    assert second.entry_count == 1


def test_refused_for_one_view_it_stays_for_the_others() -> None:
    index = index_of()
    first, second = joined(index), joined(index)
    index.add_published(1, [1], [50], 0)
    assert not first.add(Position(1, 1), 5, 10)
    assert not first.add_many(1, [1], [-1], 10).any()
    assert Position(1, 1) not in first
    assert second.pop_due(50, 1) == [Position(1, 1)]


@pytest.mark.parametrize("wrong", [2**63, 1.5, float("nan"), None])
def test_times_that_are_none_are_refused(wrong: object) -> None:
    view = joined(index_of())
    with pytest.raises(CallerError):
        view.add(Position(1, 1), wrong, 0)  # type: ignore[arg-type]
    with pytest.raises(CallerError):
        view.add_many(1, [1], [wrong], 0)  # type: ignore[list-item]
    with pytest.raises(PositionError):
        view.add(Position(1, -1), 50, 0)
    with pytest.raises(PositionError):
        view.add_many(-1, [1], [50], 0)
    assert view.entry_count == 0
