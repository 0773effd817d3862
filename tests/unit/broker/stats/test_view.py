"""The table as people see it; the expected text is the specification."""

from __future__ import annotations

import json
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest

from ackgate.broker.delayed.tracker_status import DelayStatus, TrackerStep
from ackgate.broker.stats.ack_state import AckState, GateForecast
from ackgate.broker.stats.holes import FULL, AckPicture, EntryState, Hole, LedgerAcks
from ackgate.broker.stats.values import (
    ConsumerStats,
    DelayedState,
    NackStatistics,
    SubscriptionStats,
    from_json,
    to_json,
)
from ackgate.commands.stats.answer import StatsAnswer, SubscriptionAnswer, answer_json
from ackgate.commands.stats.look import ASCII, Look
from ackgate.commands.stats.view import render
from ackgate.cursor import CursorStatistics, Position, RecoveredStateReport
from ackgate.dispatcher import Gate, GateSettings
from ackgate.dispatcher.buckets import BucketStatistics, OperationStatistics, OperationType
from ackgate.persistence import (
    CursorStoreStats,
    PersistOutcome,
    PersistWhere,
    RecoveryReport,
    RecoverySource,
)
from ackgate.subscription import HeldStatistics

NOW_MS = 1_000_000
TOPIC = "persistent://public/default/orders"
LOOK = Look(columns=80, glyphs=ASCII)

RECOVERY = RecoveryReport(
    source=RecoverySource.LEDGER,
    version=12,
    mark_delete=Position(5, 9),
    ranges=1,
    records_applied=3,
    cursor_ledger_id=7,
    torn_records=("entry 9: torn",),
    lost=None,
    dropped=RecoveredStateReport(),
    duration_ms=0.4,
)

OUTCOME = PersistOutcome(
    version=20,
    mark_delete=Position(5, 9),
    where=PersistWhere.LEDGER,
    is_delta=True,
    ranges_in_memory=3,
    ranges_persisted=2,
    entries_dropped=1,
    batch_indexes_in_memory=0,
    batch_indexes_persisted=0,
    size_guard_hit=False,
    bytes_written=1_234,
    at_ms=NOW_MS - 2_500,
    duration_ms=1.25,
)

STORE = CursorStoreStats(
    report=RECOVERY,
    outcome=OUTCOME,
    persisted_version=20,
    dirty_versions=1,
    receipts_waiting=0,
    is_on_fallback=False,
    failing_since_ms=None,
    last_failure=None,
    cursor_ledger_id=7,
    cursor_ledger_last_entry=19,
    ledger_writes=20,
    ledger_errors=0,
    metadata_writes=0,
    metadata_errors=0,
    bytes_written=20_000,
)

CURSOR = CursorStatistics(
    version=21,
    mark_delete=Position(5, 9),
    read_position=Position(5, 30),
    last_confirmed=Position(5, 39),
    backlog_entries=1_234_567,
    unread_entries=10,
    acked_count=5,
    range_count=3,
    hole_count=3,
    partly_acked_count=1,
    byte_estimate=64,
    properties={},
)

PICTURE = AckPicture(
    (LedgerAcks(5, 40, 15, 3, (FULL, FULL, 500, FULL, 0, 0, 250, 0)),), ledgers_omitted=2
)

CONSUMER = ConsumerStats(
    consumer_name="c1",
    address="/127.0.0.1:5000",
    client_version="Pulsar-CPP-v3.7.1",
    connected_since="2026-01-01T00:00:00.000Z",
    msg_rate_out=10.0,
    msg_throughput_out=1000.0,
    msg_rate_redeliver=0.0,
    message_ack_rate=5.0,
    msg_out_counter=100,
    bytes_out_counter=10_000,
    available_permits=1_000,
    unacked_messages=15,
    avg_messages_per_entry=1,
    blocked_consumer_on_unacked_msgs=True,
    last_acked_timestamp=1,
    last_consumed_timestamp=1,
    last_consumed_flow_timestamp=1,
    key_hash_range_arrays=None,
    metadata={},
)


def shut_gate() -> Gate:
    gate = Gate(GateSettings(enabled=True, ranges_max=2), NOW_MS - 60_000)
    gate.observe(ranges_live=3, batch_indexes_live=0, now_ms=NOW_MS - 12_400)
    return gate


def live_answer() -> StatsAnswer:
    state = AckState(
        ranges_live=3,
        ranges_persisted=2,
        ranges_max=2,
        entries_dropped=1,
        batch_indexes_dropped=0,
        cursor=CURSOR,
        gate=shut_gate().statistics(),
        store=STORE,
        recovery=RECOVERY,
        forecast=GateForecast(0.0, 0.0),
    )
    stats = SubscriptionStats(
        type="Shared",
        is_durable=True,
        msg_rate_out=10.0,
        msg_throughput_out=1000.0,
        msg_rate_redeliver=0.5,
        message_ack_rate=5.0,
        msg_rate_expired=0.0,
        msg_out_counter=100,
        bytes_out_counter=10_000,
        msg_backlog=1_234_567,
        msg_backlog_no_delayed=1_234_567,
        msg_delayed=0,
        delayed_message_index_size_in_bytes=0,
        backlog_size=1,
        earliest_msg_publish_time_in_backlog=0,
        unacked_messages=15,
        msg_in_replay=2,
        blocked_subscription_on_unacked_msgs=False,
        is_blocked_on_ack_state_persistent=True,
        active_consumer_name=None,
        key_shared_mode=None,
        allow_out_of_order_delivery=False,
        total_msg_expired=0,
        last_expire_timestamp=0,
        last_consumed_flow_timestamp=1,
        last_consumed_timestamp=1,
        last_acked_timestamp=1,
        last_mark_delete_advanced_timestamp=1,
        non_contiguous_deleted_messages_ranges=3,
        non_contiguous_deleted_messages_ranges_serialized_size=64,
        subscription_properties={},
        consumers=(CONSUMER,),
        ack_state=state,
        delayed=DelayedState(),
    )
    told = SubscriptionAnswer(TOPIC, "billing", state, PICTURE, stats, None)
    return StatsAnswer(TOPIC, "http://127.0.0.1:8080", True, NOW_MS, (told,))


def stored_answer() -> StatsAnswer:
    state = AckState(
        ranges_live=3,
        ranges_persisted=2,
        ranges_max=None,
        entries_dropped=1,
        batch_indexes_dropped=0,
        cursor=CURSOR,
        gate=None,
        store=None,
        recovery=replace(RECOVERY, lost="cursor ledger 7 is gone"),
        forecast=None,
    )
    told = SubscriptionAnswer(
        f"{TOPIC}-partition-0", "billing", state, PICTURE, None, NOW_MS - 7_500_000
    )
    return StatsAnswer(TOPIC, "data", False, NOW_MS, (told,))


def test_a_subscription_whose_gate_is_shut() -> None:
    assert render(live_answer(), LOOK) == dedent(
        """\
        persistent://public/default/orders  reported by http://127.0.0.1:8080

        billing  Shared
          delivery    backlog 1,234,567  unacked 15  to replay 2  out 10.0/s  acked 5.0/s  again 0.5/s
          gate        SHUT (ranges-live for 12.4 s)  mode pulsar, limit 2 ranges
          ack state   3 ranges, 3 holes, 5 acked above mark-delete 5:9, reading at 5:30, 1 batch partly acked
          durable     2 ranges of 3, 1 acked entry would come again after a crash, 1 change not written yet
          last write  2.5 s ago: delta, 1,234 bytes to the ledger in 1.2 ms
          recovered   from ledger: 1 range above 5:9, version 12, 3 records  1 record torn
          forecast    the gate is shut
          consumers   consumer  address         permits  unacked  out/s  acked/s  again/s
                      c1        127.0.0.1:5000    1,000       15   10.0      5.0      0.0  blocked
          ledger 5    __=#  :,                15 of 40 acked, 3 ranges
                      _ up to the mark-delete  # acked  = partly  (blank) not acked  , not read yet
                      and 2 later ledgers"""
    )


BUCKETS = BucketStatistics(
    entries=1_000_000,
    byte_estimate=5_000,
    buckets=4,
    buckets_unread=1,
    buckets_storing=0,
    buckets_failing=1,
    buckets_blocked=0,
    buckets_merging=0,
    loaded_entries=20_000,
    mutable_entries=300,
    snapshot_bytes=12_345_678,
    snapshots_to_delete=0,
    next_due_ms=NOW_MS + 90_000,
    deletes_given_up=0,
    buckets_lost=0,
    entries_lost=0,
    registry_failures=0,
    degraded=("a bucket could not be stored: no bookies",),
    operations={
        OperationType.CREATE: OperationStatistics(3, 1, (4, 0, 0, 0, 0, 0, 0, 0), 55),
    },
)

WAITING = DelayedState(
    HeldStatistics("BucketTracker", 1_000_000, 5_000, 12, 640, NOW_MS + 30_000),
    NackStatistics(12, 640, NOW_MS - 5, 10, 2),
    DelayStatus(TrackerStep.BUCKETS, TrackerStep.BUCKETS),
    BUCKETS,
)


def waiting_answer(**changes: Any) -> StatsAnswer:
    answer = live_answer()
    [told] = answer.subscriptions
    assert told.stats is not None
    stats = replace(told.stats, msg_rate_out=0.0, msg_delayed=1_000_000, delayed=WAITING, **changes)
    return replace(answer, subscriptions=(replace(told, stats=stats),))


def lines_of(answer: StatsAnswer, *labels: str) -> list[str]:
    lines = render(answer, LOOK).splitlines()
    return [line.strip() for line in lines if line.strip().startswith(labels)]


def test_why_nothing_is_delivered_and_what_is_held() -> None:
    assert lines_of(waiting_answer(), "waits", "delayed", "nacks") == [
        (
            "waits       the gate is shut: only redeliveries and due messages are sent; "
            "1,000,000 of 1,234,567 entries delayed, the next due in 90.0 s; "
            "12 negatively acked messages are held, the next is due; 15 messages sent and not acked yet"
        ),
        (
            "delayed     1,000,000 tracked in buckets, 5,000 bytes, next due in 90.0 s, 4 buckets with "
            "12,345,678 bytes stored, 20,000 loaded, 1 bucket still to be read  "
            "DEGRADED: a bucket could not be stored: no bookies"
        ),
        "nacks       12 held, 640 bytes, next is due, 10 durable  2 would come at once after a crash",
    ]


def test_no_consumer_and_no_room_are_reasons_too() -> None:
    [waits] = lines_of(waiting_answer(consumers=()), "waits")
    assert waits.startswith("waits       no consumer; the gate")
    full = replace(CONSUMER, available_permits=0)
    [waits] = lines_of(waiting_answer(consumers=(full,)), "waits")
    assert waits.startswith("waits       no consumer has room for more; the gate")
    assert lines_of(waiting_answer(msg_backlog=0), "waits") == []


def test_a_tracker_that_is_less_than_was_asked_for_says_why() -> None:
    status = DelayStatus(
        TrackerStep.TIME_BUCKETS, TrackerStep.BUCKETS, "its registry cannot be read: torn"
    )
    held = HeldStatistics("TimeBucketTracker", 1, 100, delayed_deadline_ms=NOW_MS + 500)
    answer = waiting_answer()
    [told] = answer.subscriptions
    assert told.stats is not None
    stats = replace(told.stats, delayed=DelayedState(held, tracking=status))
    answer = replace(answer, subscriptions=(replace(told, stats=stats),))
    assert lines_of(answer, "delayed") == [
        (
            "delayed     1 tracked in time buckets, 100 bytes, next due in 0.5 s  "
            "DEGRADED: its registry cannot be read: torn"
        )
    ]


def test_held_entries_in_json_and_back() -> None:
    assert from_json(DelayedState, json.dumps(to_json(WAITING))) == WAITING


@pytest.mark.parametrize(
    ("is_switched_on", "kind", "line"),
    [
        (False, "Shared", "gate        off  limit 2 ranges"),
        (None, "None", "gate        off  limit 2 ranges"),
        (True, "Failover", "gate        off: Failover subscriptions have none  limit 2 ranges"),
        (
            True,
            "None",
            "gate        on  limit 2 ranges, as soon as a Shared or Key_Shared consumer comes",
        ),
    ],
)
def test_a_gate_that_is_not_at_work_says_why(
    is_switched_on: bool | None, kind: str, line: str
) -> None:
    [told] = waiting_answer(type=kind).subscriptions
    gate = Gate(GateSettings(enabled=False, ranges_max=2), NOW_MS).statistics()
    state = replace(told.ack_state, gate=gate, is_gate_switched_on=is_switched_on)
    answer = replace(live_answer(), subscriptions=(replace(told, ack_state=state),))
    assert lines_of(answer, "gate") == [line]


def test_an_embedding_hosts_topic_says_what_is_not_known() -> None:
    told = render(
        replace(stored_answer(), is_embedded=True, knows_messages=False), LOOK
    ).splitlines()
    assert told[0].endswith("as persisted in data; a running host may know more")
    assert told[1] == "an embedding host's: entries after the last ack are not known here"


def test_a_subscription_read_from_files() -> None:
    assert render(stored_answer(), LOOK) == dedent(
        """\
        persistent://public/default/orders  as persisted in data; a running broker may know more

        billing  persistent://public/default/orders-partition-0
          ack state   3 ranges, 3 holes, 5 acked above mark-delete 5:9, 1 batch partly acked
          durable     2 ranges of 3, 1 acked entry would come again after a crash, written 2 h ago
          stored      from ledger: 1 range above 5:9, version 12, 3 records  1 record torn  lost: cursor ledger 7 is gone
          ledger 5    __=#  :                 15 of 40 acked, 3 ranges
                      _ up to the mark-delete  # acked  = partly  (blank) not acked  , not read yet
                      and 2 later ledgers"""  # noqa: E501 - lines of a terminal
    )


def test_trouble_is_told() -> None:
    answer = live_answer()
    (told,) = answer.subscriptions
    store = replace(STORE, failing_since_ms=NOW_MS - 5_000, last_failure="disk full")
    state = replace(told.ack_state, store=store)
    text = render(replace(answer, subscriptions=(replace(told, ack_state=state),)), LOOK)
    assert "nothing can be written for 5.0 s: disk full" in text


def test_what_of_the_stored_state_did_not_fit_is_told() -> None:
    dropped = RecoveredStateReport(
        mark_delete_was=Position(6, 1),
        entries_below_mark_delete=2,
        entries_beyond_end=1,
        entries_of_unknown_ledgers=180,
        unknown_ledger_ids=(1, 3),
        batch_sets_dropped=1,
    )
    answer = stored_answer()
    (told,) = answer.subscriptions
    state = replace(told.ack_state, recovery=replace(RECOVERY, dropped=dropped))
    answer = replace(answer, subscriptions=(replace(told, ack_state=state),))
    assert (
        "did not fit: 181 acked entries not there any more; ledgers 1, 3 are lost or empty; "
        "mark-delete was 6:1, beyond the end; 2 acks below mark-delete; 1 batch impossible"
    ) in render(answer, LOOK)


def test_colours_only_where_they_are_seen() -> None:
    plain = render(live_answer(), LOOK)
    coloured = render(live_answer(), LOOK._replace(has_colours=True))
    assert "\x1b" not in plain
    assert "\x1b[31;1mSHUT\x1b[0m" in coloured


def test_a_topic_without_subscriptions() -> None:
    assert render(replace(live_answer(), subscriptions=()), LOOK).endswith("no subscriptions")


def test_the_ack_state_stands_once_in_json() -> None:
    (told,) = answer_json(live_answer())["subscriptions"]
    assert told["ackState"]["rangesLive"] == 3
    assert "ackState" not in told["stats"]
    assert told["stats"]["msgBacklog"] == 1_234_567


def test_names_of_consumers_do_not_move_the_cursor() -> None:
    answer = live_answer()
    [told] = answer.subscriptions
    assert told.stats is not None
    named = replace(CONSUMER, consumer_name="al\x1b[2Jice", address="/\x1b[2J:1")
    stats = replace(told.stats, consumers=(named,))
    holes = (Hole(Position(5, 10), 1, EntryState.HELD, "al\x1b[2Jice", NOW_MS),)
    text = render(replace(answer, subscriptions=(replace(told, stats=stats, holes=holes),)), LOOK)
    assert "\x1b" not in text
    assert text.count(r"al\x1b[2Jice") == 2
