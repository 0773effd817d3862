"""The command ``ackgate pipeline ack-stats``: from cursor records and journals to results.

Edge. Imports Spark when the job runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.errors import ConfigurationError
from ackgate.pipeline.jobs.ack_stats.limits import LimitRule, limit_rule
from ackgate.pipeline.jobs.job import JobSummary, SummaryTable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionFigures
    from ackgate.pipeline.jobs.job import DataFrame, JobRun

TABLE_ROWS_MAX: Final = 500
"""Most subscriptions in the table of the page."""
DRAWN_MAX: Final = 100
"""Most subscriptions with charts on the page."""
LEDGERS_NAMED_MAX: Final = 2000
"""If more message ledgers than this have holes, the job reads the messages of all ledgers."""
SUMMARY_ROWS: Final = 10


class AckStats:
    """How the ranges and holes of each subscription grew, and when each limit will be reached."""

    name = "ack-stats"
    help = "history of ack ranges and holes, and when each limit will be reached"
    reads_pulsar = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--limit``, ``--horizon-hours`` and ``--plots``."""
        group = parser.add_argument_group("ack-stats")
        group.add_argument(
            "--limit",
            action="append",
            default=[],
            metavar="[NAME=]RANGES",
            help="managedLedgerMaxUnackedRangesToPersist of a topic, a namespace or all (default: from the "
            "delivery journal, else from --config, else the broker's default)",
        )
        group.add_argument(
            "--horizon-hours",
            type=float,
            metavar="H",
            help="how far ahead to look (default: as long as the history)",
        )
        group.add_argument(
            "--plots",
            type=int,
            default=20,
            metavar="N",
            help=f"subscriptions that get charts, at most {DRAWN_MAX} (default: 20)",
        )

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raise `ConfigurationError` for an invalid limit, horizon or number of plots."""
        _checked(arguments)

    def run(self, run: JobRun) -> JobSummary:
        from ackgate.pipeline.jobs.ack_stats import frames, journal_frames  # noqa: PLC0415
        from ackgate.pipeline.jobs.journal import once  # noqa: PLC0415

        rule, horizon_ms, drawn = _checked(run.arguments)
        run.progress("cursor records: their history, subscription by subscription")
        records = run.read("cursor_records", columns=",".join(frames.RECORD_COLUMNS))
        journal = run.read("delivery_journal", columns=",".join(journal_frames.JOURNAL_COLUMNS))
        wanted = run.data.options.get("subscription")
        journal = once(run.keep(journal_frames.journal_events(journal, wanted)))
        steps = journal_frames.limit_steps(journal)
        writes = journal_frames.journal_writes(journal)
        stats = run.keep(
            frames.subscription_stats(records, steps, writes, rule=rule, horizon_ms=horizon_ms)
        )
        run.write("subscriptions", frames.subscriptions(stats))
        run.write("history", frames.history(stats))
        run.write("hole_map", frames.hole_map(stats))
        run.write("forecasts", frames.forecasts(stats))
        run.progress("ack state: the holes of today, and who left them")
        holes = _holes(run, stats, journal)
        for name, frame in holes.items():
            run.write(name, frame)
        run.progress("delivery journal: when gates were shut")
        intervals = run.keep(journal_frames.gate_intervals(journal, stats))
        run.write("gate_intervals", intervals)
        run.progress("the report")
        return _reported(run, drawn, _Results(stats, intervals, journal, holes))


class _Results(NamedTuple):
    """The frames that the report is made from."""

    stats: DataFrame
    intervals: DataFrame
    journal: DataFrame
    holes: Mapping[str, DataFrame]
    """The frames `holes`, `hole_consumers` and `hole_keys`, by name."""


def _holes(run: JobRun, stats: DataFrame, journal: DataFrame) -> dict[str, DataFrame]:
    """Return the frames `holes`, `hole_consumers` and `hole_keys`, by name."""
    from ackgate.pipeline.jobs.ack_stats import hole_frames  # noqa: PLC0415

    holes = hole_frames.holes_now(run.read("ack_state"))
    aged = run.keep(hole_frames.aged_holes(holes, stats, journal))
    entries = hole_frames.hole_entries(aged, _messages(run, aged), journal)
    entries = run.keep(entries)
    return {
        "holes": run.keep(hole_frames.described_holes(aged, entries)),
        "hole_consumers": run.keep(hole_frames.hole_consumers(entries)),
        "hole_keys": run.keep(hole_frames.hole_keys(entries)),
    }


def _messages(run: JobRun, holes: DataFrame) -> DataFrame:
    """Read the messages of ledgers with holes; of all ledgers above `LEDGERS_NAMED_MAX`."""
    from ackgate.pipeline.jobs.ack_stats import hole_frames  # noqa: PLC0415

    columns = {"columns": ",".join(hole_frames.MESSAGE_COLUMNS)}
    if "pulsar" in run.data.options:
        columns["onOffloaded"] = "skip"  # leaves their keys unknown, not their holes
    rows = holes.select("ledger_id").distinct().limit(LEDGERS_NAMED_MAX + 1).collect()
    if not rows:
        return run.read("messages", **columns).where("false")
    if len(rows) <= LEDGERS_NAMED_MAX:
        columns["ledgerIds"] = ",".join(str(row["ledger_id"]) for row in rows)
    return run.read("messages", **columns)


def _checked(arguments: argparse.Namespace) -> tuple[LimitRule, int | None, int]:
    """Return the limit rule, the horizon in ms (None: default) and how many subscriptions to chart.

    Raises `ConfigurationError`.
    """
    rule = limit_rule(
        arguments.limit,
        _configured_limit(arguments.config),
        is_default=arguments.config is None,
    )
    if not 0 <= arguments.plots <= DRAWN_MAX:
        raise ConfigurationError(f"--plots {arguments.plots}: must be 0 to {DRAWN_MAX}")
    hours = arguments.horizon_hours
    if hours is None:
        return rule, None, arguments.plots
    if not 0 < hours <= 24 * 3660:
        raise ConfigurationError(
            f"--horizon-hours {hours}: must be more than 0 and at most 10 years"
        )
    return rule, max(round(hours * 3_600_000), 1), arguments.plots


def _configured_limit(config: str | None) -> int:
    """Return the range limit of this ``broker.conf``; without a file, the broker's default."""
    from ackgate.config.load import load_settings  # noqa: PLC0415

    settings = load_settings(None if config is None else Path(config), is_serving=False).settings
    return settings.persistence.managed_ledger_max_unacked_ranges_to_persist


def _reported(run: JobRun, drawn: int, results: _Results) -> JobSummary:
    """Write the page and return the summary. The driver collects a bounded number of rows."""
    from ackgate.pipeline.jobs.ack_stats import collected, frames  # noqa: PLC0415
    from ackgate.pipeline.jobs.ack_stats.page import AckStatsReport, ack_stats_page  # noqa: PLC0415

    figures = frames.totals(results.stats).first().asDict()
    table = _most_urgent(results.stats, drawn)
    chosen = frames.named(results.stats, table[:drawn])
    page = ack_stats_page(
        AckStatsReport(
            source=run.data.path,
            table=table,
            drawn=drawn,
            subscriptions=figures["subscriptions"],
            records=figures["records"],
            record_bytes=figures["record_bytes"],
            at_limit_expected=figures["subscriptions_at_limit_expected"],
            with_cut_records=figures["subscriptions_cut"],
            without_history=figures["subscriptions_without_history"],
            gates=collected.gate_histories(results.intervals, chosen),
            leavers=collected.hole_leavers(results.holes, chosen),
            journal_from_ms=collected.journal_begins(results.journal, chosen),
        )
    )
    run.write_page(page)
    leavers = results.holes["hole_consumers"], results.holes["hole_keys"]
    tables = (
        _summary_table(table, figures["subscriptions"]),
        *(collected.leaver_table(frame, SUMMARY_ROWS) for frame in leavers),
    )
    return JobSummary(figures=figures, tables=tables)


def _most_urgent(stats: DataFrame, drawn: int) -> list[SubscriptionFigures]:
    """Return the most urgent subscriptions, at most `TABLE_ROWS_MAX`.

    The first `drawn` come with history and forecast, the others without.
    """
    from ackgate.pipeline.jobs.ack_stats import frames  # noqa: PLC0415
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionFigures  # noqa: PLC0415

    whole = frames.most_urgent(stats.drop("open_holes"), drawn).collect()
    flat = frames.subscriptions(frames.most_urgent(stats, TABLE_ROWS_MAX)).collect()
    return [SubscriptionFigures.of_row(row.asDict(recursive=True)) for row in whole + flat[drawn:]]


def _summary_table(table: list[SubscriptionFigures], subscriptions: int) -> SummaryTable:
    from ackgate.pipeline.report.text import time_text  # noqa: PLC0415

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
