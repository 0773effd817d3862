"""The audit of a whole journal, with results by topic, subscription, consumer and hour.

    journal --> timelines --> deliveries (number, cause) -----------+--> results
                         `--> fates (acked, outstanding, lost) -----+
    journal -----------------> acks (when durable) -----------------+

Edge: frames that are used repeatedly are computed once and kept by the executors, in memory or on
disk. One aggregation yields all results: counts by the finest groups, then sums of these counts.
Percentiles cannot be summed and are computed separately.

The workers convert the ack state of each recovery to marks, in bulk::

    state      mark-delete 7:3, acked 7:5 to 7:8           (one event)
    marks      7:3 upto            7:8 from 5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import functions as f

from ackgate.pipeline.jobs.audit.acks import DURABILITIES, LATE_US, acks, receipts
from ackgate.pipeline.jobs.audit.curves import to_ack_us, to_dispatch_us, to_durable_us
from ackgate.pipeline.jobs.audit.deliveries import CAUSES, FINDINGS, deliveries
from ackgate.pipeline.jobs.audit.fates import (
    FATES,
    GRACE_US,
    LOST,
    OUTSTANDING,
    settled,
    unsettled_fates,
)
from ackgate.pipeline.jobs.audit.published import expected, published
from ackgate.pipeline.jobs.audit.subscriptions import lives, persists, topics
from ackgate.pipeline.jobs.audit.timelines import timelines
from ackgate.pipeline.jobs.journal import (
    JOURNAL_COLUMNS,
    SUBSCRIPTION,
    Expression,
    at,
    events_of,
    mark_delete,
    once,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from ackgate.pipeline.jobs.job import DataFrame

_EVENT: Final = (*SUBSCRIPTION, "owner_epoch", "sequence", "time_us")
_RANGES_SCHEMA: Final = (
    "topic string, subscription string, owner_epoch bigint, sequence bigint, time_us bigint, "
    "ledger_id bigint, entry_id bigint, from_entry_id bigint"
)
_ROWS_MAX: Final = 65_536

PERCENTILES: Final = (0.5, 0.99, 1.0)

LATENCIES: Final = ("to_dispatch_us", "to_ack_us", "to_durable_us")
"""Microseconds by the broker's clock: publish to first dispatch, from there to the first ack, and
each ack to its durable write."""

VERDICTS: Final = ("fine", "incomplete", "broken")
"""From best to worst; `verdict_rank` is 1 for the first."""

HOUR_US: Final = 3_600_000_000

_KEYS: Final = ("topic", "subscription", "consumer", "hour")
_LEVELS: Final = (
    ("topic",),
    SUBSCRIPTION,
    (*SUBSCRIPTION, "consumer"),
    (*SUBSCRIPTION, "hour"),
)


def state_marks(journal: DataFrame) -> DataFrame:
    """Return the recovered ack states as marks by subscription, epoch, ledger and entry.

    A mark-delete has `upto`, the time of the recovery. An ack range has `from_entry_id`, its first
    entry; its last entry is the mark's `entry_id`.
    """
    recovered = journal.where(f.col("event") == "recovered")
    ranges = recovered.where(f.col("state").isNotNull()).select(*_EVENT, "state")
    by = (*SUBSCRIPTION, "owner_epoch", "at", "ledger_id", "entry_id")
    marks = events_of(recovered, "recovered").select(
        *SUBSCRIPTION, "owner_epoch", "at", mark_delete().alias("mark_delete")
    )
    return (
        ranges.mapInArrow(_ranges, _RANGES_SCHEMA)
        .withColumn("at", at())
        .select(*by, "from_entry_id")
        .unionByName(
            marks.select(
                *by[:-2], "mark_delete.ledger_id", "mark_delete.entry_id", f.col("at").alias("upto")
            ),
            allowMissingColumns=True,
        )
    )


def _ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - in the worker

    from ackgate.cursor import run_bounds  # noqa: PLC0415
    from ackgate.errors import CorruptRecordError  # noqa: PLC0415
    from ackgate.persistence.records.codec import decode_record  # noqa: PLC0415
    from ackgate.persistence.records.values import SnapshotRecord  # noqa: PLC0415

    for batch in batches:
        for row in range(batch.num_rows):
            event = batch.slice(row, 1)
            record = decode_record(event.column("state")[0].as_py())
            if not isinstance(record, SnapshotRecord):
                raise CorruptRecordError("the state of a recovered event is no snapshot")
            for ledger_id, bitmap in record.snapshot.acked.items():
                starts, stops = run_bounds(bitmap)
                for first in range(0, starts.size, _ROWS_MAX):
                    firsts, ends = (
                        starts[first : first + _ROWS_MAX],
                        stops[first : first + _ROWS_MAX],
                    )
                    constants = [pa.repeat(event.column(name)[0], firsts.size) for name in _EVENT]
                    yield pa.RecordBatch.from_arrays(
                        [
                            *constants,
                            pa.repeat(pa.scalar(ledger_id, pa.int64()), firsts.size),
                            pa.array(ends - 1, pa.int64()),
                            pa.array(firsts, pa.int64()),
                        ],
                        names=[*_EVENT, "ledger_id", "entry_id", "from_entry_id"],
                    )


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """Times in microseconds after which an entry or an ack is late."""

    grace_us: int = GRACE_US
    late_us: int = LATE_US


DEFAULT_LIMITS: Final = AuditLimits()


@dataclass(frozen=True, slots=True)
class Audit:
    """The results of an audit. Use it in a ``with`` statement, which frees the cached journal."""

    journal: DataFrame
    topics: DataFrame
    deliveries: DataFrame
    fates: DataFrame
    acks: DataFrame
    receipts: DataFrame
    results: DataFrame
    """The counts of all levels in one frame; the methods `by_*` select one level."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.unpersist()

    def losses(self) -> DataFrame:
        """Return FATES_COLUMNS of the lost entries. There must be none."""
        return self.fates.where(f.col("fate").isin(*LOST))

    def duplicates(self) -> DataFrame:
        """Return DELIVERIES_COLUMNS of all redeliveries."""
        return self.deliveries.where("nth > 1")

    def findings(self) -> DataFrame:
        """Return DELIVERIES_COLUMNS where a guarantee is broken. There must be none."""
        return self.deliveries.where(
            f.col("finding").isNotNull() | f.col("cause").isin("ack_lost", "unexplained")
        )

    def out_of_order(self) -> DataFrame:
        """Return FATES_COLUMNS of the entries that were sent after a later entry of their key."""
        return self.fates.where("is_out_of_order")

    def late_acks(self) -> DataFrame:
        """Return ACKS_COLUMNS of the acks that became durable late, or are pending for too long."""
        return self.acks.where("is_late")

    def early_receipts(self) -> DataFrame:
        """Return RECEIPTS_COLUMNS of receipts before the ack was durable. There must be none."""
        return self.receipts.where("is_early")

    def by_topic(self) -> DataFrame:
        """Return the counts, one row per topic."""
        return self._level(0)

    def by_subscription(self) -> DataFrame:
        """Return the counts, one row per subscription."""
        return self._level(1)

    def by_consumer(self) -> DataFrame:
        """Return one row per consumer: entries first sent to it, deliveries, acks and receipts."""
        return self._level(2).where("consumer is not null")

    def by_hour(self) -> DataFrame:
        """Return one row per subscription and hour: entries by publish time, the rest by event."""
        return self._level(3)

    def _level(self, level: int) -> DataFrame:
        others = [key for key in _KEYS if key not in _LEVELS[level]]
        return self.results.where(f.col("level") == level).drop("level", *others)


def audit(
    journal: DataFrame,
    limits: AuditLimits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit the table ``delivery_journal``, of which it reads JOURNAL_COLUMNS."""
    read = journal.select(*JOURNAL_COLUMNS).cache()
    events = once(read)
    of_topics = _kept(topics(events))
    of_lives = _kept(lives(events, of_topics))
    of_states = _kept(state_marks(events))
    progress("what happened to each entry")
    per_entry = _kept(timelines(events, expected(published(events), of_lives)))
    progress("deliveries and their causes")
    of_persists = _kept(persists(events))
    sent = _kept(deliveries(events, per_entry, of_lives, of_persists, of_states, of_topics))
    progress("what became of each entry")
    unsettled = _kept(
        unsettled_fates(events, per_entry, of_lives, of_states, of_topics, grace_us=limits.grace_us)
    )
    progress("results by topic, subscription, consumer and hour")
    ended = settled(unsettled)
    of_acks = _kept(acks(events, of_topics, late_us=limits.late_us))
    of_receipts = _kept(receipts(events, of_topics))
    results = _kept(_results(ended, sent, of_acks, of_receipts, of_topics))
    return Audit(read, of_topics, sent, ended, of_acks, of_receipts, results)


def _kept(frame: DataFrame) -> DataFrame:
    """Compute the frame now and drop its plan, which Spark would otherwise repeat for each use."""
    return frame.localCheckpoint(eager=True)


def _column(latency: str, share: float) -> str:
    return f"{latency}_{'max' if share == 1 else f'p{share * 100:g}'}"


def _results(
    of_fates: DataFrame,
    of_deliveries: DataFrame,
    of_acks: DataFrame,
    of_receipts: DataFrame,
    of_topics: DataFrame,
) -> DataFrame:
    facts = (
        _of_fates(of_fates)
        .unionByName(_of_deliveries(of_deliveries), allowMissingColumns=True)
        .unionByName(_of_acks(of_acks), allowMissingColumns=True)
        .unionByName(_of_receipts(of_receipts), allowMissingColumns=True)
    )
    counted = _with_percentiles(_counted(facts), facts)
    with_drops = counted.join(f.broadcast(of_topics.select("topic", "events_dropped")), "topic")
    ranks = f.array(*map(f.lit, VERDICTS))
    return with_drops.withColumn("verdict", _verdict()).withColumn(
        "verdict_rank", f.array_position(ranks, f.col("verdict"))
    )


def _counted(facts: DataFrame) -> DataFrame:
    """Return the counts, one row per group of each level; `level` indexes `_LEVELS`."""
    counts = _counts()
    finest = facts.groupBy(*_KEYS).agg(*(count.alias(name) for name, count in counts.items()))
    return _by_level(finest, [f.sum(name).alias(name) for name in counts])


def _with_percentiles(counted: DataFrame, facts: DataFrame) -> DataFrame:
    waits = facts.where(f.coalesce(*LATENCIES).isNotNull()).select(*_KEYS, *LATENCIES)
    shares = f.array(*map(f.lit, PERCENTILES))
    found = _by_level(waits, [f.percentile_approx(each, shares).alias(each) for each in LATENCIES])
    by = ("level", *_KEYS)
    named = found.select(
        *(f.col(key).alias(f"of_{key}") for key in by),
        *(
            f.get(latency, f.lit(at)).alias(_column(latency, share))
            for latency in LATENCIES
            for at, share in enumerate(PERCENTILES)
        ),
    )
    is_same = [f.col(key).eqNullSafe(f.col(f"of_{key}")) for key in by]
    return counted.join(named, is_same, "left").drop(*(f"of_{key}" for key in by))


def _by_level(frame: DataFrame, sums: Sequence[Expression]) -> DataFrame:
    """Aggregate by the keys of each level; `level` indexes `_LEVELS`."""
    level = f.lit(len(_LEVELS) - 1)
    for number, keys in reversed(list(enumerate(_LEVELS))):
        bits = sum(1 << (len(_KEYS) - 1 - at) for at, key in enumerate(_KEYS) if key not in keys)
        level = f.when(f.col("grouping") == bits, number).otherwise(level)
    summed = frame.groupingSets(list(map(list, _LEVELS)), *_KEYS).agg(
        f.grouping_id().alias("grouping"), *sums
    )
    return summed.withColumn("level", level).drop("grouping")


def _verdict() -> Expression:
    """Return the verdict of a group, one of VERDICTS.

    If events were dropped, findings that a missing event could explain make it "incomplete", not
    "broken".
    """
    is_broken = (f.col("lost") > 0) | (f.col("ack_lost") > 0)
    is_unsure = f.col("events_dropped") > 0
    is_incomplete = is_unsure | (f.col("unknown") > 0) | (f.col("unrecorded") > 0)
    doubtful = ("unexplained", "out_of_order", "findings", "receipts_early")
    seems_broken = sum(map(f.col, doubtful), f.lit(0)) > 0
    return (
        f.when(is_broken | (~is_unsure & seems_broken), "broken")
        .when(is_incomplete, "incomplete")
        .otherwise("fine")
    )


def _hour(at: str) -> Expression:
    start = f.col(f"{at}.time_us") - f.col(f"{at}.time_us") % HOUR_US
    return f.timestamp_micros(start).alias("hour")


def _of_fates(of_fates: DataFrame) -> DataFrame:
    return of_fates.select(
        *SUBSCRIPTION,
        f.col("first_consumer").alias("consumer"),
        _hour("published_at"),
        "fate",
        "is_out_of_order",
        to_dispatch_us().alias("to_dispatch_us"),
        to_ack_us().alias("to_ack_us"),
    )


def _of_deliveries(of_deliveries: DataFrame) -> DataFrame:
    return of_deliveries.select(*SUBSCRIPTION, "consumer", _hour("at"), "nth", "cause", "finding")


def _of_acks(of_acks: DataFrame) -> DataFrame:
    return of_acks.select(
        *SUBSCRIPTION,
        "consumer",
        _hour("at"),
        "durability",
        "is_late",
        to_durable_us().alias("to_durable_us"),
    )


def _of_receipts(of_receipts: DataFrame) -> DataFrame:
    return of_receipts.select(*SUBSCRIPTION, "consumer", _hour("at"), "is_early")


def _counts() -> dict[str, Expression]:
    """Return the counting expressions, by column name."""

    def each(column: str, values: Sequence[str], prefix: str = "") -> dict[str, Expression]:
        return {f"{prefix}{value}": f.count_if(f.col(column) == value) for value in values}

    return {
        "expected": f.count("fate"),
        **each("fate", FATES),
        "lost": f.count_if(f.col("fate").isin(*LOST)),
        "outstanding": f.count_if(f.col("fate").isin(*OUTSTANDING)),
        "out_of_order": f.count_if("is_out_of_order"),
        "deliveries": f.count("nth"),
        "duplicates": f.count_if(f.col("nth") > 1),
        **each("cause", CAUSES),
        "findings": f.count("finding"),
        **each("finding", FINDINGS),
        **each("durability", DURABILITIES, "acks_"),
        "acks_late": f.count_if("is_late"),
        "receipts": f.count("is_early"),
        "receipts_early": f.count_if("is_early"),
    }
