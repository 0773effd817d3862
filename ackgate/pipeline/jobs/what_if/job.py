"""The command ``ackgate pipeline what-if``: replays the delivery journal and writes the results.

Edge. Spark is imported when the job runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError
from ackgate.pipeline.jobs.job import JobSummary, SummaryTable
from ackgate.pipeline.jobs.what_if.page import LINES_MAX, WhatIfReport, what_if_page
from ackgate.pipeline.jobs.what_if.variants import variants_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ackgate.pipeline.jobs.job import DataFrame, JobRun
    from ackgate.pipeline.jobs.what_if.variants import Variant

VARIANTS_IN_GROUP: Final = 8
"""Most variants in one group, which share one stream of events, by default."""
SUMMARY_ROWS: Final = 40
VARIANTS_SHOWN_MAX: Final = 200
ROWS_SHOWN_MAX: Final = 200
POINTS_MAX: Final = 200
"""Most stretches of time in a chart."""
STRETCHES: Final = 100
"""Rows of one subscription's timeline, about at most, unless ``--interval-seconds`` is given."""
_WIDTHS_SECONDS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
)
_DAY_SECONDS: Final = 86_400
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
"""Pairs of a title in the summary and the result column below it."""


class WhatIf:
    """Replays the traffic that a delivery journal recorded, under other settings."""

    name = "what-if"
    help = "replay recorded traffic under other settings"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--set``, ``--variants``, ``--interval-seconds`` and ``--settings-groups``."""
        group = parser.add_argument_group("what-if")
        group.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE[,VALUE...]",
            help="a setting of broker.conf and its values; repeat it for all combinations",
        )
        group.add_argument(
            "--variants",
            type=Path,
            metavar="FILE",
            help="more variants: JSON of names to settings, or a broker.conf",
        )
        group.add_argument(
            "--interval-seconds",
            type=int,
            metavar="S",
            help="width of a row of the timeline (default: by the length of the recording, "
            f"at most {STRETCHES} rows)",
        )
        group.add_argument(
            "--settings-groups",
            type=int,
            metavar="N",
            help=f"tasks for the settings of one subscription (default: one for {VARIANTS_IN_GROUP})",
        )

    def check_arguments(self, arguments: argparse.Namespace) -> None:
        """Raise `ConfigurationError` for settings that do not exist or have a wrong value."""
        _checked(arguments)

    def run(self, run: JobRun) -> JobSummary:
        """Run the job.

        Raises `ConfigurationError` as `check_arguments` does, and for variants that are invalid
        together with the recorded settings.
        """
        variants, asked_us, groups = _checked(run.arguments)
        from ackgate.pipeline.jobs.what_if import frames  # noqa: PLC0415
        from ackgate.pipeline.jobs.what_if.events import EVENTS_COLUMNS  # noqa: PLC0415

        run.progress(f"delivery journal: {len(variants)} variants")
        journal = run.keep(run.read("delivery_journal", columns=",".join(EVENTS_COLUMNS)))
        interval_us = asked_us or interval_for(frames.recorded_us(journal))
        rows = run.keep(frames.replays(journal, variants, interval_us=interval_us, groups=groups))
        run.write("results", frames.results(rows))
        run.write("timeline", frames.timeline(rows))
        run.write("differences", frames.differences(rows))
        run.write("coverage", frames.coverage(rows))
        run.progress("the report")
        data = _report_data(run, rows, variants, interval_us // 1000)
        run.write_page(what_if_page(data))
        return _summary(data)


def interval_for(recorded_us: int) -> int:
    """Return the smallest round width in us of which `STRETCHES` cover the recording."""
    for seconds in _WIDTHS_SECONDS:
        width_us = round(seconds * 1_000_000)
        if recorded_us <= STRETCHES * width_us:
            return width_us
    days = -(-recorded_us // (STRETCHES * _DAY_SECONDS * 1_000_000))
    return days * _DAY_SECONDS * 1_000_000


def _checked(arguments: argparse.Namespace) -> tuple[tuple[Variant, ...], int | None, int]:
    """Return the variants, the given interval in us or None, and the number of settings groups."""
    variants = variants_of(arguments.set, arguments.variants)
    asked = arguments.interval_seconds
    if asked is not None and not 1 <= asked <= 366 * 24 * 3600:
        raise ConfigurationError(f"--interval-seconds {asked}: must be a second to a year")
    groups = arguments.settings_groups
    if groups is None:
        groups = -(-len(variants) // VARIANTS_IN_GROUP)
    elif not 1 <= groups <= len(variants):
        raise ConfigurationError(f"--settings-groups {groups}: must be 1 to {len(variants)}")
    return variants, None if asked is None else asked * 1_000_000, groups


def _report_data(
    run: JobRun, rows: DataFrame, variants: Sequence[Variant], interval_ms: int
) -> WhatIfReport:
    """Collect the report on the driver; its size is bounded by what the report shows."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    from ackgate.pipeline.jobs.what_if import frames  # noqa: PLC0415

    order = {variant.name: place for place, variant in enumerate(variants)}
    results, timeline = frames.results(rows), frames.timeline(rows)
    by_variant = [row.asDict() for row in frames.by_variant(results).collect()]
    by_variant.sort(key=lambda row: order[row["variant"]])
    whole = frames.totals(rows).collect()[0].asDict()
    first_ms, last_ms = whole.pop("first_ms") or 0, whole.pop("last_ms") or 0
    figures = {"variants": len(variants), **whole}
    drawn = [row["variant"] for row in by_variant[:LINES_MAX]]
    span_ms = last_ms - first_ms
    width_ms = interval_ms * max(1, -(-span_ms // (interval_ms * POINTS_MAX)))
    worst = results.orderBy(
        f.desc("paused_seconds"), f.desc("redeliveries_mean"), "topic", "subscription", "variant"
    )
    shown = by_variant[:VARIANTS_SHOWN_MAX]
    subscriptions = worst.limit(ROWS_SHOWN_MAX).collect()
    return WhatIfReport(
        source=f"The delivery journal of {run.data.path}, replayed.",
        figures=figures,
        variants=shown,
        variants_left_out=len(by_variant) - len(shown),
        times=[
            row.asDict() for row in frames.by_time(timeline, drawn, width_ms=width_ms).collect()
        ],
        subscriptions=[row.asDict() for row in subscriptions],
        subscriptions_left_out=max(
            0, figures["subscriptions"] * len(variants) - len(subscriptions)
        ),
    )


def _summary(data: WhatIfReport) -> JobSummary:
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
