"""The command ``ackgate pipeline what-if``: reads the delivery journal, writes what comes of it.

Edge. Spark is imported when the job runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError
from ackgate.pipeline.job import JobSummary, SummaryTable
from ackgate.pipeline.jobs.what_if.variants import variants_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ackgate.pipeline.job import DataFrame, JobRun
    from ackgate.pipeline.jobs.what_if.variants import Variant

VARIANTS_IN_GROUP: Final = 8
"""So many settings share one stream of events, unless it is said otherwise."""
SUMMARY_ROWS: Final = 40
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
            run.progress("summary")
            return _summary(frames.by_variant(results), frames.coverage(rows), variants)
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


def _summary(by_variant: DataFrame, coverage: DataFrame, variants: Sequence[Variant]) -> JobSummary:
    order = {variant.name: place for place, variant in enumerate(variants)}
    told = sorted(by_variant.collect(), key=lambda row: order[row["variant"]])
    covered = coverage.selectExpr(
        "count(*) AS subscriptions",
        "coalesce(sum(events), 0) AS events",
        "coalesce(sum(events_skipped), 0) AS events_skipped",
        "coalesce(sum(events_missing), 0) AS events_missing",
        "coalesce(sum(writes_compared), 0) AS writes_compared",
        "coalesce(sum(gate_changes_compared), 0) AS gate_changes_compared",
        "coalesce(sum(differences), 0) AS differences",
        "coalesce(max(cursor_bytes_max), 0) AS cursor_bytes_max",
    ).collect()[0]
    figures = {"variants": len(variants), **covered.asDict()}
    rows = [tuple(row[source] for _, source in _COLUMNS) for row in told[:SUMMARY_ROWS]]
    table = SummaryTable(
        "all subscriptions, by variant",
        tuple(title for title, _ in _COLUMNS),
        rows,
        rows_left_out=max(0, len(told) - SUMMARY_ROWS),
    )
    # With events missing it is no wonder; else what was recorded must come out again.
    is_fine = not figures["differences"]
    return JobSummary(figures, (table,), is_fine=is_fine)


JOB: Final = WhatIf()
