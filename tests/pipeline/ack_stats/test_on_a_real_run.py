"""The job on what a real broker left: its clients know which messages they never acked, and why."""

from __future__ import annotations

import argparse
from collections import Counter
from types import SimpleNamespace

import pytest

from ackgate.pipeline import register
from ackgate.pipeline.jobs.ack_stats import JOB
from ackgate.pipeline.jobs.job import DataAddress, JobRun
from tests.pipeline.recorded import RANGE_LIMIT
from tests.pipeline.small_plans import usual_plans


@pytest.fixture(scope="module")
def run(spark, recorded_run, tmp_path_factory):
    """The job on the data after a clean end."""
    register(spark)
    parser = argparse.ArgumentParser()
    JOB.add_arguments(parser)
    arguments = parser.parse_args([])
    arguments.config = None
    output = tmp_path_factory.mktemp("real")
    data = DataAddress({"path": str(recorded_run.data_dir)})
    whole = JobRun(spark, data, output, arguments, "parquet", lambda _: None)
    with usual_plans(spark):
        JOB.run(whole)
    return SimpleNamespace(
        output=output,
        result=lambda name: spark.read.parquet(str(output / name)),
        journal=whole.read("delivery_journal"),
    )


def entries_in_holes(topic, subscription):
    """Entry -> its messages: not acked whole, though a later one of its ledger is."""
    acked = {
        entry: all(map(subscription.is_acked, messages))
        for entry, messages in topic.entries.items()
    }
    last_acked = dict(sorted(entry for entry, is_acked in acked.items() if is_acked))
    return {
        entry: messages
        for entry, messages in topic.entries.items()
        if not acked[entry] and entry[1] < last_acked.get(entry[0], -1)
    }


def all_in_holes(recorded):
    """(topic, subscription, entry) -> the subscription's record and the messages."""
    return {
        (topic.full_name, subscription.name, entry): (topic, subscription, messages)
        for topic in recorded.topics.values()
        for subscription in topic.subscriptions.values()
        for entry, messages in entries_in_holes(topic, subscription).items()
    }


def test_holes_are_what_clients_left_out(run, recorded_run):
    found = {
        (row["topic"], row["subscription"], (row["ledger_id"], entry_id))
        for row in run.result("holes").collect()
        for entry_id in range(row["first_entry_id"], row["end_entry_id"])
    }

    expected = set(all_in_holes(recorded_run))
    assert len(expected) > 40
    assert found == expected


def test_keys_are_those_of_the_messages_that_clients_left_out(run, recorded_run):
    found = {
        (row["topic"], row["subscription"], row["key"]): row["entries"]
        for row in run.result("hole_keys").collect()
    }

    assert found == Counter(
        (topic_name, subscription_name, topic.known[messages[0]].key)
        for (topic_name, subscription_name, _), (topic, _, messages) in all_in_holes(
            recorded_run
        ).items()
    )
    keyed = recorded_run.topics["keyed"].full_name
    assert {key for topic, _, key in found if topic == keyed} == {"key-3"}


def test_consumers_are_those_that_got_the_messages_last(run, recorded_run):
    """When a client's consumer closes, the broker gives what it had to one that closes after it."""
    expected = all_in_holes(recorded_run)
    found = run.result("holes").collect()

    for row in found:
        entry = (row["ledger_id"], row["first_entry_id"])
        topic, subscription, messages = expected[row["topic"], row["subscription"], entry]
        if messages[0] not in subscription.deliveries:
            assert topic.known[messages[0]].deliver_at_ms
            assert (row["consumer"], row["cause"]) == (None, "delayed")
        else:
            last = max(subscription.deliveries[at][-1] for at in messages)
            assert last <= row["consumer"] <= f"{subscription.name}-{subscription.consumers - 1}"


def test_every_entry_in_a_hole_has_a_consumer_or_a_cause(run, recorded_run):
    found = run.result("hole_consumers").groupBy("topic", "subscription").sum("entries")

    assert Counter({tuple(row[:2]): row[2] for row in found.collect()}) == Counter(
        key[:2] for key in all_in_holes(recorded_run)
    )


def test_gates_and_limits_are_those_of_the_broker(run):
    """What the journal has not lost with the kill."""
    limits = run.result("subscriptions").select("range_limit", "range_limit_source").distinct()
    assert [tuple(row) for row in limits.collect()] == [(RANGE_LIMIT, "journal")]

    shut = run.result("gate_intervals").where("NOT is_guessed").collect()
    events = run.journal.where("event = 'gate_shut'").collect()
    assert sorted((row["subscription"], row["from_ms"], row["reasons"]) for row in shut) == sorted(
        (row["subscription"], row["time_us"] // 1000, row["reason"]) for row in events
    )
    assert all(row["from_ms"] <= row["until_ms"] for row in shut)


def test_a_clean_stop_leaves_a_history_in_the_journal(run):
    """Every write that the journal tells of, though each cursor keeps one record."""
    written = {
        (row["topic"], row["subscription"]): row
        for row in run.journal.where("event = 'persisted'")
        .selectExpr("*", "CAST(get_json_object(detail, '$.entries_dropped') AS bigint) AS dropped")
        .groupBy("topic", "subscription")
        .agg({"version": "count", "dropped": "max"})
        .collect()
    }
    found = run.result("subscriptions").collect()

    assert all(row["has_history"] for row in found)
    for row in found:
        of_journal = written[row["topic"], row["subscription"]]
        assert row["records"] >= of_journal["count(version)"] - 1
        assert row["entries_dropped_max"] == of_journal["max(dropped)"]


def test_the_report_names_consumers_and_keys(run):
    page = (run.output / "report.html").read_text(encoding="utf-8")

    assert "<td>key-3</td>" in page
    assert "<td>by-key-" in page
    assert "deliveryJournalEnabled is off" not in page
