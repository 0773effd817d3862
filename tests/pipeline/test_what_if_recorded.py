"""What-if on the journal of a real broker, killed amid its work and started again: nothing differs."""

import asyncio
import json
from pathlib import Path

from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.pipeline.jobs.what_if.events import events_of
from ackgate.pipeline.jobs.what_if.job import STRETCHES
from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay
from ackgate.pipeline.jobs.what_if.variants import Variant
from tests.pipeline.recorded_jobs import LIMIT
from tests.support.delivery_journals import read_stored_blocks


def replays_of(data_dir: Path, topic: str, subscriptions, variants=()) -> dict:
    path = delivery_journal_path("public", "default", topic)
    blocks = [each.block for each in asyncio.run(read_stored_blocks(data_dir, path))]
    found = {}
    for name in subscriptions:
        replay = SubscriptionReplay([Variant("recorded"), *variants])
        for block in blocks:
            replay.feed(events_of(block, name))
        replay.finish()
        found[name] = replay
    return found


def of_every_subscription(recorded_run, variants=()):
    for topic in recorded_run.topics.values():
        replays = replays_of(recorded_run.data_dir, topic.name, topic.subscriptions, variants)
        for name, replay in replays.items():
            yield f"{topic.name}/{name}", replay


def test_the_recorded_settings_reproduce_the_recorded_outcome_exactly(recorded_run):
    gate_changes = 0
    for name, replay in of_every_subscription(recorded_run):
        assert replay.differences.rows == [], name
        coverage = replay.coverage
        assert (coverage.epochs, coverage.events_skipped, coverage.events_missing) == (2, 0, 0), (
            name
        )
        assert replay.differences.writes_compared >= 3, name
        # Its cursor has properties: the stored buckets of delayed messages.
        assert name == "delayed/later" or replay.differences.sizes_not_compared == 0, name
        gate_changes += replay.differences.gate_changes_compared
    assert gate_changes >= 2


def test_a_higher_limit_would_have_kept_every_gate_open(recorded_run):
    paused = {}
    for name, replay in of_every_subscription(recorded_run, [Variant("wide", {LIMIT: "100000"})]):
        for variant, _, sums, _ in replay.totals():
            paused[name, variant.name] = sums.paused_us
    assert paused["gated/tight", "recorded"] > 0
    assert not any(us for (_, variant), us in paused.items() if variant == "wide")


def test_the_job(job_here, recorded_run):
    done = job_here("what-if")
    summary = json.loads(done.printed)
    figures = summary["figures"]
    assert done.code == 0
    assert summary["is_fine"]
    assert figures["differences"] == 0
    assert figures["writes_compared"] > 20
    assert figures["subscriptions"] == sum(
        len(topic.subscriptions) for topic in recorded_run.topics.values()
    )
    (table,) = summary["tables"].values()
    rows = {next(iter(row.values())): row for row in table}
    assert rows[f"{LIMIT}=100000"]["paused s"] == 0 < rows["recorded"]["paused s"]
    assert rows[f"{LIMIT}=10"]["paused s"] > rows["recorded"]["paused s"]
    assert {path.name for path in done.output.iterdir()} == {
        "coverage",
        "differences",
        "report.html",
        "results",
        "summary.json",
        "timeline",
    }
    timeline = done.rows("timeline")
    starts = {row["from_ms"] for row in timeline}
    assert 5 < len(starts) <= STRETCHES + 1, "the recording is seconds long"
    for row in timeline:
        assert row["recorded_seconds"] * 1000 <= row["until_ms"] - row["from_ms"]
    assert len(done.rows("results")) == 3 * figures["subscriptions"]
