"""The command ``ackgate pipeline audit``: its options, its results and what it says at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.job import JobSummary, SummaryTable

if TYPE_CHECKING:
    import argparse

    from ackgate.pipeline.job import DataFrame, JobRun

SHOWN_MAX: Final = 20
"""Subscriptions in the summary, the worst first."""

_COUNTS: Final = (
    "expected",
    "acked",
    "outstanding",
    "lost",
    "duplicates",
    "breaches",
    "out_of_order",
)
_ACKS: Final = ("acks_persisted", "acks_pending", "acks_never_persisted")
_SHOWN: Final = (
    "topic",
    "subscription",
    "verdict",
    *_COUNTS,
    "to_dispatch_us_p99",
    "to_durable_us_max",
)


class AuditJob:
    """Reads the delivery journals; they must have been switched on (deliveryJournalEnabled)."""

    name = "audit"
    help = "what was delivered to whom, how often, how late; losses and duplicates, with causes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """One: how late a delayed entry may be."""
        parser.add_argument(
            "--grace-seconds",
            type=float,
            default=10.0,
            metavar="S",
            help="a delayed entry that was due so shortly before the journal's end and was not sent "
            "is no loss (default: 10)",
        )

    def run(self, run: JobRun) -> JobSummary:
        """Audit all journals. It is fine if nothing was lost and no guarantee was broken."""
        from ackgate.pipeline.jobs.audit.journal import JOURNAL_COLUMNS  # noqa: PLC0415 - Spark
        from ackgate.pipeline.jobs.audit.report import audit  # noqa: PLC0415

        journal = run.read("delivery_journal", columns=",".join(JOURNAL_COLUMNS))
        grace_us = round(run.arguments.grace_seconds * 1_000_000)
        with audit(journal, grace_us=grace_us) as result:
            run.progress("deliveries and their causes")
            run.write("duplicates", result.duplicates())
            run.progress("what became of each entry")
            run.write("losses", result.losses())
            run.progress("results by topic, subscription, consumer and hour")
            run.write("topics", result.by_topic())
            run.write("consumers", result.by_consumer())
            run.write("hours", result.by_hour())
            subscriptions = result.by_subscription()
            run.write("subscriptions", subscriptions)
            return _summary(subscriptions)


def _summary(subscriptions: DataFrame) -> JobSummary:
    totals = _totals(subscriptions)
    worst = subscriptions.orderBy(
        "verdict_rank", "topic", "subscription", ascending=[False, True, True]
    )
    rows = [tuple(row) for row in worst.select(*_SHOWN).limit(SHOWN_MAX).collect()]
    left_out = totals["subscriptions"] - len(rows)
    table = SummaryTable("subscriptions, the worst first", _SHOWN, rows, left_out)
    return JobSummary(totals, (table,), is_fine=totals["broken"] == 0)


def _totals(subscriptions: DataFrame) -> dict[str, Any]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    from ackgate.pipeline.jobs.audit.deliveries import CAUSES  # noqa: PLC0415
    from ackgate.pipeline.jobs.audit.report import VERDICTS  # noqa: PLC0415

    sums = [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in (*_COUNTS, *CAUSES, *_ACKS)]
    verdicts = [f.count_if(f.col("verdict") == name).alias(name) for name in VERDICTS]
    only = subscriptions.agg(f.count("*").alias("subscriptions"), *verdicts, *sums).first()
    totals: dict[str, Any] = only.asDict()
    return totals


JOB: Final = AuditJob()
