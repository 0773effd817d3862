"""The job's frames, on rows made by hand, in a real session."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest
from pyroaring import BitMap

from ackgate.errors import ConfigurationError
from ackgate.pipeline.job import DataAddress, JobRun
from ackgate.pipeline.jobs.ack_stats import JOB, frames
from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionStats
from ackgate.pipeline.tables import ACK_STATE, CURSOR_RECORDS, DELIVERY_JOURNAL, spark_schema
from tests.pipeline.events import Story

START_MS = 1_800_000_000_000
TOPIC = "persistent://public/default/t"


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


def state(kind, ledger_id, first, end):
    return {
        "topic": TOPIC,
        "subscription": "s",
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


@pytest.fixture(scope="module")
def tables(spark):
    journal = Story(TOPIC, start_us=START_MS * 1000, step_us=1_000_000).add("opened")
    journal.add("gate_shut", "s", reason="ranges").add("gate_opened", "s")
    journal.add("gate_shut", "s", reason="ranges,failing").publish(7, 0)
    journal.restart().add("opened").add("gate_opened", "s")
    states = [state("mark_delete", 7, 0, 3), state("range", 7, 5, 6), state("range", 7, 9, 20)]
    states += [state("range", 8, 0, 4), state("range", 9, 2, 3), state("partly_acked", 9, 4, 5)]
    return {
        "cursor_records": frame(spark, CURSOR_RECORDS, [*growing("s"), record(1, "other")]),
        "ack_state": frame(spark, ACK_STATE, states),
        "delivery_journal": frame(spark, DELIVERY_JOURNAL, journal.rows),
    }


@pytest.fixture(scope="module")
def run(tables, tmp_path_factory):
    """The job, with the tables in place of a data source."""
    parser = argparse.ArgumentParser()
    JOB.add_arguments(parser)
    made = JobRun(
        spark=None,
        data=DataAddress({"path": "/data"}),
        output=tmp_path_factory.mktemp("ack-stats"),
        arguments=parser.parse_args(["--limit", "300"]),
        result_format="json",
        progress=lambda _: None,
    )
    asked = []

    class Fake(JobRun):
        def read(self, table, **options):
            asked.append(options)
            return tables[table]

    fake = Fake(**{name: getattr(made, name) for name in JobRun.__dataclass_fields__})
    summary = JOB.run(fake)
    return SimpleNamespace(summary=summary, output=fake.output, asked=asked)


def test_each_subscription_has_a_row_with_its_forecast(run, spark):
    found = spark.read.json(str(run.output / "subscriptions")).orderBy("subscription").collect()
    other, grown = (row.asDict() for row in found)

    assert (other["subscription"], other["records"]) == ("other", 1)
    assert other.get("ranges_per_hour") is None
    assert (grown["records"], grown["record_bytes"], grown["holes"]) == (20, 2000, 20)
    assert grown["ranges_per_hour"] == pytest.approx(600)
    assert grown["at_limit_expected_ms"] == pytest.approx(START_MS + 30 * 60_000, abs=1)


def test_history_and_hole_map_are_flat(run, spark):
    history = spark.read.json(str(run.output / "history")).where("subscription = 's'")
    cells = spark.read.json(str(run.output / "hole_map"))

    assert history.count() == 20
    assert sum(row["records"] for row in history.collect()) == 20
    last = cells.where(f"until_ms > {START_MS + 20 * 60_000}").collect()
    assert sum(row["hole_entries"] for row in last) == 21
    assert {row["ledger_id"] for row in last} == {7}


def test_holes_of_today_begin_where_the_range_before_ends(run, spark):
    found = spark.read.json(str(run.output / "holes")).orderBy("ledger_id", "first_entry_id")

    assert [(r["ledger_id"], r["first_entry_id"], r["end_entry_id"]) for r in found.collect()] == [
        (7, 3, 5),
        (7, 6, 9),
        (9, 0, 2),
    ]


def test_a_gate_is_shut_until_its_next_event_or_the_owners_last(run, spark):
    found = spark.read.json(str(run.output / "gate_intervals")).orderBy("from_ms").collect()

    assert [
        (r["from_ms"] - START_MS, r["until_ms"] - START_MS, r["is_open_ended"]) for r in found
    ] == [(1000, 2000, False), (3000, 4000, True)]


def test_the_report_and_the_summary_tell_the_same(run):
    page = (run.output / "report.html").read_text(encoding="utf-8")

    assert run.summary.figures["subscriptions"] == 2
    assert run.summary.figures["records"] == 21
    assert run.summary.tables[0].rows[0][:4] == (TOPIC, "s", 200, 300)
    assert page.count("<section id=") == 2
    assert 'class="shut"' in page
    assert run.asked[0]["columns"].endswith(",acked")


def test_rows_come_back_as_what_they_were(tables):
    frame = frames.subscription_stats(tables["cursor_records"], limit=300)
    row = frames.most_urgent(frame, 1).collect()[0].asDict(recursive=True)
    stats = SubscriptionStats.of_row(row)

    assert stats.subscription == "s"
    assert [point.version for point in stats.history] == list(range(1, 21))
    assert len(stats.places) == len(stats.history[0].hole_entries_by_place)


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
