"""What the delivery journal says of limits and gates: functions from DataFrames to DataFrames.

Edge to Spark. Events are in order by their owner's epoch and their number in it; times are the
brokers' clocks. What is called `journal` is what `journal_events` makes of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.pipeline.jobs.ack_stats.limits import LIMIT_KEY

if TYPE_CHECKING:
    from ackgate.pipeline.job import DataFrame

JOURNAL_COLUMNS: Final = (
    *("topic", "owner_epoch", "sequence", "time_us", "event", "subscription", "consumer"),
    *("ledger_id", "entry_id", "unacked_indexes", "is_cumulative", "redelivery_count", "reason"),
    "detail",
)
"""Of table `delivery_journal`."""

STEPS_MAX: Final = 256
"""Changes of the limit of a topic that are looked at: the newest."""


def journal_events(delivery_journal: DataFrame, subscription: str | None = None) -> DataFrame:
    """What this job wants of each event, small enough to be kept: `limit` in place of the details.

    With `subscription` only its events, and those that are about none.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    if subscription is not None:
        is_of_it = f.col("subscription") == subscription
        delivery_journal = delivery_journal.where(is_of_it | f.col("subscription").isNull())
    return delivery_journal.selectExpr(
        *("topic", "owner_epoch", "sequence", "time_us", "event", "subscription", "reason"),
        *("consumer", "ledger_id", "entry_id", "redelivery_count"),
        "unacked_indexes IS NULL AND NOT coalesce(is_cumulative, false) AS is_one_whole",
        "CASE WHEN event IN ('opened', 'configured') THEN "
        f"CAST(get_json_object(detail, '$.settings.{LIMIT_KEY}') AS bigint) END AS limit",
    )


def journal_spans(journal: DataFrame) -> DataFrame:
    """One row for each topic that has a journal: from when to when."""
    return journal.groupBy("topic").agg(
        *_expressions(
            "min(time_us) DIV 1000 AS journal_from_ms", "max(time_us) DIV 1000 AS journal_until_ms"
        )
    )


def limit_steps(journal: DataFrame) -> DataFrame:
    """One row for each topic: the limits of ranges that held, and from when on, by time."""
    told = journal.where("limit IS NOT NULL").selectExpr(
        "topic",
        "owner_epoch",
        "sequence",
        "time_us DIV 1000 AS from_ms",
        "limit",
    )
    numbered = told.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY topic ORDER BY owner_epoch DESC, sequence DESC) AS nth",
    )
    collected = (
        numbered.where(f"nth <= {STEPS_MAX}")
        .groupBy("topic")
        .agg(*_expressions("sort_array(collect_list(struct(-nth, from_ms, limit))) AS steps"))
    )
    return collected.selectExpr(
        "topic",
        "transform(steps, s -> named_struct('from_ms', s.from_ms, 'limit', s.limit)) AS limit_steps",
    )


def gate_intervals(journal: DataFrame, stats: DataFrame) -> DataFrame:
    """One row for each time that a gate was shut, columns as `GateInterval` and `is_guessed`.

    Out of the journal where the topic has one, else guessed from the records.
    """
    guessed = stats.join(journal_spans(journal), "topic", "left_anti").selectExpr(
        "topic", "subscription", "inline(over_limit)"
    )
    guesses = guessed.selectExpr("*", "CAST(NULL AS string) AS reasons", "true AS is_guessed")
    return _journal_intervals(journal).selectExpr("*", "false AS is_guessed").unionByName(guesses)


def _journal_intervals(journal: DataFrame) -> DataFrame:
    """A gate that shuts stays so until its next event under the same owner.

    What is still shut at the owner's last event is open-ended.
    """
    ends = journal.groupBy("topic", "owner_epoch").agg(
        *_expressions("max(time_us) DIV 1000 AS last_ms")
    )
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
    """At most so many of each subscription that is `chosen` (topic and subscription).

    With `intervals` and `total_ms`, the number and length of all of that subscription.
    """
    of_chosen = intervals.join(
        chosen.select("topic", "subscription"), ["topic", "subscription"], "left_semi"
    )
    numbered = of_chosen.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY topic, subscription ORDER BY from_ms DESC) AS nth",
        "count(*) OVER (PARTITION BY topic, subscription) AS intervals",
        "sum(until_ms - from_ms) OVER (PARTITION BY topic, subscription) AS total_ms",
    )
    return numbered.where(f"nth <= {count}").drop("nth")


def _expressions(*texts: str) -> list[object]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    return [f.expr(text) for text in texts]
