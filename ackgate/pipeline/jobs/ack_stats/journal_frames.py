"""What the delivery journal says of limits and gates: functions from DataFrames to DataFrames.

Edge to Spark. Events are in order by their owner's epoch and their number in it; times are the
brokers' clocks.
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


def journal_spans(journal: DataFrame) -> DataFrame:
    """One row for each topic that has a journal: from when to when."""
    return journal.groupBy("topic").agg(
        *_expressions(
            "min(time_us) DIV 1000 AS journal_from_ms", "max(time_us) DIV 1000 AS journal_until_ms"
        )
    )


def limit_steps(journal: DataFrame) -> DataFrame:
    """One row for each topic: the limits of ranges that held, and from when on, by time."""
    told = journal.where("event IN ('opened', 'configured')").selectExpr(
        "topic",
        "owner_epoch",
        "sequence",
        "time_us DIV 1000 AS from_ms",
        f"CAST(get_json_object(detail, '$.settings.{LIMIT_KEY}') AS bigint) AS limit",
    )
    numbered = told.where("limit IS NOT NULL").selectExpr(
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
