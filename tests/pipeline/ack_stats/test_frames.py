"""The job's frames, on rows made by hand, in a real session."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest
from pyroaring import BitMap

from ackgate.errors import ConfigurationError
from ackgate.pipeline.jobs.ack_stats import JOB, collected, frames, hole_frames, journal_frames
from ackgate.pipeline.jobs.ack_stats.limits import LimitRule
from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionFigures
from ackgate.pipeline.jobs.job import DataAddress, JobRun
from ackgate.pipeline.schema.tables import (
    ACK_STATE,
    CURSOR_RECORDS,
    DELIVERY_JOURNAL,
    MESSAGES,
    spark_schema,
)
from tests.pipeline.events import Story

START_MS = 1_800_000_000_000
TOPIC = "persistent://public/default/t"
BARE = "persistent://public/default/bare"
"""A topic without a journal."""
DAY_MS = 86_400_000


def record(version, subscription="s", base=None, acked=(), **columns):
    row = {column.name: 0 for column in CURSOR_RECORDS.columns}
    row |= {
        "topic": TOPIC,
        "subscription": subscription,
        "place": "ledger",
        "cursor_ledger_id": 9,
        "entry_id": version,
        "kind": "snapshot" if base is None else "delta",
        "owner_epoch": 1,
        "version": version,
        "base_version": base,
        "written_ms": START_MS + 60_000 * version,
        "mark_delete_ledger_id": 7,
        "mark_delete_entry_id": -1,
        "range_count": 10 * version,
        "ranges_in_memory": 10 * version,
        "record_bytes": 100,
        "chunk_count": 1,
        "acked": [(7, bytearray(BitMap(acked).serialize()))] if acked else [],
        "unacked_indexes": [],
    }
    return row | columns


def state(kind, ledger_id, first, end, topic=TOPIC, subscription="s"):
    return {
        "topic": topic,
        "subscription": subscription,
        "owner_epoch": 1,
        "version": 3,
        "written_ms": 1,
        "kind": kind,
        "ledger_id": ledger_id,
        "first_entry_id": first,
        "end_entry_id": end,
        "unacked_indexes": None,
    }


def growing(subscription, count=20):
    first = [record(1, subscription, acked=[1])]
    return first + [record(v, subscription, v - 1, acked=[2 * v]) for v in range(2, count + 1)]


def frame(spark, table, rows):
    ordered = [tuple(row[column.name] for column in table.columns) for row in rows]
    return spark.createDataFrame(ordered, spark_schema(table.columns))


def message(ledger_id, entry_id, key, topic=TOPIC, **columns):
    row = {column.name: None for column in MESSAGES.columns}
    row |= {"topic": topic, "ledger_id": ledger_id, "entry_id": entry_id, "key": key}
    row |= {"producer": "p", "sequence_id": 0, "properties": {}, "batch_size": 1, "entry_bytes": 9}
    return row | {"publish_time_ms": START_MS + 1, "payload": b""} | columns


def told_by_journal():
    """Entries 3 and 4 were given to a, 6 and 7 to b in the end, 8 to nobody; then the gate shuts."""
    limit = {"settings": {"managedLedgerMaxUnackedRangesToPersist": "300"}}
    story = Story(TOPIC, start_us=START_MS * 1000, step_us=1_000_000)
    story.add("opened", detail=json.dumps(limit)).subscribe("s", 7, -1)
    for entry_id in (3, 4, 6):
        story.dispatch("s", 7, entry_id, consumer="a#1")
    story.ack("s", 7, 7).reset("s", 7, -1)
    for entry_id in (7, 6):
        story.dispatch("s", 7, entry_id, consumer="b#2", redelivery_count=entry_id)
    story.ack("s", 7, 5).ack("s", 7, 19, unacked_indexes=b"\x01").ack("s", 7, 9).ack("s", 7, 6)
    story.restart().add("opened").gate("s", is_shut=True).gate("s", is_shut=False)
    story.gate("s", is_shut=True, reason="ranges,failing").publish(7, 0)
    return story.restart().add("opened").gate("s", is_shut=False)


@pytest.fixture(scope="module")
def tables(spark):
    states = [state("mark_delete", 7, 0, 3), state("range", 7, 5, 6), state("range", 7, 9, 20)]
    states += [state("range", 8, 0, 4), state("range", 9, 2, 3), state("partly_acked", 9, 4, 5)]
    states += [state("range", 1, 500, 501, BARE, "g"), state("mark_delete", 1, 0, 2, BARE, "g")]
    messages = [message(7, entry_id, "k") for entry_id in (2, 3, 4, 5, 6, 9)]
    messages += [message(7, 7, "other", ordering_key=b"\xab"), message(7, 8, None)]
    messages += [message(9, 1, "late", deliver_at_ms=START_MS + DAY_MS)]
    messages += [message(1, entry_id, "k", BARE) for entry_id in range(600)]
    bare = [
        record(
            v,
            "g",
            topic=BARE,
            ranges_in_memory=count,
            mark_delete_ledger_id=1,
            mark_delete_entry_id=1,
            acked=[500],
        )
        for v, count in enumerate((5, 20_000, 30_000, 10_000), 1)
    ]
    for row in bare:
        row["acked"] = [(1, row["acked"][0][1])]
    return {
        "cursor_records": frame(spark, CURSOR_RECORDS, [*growing("s"), record(1, "other"), *bare]),
        "ack_state": frame(spark, ACK_STATE, states),
        "delivery_journal": frame(spark, DELIVERY_JOURNAL, told_by_journal().rows),
        "messages": frame(spark, MESSAGES, messages),
    }


@pytest.fixture(scope="module")
def run(tables, tmp_path_factory):
    """The job, with the tables in place of a data source."""
    parser = argparse.ArgumentParser()
    JOB.add_arguments(parser)
    arguments = parser.parse_args([])
    arguments.config = None
    asked = {}

    class Fake(JobRun):
        def read(self, table, **options):
            asked[table] = options
            return tables[table]

    output = tmp_path_factory.mktemp("ack-stats")
    data = DataAddress({"path": "/data"})
    fake = Fake(None, data, output, arguments, "json", lambda _: None)
    return SimpleNamespace(summary=JOB.run(fake), output=output, asked=asked)


@pytest.fixture
def result(run, spark):
    return lambda name: spark.read.json(str(run.output / name))


def test_each_subscription_has_a_row_with_its_forecast(result):
    found = result("subscriptions").where(f"topic = '{TOPIC}'").orderBy("subscription").collect()
    other, grown = (row.asDict() for row in found)

    assert (other["subscription"], other["records"]) == ("other", 1)
    assert other.get("ranges_per_hour") is None
    assert (grown["records"], grown["record_bytes"], grown["holes"]) == (20, 2000, 20)
    assert grown["ranges_per_hour"] == pytest.approx(600)
    assert grown["at_limit_expected_ms"] == pytest.approx(START_MS + 30 * 60_000, abs=1)


def test_a_limit_is_that_of_the_topic_as_the_journal_has_it(result):
    found = result("subscriptions").select("topic", "range_limit", "range_limit_source").distinct()

    assert {tuple(row) for row in found.collect()} == {
        (TOPIC, 300, "journal"),
        (BARE, 10_000, "default"),
    }


def test_history_and_hole_map_are_flat(result):
    history = result("history").where("subscription = 's'")
    cells = result("hole_map").where("subscription = 's'")

    assert history.count() == 20
    assert sum(row["records"] for row in history.collect()) == 20
    last = cells.where(f"until_ms > {START_MS + 20 * 60_000}").collect()
    assert sum(row["hole_entries"] for row in last) == 21
    assert {row["ledger_id"] for row in last} == {7}


def test_holes_of_today_begin_where_the_range_before_ends(result):
    found = result("holes").orderBy("ledger_id", "first_entry_id").collect()

    assert [
        (
            r["ledger_id"],
            r["first_entry_id"],
            r["end_entry_id"],
            r["consumer"],
            r["cause"],
            r["key"],
        )
        for r in found
    ] == [
        (1, 2, 500, None, "unknown", "k"),
        (7, 3, 5, "a", "given", "k"),
        (7, 6, 9, "b", "given", "k"),
        (9, 0, 2, None, "delayed", "late"),
    ]


def test_a_hole_is_as_old_as_the_first_ack_behind_it_that_counts(result):
    """By the journal, if it tells of an earlier one than records do; not before the seek."""
    found = result("holes").orderBy("ledger_id", "first_entry_id").collect()

    assert [r["since_ms"] and r["since_ms"] - START_MS for r in found] == [
        60_000,
        9_000,
        11_000,
        None,
    ]
    newest_ms = 20 * 60_000
    assert found[1]["age_ms"] == newest_ms - 9_000


def test_the_last_consumer_of_a_message_left_the_hole(result):
    found = result("hole_consumers").where(f"topic = '{TOPIC}'").collect()

    assert {
        (r["consumer"], r["cause"], r["holes"], r["entries"], r["redeliveries_max"]) for r in found
    } == {
        ("a", "given", 1, 2, 0),
        ("b", "given", 1, 2, 7),
        (None, "waiting", 1, 1, None),
        (None, "delayed", 1, 1, None),
    }


def test_keys_are_those_of_the_messages_in_holes(result):
    found = result("hole_keys").where(f"topic = '{TOPIC}'").collect()

    assert {(r["key"], r["holes"], r["entries"]) for r in found} == {
        ("k", 2, 3),
        ("ab", 1, 1),
        (None, 1, 1),
        ("late", 1, 1),
    }


def test_without_a_journal_keys_are_known_and_consumers_are_not(result):
    [consumer] = result("hole_consumers").where(f"topic = '{BARE}'").collect()
    [key] = result("hole_keys").where(f"topic = '{BARE}'").collect()

    assert (consumer["consumer"], consumer["cause"], consumer["entries"]) == (None, "unknown", 498)
    assert (key["key"], key["holes"], key["entries"]) == ("k", 1, 498)


def test_a_gate_is_shut_until_its_next_event_or_the_owners_last(result):
    found = result("gate_intervals").where(f"topic = '{TOPIC}'").orderBy("from_ms").collect()

    assert [
        (r["from_ms"] - START_MS, r["until_ms"] - START_MS, r["is_open_ended"], r["reasons"])
        for r in found
    ] == [(14_000, 15_000, False, "ranges"), (16_000, 17_000, True, "ranges,failing")]


def test_without_a_journal_a_gate_is_guessed_from_the_ranges(result):
    [found] = result("gate_intervals").where("is_guessed").collect()

    assert (found["topic"], found["from_ms"] - START_MS, found["until_ms"] - START_MS) == (
        BARE,
        120_000,
        240_000,
    )


def test_the_report_and_the_summary_tell_the_same(run):
    page = (run.output / "report.html").read_text(encoding="utf-8")
    urgent, by_consumer, by_key = run.summary.tables

    assert run.summary.figures["subscriptions"] == 3
    assert run.summary.figures["records"] == 25
    assert (TOPIC, "s", 200, 300) in [row[:4] for row in urgent.rows]
    assert {row[2] for row in by_consumer.rows} == {
        *("a", "b", "not known", "not due yet", "no dispatch known")
    }
    assert by_key.rows[0][:5] == (TOPIC, "s", "k", 2, 3)
    assert page.count("<section id=") == 3
    assert '"shut":[{"from_ms":' in page
    assert "deliveryJournalEnabled is off for this topic" in page
    assert "knows consumers since 2027-01-15 08:00:00" in page
    assert run.asked["cursor_records"]["columns"].endswith(",acked")
    assert set(run.asked["messages"]["ledgerIds"].split(",")) == {"1", "7", "9"}


def test_rows_come_back_as_what_they_were(tables):
    journal = journal_frames.journal_events(tables["delivery_journal"])
    steps, writes = journal_frames.limit_steps(journal), journal_frames.journal_writes(journal)
    frame = frames.subscription_stats(tables["cursor_records"], steps, writes, rule=LimitRule(1))
    row = frame.where("subscription = 's'").collect()[0].asDict(recursive=True)
    stats = SubscriptionFigures.of_row(row)

    assert stats.subscription == "s"
    assert [point.version for point in stats.history] == list(range(1, 21))
    assert len(stats.places) == len(stats.history[0].hole_entries_by_place)
    assert (stats.limits[0].limit, len(stats.open_holes)) == (300, 20)


def test_what_comes_to_the_driver_is_bounded_and_counts_the_rest(result):
    chosen = result("subscriptions").where("subscription = 's'")
    keys = hole_frames.top_leavers(result("hole_keys"), chosen, 1).collect()
    holes = hole_frames.oldest_holes(result("holes"), chosen, 1).collect()
    intervals = result("gate_intervals").where("NOT is_guessed")
    gates = collected.gate_histories(intervals.limit(2), chosen)
    [gate] = journal_frames.newest_intervals(intervals, chosen, 1).collect()

    assert [(row["key"], row["leavers"]) for row in keys] == [("k", 4)], "the most, and the oldest"
    assert [(row["topic"], row["first_entry_id"]) for row in holes] == [(TOPIC, 3)]
    assert (gate["from_ms"] - START_MS, gate["intervals"], gate["total_ms"]) == (16_000, 2, 2000)
    assert gates.keys() == {(TOPIC, "s")}


LEAVER = (
    "topic string, subscription string, consumer string, cause string, key string, holes bigint, "
    "entries bigint, oldest_since_ms bigint, oldest_age_ms bigint, mean_age_ms bigint, "
    "redeliveries_max bigint"
)


@pytest.mark.parametrize("kind", ["consumer", "key"])
def test_leavers_with_as_many_holes_stand_in_the_same_order_whoever_is_read_first(spark, kind):
    who = [("a", "given", "a"), ("b", "given", "b"), (None, "delayed", None)]
    who += [(None, "waiting", "c")] if kind == "consumer" else []
    subscriptions = [(TOPIC, "s"), (TOPIC, "t"), (BARE, "s")]
    rows = [(*of, *one, 5, 5, None, None, None, None) for of in subscriptions for one in who]
    chosen = spark.createDataFrame(subscriptions, "topic string, subscription string")
    tables, ranks = [], []
    for ordered in (rows, rows[::-1], rows[::2] + rows[1::2]):
        read = spark.createDataFrame(ordered, LEAVER)
        leavers = read.drop("key") if kind == "consumer" else read.drop("consumer", "cause")
        tables.append(collected.leaver_table(leavers, 4).rows)
        top = hole_frames.top_leavers(leavers, chosen, 2).collect()
        ranks.append({(r[:4], r["by_holes"], r["by_age"]) for r in top})

    assert tables[0] == tables[1] == tables[2]
    assert ranks[0] == ranks[1] == ranks[2]


def test_of_another_subscription_no_events_are_taken(tables):
    journal = journal_frames.journal_events(tables["delivery_journal"], "other")
    found = {row["event"] for row in journal.select("event").distinct().collect()}

    assert found == {"opened", "published"}


@pytest.mark.parametrize(
    "words", [["--limit", "-1"], ["--plots", "101"], ["--horizon-hours", "nan"]]
)
def test_arguments_that_make_no_sense_are_refused(words):
    parser = argparse.ArgumentParser()
    JOB.add_arguments(parser)
    arguments = parser.parse_args(words)
    arguments.config = None
    with pytest.raises(ConfigurationError, match=words[0]):
        JOB.run(JobRun(None, DataAddress({}), None, arguments, "json", print))
