"""The audit of a journal as a whole, and its results by topic, subscription, consumer and hour.

Edge: it caches the journal, deliveries and fates while it is open, since every result is made of
them; what does not fit into memory goes to the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.acks import DURABILITIES, acks
from ackgate.pipeline.jobs.audit.deliveries import BREACHES, CAUSES, deliveries
from ackgate.pipeline.jobs.audit.fates import FATES, GRACE_US, LOST, OUTSTANDING, fates
from ackgate.pipeline.jobs.audit.journal import JOURNAL_COLUMNS, SUBSCRIPTION, Expression
from ackgate.pipeline.jobs.audit.subscriptions import lives, persists, topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.job import DataFrame

PERCENTILES: Final = (0.5, 0.99, 1.0)
LATENCIES: Final = ("to_dispatch_us", "to_ack_us", "to_durable_us")
"""From publish to first dispatch, from there to the ack, from any ack to its durability; by the
broker's clock."""

VERDICTS: Final = ("fine", "incomplete", "broken")
"""From good to bad; `verdict_rank` counts them from 1."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What came out; each frame is lazy. Leave it (``with``) to free what it caches."""

    journal: DataFrame
    topics: DataFrame
    deliveries: DataFrame
    fates: DataFrame
    acks: DataFrame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fates.unpersist()
        self.deliveries.unpersist()
        self.journal.unpersist()

    def losses(self) -> DataFrame:
        """FATES_COLUMNS of the entries that nobody has seen. There must be none."""
        return self.fates.where(f.col("fate").isin(*LOST))

    def duplicates(self) -> DataFrame:
        """DELIVERIES_COLUMNS of all but first deliveries."""
        return self.deliveries.where("nth > 1")

    def by_subscription(self) -> DataFrame:
        """A row for each subscription, with its verdict."""
        sums = self._sums(SUBSCRIPTION).join(
            f.broadcast(self.topics.select("topic", "events_dropped")), "topic"
        )
        broken = (f.col("lost") > 0) | (f.col("ack_lost") > 0)
        # A cause may be missing because its event is.
        unsure = f.col("events_dropped") > 0
        unordered = f.col("out_of_order") > 0
        verdict = (
            f.when(broken | (~unsure & (unordered | (f.col("unexplained") > 0))), "broken")
            .when(unsure, "incomplete")
            .otherwise("fine")
        )
        rank = f.array_position(f.array(*map(f.lit, VERDICTS)), f.col("verdict"))
        return sums.withColumn("verdict", verdict).withColumn("verdict_rank", rank)

    def by_topic(self) -> DataFrame:
        """A row for each topic."""
        return self._sums(("topic",))

    def by_consumer(self) -> DataFrame:
        """A row for each consumer: the entries that it was sent first, and all its deliveries."""
        keys = (*SUBSCRIPTION, "consumer")
        firsts = self.fates.where("first_consumer is not null")
        return self._sums(keys, firsts.withColumn("consumer", f.col("first_consumer")))

    def by_hour(self) -> DataFrame:
        """A row for each subscription and hour: entries by publish, deliveries by dispatch."""

        def hour(at: str) -> Expression:
            hour_us = 3_600_000_000
            start = f.col(f"{at}.time_us") - f.col(f"{at}.time_us") % hour_us
            return f.timestamp_micros(start)

        keys = (*SUBSCRIPTION, "hour")
        return self._sums(
            keys,
            self.fates.withColumn("hour", hour("published_at")),
            self.deliveries.withColumn("hour", hour("at")),
            self.acks.withColumn("hour", hour("at")),
        )

    def _sums(
        self,
        keys: Sequence[str],
        of_fates: DataFrame | None = None,
        of_deliveries: DataFrame | None = None,
        of_acks: DataFrame | None = None,
    ) -> DataFrame:
        entries = _entry_sums(self.fates if of_fates is None else of_fates, keys)
        sent = _delivery_sums(self.deliveries if of_deliveries is None else of_deliveries, keys)
        acked = _ack_sums(self.acks if of_acks is None else of_acks, keys)
        joined = entries.join(sent, list(keys), "full").join(acked, list(keys), "full")
        counts = [name for name in joined.columns if name not in (*keys, *_LATENCY_COLUMNS)]
        return joined.fillna(dict.fromkeys(counts, 0))


def audit(journal: DataFrame, *, grace_us: int = GRACE_US) -> Audit:
    """Of the table ``delivery_journal`` (JOURNAL_COLUMNS). Caches what all results are made of."""
    events = journal.select(*JOURNAL_COLUMNS).cache()
    of_topics = topics(events)
    of_lives = lives(events, of_topics)
    sent = deliveries(events, of_lives, persists(events)).cache()
    ended = fates(events, sent, of_lives, of_topics, grace_us=grace_us).cache()
    return Audit(events, of_topics, sent, ended, acks(events, of_topics))


def _column(latency: str, share: float) -> str:
    return f"{latency}_{'max' if share == 1 else f'p{share * 100:g}'}"


_LATENCY_COLUMNS: Final = tuple(_column(name, share) for name in LATENCIES for share in PERCENTILES)


def _percentiles(latency: str, span: Expression) -> list[Expression]:
    return [f.percentile_approx(span, p).alias(_column(latency, p)) for p in PERCENTILES]


def _entry_sums(of_fates: DataFrame, keys: Sequence[str]) -> DataFrame:
    to_dispatch = f.col("first_sent_at.time_us") - f.col("published_at.time_us")
    # A later ack may be of a later delivery; the first one counts.
    to_ack = f.when(
        f.col("acked_at") > f.col("first_sent_at"),
        f.col("acked_at.time_us") - f.col("first_sent_at.time_us"),
    )
    counts = [f.count_if(f.col("fate") == fate).alias(fate) for fate in FATES]
    return of_fates.groupBy(*keys).agg(
        f.count("*").alias("expected"),
        *counts,
        f.count_if(f.col("fate").isin(*LOST)).alias("lost"),
        f.count_if(f.col("fate").isin(*OUTSTANDING)).alias("outstanding"),
        f.count_if("is_out_of_order").alias("out_of_order"),
        *_percentiles("to_dispatch_us", to_dispatch),
        *_percentiles("to_ack_us", to_ack),
    )


def _delivery_sums(of_deliveries: DataFrame, keys: Sequence[str]) -> DataFrame:
    return of_deliveries.groupBy(*keys).agg(
        f.count("*").alias("deliveries"),
        f.count_if(f.col("nth") > 1).alias("duplicates"),
        *(f.count_if(f.col("cause") == cause).alias(cause) for cause in CAUSES),
        f.count_if(f.col("cause").isin(*BREACHES)).alias("breaches"),
    )


def _ack_sums(of_acks: DataFrame, keys: Sequence[str]) -> DataFrame:
    to_durable = f.col("durable_at.time_us") - f.col("at.time_us")
    counts = [
        f.count_if(f.col("durability") == each).alias(f"acks_{each}") for each in DURABILITIES
    ]
    return of_acks.groupBy(*keys).agg(*counts, *_percentiles("to_durable_us", to_durable))
