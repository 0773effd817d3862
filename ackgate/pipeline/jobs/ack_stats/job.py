"""The command ``ackgate pipeline ack-stats``: reads cursor records, writes results and the report.

Edge. Spark is imported when the job runs.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.errors import ConfigurationError
from ackgate.pipeline.job import JobSummary, SummaryTable

if TYPE_CHECKING:
    import argparse

    from ackgate.pipeline.job import DataFrame, JobRun
    from ackgate.pipeline.jobs.ack_stats.gate import GateInterval
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionStats

REPORT_FILE: Final = "report.html"
TABLE_ROWS_MAX: Final = 500
DRAWN_MAX: Final = 100
INTERVALS_MAX: Final = 300
"""Gate intervals of one subscription that are drawn: the newest."""
SUMMARY_ROWS: Final = 10


class AckStats:
    """The job."""

    name = "ack-stats"
    help = "history of ack ranges and holes, and when each gate will shut"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What only this job has."""
        group = parser.add_argument_group("ack-stats")
        group.add_argument(
            "--limit",
            type=int,
            metavar="RANGES",
            help="managedLedgerMaxUnackedRangesToPersist (default: that of --config, or of a broker)",
        )
        group.add_argument(
            "--horizon-hours",
            type=float,
            metavar="H",
            help="how far ahead to look (default: as long as was watched)",
        )
        group.add_argument(
            "--plots",
            type=int,
            default=20,
            metavar="N",
            help=f"subscriptions that get pictures, at most {DRAWN_MAX} (default: 20)",
        )

    def run(self, run: JobRun) -> JobSummary:
        """Raises `ConfigurationError` for arguments that make no sense."""
        from pyspark import StorageLevel  # noqa: PLC0415

        from ackgate.pipeline.jobs.ack_stats import frames  # noqa: PLC0415

        limit, horizon_ms, drawn = _checked(run.arguments)
        run.progress("cursor records: their history, subscription by subscription")
        records = run.read("cursor_records", columns=",".join(frames.RECORD_COLUMNS))
        stats = frames.subscription_stats(records, limit=limit, horizon_ms=horizon_ms)
        stats = stats.persist(StorageLevel.DISK_ONLY)
        try:
            run.write("subscriptions", frames.subscriptions(stats))
            run.write("history", frames.history(stats))
            run.write("hole_map", frames.hole_map(stats))
            run.write("forecasts", frames.forecasts(stats))
            run.progress("ack state: the holes of today")
            run.write("holes", frames.holes_now(run.read("ack_state")))
            run.progress("delivery journal: when gates were shut")
            journal = run.read("delivery_journal")
            intervals = frames.gate_intervals(journal)
            run.write("gate_intervals", intervals)
            run.progress("the report")
            return _reported(run, stats, intervals, drawn, has_journal=not journal.isEmpty())
        finally:
            stats.unpersist()


def _checked(arguments: argparse.Namespace) -> tuple[int, int | None, int]:
    """Limit, horizon in ms and subscriptions that are drawn."""
    limit = arguments.limit
    if limit is None:
        limit = _configured_limit(arguments.config)
    if limit < 0:
        raise ConfigurationError(f"--limit {limit}: a limit is 0 or more")
    if not 0 <= arguments.plots <= DRAWN_MAX:
        raise ConfigurationError(f"--plots {arguments.plots}: wants 0 to {DRAWN_MAX}")
    hours = arguments.horizon_hours
    if hours is None:
        return limit, None, arguments.plots
    if not 0 < hours <= 24 * 3660:
        raise ConfigurationError(f"--horizon-hours {hours}: wants more than 0 and at most 10 years")
    return limit, max(round(hours * 3_600_000), 1), arguments.plots


def _configured_limit(config: str | None) -> int:
    """Of a ``broker.conf``, or the default."""
    from ackgate.config.load import load_settings  # noqa: PLC0415

    settings = load_settings(None if config is None else Path(config)).settings
    return settings.persistence.managed_ledger_max_unacked_ranges_to_persist


def _reported(
    run: JobRun, stats: DataFrame, intervals: DataFrame, drawn: int, *, has_journal: bool
) -> JobSummary:
    """Write the page; tell the rest. What comes to the driver is bounded."""
    from ackgate.pipeline.jobs.ack_stats import frames  # noqa: PLC0415
    from ackgate.pipeline.jobs.ack_stats.report import ReportData, report_page  # noqa: PLC0415

    figures = frames.totals(stats).first().asDict()
    chosen = frames.most_urgent(stats, drawn)
    table = _most_urgent(stats, drawn)
    page = report_page(
        ReportData(
            source=run.data.options.get("path", ""),
            table=table,
            drawn=drawn,
            subscriptions=figures["subscriptions"],
            records=figures["records"],
            record_bytes=figures["record_bytes"],
            at_limit_expected=figures["subscriptions_at_limit_expected"],
            with_cut_records=figures["subscriptions_cut"],
            shut=_by_subscription(frames.newest_intervals(intervals, chosen, INTERVALS_MAX)),
            has_journal=has_journal,
        )
    )
    (run.output / REPORT_FILE).write_text(page, encoding="utf-8")
    return JobSummary(figures=figures, tables=(_summary_table(table, figures["subscriptions"]),))


def _most_urgent(stats: DataFrame, drawn: int) -> list[SubscriptionStats]:
    """Whole for those that are drawn, without history for the rest of the table."""
    from ackgate.pipeline.jobs.ack_stats import frames  # noqa: PLC0415
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionStats  # noqa: PLC0415

    whole = frames.most_urgent(stats, drawn).collect()
    flat = frames.subscriptions(frames.most_urgent(stats, TABLE_ROWS_MAX)).collect()
    return [SubscriptionStats.of_row(row.asDict(recursive=True)) for row in whole + flat[drawn:]]


def _by_subscription(intervals: DataFrame) -> dict[tuple[str, str], list[GateInterval]]:
    from ackgate.pipeline.jobs.ack_stats.gate import GateInterval  # noqa: PLC0415

    shut: dict[tuple[str, str], list[GateInterval]] = defaultdict(list)
    for row in intervals.orderBy("from_ms").collect():
        shut[row["topic"], row["subscription"]].append(GateInterval(**row.asDict()))
    return shut


def _summary_table(table: list[SubscriptionStats], subscriptions: int) -> SummaryTable:
    from ackgate.pipeline.drawing.axes import time_text  # noqa: PLC0415

    def text(at_ms: int | None) -> str | None:
        return None if at_ms is None else time_text(at_ms)

    rows: list[tuple[Any, ...]] = [
        (
            one.topic,
            one.subscription,
            one.ranges_in_memory,
            one.range_limit,
            text(one.at_limit_expected_ms),
            text(one.at_limit_earliest_ms),
            one.sufficient_limit_expected,
            one.holes,
            one.records_cut,
        )
        for one in table[:SUMMARY_ROWS]
    ]
    return SummaryTable(
        title="The most urgent subscriptions",
        columns=(
            *("topic", "subscription", "ranges", "limit", "at limit (UTC)", "earliest"),
            *("sufficient limit", "holes", "cut records"),
        ),
        rows=rows,
        rows_left_out=subscriptions - len(rows),
    )


JOB: Final = AckStats()
