"""Limits, writes and gates from the delivery journal: functions from DataFrames to DataFrames.

Edge to Spark. Events are ordered by their owner's epoch and their sequence number in it. Times are
by the brokers' clocks. A parameter `journal` is the result of `journal_events`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.ack_stats.limits import LIMIT_KEY

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame

JOURNAL_COLUMNS: Final = (
    *("topic", "journal_ledger_id", "owner_epoch", "sequence", "time_us", "event"),
    *("subscription", "consumer", "version"),
    *("ledger_id", "entry_id", "unacked_indexes", "is_cumulative", "redelivery_count", "reason"),
    "detail",
)
"""The columns that the job reads of table `delivery_journal`."""

STEPS_MAX: Final = 256
"""Most events per topic from which a limit is read; the newest are kept."""

_OUTCOME: Final = (
    "mark_delete array<bigint>, where string, ranges_in_memory bigint, ranges_persisted bigint, "
    "entries_dropped bigint, batch_indexes_persisted bigint, bytes_written bigint, at_ms bigint, "
    "written_ms bigint, cursor_ledger_id bigint"
)
"""Spark schema of the fields of `PersistOutcome` that are read from a persisted event's detail."""


def journal_events(delivery_journal: DataFrame, subscription: str | None = None) -> DataFrame:
    """Return events with the columns of this job. `limit` and `outcome` replace `detail`.

    With `subscription`, only its events and those that belong to no subscription.
    """
    if subscription is not None:
        is_of_it = f.col("subscription") == subscription
        delivery_journal = delivery_journal.where(is_of_it | f.col("subscription").isNull())
    return delivery_journal.selectExpr(
        *("topic", "journal_ledger_id", "owner_epoch", "sequence", "time_us", "event"),
        *(
            "subscription",
            "reason",
            "version",
            "consumer",
            "ledger_id",
            "entry_id",
            "redelivery_count",
        ),
        "unacked_indexes IS NULL AND NOT coalesce(is_cumulative, false) AS is_one_whole",
        "CASE WHEN event IN ('opened', 'configured') THEN "
        f"CAST(get_json_object(detail, '$.settings.{LIMIT_KEY}') AS bigint) END AS limit",
        "CASE WHEN event = 'persisted' THEN detail END AS outcome",
    )


def journal_spans(journal: DataFrame) -> DataFrame:
    """Return the times, in ms, of the first and last event of each topic with a journal."""
    return journal.groupBy("topic").agg(
        f.expr("min(time_us) DIV 1000 AS journal_from_ms"),
        f.expr("max(time_us) DIV 1000 AS journal_until_ms"),
    )


def limit_steps(journal: DataFrame) -> DataFrame:
    """Return per topic `limit_steps`: its range limits with their start times, in order."""
    limits = journal.where("limit IS NOT NULL").selectExpr(
        "topic",
        "owner_epoch",
        "sequence",
        "time_us DIV 1000 AS from_ms",
        "limit",
    )
    numbered = limits.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY topic ORDER BY owner_epoch DESC, sequence DESC) AS nth",
    )
    collected = (
        numbered.where(f"nth <= {STEPS_MAX}")
        .groupBy("topic")
        .agg(f.expr("sort_array(collect_list(struct(-nth, from_ms, limit))) AS steps"))
    )
    return collected.selectExpr(
        "topic",
        "transform(steps, s -> named_struct('from_ms', s.from_ms, 'limit', s.limit)) AS limit_steps",
    )


def journal_writes(journal: DataFrame) -> DataFrame:
    """Return one row per durable write of a cursor, as in `cursor_records` but without the acks.

    If a subscription was deleted and created again, only the writes after that are returned.
    """
    lives = journal.where("event IN ('subscribed', 'unsubscribed')").groupBy(
        "topic", "subscription"
    )
    begun = lives.agg(f.expr("max(struct(owner_epoch, sequence)) AS begun"))
    written = journal.where("event = 'persisted'").selectExpr(
        *("topic", "subscription", "owner_epoch", "sequence", "version"),
        f"from_json(outcome, '{_OUTCOME}') AS written",
    )
    return (
        written.where("written.mark_delete[1] IS NOT NULL")
        .join(begun, ["topic", "subscription"], "left")
        .where("begun IS NULL OR struct(owner_epoch, sequence) > begun")
        .selectExpr(
            *("topic", "subscription", "owner_epoch", "version"),
            "if(written.where = 'ledger', 'ledger', 'node') AS place",
            "if(written.where = 'ledger', coalesce(written.cursor_ledger_id, 0), NULL) "
            "AS cursor_ledger_id",
            "sequence AS entry_id",
            "if(written.written_ms > 0, written.written_ms, written.at_ms) AS written_ms",
            "written.mark_delete[0] AS mark_delete_ledger_id",
            "written.mark_delete[1] AS mark_delete_entry_id",
            "written.ranges_persisted AS range_count",
            "written.ranges_in_memory",
            "written.entries_dropped",
            "written.batch_indexes_persisted AS partly_acked_count",
            "written.bytes_written AS record_bytes",
            "true AS is_from_journal",
        )
    )


def gate_intervals(journal: DataFrame, stats: DataFrame) -> DataFrame:
    """Return one row per time a gate was shut: the fields of `GateInterval`, and `is_guessed`.

    They come from the topic's journal if it has one, else they are guessed from the records.
    """
    guessed = stats.join(journal_spans(journal), "topic", "left_anti").selectExpr(
        "topic", "subscription", "inline(over_limit)"
    )
    guesses = guessed.selectExpr("*", "CAST(NULL AS string) AS reasons", "true AS is_guessed")
    return _journal_intervals(journal).selectExpr("*", "false AS is_guessed").unionByName(guesses)


def _journal_intervals(journal: DataFrame) -> DataFrame:
    """Return one row per gate_shut event, up to the gate's next event under the same owner.

    Without a next event the interval is open-ended, up to the owner's last event.
    """
    ends = journal.groupBy("topic", "owner_epoch").agg(f.expr("max(time_us) DIV 1000 AS last_ms"))
    events = journal.where("event IN ('gate_shut', 'gate_opened')").selectExpr(
        *("topic", "owner_epoch", "subscription", "event", "reason"),
        "time_us DIV 1000 AS from_ms",
        "lead(time_us DIV 1000) OVER (PARTITION BY topic, owner_epoch, subscription "
        "ORDER BY sequence) AS next_ms",
    )
    shut = events.where("event = 'gate_shut'").join(ends, ["topic", "owner_epoch"])
    return shut.selectExpr(
        "topic",
        "subscription",
        "from_ms",
        "coalesce(next_ms, last_ms) AS until_ms",
        "next_ms IS NULL AS is_open_ended",
        "reason AS reasons",
    )


def newest_intervals(intervals: DataFrame, chosen: DataFrame, count: int) -> DataFrame:
    """Keep the `count` newest intervals of each chosen subscription.

    Adds `intervals` and `total_ms`: the number and total length of all its intervals.
    """
    of_chosen = intervals.join(
        chosen.select("topic", "subscription"), ["topic", "subscription"], "left_semi"
    )
    numbered = of_chosen.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY topic, subscription "
        "ORDER BY from_ms DESC, until_ms DESC, reasons) AS nth",
        "count(*) OVER (PARTITION BY topic, subscription) AS intervals",
        "sum(until_ms - from_ms) OVER (PARTITION BY topic, subscription) AS total_ms",
    )
    return numbered.where(f"nth <= {count}").drop("nth")
