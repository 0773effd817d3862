"""The command ``ackgate pipeline audit``: its options, its results and its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.errors import ConfigurationError
from ackgate.pipeline.jobs.job import JobSummary, SummaryTable

if TYPE_CHECKING:
    import argparse

    from ackgate.pipeline.jobs.audit.frames import Audit
    from ackgate.pipeline.jobs.job import DataAddress, DataFrame, JobRun

TABLE_ROWS_MAX: Final = 300
"""Most subscriptions on the page."""
SHOWN_MAX: Final = 20
"""Most subscriptions in the summary, the worst first."""

_COUNTS: Final = (
    "expected",
    "acked",
    "outstanding",
    "lost",
    "unknown",
    "deliveries",
    "duplicates",
    "findings",
    "out_of_order",
)
_ACKS: Final = (
    "acks_persisted",
    "acks_persisted_untold",
    "acks_pending",
    "acks_never_persisted",
    "acks_late",
    "receipts",
    "receipts_early",
)
_SHOWN: Final = (
    "topic",
    "subscription",
    "verdict",
    *_COUNTS,
    "to_dispatch_us_p99",
    "to_durable_us_max",
)


class AuditJob:
    """Audits the delivery journals, which a broker writes only with deliveryJournalEnabled."""

    name = "audit"
    help = "what was delivered to whom, how often, how late; losses and duplicates, with causes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--grace-seconds`` and ``--late-ms``."""
        group = parser.add_argument_group("audit")
        group.add_argument(
            "--grace-seconds",
            type=float,
            default=10.0,
            metavar="S",
            help="a delayed entry that was due less than this before the journal's end and was not sent "
            "is no loss (default: 10)",
        )
        group.add_argument(
            "--late-ms",
            type=float,
            default=1000.0,
            metavar="MS",
            help="an ack that took longer to become durable is late (default: 1000)",
        )

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raise `ConfigurationError` for a time that is below 0 or too large."""
        _microseconds(arguments.grace_seconds, 1_000_000, "--grace-seconds")
        _microseconds(arguments.late_ms, 1_000, "--late-ms")

    def run(self, run: JobRun) -> JobSummary:
        """Audit all journals. The summary is fine if nothing was lost and no guarantee was broken.

        Raises `ConfigurationError` if there is no journal: without events nothing can be wrong.
        """
        from ackgate.pipeline.jobs.audit.frames import AuditLimits, audit  # noqa: PLC0415
        from ackgate.pipeline.jobs.journal import JOURNAL_COLUMNS  # noqa: PLC0415 - Spark

        limits = AuditLimits(
            grace_us=_microseconds(run.arguments.grace_seconds, 1_000_000, "--grace-seconds"),
            late_us=_microseconds(run.arguments.late_ms, 1_000, "--late-ms"),
        )
        run.progress("the delivery journals")
        journal = chosen(run.data, run.read("delivery_journal", columns=",".join(JOURNAL_COLUMNS)))
        with audit(journal, limits, run.progress) as result:
            run.progress("the results are written")
            run.write("duplicates", result.duplicates())
            run.write("findings", result.findings())
            run.write("losses", result.losses())
            run.write("out_of_order", result.out_of_order())
            run.write("late_acks", result.late_acks())
            run.write("early_receipts", result.early_receipts())
            run.write("topics", result.by_topic())
            run.write("subscriptions", result.by_subscription())
            run.write("consumers", result.by_consumer())
            run.write("hours", result.by_hour())
            run.progress("the report")
            return _reported(run, result)


def chosen(data: DataAddress, journal: DataFrame) -> DataFrame:
    """Return the events of the chosen subscription and those without one; by default, all events.

    Raises `ConfigurationError` if there is no journal, or none with that subscription.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - Spark

    if journal.isEmpty():
        raise ConfigurationError(
            f"{data.path}: there is no delivery journal; deliveryJournalEnabled makes a "
            "broker write one"
        )
    wanted = data.options.get("subscription")
    if wanted is None:
        return journal
    if journal.where(f.col("subscription") == wanted).isEmpty():
        raise ConfigurationError(f"no delivery journal knows a subscription {wanted!r}")
    return journal.where(f.col("subscription").isNull() | (f.col("subscription") == wanted))


def _microseconds(value: float, unit_us: int, option: str) -> int:
    if not 0 <= value * unit_us < 2**62:
        raise ConfigurationError(f"{option} {value}: must be a time of 0 or more")
    return round(value * unit_us)


def _reported(run: JobRun, result: Audit) -> JobSummary:
    """Write the page and return the summary. The driver collects a bounded number of rows."""
    from ackgate.pipeline.jobs.audit import curves  # noqa: PLC0415 - Spark
    from ackgate.pipeline.jobs.audit.page import AuditReport, audit_page  # noqa: PLC0415

    subscriptions = result.by_subscription()
    totals = _totals(subscriptions)
    order = ["verdict_rank", "duplicates", "topic", "subscription"]
    worst = subscriptions.orderBy(*order, ascending=[False, False, True, True])
    table = [row.asDict() for row in worst.limit(TABLE_ROWS_MAX).collect()]
    deliveries = curves.delivery_counts(result.deliveries).select(*curves.DELIVERY_COLUMNS)
    waits = curves.latency_counts(result.fates, result.acks)
    page = audit_page(
        AuditReport(
            run.data.path,
            totals,
            table,
            [tuple(row) for row in deliveries.collect()],
            [tuple(row) for row in waits.collect()],
        )
    )
    run.write_page(page)
    rows = [tuple(one[name] for name in _SHOWN) for one in table[:SHOWN_MAX]]
    left_out = totals["subscriptions"] - len(rows)
    shown = SummaryTable("subscriptions, the worst first", _SHOWN, rows, left_out)
    return JobSummary(totals, (shown,), is_fine=totals["broken"] == 0)


def _totals(subscriptions: DataFrame) -> dict[str, Any]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    from ackgate.pipeline.jobs.audit.deliveries import CAUSES  # noqa: PLC0415
    from ackgate.pipeline.jobs.audit.frames import VERDICTS  # noqa: PLC0415

    sums = [f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in (*_COUNTS, *CAUSES, *_ACKS)]
    verdicts = [f.count_if(f.col("verdict") == name).alias(name) for name in VERDICTS]
    only = subscriptions.agg(f.count("*").alias("subscriptions"), *verdicts, *sums).first()
    totals: dict[str, Any] = only.asDict()
    return totals


JOB: Final = AuditJob()
