"""Recorded traffic, replayed: with the recorded settings it comes out as it was."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ackgate.persistence.deliveries.columns import DeliveryEvent, EventKind, columns_of
from ackgate.persistence.deliveries.details import Configured, TopicPolicies, encode_detail
from ackgate.pipeline.jobs.what_if.events import events_of
from ackgate.pipeline.jobs.what_if.moments import RecordedMoments
from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay
from ackgate.pipeline.jobs.what_if.rows import EvenFeed
from ackgate.pipeline.jobs.what_if.variants import Variant
from tests.property.pipeline.recorded_traffic import NAME, TOPIC, traffic
from tests.support.faults import Fault

EXAMPLES = int(os.environ.get("ACKGATE_EXAMPLES", "10"))

BASE = {
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "managedLedgerMaxUnackedRangesToPersist": "25",
}
SETTINGS = [
    {},
    {"managedLedgerMaxUnackedRangesToPersist": "1000"},
    {"managedLedgerMaxUnackedRangesToPersist": "6", "dispatcherPauseOnAckStateResumeRanges": "3"},
    {"dispatcherPauseOnAckStateStrictEnabled": "true"},
    {"managedLedgerCursorMaxEntriesPerLedger": "20", "cursorDeltasPerSnapshotMax": "7"},
    {"cursorDeltaBytesPerSnapshotMax": "700", "managedCursorInfoCompressionType": "LZ4"},
    {"managedLedgerDefaultMarkDeleteRateLimit": "10", "ackPersistLingerMs": "20"},
    {"managedLedgerMaxUnackedRangesToPersistInMetadataStore": "3"},
    {"managedLedgerMaxBatchDeletedIndexToPersist": "2"},
    {"cursorRecordChunkBytes": "4096", "metadataStoreMaxNodeBytes": "4096"},
    {"managedLedgerCursorRolloverTimeInSeconds": "1"},
]


def replayed(blocks, variants=(), *, pieces=None):
    """All blocks, cut into pieces of whatever size."""
    replay = SubscriptionReplay([Variant("recorded"), *variants])
    for block in blocks:
        start = 0
        while start < len(block):
            stop = (
                len(block) if pieces is None else min(len(block), start + pieces.randrange(1, 90))
            )
            replay.feed(events_of(block.part(start, stop), NAME))
            start = stop
    replay.finish()
    return replay


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("changes", SETTINGS, ids=lambda changes: ",".join(changes) or "plain")
def test_recorded_settings_reproduce_what_was_recorded(seed, changes):
    blocks = traffic(seed, {**BASE, **changes})
    replay = replayed(blocks)
    assert replay.differences.rows == []
    assert replay.differences.count == 0
    assert replay.differences.writes_compared > 10
    assert replay.coverage.events == sum(map(len, blocks))
    assert replay.coverage.events_skipped == 0


ANY_SETTINGS = st.fixed_dictionaries(
    {
        "managedLedgerMaxUnackedRangesToPersist": st.sampled_from(["0", "4", "25", "1000"]),
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": st.sampled_from(["3", "1000"]),
        "managedLedgerMaxBatchDeletedIndexToPersist": st.sampled_from(["0", "3", "10000"]),
        "dispatcherPauseOnAckStateStrictEnabled": st.sampled_from(["true", "false"]),
        "managedLedgerCursorMaxEntriesPerLedger": st.sampled_from(["1", "15", "50000"]),
        "cursorDeltasPerSnapshotMax": st.sampled_from(["0", "5", "1000"]),
        "cursorDeltaBytesPerSnapshotMax": st.sampled_from(["0", "500", "1048576"]),
        "cursorRecoveryScanEntriesMax": st.sampled_from(["3", "10000"]),
        "managedCursorInfoCompressionType": st.sampled_from(["NONE", "LZ4", "ZSTD", "SNAPPY"]),
        "managedCursorInfoCompressionThresholdInBytes": st.sampled_from(["0", "256"]),
        "managedLedgerDefaultMarkDeleteRateLimit": st.sampled_from(["0", "5"]),
        "ackPersistLingerMs": st.sampled_from(["0", "2", "50"]),
    }
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a seed does not shrink
)
@given(
    seed=st.integers(0, 2**32 - 1),
    texts=ANY_SETTINGS,
    failing=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_any_settings_reproduce_any_traffic(seed, texts, failing):
    rates = {Fault.FAIL: failing, Fault.LATE_ANSWER: 0.4}
    blocks = traffic(seed, {**BASE, **texts}, steps=80, rates=rates)
    assert replayed(blocks, pieces=Random(seed)).differences.rows == []


@pytest.mark.parametrize("seed", range(3))
def test_so_they_do_when_stores_fail(seed):
    blocks = traffic(seed, BASE, steps=200, rates={Fault.FAIL: 0.2, Fault.LATE_ANSWER: 0.4})
    assert replayed(blocks).differences.rows == []


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_any_size_give_the_same(seed):
    blocks = traffic(seed, {**BASE, "dispatcherPauseOnAckStateStrictEnabled": "true"})
    whole, cut = replayed(blocks), replayed(blocks, pieces=Random(seed))
    assert cut.differences.rows == []
    assert list(cut.timelines()) == list(whole.timelines())


@pytest.mark.parametrize("seed", range(3))
def test_moves_of_the_cursor_do_not_wait_for_others_however_events_come(seed):
    blocks = traffic(seed, BASE, steps=200)
    moves = sum(event.kind is EventKind.RESET for block in blocks for event in block.rows())
    lingering = Variant("lingering", {"ackPersistLingerMs": "5000"})
    for pieces in (None, Random(seed)):
        replay = replayed(blocks, [lingering], pieces=pieces)
        sums = {variant.name: each for variant, _, each, _ in replay.totals()}
        assert sums["lingering"].writes >= moves > 3


def test_an_even_feed_gives_the_same_however_events_come(blocks):
    def fed(sizes):
        feed = EvenFeed(SubscriptionReplay([Variant("recorded")]), events_max=64)
        for block in blocks:
            start = 0
            while start < len(block):
                stop = min(len(block), start + next(sizes))
                feed.feed(events_of(block.part(start, stop), NAME))
                start = stop
        return list(feed.finished().timelines())

    rng = Random(1)
    expected = list(replayed(blocks).timelines())
    assert fed(itertools.repeat(10**9)) == expected
    assert fed(iter(lambda: rng.randrange(1, 200), None)) == expected


def test_what_no_write_needs_is_not_kept(blocks):
    """A subscription that acks nothing, on a busy topic."""
    beginning = [e for e in blocks[0].rows() if e.kind in {EventKind.OPENED, EventKind.SUBSCRIBED}]
    busy = [
        DeliveryEvent(EventKind.PUBLISHED, beginning[-1].time_us + i, ledger_id=3, entry_id=i)
        for i in range(500)
    ]
    block = columns_of([*beginning, *busy], topic=TOPIC, owner_epoch=1, first_sequence=0)
    kept = []
    original = RecordedMoments.run

    def run(self, tape):
        found = original(self, tape)
        kept.append(len(self.tapes))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedMoments, "run", run)
        feed = EvenFeed(SubscriptionReplay([Variant("recorded")]), events_max=8)
        feed.feed(events_of(block, NAME))
        feed.finished()
    assert len(kept) > 50
    assert set(kept) == {0}


def totals(blocks, **changes):
    """Sums by name of the variant, `changes` being one of them besides the recorded settings."""
    found = replayed(blocks, [Variant("other", changes)]).totals()
    return {variant.name: sums for variant, _, sums, _ in found}


GATE_KINDS = {EventKind.GATE_SHUT, EventKind.GATE_OPENED}
LIMIT = "managedLedgerMaxUnackedRangesToPersist"


@pytest.fixture(scope="module")
def blocks():
    return traffic(7, BASE, steps=200)


def test_without_a_limit_nothing_pauses_and_nothing_is_dropped(blocks):
    sums = totals(blocks, **{LIMIT: "1000000"})
    assert sums["recorded"].paused_us > 0
    assert sums["recorded"].entries_dropped_max > 0
    assert (sums["other"].paused_us, sums["other"].pauses) == (0, 0)
    assert sums["other"].entries_dropped_max == 0
    assert sums["other"].redeliveries_max <= sums["recorded"].redeliveries_max


def test_a_small_limit_pauses_longer_and_more_would_come_again(blocks):
    sums = totals(blocks, **{LIMIT: "2"})
    assert sums["other"].paused_us > sums["recorded"].paused_us
    assert sums["other"].not_durable_area > sums["recorded"].not_durable_area
    assert sums["other"].postponed >= sums["recorded"].postponed


def test_a_gate_that_is_off_never_pauses_and_writes_the_same(blocks):
    sums = totals(blocks, dispatcherPauseOnAckStatePersistentEnabled="false")
    assert sums["other"].paused_us == 0
    assert sums["other"].bytes_written == sums["recorded"].bytes_written


def test_a_resume_mark_makes_pauses_fewer_and_longer(blocks):
    sums = totals(blocks, dispatcherPauseOnAckStateResumeRanges="1")
    assert sums["other"].pauses <= sums["recorded"].pauses
    assert sums["other"].paused_us > sums["recorded"].paused_us


def test_a_strict_gate_pauses_sooner(blocks):
    sums = totals(blocks, dispatcherPauseOnAckStateStrictEnabled="true")
    assert sums["other"].paused_us > sums["recorded"].paused_us


def test_compression_shrinks_what_is_written_at_the_same_moments(blocks):
    changes = {"managedCursorInfoCompressionThresholdInBytes": "120", LIMIT: "1000000"}
    sums = totals(blocks, **changes)
    whole = totals(blocks, **{LIMIT: "1000000"})
    assert sums["other"].writes == sums["recorded"].writes
    assert sums["other"].bytes_written < whole["other"].bytes_written


def test_snapshots_alone_take_more_than_deltas(blocks):
    sums = totals(blocks, cursorDeltasPerSnapshotMax="0")
    assert sums["other"].snapshots == sums["other"].writes == sums["recorded"].writes
    assert sums["other"].bytes_written > sums["recorded"].bytes_written


def test_smaller_ledgers_are_more_ledgers(blocks):
    sums = totals(blocks, managedLedgerCursorMaxEntriesPerLedger="5")
    assert sums["other"].ledgers_begun > sums["recorded"].ledgers_begun


def test_a_longer_linger_writes_less_and_leaves_more_to_a_crash(blocks):
    sums = totals(blocks, ackPersistLingerMs="500", **{LIMIT: "1000000"})
    assert 0 < sums["other"].writes < sums["recorded"].writes
    assert sums["other"].not_durable_area > 0


def test_a_rate_limit_bounds_the_writes(blocks):
    sums = totals(blocks, managedLedgerDefaultMarkDeleteRateLimit="2")
    seconds = sums["recorded"].recorded_us / 1e6
    moves = sum(
        event.kind is EventKind.RESET
        or (event.detail is not None and '"is_last":true' in event.detail)
        for block in blocks
        for event in block.rows()
    )
    assert 0 < sums["other"].writes <= 2 * seconds + moves + 4


def test_the_pace_of_the_recording_is_about_what_the_model_makes_of_it(blocks):
    """1 ms more of linger makes the moments the model's: writes come out much as they were."""
    sums = totals(blocks, ackPersistLingerMs="3")
    assert sums["other"].writes == pytest.approx(sums["recorded"].writes, rel=0.25)
    assert sums["other"].bytes_written == pytest.approx(sums["recorded"].bytes_written, rel=0.25)


def test_settings_that_changed_while_a_topic_was_open_hold_from_there_on(blocks):
    """The gate is switched off where it first shuts: it opens at once, for good."""
    rows = blocks[0].rows()
    place = next(i for i, row in enumerate(rows) if row.kind is EventKind.GATE_SHUT)
    off = {"dispatcherPauseOnAckStatePersistentEnabled": "false"}
    detail = encode_detail(Configured(off, TopicPolicies()))
    configured = DeliveryEvent(EventKind.CONFIGURED, rows[place].time_us + 1, detail=detail)
    opened = DeliveryEvent(EventKind.GATE_OPENED, rows[place].time_us + 1, NAME)
    told = [row for row in rows[place + 1 :] if row.kind not in GATE_KINDS]
    changed = columns_of(
        [*rows[: place + 1], configured, opened, *told],
        topic=TOPIC,
        owner_epoch=1,
        first_sequence=0,
    )
    replay = replayed([changed], [Variant("on", {next(iter(off)): "true"})])
    sums = {variant.name: each for variant, _, each, _ in replay.totals()}
    assert replay.differences.rows == []
    assert (sums["recorded"].pauses, sums["recorded"].paused_us) == (1, 1)
    assert sums["on"].paused_us > 1


def test_a_limit_that_changes_while_a_topic_is_open_is_that_of_the_strict_gate_too():
    """As soon as the subscription is there: as if it had been so from the beginning."""
    strict = {"dispatcherPauseOnAckStateStrictEnabled": "true"}
    blocks = traffic(7, {**BASE, **strict}, steps=200)
    rows = blocks[0].rows()
    place = next(i for i, row in enumerate(rows) if row.kind is EventKind.SUBSCRIBED)
    detail = encode_detail(Configured({LIMIT: "8"}, TopicPolicies()))
    configured = DeliveryEvent(EventKind.CONFIGURED, rows[place].time_us, detail=detail)
    changed = columns_of(
        [*rows[: place + 1], configured, *rows[place + 1 :]],
        topic=TOPIC,
        owner_epoch=1,
        first_sequence=0,
    )
    sums = {variant.name: each for variant, _, each, _ in replayed([changed]).totals()}
    expected = totals(blocks[:1], **{LIMIT: "8"})
    assert sums["recorded"].paused_us == expected["other"].paused_us
    assert sums["recorded"].paused_us > expected["recorded"].paused_us


LINGER = "ackPersistLingerMs"


def with_linger(block, *changes):
    """The block, with another linger set (ms) before each of these rows."""
    rows = block.rows()
    for place, linger_ms in sorted(changes, reverse=True):
        detail = encode_detail(Configured({LINGER: str(linger_ms)}, TopicPolicies()))
        rows.insert(place, DeliveryEvent(EventKind.CONFIGURED, rows[place].time_us, detail=detail))
    return columns_of(rows, topic=TOPIC, owner_epoch=1, first_sequence=0)


def writes_of(replay):
    return {variant.name: each.writes for variant, _, each, _ in replay.totals()}


def test_a_pace_that_differs_since_the_subscription_is_there_is_as_if_from_the_beginning(blocks):
    place = next(i for i, row in enumerate(blocks[0].rows()) if row.kind is EventKind.SUBSCRIBED)
    variant = Variant("other", {LINGER: "2"})
    before, after = [
        replayed([with_linger(blocks[0], (at, 50))], [variant]) for at in (place, place + 1)
    ]
    assert [*after.totals()] == [*before.totals()]
    assert [is_paced for _, is_paced, _, _ in after.totals()] == [False, True]


def test_a_pace_that_differs_from_the_middle_on_holds_from_there_on(blocks):
    rows = blocks[0].rows()
    place = next(i for i, row in enumerate(rows) if row.kind is EventKind.SUBSCRIBED)
    middle = next(
        i
        for i in range(len(rows) // 2, len(rows))
        if rows[i].kind is EventKind.ACKED and rows[i - 1].kind is EventKind.PERSISTED
    )
    changed = with_linger(blocks[0], (place, 500), (middle, 2))
    half = sum(row.kind is EventKind.PERSISTED for row in rows[:middle])
    replay = replayed([changed], [Variant("slow", {LINGER: "500"})])
    found = writes_of(replay)
    assert replay.differences.rows == []
    assert half < found["slow"] < found["recorded"] - half // 2
    # Cut anywhere, it is the same.
    assert [
        *replayed([changed], [Variant("slow", {LINGER: "500"})], pieces=Random(1)).totals()
    ] == [*replay.totals()]


def test_one_paced_life_makes_the_moments_paced(blocks):
    """The result is of all lives: the last one, as recorded, does not hide the first."""
    place = next(i for i, row in enumerate(blocks[0].rows()) if row.kind is EventKind.SUBSCRIBED)
    first = with_linger(blocks[0], (place, 50))
    for order, expected in (([first, blocks[1]], True), ([blocks[0], blocks[1]], False)):
        totals_found = replayed(order, [Variant("two", {LINGER: "2"})]).totals()
        assert [is_paced for _, is_paced, _, _ in totals_found] == [False, expected]


def test_what_a_gap_leaves_is_told_and_not_guessed(blocks):
    first, second = blocks
    cut = first.part(0, len(first) // 2)
    gap = columns_of(
        [DeliveryEvent(EventKind.DROPPED, 1, version=9)],
        topic=TOPIC,
        owner_epoch=1,
        first_sequence=len(cut),
    )
    rest = replace(first.part(len(cut), len(first)), first_sequence=len(cut) + 1)
    replay = replayed([cut, gap, rest, second])
    assert replay.coverage.events_missing == 9
    assert replay.coverage.events_skipped == len(rest)
    assert replay.coverage.epochs == 2
    assert replay.differences.rows == []


def test_a_journal_whose_beginning_was_trimmed_begins_with_the_next_epoch(blocks):
    first, second = blocks
    replay = replayed([first.part(50, len(first)), second])
    assert replay.coverage.events_skipped == len(first) - 50
    assert replay.coverage.epochs == 1
    assert replay.differences.writes_compared > 0


def test_a_block_that_was_written_twice_counts_once(blocks):
    first, second = blocks
    again = replayed([first, first.part(100, len(first)), second])
    assert list(again.timelines()) == list(replayed(blocks).timelines())


def test_what_was_recorded_otherwise_is_told(blocks):
    """The comparison can fail: an outcome that says something else is a difference."""
    text = blocks[0].texts["detail"]
    place = next(i for i, word in enumerate(text.words) if '"is_delta":true' in word)
    words = list(text.words)
    words[place] = words[place].replace('"ranges_in_memory":', '"ranges_in_memory":7')
    wrong = replace(
        blocks[0], texts={**blocks[0].texts, "detail": replace(text, words=tuple(words))}
    )
    fields = {difference.field for _, difference in replayed([wrong]).differences.rows}
    assert fields == {"ranges_in_memory"}
