"""A cursor that was closed keeps one record: its history is in the delivery journal, or nowhere."""

from __future__ import annotations

import json

import pytest

from ackgate.pipeline.jobs.ack_stats import frames, journal_frames
from ackgate.pipeline.jobs.ack_stats.limits import LimitRule
from ackgate.pipeline.jobs.journal import once
from ackgate.pipeline.schema.tables import CURSOR_RECORDS, DELIVERY_JOURNAL, spark_schema
from tests.pipeline.events import Story

START_MS = 1_800_000_000_000
TOPIC = "persistent://public/default/closed"
BARE = "persistent://public/default/bare"
WRITES = 20


def outcome(number, dropped=0):
    return {
        "version": number,
        "mark_delete": [7, number],
        "where": "ledger",
        "is_delta": number > 1,
        "ranges_in_memory": 2 * number,
        "ranges_persisted": 2 * number - min(dropped, 1),
        "entries_dropped": dropped,
        "batch_indexes_persisted": 0,
        "bytes_written": 100,
        "at_ms": START_MS + number * 1000 + 3,
        "written_ms": START_MS + number * 1000,
        "cursor_ledger_id": 9,
    }


def closed(topic, subscription, version):
    """The only record that a clean stop leaves: in the node."""
    row = {column.name: 0 for column in CURSOR_RECORDS.columns}
    return row | {
        "topic": topic,
        "subscription": subscription,
        "place": "node",
        "cursor_ledger_id": None,
        "entry_id": None,
        "kind": "snapshot",
        "owner_epoch": 1,
        "version": version,
        "base_version": None,
        "base_snapshot_version": None,
        "written_ms": START_MS + version * 1000,
        "mark_delete_ledger_id": 7,
        "mark_delete_entry_id": version,
        "record_bytes": 50,
        "acked": [],
        "unacked_indexes": [],
    }


def story():
    """A first life of the subscription, which was deleted, and a second one of 20 writes."""
    told = Story(TOPIC, start_us=START_MS * 1000, step_us=1000)
    told.add("opened").subscribe("s", 7, -1)
    told.ack("s", 7, 50).persisted("s", outcome(500)).add("unsubscribed", "s")
    told.subscribe("s", 7, -1)
    told.versions["s"] = 0
    for number in range(1, WRITES + 1):
        told.ack("s", 7, 2 * number).persisted("s", outcome(number, 861 if number == 9 else 0))
    return told.add("unsubscribed", "gone")


def written_twice(rows):
    """The last block stands in the next ledger of the journal again."""
    again = [row | {"journal_ledger_id": row["journal_ledger_id"] + 1} for row in rows[-10:]]
    return [*rows, *again]


def frame(spark, table, rows):
    ordered = [tuple(row[column.name] for column in table.columns) for row in rows]
    return spark.createDataFrame(ordered, spark_schema(table.columns))


@pytest.fixture(scope="module")
def stats(spark):
    """(topic, subscription) -> its row."""
    records = [closed(TOPIC, "s", WRITES), closed(BARE, "s", WRITES)]
    table = frame(spark, DELIVERY_JOURNAL, written_twice(story().rows))
    journal = journal_frames.journal_events(table).cache()
    journal = once(journal)
    found = frames.subscription_stats(
        frame(spark, CURSOR_RECORDS, records),
        journal_frames.limit_steps(journal),
        journal_frames.journal_writes(journal),
        rule=LimitRule(30),
    )
    return found.cache()


def row_of(stats, topic):
    [row] = stats.where(f"topic = '{topic}'").collect()
    return row


def test_its_history_is_taken_from_the_journal(stats):
    row = row_of(stats, TOPIC)

    assert (row["records"], row["journal_records"], row["has_history"]) == (
        WRITES,
        WRITES - 1,
        True,
    )
    assert (row["records_cut"], row["entries_dropped_max"]) == (1, 861)
    assert row["record_bytes"] == (WRITES - 1) * 100 + 50
    assert [point["ranges_in_memory"] for point in row["history"]][:3] == [2, 4, 6]
    assert row["from_ms"] == START_MS + 1000
    assert row["ranges_in_memory_max"] == 2 * (WRITES - 1)
    assert row["ranges_per_hour"] is not None


def test_the_journal_says_nothing_of_holes_that_were(stats):
    holes = [point["holes"] for point in row_of(stats, TOPIC)["history"]]

    assert holes == [None] * (WRITES - 1) + [0]


def test_without_a_journal_no_number_is_made_up(stats):
    row = row_of(stats, BARE)

    assert (row["records"], row["journal_records"], row["has_history"]) == (1, 0, False)
    assert (row["records_cut"], row["entries_dropped_max"]) == (None, None)
    assert row["sufficient_limit_expected"] is None
    assert row["sufficient_limit_is_bound"] is None


def test_what_was_deleted_is_not_among_the_subscriptions(stats):
    assert stats.count() == 2


def test_totals_say_how_many_have_no_history(stats):
    totals = frames.totals(stats).collect()[0]

    assert totals["subscriptions_without_history"] == 1
    assert (totals["records_cut"], totals["subscriptions_cut"]) == (1, 1)
    nothing = frames.totals(stats.where(f"topic = '{BARE}'")).collect()[0]
    assert nothing["records_cut"] is None


def test_events_of_a_block_that_was_written_twice_count_once(spark):
    rows = story().rows
    table = frame(spark, DELIVERY_JOURNAL, written_twice(rows))

    events = once(journal_frames.journal_events(table))

    assert events.count() == len(rows)
    assert json.loads(rows[-2]["detail"])["version"] == WRITES
