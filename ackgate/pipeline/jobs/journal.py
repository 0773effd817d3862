"""The table ``delivery_journal`` as jobs read it: each event once, in its order, and what details say.

Pure: expressions only. The order of events is that of `at`: the owner's epoch, then the number of
the event in it; clocks are for latencies only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame

Expression: TypeAlias = Any
"""Spark's, which has no types here."""

JOURNAL_COLUMNS: Final = (
    "topic",
    "journal_ledger_id",
    "owner_epoch",
    "sequence",
    "time_us",
    "event",
    "subscription",
    "consumer",
    "ledger_id",
    "entry_id",
    "unacked_indexes",
    "is_cumulative",
    "reason",
    "version",
    "key",
    "deliver_at_ms",
    "detail",
    "state",
)
"""The columns that the audit reads."""

SUBSCRIPTION: Final = ("topic", "subscription")
ENTRY: Final = (*SUBSCRIPTION, "ledger_id", "entry_id")
BY_ENTRY: Final = ("entry_id", "ledger_id", "subscription", "topic")
"""`ENTRY` as keys of windows, groups and joins. Spark sorts by the first eight bytes of the first key,
as far as these differ: those of topics are all the same."""

_VERSIONS_IN_BLOCK: Final = 65_536

NO: Final = False
YES: Final = True
"""For `coalesce`, where there is nothing to compare."""


def once(journal: DataFrame) -> DataFrame:
    """Each event once: a block whose writing failed may stand in the next ledger of the journal, too.

    Looks at the journal, which should be cached: as a rule there is no such block.
    """
    by = ("topic", "owner_epoch")
    before = (
        Window.partitionBy(*by)
        .orderBy("journal_ledger_id")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    again = (
        journal.groupBy(*by, "journal_ledger_id")
        .agg(f.min("sequence").alias("first"), f.max("sequence").alias("last"))
        .withColumn("known_up_to", f.max("last").over(before))
        .where("first <= known_up_to")
        .select(*by, "journal_ledger_id", "known_up_to")
    )
    if again.isEmpty():
        return journal
    is_known = f.col("sequence") <= f.col("known_up_to")
    return (
        journal.join(f.broadcast(again), [*by, "journal_ledger_id"], "left")
        .where(~f.coalesce(is_known, f.lit(NO)))
        .drop("known_up_to")
    )


def at() -> Expression:
    """When, as an order: later events are greater."""
    return f.struct("owner_epoch", "sequence", "time_us")


def position(ledger_id: str = "ledger_id", entry_id: str = "entry_id") -> Expression:
    """A position, ordered as positions are."""
    return f.struct(f.col(ledger_id).alias("ledger_id"), f.col(entry_id).alias("entry_id"))


def mark_delete() -> Expression:
    """Of subscribed and reset: everything up to it counts as acked."""

    def part(column: str, index: int) -> Expression:
        values = [
            f.get_json_object("detail", f"$.{name}[{index}]").cast("bigint")
            for name in ("position", "mark_delete")
        ]
        return f.coalesce(f.col(column), *values).alias(column)

    return f.struct(part("ledger_id", 0), part("entry_id", 1))


def detail_numbers(*names: str) -> list[Expression]:
    """Numbers out of the detail; 0 where it has none."""
    paths = [f.get_json_object("detail", f"$.{name}").cast("bigint") for name in names]
    return [f.coalesce(path, f.lit(0)) for path in paths]


def is_rewound(since: Expression, until: Expression) -> Expression:
    """Whether one of `rewinds` in between has put the subscription before the position."""
    return f.exists(
        "rewinds",
        lambda each: (
            (each["at"] > since)
            & (each["at"] < until)
            & f.coalesce(each["behind"] < position(), f.lit(YES))
        ),
    )


def is_any_between(epochs: Expression, since: Expression, until: Expression) -> Expression:
    """Whether one of these epochs (a column) began after `since`, and `until` or before. Null: no."""
    return f.coalesce(f.exists(epochs, lambda epoch: (epoch > since) & (epoch <= until)), f.lit(NO))


def version_block() -> Expression:
    """Versions by thousands: a window each."""
    return f.floor(f.col("version") / _VERSIONS_IN_BLOCK)


def events_of(journal: DataFrame, *kinds: str) -> DataFrame:
    """The events of these kinds, with `at`."""
    return journal.where(f.col("event").isin(*kinds)).withColumn("at", at())


def cumulative_marks(journal: DataFrame) -> DataFrame:
    """Cumulative acks, as the last position that each acks whole; with the columns of the event."""
    acks = events_of(journal, "acked").where("is_cumulative")
    is_partial = f.col("unacked_indexes").isNotNull()
    return acks.withColumn("entry_id", f.col("entry_id") - f.when(is_partial, 1).otherwise(0))
