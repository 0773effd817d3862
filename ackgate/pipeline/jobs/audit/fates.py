"""The fate of each published entry at each subscription that must receive it.

    acked         sent, and acked after it
    sent          sent, and not acked when the journal ends
    backlog       not read yet
    gated         not read yet, and the gate is shut
    delayed       not due yet, or due only just before the subscription's last dispatch
    held          read, and held while others are in flight (Shared, Key_Shared), or for the
                  consumer of its key (Key_Shared)
    set_aside     skipped, cleared, expired, sought over or cancelled, or its subscription is gone
    lost_acked    acked, but never sent: no consumer has seen it
    lost_skipped  not sent although later entries were, and nothing holds it
    unknown       as lost_*, but its delivery may be among the missing events

Events are missing if the journal says that some were dropped, and at the end of an epoch whose
broker was killed. In that time, a broker may have sent entries that a recovered state has as acked,
that a consumer of a later owner acks, or that wait after a negative ack. Whether an entry published
in that time is delayed is unknown.

An entry is out of order if a later entry of the same key was sent to the subscription before it.
Only first deliveries count, since redeliveries are late by nature. Order is not promised to Shared
subscriptions, to Key_Shared ones that allow disorder or for entries without a key, for delayed
entries, and across a seek. The audit does not judge the order where a seek or a first delivery may
be missing.

Pure: DataFrame to DataFrame. Windows and aggregations are by entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.cover import with_cover
from ackgate.pipeline.jobs.audit.subscriptions import with_moves
from ackgate.pipeline.jobs.journal import (
    BY_ENTRY,
    ENTRY,
    NO,
    SUBSCRIPTION,
    YES,
    Expression,
    cumulative_marks,
    events_of,
    is_any_between,
    mark_delete,
    position,
)

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame


LOST: Final = ("lost_acked", "lost_skipped")
OUTSTANDING: Final = ("sent", "backlog", "gated", "delayed", "held")
HELD_OR_LOST: Final = "held_or_lost"
FATES: Final = ("acked", *OUTSTANDING, "set_aside", *LOST, "unknown")

FATES_COLUMNS: Final = (
    *ENTRY,
    "key",
    "type",
    "published_at",
    "is_untold",
    "times_sent",
    "first_sent_at",
    "first_consumer",
    "acked_at",
    "fate",
    "is_out_of_order",
)
GRACE_US: Final = 10_000_000
"""An entry due less than this (in us) before the last dispatch counts as delayed, not lost."""


def unsettled_fates(
    journal: DataFrame,
    of_timelines: DataFrame,
    of_lives: DataFrame,
    of_states: DataFrame,
    of_topics: DataFrame,
    *,
    grace_us: int = GRACE_US,
) -> DataFrame:
    """Return FATES_COLUMNS and `is_skipped`, one row per entry and subscription that must get it.

    A fate may still be HELD_OR_LOST. `settled` needs all rows to decide, so cache the result.
    """
    buckets = of_timelines.select(*SUBSCRIPTION, "ledger_id").distinct()
    marked = with_cover(
        _entries(of_timelines),
        _marks(journal, of_lives, of_states),
        buckets,
        keys=SUBSCRIPTION,
        bucket="ledger_id",
        place="entry_id",
        names=["cumulative", "reset"],
        nearest=["range"],
    )
    of_subscription = of_lives.select(
        *SUBSCRIPTION,
        "type",
        "is_unordered",
        "ended_at",
        "is_gate_shut",
        "begins_at",
        "recovered",
        "ack_untold_epochs",
        "holding_epochs",
        "read_up_to",
        "rewound_at",
        "sent_until_us",
        "rewinds",
    )
    joined = (
        marked.join(f.broadcast(of_subscription), list(SUBSCRIPTION))
        .join(
            f.broadcast(
                of_topics.select(
                    *("topic", "last_epoch", "last_epoch_us", "ends_us", "events_dropped"),
                    "is_delayed_on",
                )
            ),
            "topic",
        )
        .withColumn("acked_at", f.least("own_first_at", "first_cumulative"))
        .withColumn("last_acked_at", f.greatest("own_last_at", "last_cumulative"))
    )
    ended = joined.withColumn("fate", _fate(grace_us))
    return (
        with_order(ended, of_timelines, of_lives)
        .withColumn("is_skipped", _is_skipped())
        .select(*FATES_COLUMNS, "is_skipped")
    )


def settled(unsettled: DataFrame) -> DataFrame:
    """Return FATES_COLUMNS, with HELD_OR_LOST of `unsettled_fates` replaced by the final fate.

    In a Shared or Key_Shared subscription, entries are held while any entry is in flight. Otherwise
    the fate is that of `is_skipped`.
    """
    in_flight = unsettled.where(f.col("fate") == "sent").select(*SUBSCRIPTION).distinct()
    may_hold = f.coalesce(f.col("type").isin("Shared", "Key_Shared"), f.lit(YES))
    is_held = may_hold & f.coalesce("is_in_flight", f.lit(NO))
    fate = f.when(
        f.col("fate") == HELD_OR_LOST,
        f.when(is_held, "held").otherwise(f.col("is_skipped")),
    ).otherwise(f.col("fate"))
    return (
        unsettled.join(
            f.broadcast(in_flight.withColumn("is_in_flight", f.lit(YES))),
            list(SUBSCRIPTION),
            "left",
        )
        .withColumn("fate", fate)
        .select(*FATES_COLUMNS)
    )


def _entries(of_timelines: DataFrame) -> DataFrame:
    """Return one row per entry and subscription: when it was sent and individually acked."""
    is_first = f.col("nth") == 1
    return (
        of_timelines.where(f.col("published").isNotNull())
        .groupBy(*BY_ENTRY)
        .agg(
            f.max("published").alias("published"),
            f.max("nth").alias("times_sent"),
            f.max(f.when(is_first, f.col("at"))).alias("first_sent_at"),
            f.max(f.when(is_first, f.col("consumer"))).alias("first_consumer"),
            f.max("at").alias("last_sent_at"),
            f.min("first_ack.at").alias("own_first_at"),
            f.max("last_ack_at").alias("own_last_at"),
            f.max("is_cancelled").alias("is_cancelled"),
        )
        .select(
            "*",
            f.col("published.at").alias("published_at"),
            "published.key",
            "published.deliver_at_ms",
            "published.is_untold",
        )
        .drop("published")
    )


def _marks(journal: DataFrame, of_lives: DataFrame, of_states: DataFrame) -> DataFrame:
    """Return marks for `with_cover`: cumulative acks, resets and the last recovered ack ranges."""
    place = (*SUBSCRIPTION, "ledger_id", "entry_id")
    acked = cumulative_marks(journal).select(*place, f.col("at").alias("cumulative"))
    resets = events_of(journal, "reset").withColumn("mark_delete", mark_delete())
    moved = resets.select(*SUBSCRIPTION, "mark_delete.*", f.col("at").alias("reset"))
    recovered = of_lives.select(*SUBSCRIPTION, f.col("recovered.at").alias("at"))
    ranges = (
        of_states.where("from_entry_id is not null")
        .join(f.broadcast(recovered), [*SUBSCRIPTION, "at"])
        .select(*place, f.col("from_entry_id").alias("range"))
    )
    return acked.unionByName(moved, allowMissingColumns=True).unionByName(
        ranges, allowMissingColumns=True
    )


def _is_sent() -> Expression:
    return f.col("times_sent") > 0


def _is_in_state() -> Expression:
    """Whether the last recovered state has the entry as acked, with no rewind since."""
    upto = f.coalesce(position() <= f.col("recovered.mark_delete"), f.lit(NO))
    in_range = f.coalesce(f.col("nearest_range") <= f.col("entry_id"), f.lit(NO))
    is_undone = f.exists("rewinds", lambda each: each["at"] > f.col("recovered.at"))
    was_there = f.col("published_at.owner_epoch") <= f.col("recovered.at.owner_epoch")
    return f.coalesce((upto | in_range) & was_there & ~is_undone, f.lit(NO))


def _is_acked() -> Expression:
    """Whether it was acked after its last dispatch, by an event or by a later recovered state."""
    is_later = f.coalesce(f.col("last_acked_at") > f.col("last_sent_at"), f.lit(NO))
    is_recovered = _is_in_state() & (
        f.col("last_sent_at.owner_epoch") < f.col("recovered.at.owner_epoch")
    )
    return is_later | f.coalesce(is_recovered, f.lit(NO))


def _fate(grace_us: int) -> Expression:
    # Only a reset after the publish and the last dispatch sets the entry aside.
    set_aside = f.coalesce("is_cancelled", f.lit(NO)) | f.coalesce(
        f.col("last_reset") > f.greatest("published_at", "last_sent_at"), f.lit(NO)
    )
    is_read = f.coalesce(f.col("read_up_to") > position(), f.lit(NO))
    # Due entries are sent before others, once the owner has found them: later dispatches show a loss.
    due_us = f.greatest(f.col("deliver_at_ms") * 1_000, "last_epoch_us")
    was_sent_since = f.coalesce(due_us + grace_us <= f.col("sent_until_us"), f.lit(NO))
    is_early = f.col("deliver_at_ms").isNotNull() & ~was_sent_since
    published_in = f.col("published_at.owner_epoch")
    # If publish and ack have the same owner, the delivery is in the journal too, if there was one.
    begins_at = f.col("begins_at")
    is_of_one_owner = f.col("acked_at.owner_epoch") == published_in
    is_of_one_life = is_of_one_owner & (f.col("acked_at") >= begins_at)
    is_known = (f.col("events_dropped") == 0) & ~f.col("is_untold")
    recovered_at = f.col("recovered.at")
    is_ack_untold = is_any_between("ack_untold_epochs", published_in, recovered_at["owner_epoch"])
    is_acked_by_nobody = (
        is_known & ~is_ack_untold & ~f.coalesce(f.col("acked_at") < recovered_at, f.lit(NO))
    )
    return (
        f.when(_is_sent() & _is_acked(), "acked")
        .when(set_aside | f.col("ended_at").isNotNull(), "set_aside")
        .when(_is_sent(), "sent")
        .when(_is_in_state() & is_acked_by_nobody, "lost_acked")
        .when(f.col("last_acked_at") >= begins_at, _lost("lost_acked", is_known & is_of_one_life))
        .when(_is_in_state(), "unknown")
        .when(is_early, "delayed")
        .when(~is_read & f.col("is_gate_shut"), "gated")
        .when(~is_read, "backlog")
        .otherwise(HELD_OR_LOST)
    )


def _is_skipped() -> Expression:
    """Fate of an entry that was read but not sent, while nothing is in flight.

    "lost_skipped" or, if its delivery may be missing in the journal, "unknown". Key_Shared: "held"
    if no later entry of its key was sent, since its consumer may take no more.
    """
    published_in = f.col("published_at.owner_epoch")
    is_of_key = f.col("type") == "Key_Shared"
    # A later entry of its key was first sent by the last owner, since the last rewind.
    is_overtaken = (f.col("last_sent.owner_epoch") == f.col("last_epoch")) & (
        f.col("rewound_at").isNull() | (f.col("last_sent") > f.col("rewound_at"))
    )
    may_be_delayed = (
        f.col("is_untold") & f.col("is_delayed_on") & f.col("type").isin("Shared", "Key_Shared")
    )
    may_wait = may_be_delayed | is_any_between("holding_epochs", published_in, f.col("last_epoch"))
    is_sure = (f.col("events_dropped") == 0) & ~f.coalesce(may_wait, f.lit(YES))
    is_held = is_of_key & ~f.coalesce(is_overtaken, f.lit(NO))
    return f.when(is_sure & f.coalesce(is_held, f.lit(NO)), "held").otherwise(
        _lost("lost_skipped", is_sure)
    )


def _lost(name: str, is_sure: Expression) -> Expression:
    return f.when(is_sure, name).otherwise("unknown")


def with_order(of_fates: DataFrame, of_timelines: DataFrame, of_lives: DataFrame) -> DataFrame:
    """Add ``is_out_of_order``: a later entry of the same key was first sent before the entry.

    Also adds ``last_sent``: the latest first dispatch of an entry of the same key from this one on.
    Besides an entry's fate, the rows must have `is_unordered`, `deliver_at_ms`, `rewinds` and
    `holding_epochs`.
    """
    keys = (*SUBSCRIPTION, "order_key")
    rows = of_fates.withColumn("order_key", f.coalesce("key", f.lit("")))
    first = of_timelines.where((f.col("nth") == 1) & f.col("published").isNotNull())
    marks = (
        first.join(
            f.broadcast(of_lives.select(*SUBSCRIPTION, "type", "is_unordered")), list(SUBSCRIPTION)
        )
        .select(*ENTRY, "type", "is_unordered", "published.*", f.col("at").alias("sent"))
        .where(_is_ordered())
        .withColumn("order_key", f.coalesce("key", f.lit("")))
    )
    covered = with_cover(
        rows, marks, marks, keys=keys, bucket="ledger_id", place="entry_id", names=["sent"]
    )
    is_sought = f.exists(
        "rewinds",
        lambda each: (each["at"] > f.col("first_sent")) & (each["at"] < f.col("first_sent_at")),
    )
    is_late = _is_ordered() & (f.col("first_sent") < f.col("first_sent_at")) & ~is_sought
    seen = covered.withColumn("is_late", f.coalesce(is_late, f.lit(NO)))
    return (
        with_moves(seen, of_lives, f.col("is_late"))
        .withColumn("is_out_of_order", f.col("is_late") & f.coalesce(_is_sure(), f.lit(NO)))
        .drop("is_late", "moves")
    )


def _is_sure() -> Expression:
    """Whether the journal cannot lack an earlier delivery, or an event that set the entry aside.

    The journal is complete from the entry's publish until its last event of that owner. A later
    owner begins with the unacked entries and reads them in order, except those waiting after a
    negative ack.
    """
    published_in, overtaken_in = (
        f.col(f"{at}.owner_epoch") for at in ("published_at", "first_sent")
    )
    is_moved = f.exists(
        "moves", lambda at: (at > f.col("published_at")) & (at < f.col("first_sent"))
    )
    may_have_waited = is_any_between("holding_epochs", published_in, overtaken_in)
    return (
        f.when(overtaken_in == f.col("first_sent_at.owner_epoch"), ~may_have_waited)
        .when(overtaken_in == published_in, ~is_moved)
        .otherwise(f.lit(NO))
    )


def _is_ordered() -> Expression:
    """Whether the subscription promises to deliver the entry in order."""
    is_of_key = (f.col("type") == "Key_Shared") & f.col("key").isNotNull()
    return (
        (f.col("type").isin("Exclusive", "Failover") | is_of_key)
        & ~f.col("is_unordered")
        & f.col("deliver_at_ms").isNull()
        & ~f.col("is_untold")
    )
