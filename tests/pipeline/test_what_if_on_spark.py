"""What-if on Spark: what comes out is what a replay in one process gives, however it is cut."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from ackgate.persistence import LedgerEntry
from ackgate.persistence.deliveries.columns import columns_of
from ackgate.persistence.deliveries.events import encode_events
from ackgate.persistence.records.envelope import Packing
from ackgate.pipeline.jobs.what_if import frames
from ackgate.pipeline.jobs.what_if.events import EVENTS_COLUMNS
from ackgate.pipeline.jobs.what_if.job import STRETCHES, interval_for
from ackgate.pipeline.jobs.what_if.rows import result_rows
from ackgate.pipeline.jobs.what_if.variants import Variant
from ackgate.pipeline.readers.delivery_journal import event_rows
from ackgate.pipeline.schema.tables import DELIVERY_JOURNAL
from tests.pipeline.small_plans import usual_plans
from tests.property.pipeline.recorded_traffic import NAME, TOPIC, traffic
from tests.property.pipeline.test_what_if import BASE, LIMIT, replayed

VARIANTS = [
    Variant("recorded"),
    Variant("wide", {LIMIT: "1000000"}),
    Variant("slow", {"ackPersistLingerMs": "300"}),
    Variant("strict", {"dispatcherPauseOnAckStateStrictEnabled": "true"}),
]
TOPICS = {TOPIC: 1, f"{TOPIC}-2": 2}
SUBSCRIPTIONS = (NAME, "another")


def told(block, topic):
    """A block, with a second subscription to which the same happened."""
    events = []
    for event in block.rows():
        events.append(event)
        if event.subscription is not None:
            events.append(event._replace(subscription="another"))
    return columns_of(events, topic=topic, owner_epoch=block.owner_epoch, first_sequence=0)


def of_topic(topic, seed):
    return [told(block, topic) for block in traffic(seed, BASE, steps=60)]


@pytest.fixture(scope="module")
def blocks():
    return {topic: of_topic(topic, seed) for topic, seed in TOPICS.items()}


@pytest.fixture(scope="module")
def journal(spark, blocks):
    entries = [
        LedgerEntry(i, encode_events(block, Packing()))
        for i, block in enumerate(block for each in blocks.values() for block in each)
    ]
    columns = DELIVERY_JOURNAL.select(EVENTS_COLUMNS)
    return spark.createDataFrame(pa.Table.from_batches(event_rows(1, entries, columns)))


@pytest.fixture(scope="module")
def rows(spark, journal):
    with usual_plans(spark):
        kept = frames.replays(
            journal.repartition(5), VARIANTS, interval_us=3_600_000_000, groups=2
        ).persist()
        assert kept.count()
    yield kept
    kept.unpersist()


def test_each_subscription_and_variant_comes_out_as_in_one_process(rows, blocks):
    found = {
        (row["topic"], row["subscription"], row["variant"]): row.asDict()
        for row in frames.results(rows).collect()
    }
    assert len(found) == len(TOPICS) * len(SUBSCRIPTIONS) * len(VARIANTS)
    for topic, of_topic in blocks.items():
        for expected in result_rows(replayed(of_topic, VARIANTS[1:])):
            for subscription in SUBSCRIPTIONS:
                row = found[topic, subscription, expected.variant]
                assert row["moments"] == expected.moments
                for name in ("paused_seconds", "bytes_written", "redeliveries_mean", "writes"):
                    assert row[name] == getattr(expected.sums, name)


def test_nothing_differs_and_all_was_replayed(rows, blocks):
    assert frames.differences(rows).count() == 0
    for row in frames.coverage(rows).collect():
        events = sum(len(block.rows()) for block in blocks[row["topic"]])
        assert row["events_skipped"] == row["events_missing"] == row["differences"] == 0
        assert 0 < row["events"] < events
        assert row["writes_compared"] > 0


def test_a_difference_is_listed_once_however_many_groups_of_settings_find_it(rows):
    kind = rows.schema["differences"].dataType
    differing = rows.withColumn("differences", f.from_json(f.lit("[{}]"), kind))
    assert differing.count() == 2 * len(TOPICS) * len(SUBSCRIPTIONS)
    assert frames.differences(differing).count() == len(TOPICS) * len(SUBSCRIPTIONS)


def test_over_time_a_mean_is_that_of_the_time_recorded(rows):
    """Not of a stretch that the recording fills by a fraction: table and picture say the same."""
    timeline = frames.timeline(rows)
    names = [variant.name for variant in VARIANTS]
    told = {row["variant"]: row for row in frames.by_variant(frames.results(rows)).collect()}
    times = frames.by_time(timeline, names, width_ms=3_600_000).collect()
    assert len(times) == len(VARIANTS), "one stretch"
    for row in times:
        whole = told[row["variant"]]
        assert row["redeliveries_mean"] == pytest.approx(whole["redeliveries_mean"]) != 0
        assert row["paused_seconds"] == pytest.approx(whole["paused_seconds"])


@pytest.mark.parametrize(
    ("span_seconds", "width_seconds"),
    [(0, 0.1), (4, 0.1), (26, 0.5), (600, 10), (6 * 3600, 300), (86_400, 900), (10**8, 1_036_800)],
)
def test_stretches_of_time_follow_from_how_long_was_recorded(span_seconds, width_seconds):
    width_us = interval_for(span_seconds * 1_000_000)
    assert width_us == width_seconds * 1_000_000
    assert width_us // 1000 * 1000 == width_us
    assert span_seconds * 1_000_000 <= STRETCHES * width_us


def test_how_long_was_recorded(journal, blocks):
    times = [event.time_us for each in blocks.values() for block in each for event in block.rows()]
    assert frames.recorded_us(journal) == max(times) - min(times)
    assert frames.recorded_us(journal.where("false")) == 0


def test_variants_are_summed_up_over_subscriptions(rows):
    found = {row["variant"]: row for row in frames.by_variant(frames.results(rows)).collect()}
    assert found.keys() == {variant.name for variant in VARIANTS}
    assert found["recorded"]["subscriptions"] == 4
    assert found["wide"]["paused_seconds"] == 0 < found["recorded"]["paused_seconds"]
    assert found["slow"]["moments"] == "paced"
