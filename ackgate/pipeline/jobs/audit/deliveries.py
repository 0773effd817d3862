"""Each delivery of an entry to a subscription: its number, and the cause of a redelivery.

    dispatched  nacked  dispatched  acked  persisted | dispatched        (| another owner)
    1           asked   2, nack_or_timeout           | 3, a breach: the ack was durable

The cause is what happened between a delivery and the one before it; the first that applies counts:

    reset             the subscription was moved back before the entry, or created again
    ack_lost          another owner; a complete durable record covered the ack: a breach
    unrecorded        as ack_lost, but the journal lacks events, and a seek may be among them
    restart           another owner; no earlier owner had an ack of the entry
    ack_not_persisted another owner; acked, but no durable record covered the ack
    outcome_dropped   another owner; a record that a limit had cut covered the ack
    consumer_closed   its consumer went away
    nack_or_timeout   redelivery requested; negative acks and ack timeouts are one command on the wire
    unexplained       none of these: a breach, unless journal events were dropped

Acked messages of a batch must not be redelivered with the others. Any delivery, the first included,
may also have a `finding`:

    sent_though_acked this owner's cursor had the entry, or some sent messages of it, as acked
    too_early         sent before its delivery time, by more than the tracker's tick
    key_split         Key_Shared: another consumer still held entries of the same key

Pure: DataFrame to DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
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
    is_any_between,
    is_rewound,
)

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.job import DataFrame


def with_key_split(rows: DataFrame, of_lives: DataFrame) -> DataFrame:
    """Return deliveries with `is_key_split`: another consumer still held entries of the same key.

    Compares deliveries of one owner only. False if the consumers allow it (`is_unordered`). Entries
    that a move (such as a seek) has set aside since do not count as held.
    """
    is_promised = (f.col("type") == "Key_Shared") & ~f.col("is_unordered")
    is_keyed = is_promised & f.col("published.key").isNotNull()
    keyed, others = rows.where(is_keyed), rows.where(~f.coalesce(is_keyed, f.lit(NO)))
    in_order = Window.partitionBy(*SUBSCRIPTION, "published.key", "at.owner_epoch").orderBy("at")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    # A delivery that never ended holds its key to the end of the epoch.
    never = f.struct(
        f.col("at.owner_epoch").alias("owner_epoch"),
        f.lit(2**63 - 1).alias("sequence"),
        f.lit(2**63 - 1).alias("time_us"),
    )
    held_until = f.least("ended_at", never)
    has_moved = f.col("consumer") != f.lag("consumer").over(in_order)
    is_split = has_moved & (f.max(held_until).over(before) > f.col("at"))
    seen = keyed.withColumns(
        {
            "is_split": f.coalesce(is_split, f.lit(NO)),
            "last_of_key": f.lag(f.struct("at", held_until.alias("held_until"))).over(in_order),
        }
    )
    # After a move, only the key's previous delivery counts, and only if it was sent after the move.
    moved_at = f.array_max(f.filter("moves", lambda each: each < f.col("at")))
    is_since = (f.col("last_of_key.at") > moved_at) & (
        f.col("last_of_key.held_until") > f.col("at")
    )
    found = with_moves(seen, of_lives, f.col("is_split")).withColumn(
        "is_key_split", f.col("is_split") & (moved_at.isNull() | f.coalesce(is_since, f.lit(NO)))
    )
    return found.drop("is_split", "last_of_key", "moves").unionByName(
        others.withColumn("is_key_split", f.lit(NO))
    )


CAUSES: Final = (
    "reset",
    "ack_lost",
    "unrecorded",
    "restart",
    "ack_not_persisted",
    "outcome_dropped",
    "consumer_closed",
    "nack_or_timeout",
    "unexplained",
)
BREACHES: Final = ("ack_lost", "unexplained")
"""Causes that break a guarantee."""

FINDINGS: Final = ("sent_though_acked", "too_early", "key_split")
"""Each of them breaks a guarantee."""

DELIVERIES_COLUMNS: Final = (*ENTRY, "at", "consumer", "nth", "cause", "finding")

_DELIVERY: Final = (*ENTRY, "nth")


def deliveries(
    journal: DataFrame,
    of_timelines: DataFrame,
    of_lives: DataFrame,
    of_persists: DataFrame,
    of_states: DataFrame,
    of_topics: DataFrame,
) -> DataFrame:
    """Return DELIVERIES_COLUMNS: one row per dispatched event; `cause` is null if `nth` is 1."""
    of_subscription = of_lives.select(
        *SUBSCRIPTION, "type", "is_unordered", "rewinds", "noted_epochs", "write_untold_epochs"
    )
    rows = (
        of_timelines.where("nth > 0")
        .join(f.broadcast(of_subscription), list(SUBSCRIPTION))
        .join(
            f.broadcast(
                of_topics.select(
                    "topic", "is_delayed_on", "tick_ms", "headless_epoch", "events_dropped"
                )
            ),
            "topic",
        )
    )
    split = with_key_split(rows, of_lives)
    known = split.join(_known_acks(journal, of_states, rows), [*BY_ENTRY, "nth"], "left")
    # The first ack after the previous delivery, individual or cumulative: it raised the version.
    first = f.least("last_ack", "cumulative")
    is_of_another = first["at"]["owner_epoch"] < f.col("at.owner_epoch")
    acked = known.withColumn("acked", f.when(is_of_another, first))
    durable = of_persists.withColumnRenamed("owner_epoch", "acked_epoch")
    partly = of_persists.select(
        *SUBSCRIPTION,
        f.col("owner_epoch").alias("partly_epoch"),
        f.col("persisted_version").alias("partly_version"),
        f.col("cut_epochs").alias("partly_cut_epochs"),
    )
    return (
        acked.withColumn("acked_epoch", f.col("acked.at.owner_epoch"))
        .withColumn("partly_epoch", f.col("partly_before.at.owner_epoch"))
        .join(f.broadcast(durable), [*SUBSCRIPTION, "acked_epoch"], "left")
        .join(f.broadcast(partly), [*SUBSCRIPTION, "partly_epoch"], "left")
        .select(
            *_DELIVERY[:-1],
            "at",
            "consumer",
            "nth",
            _cause().alias("cause"),
            _finding().alias("finding"),
        )
    )


def _known_acks(journal: DataFrame, of_states: DataFrame, rows: DataFrame) -> DataFrame:
    """Return what cumulative acks and recovered states say about deliveries, one row for each.

    `cumulative` (at, version) is the first cumulative ack of the entry since the delivery before.
    `owner_had_at` is since when the owner of this delivery had the entry as acked; null: it had
    not.
    """
    keys = (*SUBSCRIPTION, "owner_epoch")
    epoch, published_in = f.col("at.owner_epoch"), f.col("published.at.owner_epoch")
    since = f.coalesce("last_at.owner_epoch", epoch)
    is_asked = (f.col("nth") > 1) | f.coalesce(published_in < epoch, f.lit(YES))
    asked = rows.where(is_asked & (f.size("noted_epochs") > 0)).select(
        *_DELIVERY,
        "at",
        "last_at",
        f.explode(f.filter("noted_epochs", lambda each: (each >= since) & (each <= epoch))).alias(
            "owner_epoch"
        ),
    )
    marks = (
        cumulative_marks(journal)
        .withColumn("cumulative", f.struct("at", "version"))
        .select(*keys, "ledger_id", "entry_id", "cumulative")
        .unionByName(
            of_states.drop("at").withColumnRenamed("from_entry_id", "range"),
            allowMissingColumns=True,
        )
    )
    covered = with_cover(
        asked,
        marks,
        asked,
        keys=keys,
        bucket="ledger_id",
        place="entry_id",
        names=["cumulative", "upto"],
        nearest=["range"],
    )

    def between(mark: str) -> Expression:
        is_it = (f.col(f"{mark}.at") > f.col("last_at")) & (f.col(f"{mark}.at") < f.col("at"))
        return f.when(is_it, f.col(mark))

    is_here = f.col("owner_epoch") == epoch
    is_acked_here = f.col("first_cumulative.at") < f.col("at")
    is_in_state = f.col("first_upto").isNotNull() | (f.col("nearest_range") <= f.col("entry_id"))
    opened_at = f.struct(
        "owner_epoch", f.lit(-1).cast("bigint").alias("sequence"), f.col("at.time_us")
    )
    # Only the first and the last cumulative ack are known. They ascend, as their positions do.
    had_at = f.when(is_in_state, opened_at).when(is_acked_here, f.col("first_cumulative.at"))
    return covered.groupBy(*BY_ENTRY, "nth").agg(
        f.min(f.coalesce(between("first_cumulative"), between("last_cumulative"))).alias(
            "cumulative"
        ),
        f.min(f.when(is_here, had_at)).alias("owner_had_at"),
    )


def _cause() -> Expression:
    last_at, at = f.col("last_at"), f.col("at")
    is_other_owner = last_at["owner_epoch"] < at["owner_epoch"]
    is_durable = f.coalesce(f.col("acked.version") <= f.col("persisted_version"), f.lit(NO))

    def is_cut(epochs: str) -> Expression:
        """Whether an owner between the ack and this delivery ended with a cut record."""
        return f.exists(epochs, lambda epoch: epoch < at["owner_epoch"])

    is_partly_lost = (
        f.coalesce(f.col("partly_before.version") <= f.col("partly_version"), f.lit(NO))
        & (f.col("partly_before.at.owner_epoch") < at["owner_epoch"])
        & _is_any_acked()
        & ~is_rewound(f.col("partly_before.at"), at)
        & ~is_cut("partly_cut_epochs")
    )

    def lost(acked_in: Expression) -> Expression:
        is_write_untold = is_any_between("write_untold_epochs", acked_in, at["owner_epoch"])
        is_unsure = is_write_untold | (f.col("events_dropped") > 0)
        return f.when(is_unsure, "unrecorded").otherwise("ack_lost")

    return (
        f.when(f.col("nth") == 1, f.lit(None).cast("string"))
        .when(is_rewound(last_at, at), "reset")
        .when(is_other_owner & is_partly_lost, lost(f.col("partly_epoch")))
        .when(is_other_owner & f.col("acked").isNull(), "restart")
        .when(is_other_owner & ~is_durable, "ack_not_persisted")
        .when(is_other_owner & is_cut("cut_epochs"), "outcome_dropped")
        .when(is_other_owner, lost(f.col("acked_epoch")))
        .when(f.col("last_nack") == "consumer_closed", "consumer_closed")
        .when(f.col("last_nack").isNotNull(), "nack_or_timeout")
        .otherwise("unexplained")
    )


def _finding() -> Expression:
    at = f.col("at")

    def holds(since: Expression) -> Expression:
        is_own = since["owner_epoch"] == at["owner_epoch"]
        return f.coalesce(is_own & ~is_rewound(since, at), f.lit(NO))

    is_acked = (
        holds(f.col("acked_before_at"))
        | holds(f.col("owner_had_at"))
        | (holds(f.col("partly_before.at")) & _is_any_acked())
    )
    is_held = f.col("is_delayed_on") & f.col("type").isin("Shared", "Key_Shared")
    early_ms = f.col("published.deliver_at_ms") - at["time_us"] / 1_000
    is_tick_known = ~f.coalesce(f.col("headless_epoch") == at["owner_epoch"], f.lit(NO))
    is_early = f.coalesce(is_held & is_tick_known & (early_ms > f.col("tick_ms")), f.lit(NO))
    return (
        f.when(is_acked, "sent_though_acked")
        .when(is_early, "too_early")
        .when(f.col("is_key_split"), "key_split")
    )


def _is_any_acked() -> Expression:
    """Whether the delivery has a message of the batch that the newest partial ack had as acked."""

    def byte(indexes: Expression, number: Expression) -> Expression:
        digits = f.hex(f.substring(indexes, number, f.lit(1)))
        return f.coalesce(f.conv(digits, 16, 10).cast("int"), f.lit(0))

    sent, unacked = f.col("sent_indexes"), f.col("partly_before.unacked_indexes")
    numbers = f.sequence(f.lit(1), f.greatest(f.length(sent), f.lit(1)))
    is_more = f.exists(
        numbers,
        lambda number: byte(sent, number).bitwiseAND(f.bitwise_not(byte(unacked, number))) != 0,
    )
    return f.col("partly_before").isNotNull() & (sent.isNull() | is_more)
