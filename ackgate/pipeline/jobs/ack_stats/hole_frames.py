"""Today's holes, their age, and the consumers that left them: from DataFrames to DataFrames.

Edge to Spark. Each hole is joined with its messages (for their keys) and with the delivery journal
(for the last consumer of each). The join is by buckets of entries, so that no hole is too long for
one task::

    ack_state ---- holes ------- entries in holes ---- consumers, keys
                     |              |          |
    since when: records, journal   messages   journal: last dispatch

`journal` is the result of `journal_frames.journal_events`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.ack_stats.journal_frames import journal_spans

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame

MESSAGE_COLUMNS: Final = (
    *("topic", "ledger_id", "entry_id", "publish_time_ms", "key", "ordering_key", "deliver_at_ms"),
)
"""The columns that the job reads of table `messages`."""

BUCKET_ENTRIES: Final = 128
"""Entries of a bucket. A message is compared with its bucket's holes: at most half this many."""

BUCKETS_MAX: Final = 1 << 20
"""Most buckets of one hole, in case a damaged ack state has impossibly high entry ids."""

_SUBSCRIPTION: Final = ("topic", "subscription")
_HOLE: Final = (*_SUBSCRIPTION, "ledger_id", "first_entry_id")


def holes_now(ack_state: DataFrame) -> DataFrame:
    """Return one row per hole of each newest ack state; `end_entry_id` is exclusive."""
    rows = ack_state.where("kind IN ('mark_delete', 'range')").selectExpr(
        "topic",
        "subscription",
        "kind",
        "ledger_id",
        "coalesce(lag(end_entry_id) OVER (PARTITION BY topic, subscription, ledger_id "
        "ORDER BY end_entry_id, kind), 0) AS hole_first_entry_id",
        "first_entry_id AS hole_end_entry_id",
    )
    return rows.where("kind = 'range' AND hole_first_entry_id < hole_end_entry_id").selectExpr(
        "topic",
        "subscription",
        "ledger_id",
        "hole_first_entry_id AS first_entry_id",
        "hole_end_entry_id AS end_entry_id",
        "hole_end_entry_id - hole_first_entry_id AS entries",
    )


def aged_holes(holes: DataFrame, stats: DataFrame, journal: DataFrame) -> DataFrame:
    """Return the holes with `since_ms` (when an entry after the hole was first acked) and `age_ms`.

    Both are null if neither journal nor records reach back that far. An age is measured up to the
    newest time in the topic's records and journal, not up to now: the data may be a copy.
    """
    by_records = stats.selectExpr(*_SUBSCRIPTION, "inline(open_holes)").withColumnRenamed(
        "since_ms", "records_since_ms"
    )
    by_journal = _since_by_journal(holes, journal)
    aged = (
        holes.join(by_records, list(_HOLE), "left")
        .join(by_journal, list(_HOLE), "left")
        .join(topic_ends(stats, journal), "topic", "left")
    )
    return aged.selectExpr(
        *_HOLE,
        "end_entry_id",
        "entries",
        "least(records_since_ms, journal_since_ms) AS since_ms",
        "greatest(now_ms - least(records_since_ms, journal_since_ms), 0) AS age_ms",
        "now_ms",
        "journal_from_ms",
    )


def topic_ends(stats: DataFrame, journal: DataFrame) -> DataFrame:
    """Return per topic `now_ms` (newest time in records and journal) and `journal_from_ms`."""
    records = stats.groupBy("topic").agg(f.max("until_ms").alias("records_until_ms"))
    both = records.join(journal_spans(journal), "topic", "full")
    return both.selectExpr(
        "topic", "greatest(records_until_ms, journal_until_ms) AS now_ms", "journal_from_ms"
    )


def hole_entries(aged: DataFrame, messages: DataFrame, journal: DataFrame) -> DataFrame:
    """Return one row per entry in a hole, if its message exists.

    `consumer` is the last consumer that got the entry, without the connection's number. `cause` is
    "given", or why there is no consumer: "delayed" (not due yet), "waiting" (published since the
    journal began, but not dispatched) or "unknown" (published before the journal began, or there is
    no journal).
    """
    last_bucket = f"(least(end_entry_id, first_entry_id + {BUCKETS_MAX * BUCKET_ENTRIES}) - 1)"
    in_buckets = aged.selectExpr(
        "*",
        f"explode(sequence(first_entry_id DIV {BUCKET_ENTRIES}, "
        f"{last_bucket} DIV {BUCKET_ENTRIES})) AS bucket",
    )
    keyed = messages.selectExpr(
        *("topic", "ledger_id", "entry_id", "publish_time_ms", "deliver_at_ms"),
        "coalesce(lower(hex(ordering_key)), key) AS key",
        f"entry_id DIV {BUCKET_ENTRIES} AS bucket",
    )
    within = in_buckets.join(keyed, ["topic", "ledger_id", "bucket"]).where(
        "entry_id >= first_entry_id AND entry_id < end_entry_id"
    )
    given = within.join(
        _last_dispatches(journal), [*_SUBSCRIPTION, "ledger_id", "entry_id"], "left"
    )
    return given.selectExpr(
        *_HOLE,
        *("entry_id", "since_ms", "age_ms", "key", "redelivery_count", "dispatched_ms"),
        "regexp_replace(consumer, '#[0-9]+$', '') AS consumer",
        "CASE WHEN consumer IS NOT NULL THEN 'given' WHEN deliver_at_ms > now_ms THEN 'delayed' "
        "WHEN journal_from_ms <= publish_time_ms THEN 'waiting' ELSE 'unknown' END AS cause",
    )


def described_holes(aged: DataFrame, entries: DataFrame) -> DataFrame:
    """Return the holes with consumer, cause and key of the first entry found in each.

    `redeliveries_max` is the highest redelivery count of its entries.
    """
    firsts = entries.groupBy(*_HOLE).agg(
        *(f.min_by(name, "entry_id").alias(name) for name in ("consumer", "cause", "key")),
        f.max("redelivery_count").alias("redeliveries_max"),
    )
    return aged.drop("now_ms", "journal_from_ms").join(firsts, list(_HOLE), "left")


def hole_consumers(entries: DataFrame) -> DataFrame:
    """Return one row per consumer that left holes; where it is null, one per cause."""
    return _leavers(entries, "consumer", "cause")


def hole_keys(entries: DataFrame) -> DataFrame:
    """Return one row per key of the entries in holes; null stands for messages without a key."""
    return _leavers(entries, "key")


def most_holes(leavers: DataFrame, count: int) -> DataFrame:
    """Return the `count` rows of `hole_consumers` or `hole_keys` with the most holes, in that order.

    Leavers with as many holes and entries are ordered by name: Spark's own order of them depends on
    which task ends first.
    """
    order = (f.desc("holes"), f.desc("entries"), *_SUBSCRIPTION, *_who(leavers))
    return leavers.orderBy(*order).limit(count)


def top_leavers(leavers: DataFrame, chosen: DataFrame, count: int) -> DataFrame:
    """Keep, per chosen subscription, the `count` with most holes and the `count` with the oldest.

    Adds the ranks `by_holes` and `by_age`, and `leavers`, the number before the cut. Equal ones are
    ranked as in `most_holes`.
    """
    who = ", ".join(_who(leavers))
    of_chosen = leavers.join(chosen.select(*_SUBSCRIPTION), list(_SUBSCRIPTION), "left_semi")
    ranked = of_chosen.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY topic, subscription "
        f"ORDER BY holes DESC, entries DESC, oldest_since_ms, {who}) AS by_holes",
        "row_number() OVER (PARTITION BY topic, subscription "
        f"ORDER BY oldest_since_ms ASC NULLS LAST, holes DESC, {who}) AS by_age",
        "count(*) OVER (PARTITION BY topic, subscription) AS leavers",
    )
    return ranked.where(f"by_holes <= {count} OR by_age <= {count}")


def oldest_holes(described: DataFrame, chosen: DataFrame, count: int) -> DataFrame:
    """Keep the `count` oldest holes of each chosen subscription."""
    of_chosen = described.join(chosen.select(*_SUBSCRIPTION), list(_SUBSCRIPTION), "left_semi")
    numbered = of_chosen.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY topic, subscription "
        "ORDER BY since_ms ASC NULLS LAST, ledger_id, first_entry_id) AS nth",
    )
    return numbered.where(f"nth <= {count}").drop("nth")


def _who(leavers: DataFrame) -> list[str]:
    """Return the columns that tell apart the leavers of one subscription."""
    return [name for name in ("consumer", "cause", "key") if name in leavers.columns]


def _since_by_journal(holes: DataFrame, journal: DataFrame) -> DataFrame:
    """Return for each hole the journal's first ack, in ms, of a later entry in the same ledger."""
    acked_ms = (
        "min(acked_ms) OVER (PARTITION BY topic, subscription, ledger_id ORDER BY place DESC "
        "ROWS UNBOUNDED PRECEDING) AS journal_since_ms"
    )
    acks = _acks(journal).join(holes.select(*_HOLE[:-1]).distinct(), list(_HOLE[:-1]), "left_semi")
    both = holes.selectExpr(
        *_HOLE, "first_entry_id AS place", "CAST(NULL AS bigint) AS acked_ms"
    ).unionByName(acks, allowMissingColumns=True)
    found = both.selectExpr(*_HOLE, acked_ms)
    return found.where("first_entry_id IS NOT NULL AND journal_since_ms IS NOT NULL")


def _acks(journal: DataFrame) -> DataFrame:
    """Return the individual acks of whole entries since the last seek or creation."""
    order = "struct(owner_epoch, sequence)"
    rewinds = (
        journal.where("event = 'subscribed' OR (event = 'reset' AND reason = 'seek')")
        .groupBy(*_SUBSCRIPTION)
        .agg(f.expr(f"max({order}) AS rewound"))
    )
    acks = journal.where("event = 'acked' AND is_one_whole")
    kept = acks.join(rewinds, list(_SUBSCRIPTION), "left").where(
        f"rewound IS NULL OR {order} > rewound"
    )
    return kept.selectExpr(*_HOLE[:-1], "entry_id AS place", "time_us DIV 1000 AS acked_ms")


def _last_dispatches(journal: DataFrame) -> DataFrame:
    """Return one row per dispatched entry and subscription, with its last dispatch."""
    last = "max(struct(owner_epoch, sequence, time_us, consumer, redelivery_count)) AS last"
    dispatched = journal.where("event = 'dispatched'")
    by_entry = dispatched.groupBy(*_SUBSCRIPTION, "ledger_id", "entry_id").agg(f.expr(last))
    return by_entry.selectExpr(
        *(*_SUBSCRIPTION, "ledger_id", "entry_id", "last.consumer", "last.redelivery_count"),
        "last.time_us DIV 1000 AS dispatched_ms",
    )


def _leavers(entries: DataFrame, *who: str) -> DataFrame:
    """Aggregate holes by the columns `who`. A hole counts once for each value found in it."""
    by_hole = entries.groupBy(*who, *_HOLE).agg(
        f.count("*").alias("entries"),
        f.min("since_ms").alias("since_ms"),
        f.max("age_ms").alias("age_ms"),
        f.max("redelivery_count").alias("redelivery_count"),
        f.max("dispatched_ms").alias("dispatched_ms"),
    )
    return by_hole.groupBy(*_SUBSCRIPTION, *who).agg(
        f.count("*").alias("holes"),
        f.sum("entries").alias("entries"),
        f.min("since_ms").alias("oldest_since_ms"),
        f.max("age_ms").alias("oldest_age_ms"),
        f.avg("age_ms").cast("bigint").alias("mean_age_ms"),
        f.max("redelivery_count").alias("redeliveries_max"),
        f.max("dispatched_ms").alias("last_dispatched_ms"),
    )
