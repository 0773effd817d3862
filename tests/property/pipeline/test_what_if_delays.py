"""Delayed entries in a replay: what other buckets would have held, written and loaded."""

from __future__ import annotations

import pytest

from ackgate.config.delayed import BUCKET_FACTORY, IN_MEMORY_FACTORY
from ackgate.cursor import Position
from ackgate.persistence.deliveries.columns import DeliveryEvent, EventKind, columns_of
from ackgate.persistence.deliveries.details import (
    AckedCall,
    Configured,
    MessageLedger,
    Opened,
    Subscribed,
    TopicPolicies,
    encode_detail,
)
from ackgate.pipeline.jobs.what_if.delays import DelayReplay
from ackgate.pipeline.jobs.what_if.events import events_of
from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay
from ackgate.pipeline.jobs.what_if.tallies import Tallies
from ackgate.pipeline.jobs.what_if.variants import Variant
from tests.property.pipeline.recorded_traffic import NAME, START_US, TOPIC

ENTRIES = 4_000
IN_BUCKET = 200
HOUR_MS = 3_600_000
BUCKETS = {
    "delayedDeliveryTrackerFactoryClassName": BUCKET_FACTORY,
    "delayedDeliveryMinIndexCountPerBucket": "200",
    "delayedDeliveryMaxIndexCountPerBucket": "200",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
}


OFF = {"delayedDeliveryEnabled": "false"}


def delayed_block(texts, *, kind="Shared", hours=2, acks=(), change=None):
    """An entry each millisecond, each due at another time of the next hour; then nothing for long.

    After the publishes come `acks`, columns of one call each, and `change`, settings that change.
    """

    def event(kind, time_us, *, own=True, detail=None, **columns):
        text = None if detail is None else encode_detail(detail)
        subscription = NAME if own else None
        return DeliveryEvent(kind, time_us, subscription=subscription, detail=text, **columns)

    ledgers = (MessageLedger(3, 0, is_open=True),)
    opened = Opened(dict(texts), TopicPolicies(), ledgers)
    events = [
        event(EventKind.OPENED, START_US, own=False, detail=opened),
        event(EventKind.SUBSCRIBED, START_US, detail=Subscribed(Position(3, -1), is_durable=True)),
        event(EventKind.CONSUMER_ADDED, START_US, reason=kind, consumer="c#1"),
    ]
    for i in range(ENTRIES):
        time_us = START_US + i * 1000
        deliver_at_ms = time_us // 1000 + 20_000 + i * 7919 % HOUR_MS
        columns = {"ledger_id": 3, "entry_id": i, "deliver_at_ms": deliver_at_ms}
        events.append(event(EventKind.PUBLISHED, time_us, own=False, **columns))
    for number, columns in enumerate(acks):
        detail = AckedCall(entries=len(acks)) if number == 0 else None
        events.append(
            event(EventKind.ACKED, time_us, detail=detail, is_cumulative=False, **columns)
        )
    if change is not None:
        detail = Configured(change, TopicPolicies())
        events.append(event(EventKind.CONFIGURED, time_us, own=False, detail=detail))
        late = {"ledger_id": 3, "entry_id": ENTRIES, "deliver_at_ms": deliver_at_ms}
        events.append(event(EventKind.PUBLISHED, time_us, own=False, **late))
    end_us = START_US + int(hours * HOUR_MS * 1000)
    events.append(event(EventKind.CONSUMER_REMOVED, end_us, consumer="c#1"))
    return columns_of(events, topic=TOPIC, owner_epoch=1, first_sequence=0)


def sums_of(block, **variants):
    replay = SubscriptionReplay(
        [Variant("recorded"), *(Variant(name, changes) for name, changes in variants.items())]
    )
    replay.feed(events_of(block, NAME))
    replay.finish()
    return {variant.name: sums for variant, _, sums, _ in replay.totals()}


@pytest.fixture(scope="module")
def sums():
    return sums_of(
        delayed_block(BUCKETS),
        large={
            "delayedDeliveryMinIndexCountPerBucket": "2000",
            "delayedDeliveryMaxIndexCountPerBucket": "2000",
        },
        merged={"delayedDeliveryMaxNumBuckets": "4"},
        coarse={"delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "100"},
        memory={"delayedDeliveryTrackerFactoryClassName": IN_MEMORY_FACTORY},
    )


def test_all_entries_wait_whatever_holds_them(sums):
    assert {each.delayed_entries for each in sums.values()} == {ENTRIES}


def test_each_bucket_is_sealed_when_it_is_full_and_each_segment_loaded_once_at_most(sums):
    recorded = sums["recorded"]
    assert recorded.buckets_written == ENTRIES // IN_BUCKET  # the last one for its age
    assert recorded.segments_written >= ENTRIES // 10
    assert 0 < recorded.segments_loaded <= recorded.segments_written


def test_larger_buckets_are_fewer(sums):
    assert sums["large"].buckets_written == 2
    assert sums["large"].buckets_max < sums["recorded"].buckets_max


def test_merging_bounds_the_buckets_and_writes_more(sums):
    assert sums["merged"].buckets_max < sums["recorded"].buckets_max
    assert sums["merged"].delayed_bytes_written > sums["recorded"].delayed_bytes_written


def test_coarser_segments_are_fewer(sums):
    assert sums["coarse"].segments_written < sums["recorded"].segments_written


def test_a_tracker_in_memory_stores_nothing(sums):
    memory = sums["memory"]
    assert (memory.buckets_written, memory.delayed_bytes_written, memory.segments_loaded) == (
        0,
        0,
        0,
    )
    assert memory.delayed_memory_max > 0


def waiting_of(block):
    """How many entries the tracker holds after the last tape, and when that ends, in ms."""
    kept = []
    original = DelayReplay.run

    def run(self, tape, tallies: Tallies):
        original(self, tape, tallies)
        kept.append((self._tracker.entry_count, tape.end_us // 1000))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DelayReplay, "run", run)
        sums_of(block)
    return kept[-1]


@pytest.mark.parametrize("factory", [BUCKET_FACTORY, IN_MEMORY_FACTORY])
def test_what_is_due_by_the_end_has_come_out_and_nothing_else(factory):
    """The dumb twin: a list of times."""
    texts = {**BUCKETS, "delayedDeliveryTrackerFactoryClassName": factory}
    block = delayed_block(texts, hours=0.5)
    waiting, end_ms = waiting_of(block)
    times = [each.deliver_at_ms for each in block.rows() if each.deliver_at_ms is not None]
    tick_ms = 1_000
    assert sum(t > end_ms + tick_ms for t in times) <= waiting
    assert waiting <= sum(t > end_ms - tick_ms for t in times)


def test_exclusive_subscriptions_hold_nothing():
    sums = sums_of(delayed_block(BUCKETS, kind="Exclusive"))
    assert sums["recorded"].delayed_entries == 0


@pytest.mark.parametrize("factory", [BUCKET_FACTORY, IN_MEMORY_FACTORY])
def test_entries_acked_beside_parts_of_batches_wait_no_longer(factory):
    texts = {**BUCKETS, "delayedDeliveryTrackerFactoryClassName": factory}
    part = {"ledger_id": 3, "entry_id": 0, "unacked_indexes": b"\x01", "version": 2}
    whole = [
        {"ledger_id": 3, "entry_id": entry, "version": 2} for entry in (ENTRIES - 2, ENTRIES - 1)
    ]
    before, _ = waiting_of(delayed_block(texts, hours=0.002))
    after, _ = waiting_of(delayed_block(texts, hours=0.002, acks=[part, *whole]))
    assert before - after == len(whole)


@pytest.mark.parametrize(("change", "held"), [({}, ENTRIES + 1), (OFF, ENTRIES)])
def test_delayed_delivery_switched_off_while_the_topic_is_open_holds_nothing_more(change, held):
    sums = sums_of(delayed_block(BUCKETS, change=change))
    assert sums["recorded"].delayed_entries == held


def test_a_setting_that_a_variant_names_stays_when_the_recorded_one_changes():
    tick = {"delayedDeliveryTickTimeMillis": "1000"}
    block = delayed_block(BUCKETS, change={"delayedDeliveryTickTimeMillis": "600000"})
    sums = sums_of(block, named=tick)
    assert sums["named"].segments_loaded > 0
    assert sums["named"] != sums["recorded"]
