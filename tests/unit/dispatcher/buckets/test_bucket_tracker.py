"""What upstream's tests of its bucket tracker say, and what they ought to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap

from ackgate.cursor import Position, StoredSnapshot
from ackgate.dispatcher.buckets import (
    ChangeRegistry,
    CreateSnapshot,
    DeleteSnapshot,
    Done,
    Failed,
    LoadMetadata,
    LoadSegments,
    OperationType,
)
from ackgate.dispatcher.buckets.loading import LOADS_OVER_MAX
from ackgate.dispatcher.delayed import DelaySettings
from ackgate.errors import CallerError, PositionError
from tests.property.dispatcher.buckets.bucket_storage import rows_of
from tests.unit.dispatcher.buckets.bucket_host import SMALL, Host, message

# -- tracking -------------------------------------------------------------------------------------


def test_what_is_tracked_is_contained_until_it_is_popped() -> None:
    host = Host()
    host.add(1, 2)
    assert message(1) in host.tracker
    assert host.pop(1, at_ms=20) == [message(1)]
    for i in range(3, 7):
        host.tracker.add(message(i), 30, 20)
    assert message(3) in host.tracker
    assert message(1) not in host.tracker
    assert message(99) not in host.tracker


def test_a_tracked_entry_that_is_due_when_offered_again_is_refused_and_forgotten() -> None:
    """apache/pulsar#26230"""
    host = Host()
    assert host.tracker.add(message(1), 2_000, 1_000)
    assert not host.tracker.add(message(1), 2_000, 2_500)
    assert host.tracker.entry_count == 0
    assert message(1) not in host.tracker
    assert host.pop(10, at_ms=3_000) == []


def test_so_is_one_of_a_segment_that_is_not_loaded() -> None:
    host = Host(replace(SMALL, entries_min=2))
    host.add(1, 6)
    other = host.restarted()
    other.pump()
    assert message(1) in other.tracker
    assert not other.tracker.add(message(1), 10, 10_000)
    assert message(1) not in other.tracker
    other.tracker.check()


def test_order_is_by_key_then_by_position_wherever_the_entries_are() -> None:
    host = Host(replace(SMALL, entries_min=3, load_lead_ms=5))
    for ledger_id, entry_id, time in [(1, 1, 50), (1, 2, 40), (1, 3, 50), (2, 1, 40), (3, 0, 50)]:
        host.tracker.add(Position(ledger_id, entry_id), time, 0)
        host.pump()
    host.tracker.add(Position(0, 7), 50, 0)
    assert host.sealed_buckets == 1
    assert host.pop_all(until_ms=40) == [(1, 2), (2, 1)]
    assert host.pop_all(until_ms=60) == [(0, 7), (1, 1), (1, 3), (3, 0)]


@pytest.mark.parametrize("entries_min", [1, 3, 1_000])
@pytest.mark.parametrize("buckets_max", [-1, 1, 3])
def test_sealing_and_merging_change_nothing_of_what_is_delivered_when(
    entries_min: int, buckets_max: int
) -> None:
    settings = replace(SMALL, entries_min=entries_min, buckets_max=buckets_max, load_lead_ms=20)
    host = Host(settings)
    rng = np.random.default_rng(7)
    times = {Position(i // 7, i % 7): int(rng.integers(1, 300)) for i in range(120)}
    for position, time in times.items():
        host.tracker.add(position, time, 0)
        host.pump()
    assert host.pop_all(until_ms=400) == sorted(times, key=lambda at: (times[at], at))
    assert host.storage.snapshots == {}


# -- sealing --------------------------------------------------------------------------------------


def test_a_bucket_is_sealed_at_a_change_of_ledger_and_cut_by_time() -> None:
    host = Host()
    host.add(1, 5)
    assert host.sealed_buckets == 0
    host.add(6, 6)
    (plan,) = host.storage.snapshots.values()
    assert (plan.first, plan.last) == (message(1), message(5))
    assert [rows_of(segment) for segment in plan.segments] == [
        [(10 * i, i, i)] for i in range(1, 6)
    ]
    assert host.records[0].first == message(1)
    assert host.tracker.statistics().loaded_entries == 1  # the mutable bucket's


def test_it_is_sealed_inside_a_ledger_when_it_is_full() -> None:
    host = Host(replace(SMALL, entries_min=3, entries_max=4))
    host.tracker.add_many(0, np.arange(10), np.full(10, 100), 0)
    host.pump()
    assert [record[:2] for record in host.records] == [((0, 0), (0, 3)), ((0, 4), (0, 7))]
    assert host.tracker.statistics().mutable_entries == 2


def test_it_is_sealed_by_age_unless_it_is_a_handful() -> None:
    host = Host(replace(SMALL, entries_min=20, age_max_ms=100))
    host.tracker.add(message(1), 9_000, 0)
    assert host.tracker.next_deadline_ms == 9_000
    host.tracker.add(message(2), 9_000, 30)
    assert host.tracker.next_deadline_ms == 100
    host.pop(1, at_ms=100)
    assert host.sealed_buckets == 1
    assert host.tracker.next_deadline_ms == 9_000


def test_a_straggler_goes_to_the_mutable_bucket_and_is_sealed_with_it() -> None:
    """Upstream keeps it in memory, and loses it at a restart."""
    host = Host()
    host.add(1, 6)
    host.tracker.add(Position(3, 9), 500, 0)
    host.add(7, 10)
    assert [record[:2] for record in host.records] == [((1, 1), (5, 5)), ((3, 9), (9, 9))]
    other = host.restarted()
    other.pump()
    assert Position(3, 9) in other.tracker


def test_what_was_popped_or_discarded_before_is_not_stored() -> None:
    host = Host()
    host.add(1, 5)
    host.pop(1, at_ms=10)
    host.tracker.discard(message(4))
    for i in (6, 7, 8):
        host.tracker.add(message(i), 100, 10)
    host.pump()
    (plan,) = host.storage.snapshots.values()
    stored = [row[1] for segment in plan.segments for row in rows_of(segment)]
    assert stored == [2, 3, 5, 6]


def test_a_bucket_of_which_nothing_is_left_is_not_stored_at_all() -> None:
    host = Host(replace(SMALL, creates_max=1))
    host.tracker.add_many(0, np.arange(5), np.full(5, 50), 0)
    host.tracker.add_many(1, np.arange(5), np.full(5, 50), 0)
    host.pump(hold=(CreateSnapshot,))
    host.tracker.add(Position(2, 0), 50, 0)
    assert len(host.held) == 1
    host.tracker.forget_through(Position(1, 4))
    host.release()
    assert host.done["CreateSnapshot"] == 1
    assert host.storage.snapshots == {}


# -- storage that fails ---------------------------------------------------------------------------


def test_one_failure_of_each_kind_is_made_good() -> None:
    host = Host(replace(SMALL, buckets_max=10, entries_max=10))
    host.failures.update(["CreateSnapshot", "LoadSegments", "DeleteSnapshot", "ChangeRegistry"])
    for i in range(1, 111):
        host.tracker.add(message(i), 10_000 + i, 0)
        host.pump()
    delivered = host.pop_all(until_ms=9_999)
    assert delivered == []
    assert not host.failures.total()
    assert host.tracker.entry_count == 110
    assert host.sealed_buckets <= 10
    other = host.restarted(at_ms=host.now_ms)
    other.failures["LoadMetadata"] = 1
    other.pump()
    other.pop_all(until_ms=9_999)
    stored = 110 - host.tracker.statistics().mutable_entries
    assert other.tracker.entry_count == stored
    assert len(other.pop_all(until_ms=20_000)) == stored


def test_segments_that_cannot_be_read_come_later_and_hold_back_nobody_else() -> None:
    """apache/pulsar#20082"""
    host = Host(replace(SMALL, retry_ms=10, retry_ms_max=100))
    host.add(1, 6)  # 1..5 are stored
    host.failures["LoadSegments"] = 4
    assert host.pop_all(until_ms=19) == []
    assert host.tracker.statistics().buckets_blocked == 1
    host.tracker.add(Position(9, 0), 25, 12)
    delivered = host.pop_all(until_ms=1_000)
    assert delivered[0] == (9, 0)
    assert sorted(delivered[1:]) == [message(i) for i in range(1, 7)]
    assert host.failures["LoadSegments"] == 0
    assert host.tracker.statistics().degraded == ()


def test_a_bucket_that_cannot_be_stored_stays_in_memory_and_is_tried_again() -> None:
    """apache/pulsar#26239"""
    host = Host(replace(SMALL, retry_ms=1, retry_ms_max=1_000))
    host.failures["CreateSnapshot"] = 4
    host.add(1, 6)
    while host.failures["CreateSnapshot"]:
        host.pop(0, at_ms=host.tracker.next_deadline_ms)
    statistics = host.tracker.statistics()
    assert host.now_ms < 10
    assert statistics.buckets_failing == 1
    assert statistics.degraded == ("1 buckets cannot be stored and stay in memory",)
    assert host.tracker.entry_count == 6
    assert host.storage.registry == {}
    assert host.pop(2, at_ms=20) == [message(1), message(2)]
    # Later: what is left of it.
    host.pop(10, at_ms=30)
    host.tracker.add(message(8), 5_000, 30)
    assert host.pop_all(until_ms=2_000) == [message(4), message(5), message(6)]
    assert host.tracker.statistics().degraded == ()


def test_a_snapshot_that_is_gone_gives_its_entries_back_to_be_read() -> None:
    host = Host()
    host.add(1, 6)
    host.storage.destroy(host.records[0].snapshot_id)
    assert host.pop(5, at_ms=10) == []
    assert host.tracker.take_lost() == {i: BitMap([i]) for i in range(1, 6)}
    assert host.tracker.take_lost() == {}
    statistics = host.tracker.statistics()
    assert (statistics.buckets_lost, statistics.entries_lost) == (1, 5)
    assert host.tracker.entry_count == 1
    assert host.storage.registry == {}


def test_a_segment_with_too_few_rows_is_as_good_as_gone() -> None:
    host = Host()
    host.add(1, 6)
    host.storage.corrupt(host.records[0].snapshot_id, 2, how=0)
    assert host.pop_all(until_ms=100) == [message(i) for i in (1, 2, 6)]
    assert host.tracker.take_lost() == {i: BitMap([i]) for i in (3, 4, 5)}


def test_what_the_metadata_names_and_no_segment_holds_is_lost_in_the_end() -> None:
    host = Host()
    host.add(1, 6)
    host.storage.corrupt(host.records[0].snapshot_id, 2, how=1)
    assert host.pop_all(until_ms=100) == [message(i) for i in (1, 2, 4, 5, 6)]
    assert host.tracker.take_lost() == {3: BitMap([3])}


def test_rows_that_come_in_another_order_are_delivered_in_theirs() -> None:
    host = Host(replace(SMALL, segment_span_ms=1_000))
    host.add(1, 6)
    host.storage.corrupt(host.records[0].snapshot_id, 0, how=2)
    assert host.pop_all(until_ms=100) == [message(i) for i in range(1, 7)]


# -- the registry ---------------------------------------------------------------------------------


def test_a_snapshot_is_deleted_after_the_registry_let_go_of_it() -> None:
    host = Host()
    host.add(1, 6)
    host.tracker.forget_through(message(5))
    (change,) = host.tracker.take_plans()
    assert isinstance(change, ChangeRegistry)
    assert len(change.remove) == 1
    host.tracker.answer(change.plan, Failed("perhaps"), 0)
    assert host.tracker.take_plans() == []
    host.pop(0, at_ms=1_000)
    assert host.storage.registry == {}
    assert host.storage.snapshots == {}


def test_changes_of_the_registry_follow_each_other_and_are_put_together() -> None:
    host = Host(replace(SMALL, entries_min=1))
    host.tracker.add(message(1), 100, 0)
    host.tracker.add(message(2), 100, 0)
    host.pump(hold=(ChangeRegistry,))
    for i in (3, 4, 5):
        host.tracker.add(message(i), 100, 0)
        host.pump(hold=(ChangeRegistry,))
    assert len(host.held) == 1
    (first,) = host.held
    host.held.clear()
    host.carry_out(first)
    (second,) = host.tracker.take_plans()
    assert isinstance(second, ChangeRegistry)
    assert len(second.add) == 3


# -- loading --------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_its_time_and_then_one_read_is_enough() -> None:
    """apache/pulsar#26280"""
    host = Host()
    host.add(1, 6)
    other = host.restarted(at_ms=1)
    other.pump()
    assert other.pop(10) == []
    assert other.done == {"LoadMetadata": 1}
    assert other.tracker.next_deadline_ms == 10
    assert other.pop_all(until_ms=10) == [message(1)]
    assert other.done["LoadSegments"] == 1


def test_it_is_loaded_ahead_by_the_lead_time() -> None:
    host = Host(replace(SMALL, load_lead_ms=7))
    host.add(1, 6)
    assert host.tracker.next_deadline_ms == 3
    host.pop(1, at_ms=3)
    assert host.done["LoadSegments"] == 1
    assert host.tracker.next_deadline_ms == 10


def test_the_next_group_waits_until_most_of_the_last_one_is_used() -> None:
    settings = replace(SMALL, segment_entries_max=5, segment_span_ms=1_000, load_lead_ms=50)
    host = Host(replace(settings, entries_min=10))
    host.tracker.add_many(0, np.arange(10), np.arange(100, 110), 0)
    host.tracker.add(Position(1, 0), 900, 0)
    host.pump()
    host.pop(0, at_ms=60)
    assert host.done["LoadSegments"] == 1
    host.pop(3, at_ms=105)
    assert host.done["LoadSegments"] == 1
    host.pop(1)
    assert host.done["LoadSegments"] == 2


def test_with_a_great_many_in_memory_only_what_is_due_first_is_loaded() -> None:
    host = Host(replace(SMALL, loaded_entries_max=3, entries_min=3, load_lead_ms=100))
    for ledger_id in range(20):
        host.tracker.add_many(ledger_id, np.arange(3), np.full(3, 1_000 + ledger_id), 0)
        host.pump()
    assert host.tracker.statistics().loaded_entries == 3
    host.pop(0, at_ms=950)
    # As many as may be under way at a time, and the mutable bucket.
    assert host.tracker.statistics().loaded_entries == 3 * (LOADS_OVER_MAX + 1)
    assert len(host.pop_all(until_ms=2_000)) == 60


def test_small_segments_are_fetched_together() -> None:
    host = Host(replace(SMALL, load_entries_min=3))
    host.add(1, 6)
    host.pop(10, at_ms=10)
    assert host.done["LoadSegments"] == 1
    assert host.pop(10, at_ms=30) == [message(1), message(2), message(3)]
    assert host.done["LoadSegments"] == 1


# -- forgetting -----------------------------------------------------------------------------------


def test_trimming_waits_for_a_create_that_is_under_way() -> None:
    """apache/pulsar#26260"""
    host = Host()
    for i in range(1, 32):
        host.tracker.add(message(i), 10 * i, 0)
    host.pump(hold=(CreateSnapshot,))
    assert host.tracker.forget_through(message(31)) == 31
    assert host.tracker.take_plans() == []
    host.release()
    assert host.sealed_buckets == 0
    assert host.storage.snapshots == {}
    assert host.done["DeleteSnapshot"] == 2


def test_deletes_that_fail_leave_the_count_right_and_are_given_up_in_the_end() -> None:
    host = Host(replace(SMALL, retry_ms=1))
    host.add(1, 6)
    host.failures["DeleteSnapshot"] = 4
    host.tracker.forget_through(message(5))
    host.pump()
    assert host.tracker.entry_count == 1
    host.tracker.clear()
    host.pop_all(until_ms=1_000)
    statistics = host.tracker.statistics()
    assert statistics.deletes_given_up == 1
    assert statistics.snapshots_to_delete == 0
    assert host.storage.registry == {}


def test_forgetting_what_nobody_holds_does_nothing() -> None:
    host = Host()
    host.add(1, 31)
    before = host.sealed_buckets
    assert host.tracker.forget_through(Position(0, 5)) == 0
    assert host.tracker.take_plans() == []
    assert host.sealed_buckets == before
    assert host.tracker.entry_count == 31


def test_a_bucket_that_lies_across_the_mark_delete_keeps_what_is_above() -> None:
    """#26240"""
    host = Host()
    host.add(1, 6)
    assert host.tracker.forget_through(message(3)) == 3
    host.pump()
    assert host.sealed_buckets == 1
    assert host.pop_all(until_ms=100) == [message(4), message(5), message(6)]
    assert host.storage.registry == {}


def test_what_was_discarded_and_is_offered_again_comes_once() -> None:
    host = Host()
    host.add(1, 4)
    assert host.tracker.discard(message(2))
    assert not host.tracker.discard(message(2))
    host.tracker.add(message(2), 20, 0)
    host.tracker.check()
    assert host.pop_all(until_ms=100) == [message(i) for i in range(1, 5)]


# -- clearing -------------------------------------------------------------------------------------


def test_clear_leaves_nothing() -> None:
    host = Host()
    host.add(1, 101)
    assert host.sealed_buckets > 0
    host.tracker.clear()
    host.pump()
    statistics = host.tracker.statistics()
    assert statistics.entries == statistics.loaded_entries == statistics.mutable_entries == 0
    assert statistics.buckets == 1
    assert host.storage.snapshots == {}
    assert host.tracker.next_deadline_ms is None
    assert host.tracker.byte_estimate == 0


@pytest.mark.parametrize("kind", [CreateSnapshot, ChangeRegistry, LoadSegments, DeleteSnapshot])
def test_what_was_under_way_when_all_was_cleared_brings_nothing_back(kind: type) -> None:
    """apache/pulsar#26401"""
    host = Host(replace(SMALL, buckets_max=2, merge_width=2))
    host.add(1, 17)
    for i in range(18, 31):
        host.tracker.add(message(i), 10 * i, 0)
        host.pump(hold=(kind,))
    host.tracker.pop_due(10, 1)
    host.tracker.forget_through(message(5))
    host.pump(hold=(kind,))
    assert host.held
    host.tracker.clear()
    host.pump(hold=(kind,))
    host.tracker.add(message(40), 400, 0)
    while host.held:
        host.release()
    assert host.tracker.entry_count == 1
    assert host.storage.registry == {}
    assert host.storage.snapshots == {}
    assert host.pop_all(until_ms=1_000) == [message(40)]


def test_a_second_answer_changes_nothing() -> None:
    host = Host()
    for i in range(1, 7):
        host.tracker.add(message(i), 10 * i, 0)
    (create,) = host.tracker.take_plans()
    stored = host.storage.carry_out(create)
    host.tracker.answer(create.plan, stored, 0)
    host.tracker.answer(create.plan, stored, 0)
    host.pump()
    assert set(host.storage.snapshots) == set(host.storage.registry)
    assert host.tracker.entry_count == 6


def test_a_snapshot_that_comes_after_its_failure_is_deleted() -> None:
    host = Host()
    for i in range(1, 7):
        host.tracker.add(message(i), 10 * i, 0)
    (create,) = host.tracker.take_plans()
    host.tracker.answer(create.plan, Failed("no answer in time"), 0)
    host.tracker.answer(create.plan, StoredSnapshot(77, 1), 0)
    (delete,) = host.tracker.take_plans()
    assert isinstance(delete, DeleteSnapshot)
    assert delete.snapshot_id == 77


# -- merging --------------------------------------------------------------------------------------


def test_within_the_limit_nothing_is_merged() -> None:
    host = Host()
    host.add(1, 30)
    host.tracker.add(Position(200, 0), 9_000, 0)
    host.pump()
    assert host.tracker.entry_count == 31
    assert host.tracker.statistics().operations[OperationType.MERGE].succeeded == 0


def test_sources_go_when_the_merged_bucket_is_registered_and_not_before() -> None:
    """#26239, #26251"""
    host = Host(replace(SMALL, buckets_max=2))
    host.add(1, 15)
    sources = set(host.storage.registry)
    host.tracker.add(message(16), 160, 0)
    host.pump(hold=(CreateSnapshot,))
    third, merged = host.held
    host.held = []
    assert isinstance(merged, CreateSnapshot)
    assert (merged.first, merged.last) == (message(1), message(10))
    host.carry_out(merged)
    host.pump(hold=(ChangeRegistry,))
    assert set(host.storage.registry) == sources
    assert sources < set(host.storage.snapshots)
    (change,) = host.held
    assert isinstance(change, ChangeRegistry)
    assert (len(change.add), set(change.remove)) == (1, sources)
    host.release()
    (record,) = host.records
    assert set(host.storage.snapshots) == {record.snapshot_id}
    host.carry_out(third)
    host.pump()
    assert host.pop_all(until_ms=500) == [message(i) for i in range(1, 17)]


def test_sources_deliver_while_they_are_merged_and_nothing_comes_back() -> None:
    host = Host(replace(SMALL, buckets_max=1, merge_width=2))
    host.add(1, 10)
    for i in (11, 12):
        host.tracker.add(message(i), 10 * i, 0)
    host.pump(hold=(CreateSnapshot,))
    create, host.held = host.held[0], []
    host.carry_out(create)  # the second bucket
    host.pump(hold=(CreateSnapshot,))
    assert len(host.held) == 1, "the merged one is not being written"
    assert host.tracker.statistics().buckets_merging == 2
    popped = []
    for at_ms in (10, 20, 30):
        host.now_ms = at_ms
        host.tracker.pop_due(at_ms, 0)
        host.pump(hold=(CreateSnapshot,))
        popped += host.tracker.pop_due(at_ms, 10)
    assert popped == [message(1), message(2), message(3)]
    host.release()
    assert host.tracker.statistics().operations[OperationType.MERGE].succeeded == 1
    assert host.pop_all(until_ms=500) == [message(i) for i in range(4, 13)]


def test_a_merge_that_fails_leaves_its_sources_as_they_were() -> None:
    host = Host(replace(SMALL, buckets_max=1, merge_width=2, attempts_max=1))
    host.add(1, 10)
    host.failures["LoadSegments"] = 1
    host.add(11, 12)
    statistics = host.tracker.statistics()
    assert statistics.operations[OperationType.MERGE].failed == 1
    assert statistics.buckets_merging == 0
    assert len(host.storage.registry) == 2
    assert host.pop_all(until_ms=500) == [message(i) for i in range(1, 13)]


# -- recovering -----------------------------------------------------------------------------------


def test_recovery_takes_nothing_twice() -> None:
    """#26103: it goes on behind what is read and delivered meanwhile."""
    host = Host()
    host.add(1, 6)
    other = host.restarted(at_ms=15)
    assert other.sealed_buckets == 1
    assert not other.tracker.add(message(1), 10, 15)  # delivered now
    assert other.tracker.add(message(2), 20, 15)
    assert other.tracker.pop_due(20, 5) == [message(2)]
    assert other.tracker.add(message(3), 30, 20)
    other.now_ms = 20
    other.pump()
    assert not other.tracker.is_recovering
    assert message(1) not in other.tracker
    assert message(2) not in other.tracker
    assert other.tracker.entry_count == 3
    assert other.pop_all(until_ms=200) == [message(3), message(4), message(5)]


def test_what_the_cursor_has_acked_is_not_recovered() -> None:
    host = Host()
    host.add(1, 6)
    other = Host(storage=host.storage)
    other.tracker.recover(host.records, 0, lambda ledger: BitMap([4]) if ledger == 4 else None)
    other.tracker.forget_through(message(2))
    other.pump()
    assert other.pop_all(until_ms=200) == [message(3), message(5)]


def test_buckets_below_the_mark_delete_are_dropped_unread() -> None:
    host = Host()
    host.add(1, 12)
    other = host.restarted()
    other.tracker.take_plans()
    other.tracker.forget_through(message(11))
    other.pump()
    assert other.storage.registry == {}
    assert other.storage.snapshots == {}
    assert not other.tracker.is_recovering


def test_no_more_metadata_is_read_at_a_time_than_allowed() -> None:
    host = Host(replace(SMALL, entries_min=1, metadata_loads_max=2))
    host.add(1, 10)
    other = host.restarted()
    other.pump(hold=(LoadMetadata,))
    assert len(other.held) == 2
    other.carry_out(other.held.pop())
    other.pump(hold=(LoadMetadata,))
    assert len(other.held) == 2
    assert other.tracker.statistics().buckets_unread == 8


def test_metadata_that_cannot_be_read_ends_its_bucket_or_is_read_later() -> None:
    host = Host(replace(SMALL, entries_min=1))
    for i in range(1, 5):
        host.tracker.add(message(i), 10_000, 0)
        host.pump()
    other = host.restarted()
    other.storage.destroy(other.records[0].snapshot_id)
    other.failures["LoadMetadata"] = 1
    other.pump()
    assert other.tracker.statistics().buckets_unread == 1
    other.pop(0, at_ms=1_000)
    assert not other.tracker.is_recovering
    assert other.tracker.entry_count == 2
    assert other.tracker.statistics().buckets_lost == 1
    assert other.tracker.take_lost() == {}  # the cursor has not come by yet
    assert len(other.storage.registry) == 2


def test_a_tracker_recovers_once_and_first() -> None:
    host = Host()
    host.add(1, 1)
    with pytest.raises(CallerError, match="before it tracks"):
        host.tracker.recover([], 0)


# -- figures --------------------------------------------------------------------------------------


def test_operations_are_counted_for_good() -> None:
    host = Host()
    for latency_ms in (200, 300):
        for i in range(6):
            host.tracker.add(Position(latency_ms + i, 0), 100_000, 0)
        host.tracker.add(Position(latency_ms + 50, 0), 100_000, 0)
        creates = [plan for plan in host.tracker.take_plans() if isinstance(plan, CreateSnapshot)]
        for plan in creates:
            host.tracker.answer(plan.plan, host.storage.carry_out(plan), latency_ms)
        host.tracker.take_plans()
    created = host.tracker.statistics().operations[OperationType.CREATE]
    assert created == host.tracker.statistics().operations[OperationType.CREATE]
    assert created.succeeded == 2
    assert created.latency_sum_ms == 500
    assert created.latency_counts == (0, 0, 2, 0, 0, 0, 0, 0)


def test_snapshot_bytes_and_loaded_entries_are_known() -> None:
    host = Host(replace(SMALL, entries_min=50, load_lead_ms=0))
    for i in range(101):
        host.tracker.add(Position(i // 50, i % 50), 3_600_000 + 1_000 * i, 0)
        host.pump()
    statistics = host.tracker.statistics()
    assert statistics.buckets == 3
    assert statistics.snapshot_bytes == 200
    assert statistics.loaded_entries == 1
    assert statistics.operations[OperationType.CREATE].succeeded == 2


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "position", [Position(1, -1), Position(-1, 0), Position(2**63, 0), Position(0, 2**32)]
)
def test_a_position_that_cannot_be_is_refused(position: Position) -> None:
    host = Host()
    with pytest.raises(PositionError):
        host.tracker.add(position, 100, 0)
    with pytest.raises(PositionError):
        host.tracker.add_many(position.ledger_id, [position.entry_id], [100], 0)
    host.tracker.check()
    assert host.tracker.entry_count == 0


def test_times_that_cannot_be_are_refused_and_odd_ones_are_not() -> None:
    host = Host()
    tracker = host.tracker
    with pytest.raises(CallerError):
        tracker.add(message(1), float("nan"), 0)  # type: ignore[arg-type]
    with pytest.raises(CallerError):
        tracker.add(message(1), 2**63, 0)
    with pytest.raises(CallerError):
        tracker.add_many(1, [1, 2], [5], 0)
    with pytest.raises(CallerError):
        tracker.add_many(1, [1], [0.5], 0)
    assert tracker.entry_count == 0
    assert not tracker.add(message(1), -1, 0)
    assert not tracker.add(message(1), 0, 0)
    assert tracker.add(message(1), 2**63 - 1, 0)
    assert tracker.add_many(2, [1, 1, 2, 3], [2**63 - 1, 7, -5, 9], 0).tolist() == [
        *[True, True, False, True]
    ]
    assert tracker.entry_count == 3
    tracker.check()


def test_the_last_of_all_times_can_be_sealed_and_loaded() -> None:
    host = Host(replace(SMALL, entries_min=2), DelaySettings(tick_ms=1_000, is_strict=True))
    for i in range(4):
        host.tracker.add(Position(i, 0), 2**63 - 1 - i, 0)
        host.pump()
    assert host.sealed_buckets == 1
    assert len(host.pop(10, at_ms=2**63 - 1)) + len(host.pop(10)) == 4


def test_what_is_discarded_or_forgotten_unknown_is_no_matter() -> None:
    host = Host()
    assert not host.tracker.discard(Position(7, 7))
    assert not host.tracker.discard(Position(7, -1))
    assert host.tracker.forget_through(Position(7, -1)) == 0
    host.tracker.answer(99, Done(), 0)
    assert host.tracker.take_plans() == []
