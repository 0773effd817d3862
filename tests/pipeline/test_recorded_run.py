"""The tables of a real broker's run against what its clients know, and the jobs on them."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from pyspark.sql import functions as f

from ackgate.pipeline import register
from tests.pipeline.recorded_clients import MessageAt, SubscriptionRecord, TopicRecord

TICK_MS = 64


@pytest.fixture(scope="module")
def table(spark):
    register(spark)

    def read(data_dir, name, **options):
        return (
            spark.read.format("ackgate").options(path=str(data_dir), table=name, **options).load()
        )

    return read


def known_entries(run) -> set[tuple[str, int, int]]:
    return {(topic.full_name, *entry) for topic in run.topics.values() for entry in topic.entries}


def test_every_message_is_there_as_its_producer_made_it(recorded_run, table):
    rows = table(
        recorded_run.data_dir,
        "messages",
        columns="topic,ledger_id,entry_id,producer,key,event_time_ms,properties,deliver_at_ms,"
        "batch_size,payload,publish_time_ms",
    ).collect()

    found = {(row.topic, row.ledger_id, row.entry_id) for row in rows}
    assert len(found) == len(rows)
    assert found == known_entries(recorded_run)
    for row in rows:
        topic = recorded_run.topic_of(row.topic)
        messages = topic.entries[row.ledger_id, row.entry_id]
        assert row.batch_size == len(messages)
        assert row.producer == f"producer-of-{topic.name}"
        assert row.publish_time_ms > 0
        if topic.batch_messages == 1:
            sent = topic.known[messages[0]]
            assert bytes(row.payload) == sent.payload
            assert (row.key, row.event_time_ms) == (sent.key, sent.event_time_ms)
            assert (row.properties, row.deliver_at_ms) == (sent.properties, sent.deliver_at_ms)


def test_after_kill_9_nothing_confirmed_is_missing(recorded_run, table):
    rows = table(recorded_run.killed_data_dir, "messages").select("topic", "ledger_id", "entry_id")
    found = {tuple(row) for row in rows.collect()}

    confirmed = {
        (recorded_run.topics[name].full_name, *at[:2])
        for name, messages in recorded_run.confirmed_when_killed.items()
        for at in messages
    }
    assert len(recorded_run.confirmed_when_killed["orders"]) >= 120
    assert confirmed <= found <= known_entries(recorded_run)
    assert found < known_entries(recorded_run)


def acks(frame) -> dict[tuple[str, str], SubscriptionRecord]:
    """A stored state of each subscription, as one that clients would have."""
    found: dict[tuple[str, str], SubscriptionRecord] = {}
    for row in frame.collect():
        state = found.setdefault(
            (row.topic, row.subscription), SubscriptionRecord(row.subscription, None, None)
        )
        if row.kind == "mark_delete":
            state.acked_through = MessageAt(row.ledger_id, row.end_entry_id - 1, 2**31)
        elif row.kind == "range":
            entries = range(row.first_entry_id, row.end_entry_id)
            state.acked |= {
                MessageAt(row.ledger_id, entry, index) for entry in entries for index in range(10)
            }
        else:
            bits = int.from_bytes(row.unacked_indexes, "little")
            state.acked |= {
                MessageAt(row.ledger_id, row.first_entry_id, index)
                for index in range(10)
                if not bits >> index & 1
            }
    return found


def subscriptions(run) -> dict[tuple[str, str], tuple[TopicRecord, SubscriptionRecord]]:
    return {
        (topic.full_name, name): (topic, subscription)
        for topic in run.topics.values()
        for name, subscription in topic.subscriptions.items()
    }


def test_the_ack_state_is_what_the_clients_acked(recorded_run, table):
    stored = acks(table(recorded_run.data_dir, "ack_state"))

    assert set(stored) == set(subscriptions(recorded_run))
    for name, (topic, subscription) in subscriptions(recorded_run).items():
        for at in topic.known:
            assert stored[name].is_acked(at) == subscription.is_acked(at), (name, at)
    left = defaultdict(int)
    for (topic_name, _), (topic, subscription) in subscriptions(recorded_run).items():
        left[topic_name] += sum(not subscription.is_acked(at) for at in topic.known)
    assert min(left[recorded_run.topics[n].full_name] for n in ("orders", "batched", "keyed")) > 5


def test_after_kill_9_nothing_is_acked_that_no_client_acked(recorded_run, table):
    stored = acks(table(recorded_run.killed_data_dir, "ack_state"))

    total = 0
    for name, (topic, subscription) in subscriptions(recorded_run).items():
        acked = {at for at in topic.known if stored[name].is_acked(at)}
        assert all(subscription.is_acked(at) for at in acked), name
        total += len(acked)
    assert total > 200


def test_the_history_in_cursor_ledgers_ends_at_the_ack_state(recorded_run, table):
    newest = (
        table(recorded_run.killed_data_dir, "cursor_records")
        .groupBy("topic", "subscription")
        .agg(
            f.max_by("range_count", f.struct("owner_epoch", "version")).alias("range_count"),
            f.max(f.struct("owner_epoch", "version")).version.alias("version"),
            f.count("*").alias("records"),
            f.max("range_count").alias("most"),
        )
    )
    state = (
        table(recorded_run.killed_data_dir, "ack_state")
        .groupBy("topic", "subscription")
        .agg(
            f.max("version").alias("version"),
            f.count_if(f.col("kind") == "range").alias("range_count"),
        )
    )
    columns = ("topic", "subscription", "version", "range_count")

    history = newest.collect()

    assert {tuple(r[c] for c in columns) for r in history} == {
        tuple(row) for row in state.select(*columns).collect()
    }
    most = {row.subscription: row.most for row in history}
    assert min(row.records for row in history) > 1
    assert most["tight"] > 35, "near the limit of ranges, if not above"


def test_sealed_buckets_hold_delayed_messages_by_their_time(recorded_run, table):
    delayed = recorded_run.topics["delayed"]

    rows = table(recorded_run.data_dir, "delayed_index").collect()

    assert len(rows) > 10
    for row in rows:
        assert (row.topic, row.subscription) == (delayed.full_name, "later")
        due_ms = delayed.known[MessageAt(row.ledger_id, row.entry_id)].deliver_at_ms
        assert abs(row.key_ms - due_ms) < TICK_MS


def test_ack_stats_tells_what_the_clients_left(recorded_run, job_here):
    done = job_here("ack-stats")

    assert done.code == 0
    assert "figures" in json.loads(done.printed)
    assert (done.output / "report.html").stat().st_size > 10_000
    rows = done.rows("subscriptions")
    assert {(row["topic"], row["subscription"]) for row in rows} == set(subscriptions(recorded_run))


def test_the_journal_lacks_nothing_but_what_the_kill_cut_off(recorded_run, table):
    journal = table(recorded_run.data_dir, "delivery_journal")
    found = defaultdict(set)
    columns = ("event", "topic", "subscription", "owner_epoch", "ledger_id", "entry_id")
    for row in journal.where("entry_id is not null").select(*columns).distinct().collect():
        found[row.event, row.topic, row.subscription].add((row.ledger_id, row.entry_id))
        if row.event == "published" and row.owner_epoch == 1:
            found["before", row.topic].add((row.ledger_id, row.entry_id))
    # The kill leaves entries, too, that no producer had a confirmation of.
    stored = table(recorded_run.killed_data_dir, "messages")
    for row in stored.select("topic", "ledger_id", "entry_id").collect():
        found["stored when killed", row.topic].add((row.ledger_id, row.entry_id))

    for name, (topic, subscription) in subscriptions(recorded_run).items():
        published = found["published", topic.full_name, None]
        missing = set(topic.entries) - published
        assert all(entry > max(found["before", topic.full_name]) for entry in missing)
        after = set(topic.entries) - found["stored when killed", topic.full_name]
        assert after
        assert after <= published
        given = {at[:2] for at in subscription.deliveries}
        assert after & given <= found["dispatched", *name]
