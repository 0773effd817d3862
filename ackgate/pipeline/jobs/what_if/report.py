"""The report: one HTML page that needs nothing beside itself, with pictures as inline SVG.

Pure. Its size is bounded: so many variants, rows and stretches of time; what is left out is said.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.drawing.axes import (
    bytes_text,
    count_text,
    count_ticks,
    named_axis,
    short_text,
    time_axis,
)
from ackgate.pipeline.drawing.page import cards, cell, page, paragraph, plots, section, table
from ackgate.pipeline.drawing.plot import Plot
from ackgate.pipeline.jobs.what_if.variants import RECORDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LINES_MAX: Final = 5
"""Variants that are drawn over time."""
BARS_MAX: Final = 40
"""Variants that are drawn side by side."""

_NOTE: Final = (
    "What consumers did is taken as recorded: which messages they got, and when they acked. So a pause is "
    "the time that the gate would have been shut on the recorded acks, and a first delivery of the "
    "recording that falls into a pause counts as postponed. Under settings that leave the pace alone, "
    "records are formed at the moments at which the broker wrote; under others (paced) the writer's own "
    "rules give the moments, with latencies and failures as recorded. What would come again is an average "
    "over all moments: entries acked and not durable, and entries delivered and not acked."
)
_STYLE: Final = "td:first-child small { white-space: normal; }"


@dataclass(frozen=True, slots=True)
class ReportData:
    """What a report is made of."""

    source: str
    figures: Mapping[str, Any]
    variants: Sequence[Mapping[str, Any]]
    """Results by variant, the recorded one first."""
    variants_left_out: int
    times: Sequence[Mapping[str, Any]]
    """By variant and stretch of time."""
    subscriptions: Sequence[Mapping[str, Any]]
    """By subscription and variant; those that pause longest, or would send most again."""
    subscriptions_left_out: int


def what_if_page(data: ReportData) -> str:
    """The page."""
    numbers = {row["variant"]: f"{at}" for at, row in enumerate(data.variants)}
    pictures = [
        _over_time(data, numbers, "paused_seconds", "Paused", "s"),
        _over_time(data, numbers, "redeliveries_mean", "Would come again at a crash", "entries"),
        _side_by_side(data, "bytes_written", "Written", "bytes", "box0"),
        _side_by_side(data, "paused_seconds", "Paused", "s", "box1"),
        _side_by_side(data, "redeliveries_mean", "Would come again", "entries", "box2"),
        _side_by_side(data, "delayed_memory_max", "Memory of delayed entries", "bytes", "box4"),
    ]
    drawn = [picture for picture in pictures if picture]
    return page(
        "What if",
        data.source,
        (
            _cards(data.figures),
            _variants_table(data, numbers),
            section(plots(drawn)) if drawn else "",
            _subscriptions_table(data, numbers),
            paragraph(_NOTE),
        ),
        style=_STYLE,
    )


def _cards(figures: Mapping[str, Any]) -> str:
    names = ("variants", "subscriptions", "events", "writes_compared", "differences")
    more = ("events_skipped", "events_missing")
    chosen = (*names, *(name for name in more if figures[name]))
    return cards((count_text(figures[name]), name.replace("_", " ")) for name in chosen)


# ------------------------------------------------------------------------- tables


def _variants_table(data: ReportData, numbers: Mapping[str, str]) -> str:
    heads = (
        ("settings", ""),
        *_SUM_HEADS,
        ("delayed buckets", "at once"),
        ("their bytes", "memory"),
    )
    rows = [_variant_row(row, numbers[row["variant"]]) for row in data.variants]
    left_out = data.variants_left_out
    more = paragraph(f"and {left_out:,} variants more, in the results") if left_out else ""
    return section(table(heads, rows), more)


def _variant_row(row: Mapping[str, Any], number: str) -> list[str]:
    paced = "writes at moments of its own" if row["moments"] == "paced" else "moments as recorded"
    return [
        cell(f"{number}  {row['variant'].replace(',', ', ')}", paced),
        *_sums(row),
        cell(count_text(row["buckets_written"]), count_text(row["buckets_max"])),
        cell(bytes_text(row["delayed_bytes_written"]), bytes_text(row["delayed_memory_max"])),
    ]


_SUM_HEADS: Final = (
    ("paused", "pauses"),
    ("written", "writes"),
    ("snapshots", ""),
    ("would come again", "at most"),
    ("of it acked", "not durable"),
    ("left out", "entries of a record"),
)


def _sums(row: Mapping[str, Any]) -> list[str]:
    dropped = row["entries_dropped_max"]
    return [
        cell(
            f"{row['paused_seconds']:,.1f} s",
            count_text(row["pauses"]),
            is_alarm=row["paused_seconds"] > 0,
        ),
        cell(bytes_text(row["bytes_written"]), count_text(row["writes"])),
        cell(count_text(row["snapshots"])),
        cell(count_text(row["redeliveries_mean"]), count_text(row["redeliveries_max"])),
        cell(count_text(row["not_durable_mean"])),
        cell(count_text(dropped), is_alarm=dropped > 0),
    ]


def _subscriptions_table(data: ReportData, numbers: Mapping[str, str]) -> str:
    if not data.subscriptions:
        return ""
    heads = (
        ("subscription", "topic"),
        ("settings", ""),
        *_SUM_HEADS,
    )
    rows = [
        [cell(row["subscription"], row["topic"]), cell(numbers[row["variant"]]), *_sums(row)]
        for row in data.subscriptions
        if row["variant"] in numbers
    ]
    left_out = data.subscriptions_left_out
    more = paragraph(f"and {left_out:,} rows more, in the results") if left_out else ""
    return section(table(heads, rows), more)


# ----------------------------------------------------------------------- pictures


def _over_time(
    data: ReportData, numbers: Mapping[str, str], name: str, title: str, unit: str
) -> str:
    """Lines: the recorded settings and the first others."""
    by_variant: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in data.times:
        by_variant[row["variant"]].append(row)
    shown = [row["variant"] for row in data.variants if row["variant"] in by_variant][:LINES_MAX]
    rows = [row for variant in shown for row in by_variant[variant]]
    if not any(row[name] for row in rows):
        return ""
    ticks = count_ticks(max(row[name] for row in rows))
    axis = time_axis(min(row["from_ms"] for row in rows), max(row["until_ms"] for row in rows))
    plot = Plot(f"{title}, by time", unit, axis, ticks[-1])
    legend = []
    for line, variant in enumerate(shown):
        points = _points(by_variant[variant], name)
        plot.line(f"line{line}", points)
        words = RECORDED if variant == RECORDED else numbers[variant]
        legend.append(("line", f"line{line}", words))
    return plot.drawn([(tick, short_text(tick)) for tick in ticks], legend)


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """A step for each stretch of time; between two that do not touch, nobody owned a topic."""
    points: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: row["from_ms"]):
        if points and points[-1][0] < row["from_ms"]:
            points += [(points[-1][0], 0), (row["from_ms"], 0)]
        points += [(row["from_ms"], row[name]), (row["until_ms"], row[name])]
    return points


def _side_by_side(data: ReportData, name: str, title: str, unit: str, css: str) -> str:
    """Bars, by the number of the variant."""
    rows = data.variants[:BARS_MAX]
    highest = max((row[name] for row in rows), default=0)
    if len(rows) < 2 or not highest:
        return ""
    ticks = count_ticks(highest)
    axis = named_axis("settings, by number", [str(at) for at in range(len(rows))])
    plot = Plot(f"{title}, by settings", unit, axis, ticks[-1])
    for at, row in enumerate(rows):
        plot.rectangle(css, at + 0.15, at + 0.85, 0, row[name])
    return plot.drawn([(tick, short_text(tick)) for tick in ticks], [])
