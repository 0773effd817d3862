"""The command ``ackgate pipeline what-if``: reads the delivery journal, writes what comes of it.

Edge. Spark is imported when the job runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError
from ackgate.pipeline.job import JobSummary, SummaryTable
from ackgate.pipeline.jobs.what_if.report import LINES_MAX, ReportData, what_if_page
from ackgate.pipeline.jobs.what_if.variants import variants_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ackgate.pipeline.job import DataFrame, JobRun
    from ackgate.pipeline.jobs.what_if.variants import Variant

VARIANTS_IN_GROUP: Final = 8
"""So many settings share one stream of events, unless it is said otherwise."""
SUMMARY_ROWS: Final = 40
REPORT_FILE: Final = "report.html"
VARIANTS_SHOWN_MAX: Final = 200
ROWS_SHOWN_MAX: Final = 200
POINTS_MAX: Final = 200
"""Stretches of time in a picture."""
_COLUMNS: Final = (
    ("variant", "variant"),
    ("moments", "moments"),
    ("paused s", "paused_seconds"),
    ("pauses", "pauses"),
    ("writes", "writes"),
    ("bytes written", "bytes_written"),
    ("come again", "redeliveries_mean"),
    ("not durable", "not_durable_mean"),
    ("at most", "redeliveries_max"),
    ("dropped", "entries_dropped_max"),
)
"""Of the summary, and where they come from."""


class WhatIf:
    """The job."""

    name = "what-if"
    help = "recorded traffic again, under other settings"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What only this job has."""
        group = parser.add_argument_group("what-if")
        group.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE[,VALUE...]",
            help="a setting of broker.conf and what it is to be; may be repeated: all combinations",
        )
        group.add_argument(
            "--variants",
            type=Path,
            metavar="FILE",
            help="more of them: JSON, names to settings; or a broker.conf",
        )
        group.add_argument(
            "--interval-seconds",
            type=int,
            default=3600,
            metavar="S",
            help="of a row of the timeline (default: 3600)",
        )
        group.add_argument(
            "--settings-groups",
            type=int,
            metavar="N",
            help=f"tasks that share the settings of a subscription (default: one for {VARIANTS_IN_GROUP})",
        )

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raises `ConfigurationError` for settings that cannot be, before Spark starts."""
        _checked(arguments)

    def run(self, run: JobRun) -> JobSummary:
        """Raises `ConfigurationError` as `check_arguments`, and for what the recording rules out."""
        variants, interval_us, groups = _checked(run.arguments)
        from pyspark import StorageLevel  # noqa: PLC0415

        from ackgate.pipeline.jobs.what_if import frames  # noqa: PLC0415
        from ackgate.pipeline.jobs.what_if.events import EVENTS_COLUMNS  # noqa: PLC0415

        run.progress(f"delivery journal: {len(variants)} variants")
        read = run.read("delivery_journal", columns=",".join(EVENTS_COLUMNS))
        journal = read.persist(StorageLevel.DISK_ONLY)
        rows = frames.replays(journal, variants, interval_us=interval_us, groups=groups)
        rows = rows.persist(StorageLevel.DISK_ONLY)
        try:
            results = frames.results(rows)
            run.write("results", results)
            run.write("timeline", frames.timeline(rows))
            run.write("differences", frames.differences(rows))
            run.write("coverage", frames.coverage(rows))
            run.progress("the report")
            data = _report_data(run, rows, variants, interval_us // 1000)
            run.output.joinpath(REPORT_FILE).write_text(what_if_page(data), encoding="utf-8")
            return _summary(data)
        finally:
            rows.unpersist()
            journal.unpersist()


def _checked(arguments: argparse.Namespace) -> tuple[tuple[Variant, ...], int, int]:
    variants = variants_of(arguments.set, arguments.variants)
    if not 1 <= arguments.interval_seconds <= 366 * 24 * 3600:
        raise ConfigurationError(
            f"--interval-seconds {arguments.interval_seconds}: wants a second to a year"
        )
    groups = arguments.settings_groups
    if groups is None:
        groups = -(-len(variants) // VARIANTS_IN_GROUP)
    elif not 1 <= groups <= len(variants):
        raise ConfigurationError(f"--settings-groups {groups}: wants 1 to {len(variants)}")
    return variants, arguments.interval_seconds * 1_000_000, groups


def _report_data(
    run: JobRun, rows: DataFrame, variants: Sequence[Variant], interval_ms: int
) -> ReportData:
    """What the driver needs: bounded by the number of variants, and by what is drawn."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    from ackgate.pipeline.jobs.what_if import frames  # noqa: PLC0415

    order = {variant.name: place for place, variant in enumerate(variants)}
    results, timeline = frames.results(rows), frames.timeline(rows)
    told = [row.asDict() for row in frames.by_variant(results).collect()]
    told.sort(key=lambda row: order[row["variant"]])
    whole = frames.totals(rows).collect()[0].asDict()
    first_ms, last_ms = whole.pop("first_ms") or 0, whole.pop("last_ms") or 0
    figures = {"variants": len(variants), **whole}
    drawn = [row["variant"] for row in told[:LINES_MAX]]
    span_ms = last_ms - first_ms
    width_ms = interval_ms * max(1, -(-span_ms // (interval_ms * POINTS_MAX)))
    worst = results.orderBy(
        f.desc("paused_seconds"), f.desc("redeliveries_mean"), "topic", "subscription", "variant"
    )
    shown = told[:VARIANTS_SHOWN_MAX]
    subscriptions = worst.limit(ROWS_SHOWN_MAX).collect()
    return ReportData(
        source=f"The delivery journal of {run.data.path}, replayed.",
        figures=figures,
        variants=shown,
        variants_left_out=len(told) - len(shown),
        times=[
            row.asDict() for row in frames.by_time(timeline, drawn, width_ms=width_ms).collect()
        ],
        subscriptions=[row.asDict() for row in subscriptions],
        subscriptions_left_out=max(
            0, figures["subscriptions"] * len(variants) - len(subscriptions)
        ),
    )


def _summary(data: ReportData) -> JobSummary:
    rows = [tuple(row[source] for _, source in _COLUMNS) for row in data.variants[:SUMMARY_ROWS]]
    all_variants = len(data.variants) + data.variants_left_out
    table = SummaryTable(
        "all subscriptions, by variant",
        tuple(title for title, _ in _COLUMNS),
        rows,
        rows_left_out=max(0, all_variants - SUMMARY_ROWS),
    )
    return JobSummary(data.figures, (table,), is_fine=not data.figures["differences"])


JOB: Final = WhatIf()
