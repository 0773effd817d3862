"""Renders the what-if report as one HTML page.

Pure. Variants, rows and stretches of time are bounded, and the page says what is left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.jobs.what_if.variants import RECORDED
from ackgate.pipeline.report.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    bar,
    chart,
    layer,
    line,
    name,
    number,
    series,
    time,
    tooltip,
)
from ackgate.pipeline.report.page import (
    Cell,
    Head,
    cards,
    charts,
    page,
    paragraph,
    section,
    table,
)
from ackgate.pipeline.report.text import bytes_text, calendar_ms, count_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.pipeline.report.charts import Spec

LINES_MAX: Final = 5
"""Most variants drawn over time."""
BARS_MAX: Final = 40
"""Most variants drawn side by side."""

_NOTE: Final = (
    "What consumers did is taken as recorded: which messages they got, and when they acked. So a pause is "
    "the time that the gate would have been shut on the recorded acks, and a first delivery of the "
    "recording that falls into a pause counts as postponed. Under settings that leave the pace alone, "
    "records are formed at the moments at which the broker wrote; under others (paced) the writer's own "
    "rules give the moments, with latencies and failures as recorded. What would come again is an average "
    "over all moments: entries acked and not durable, and entries delivered and not acked."
)


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """Content of the report."""

    source: str
    figures: Mapping[str, Any]
    variants: Sequence[Mapping[str, Any]]
    """Results by variant, the recorded one first."""
    variants_left_out: int
    times: Sequence[Mapping[str, Any]]
    """Sums of all subscriptions, by variant and stretch of time."""
    subscriptions: Sequence[Mapping[str, Any]]
    """Results by subscription and variant: the longest pauses first, then the most redeliveries."""
    subscriptions_left_out: int


def what_if_page(data: WhatIfReport) -> str:
    """Render the report as one HTML page."""
    numbers = {row["variant"]: f"{at}" for at, row in enumerate(data.variants)}
    specs = [
        over_time_chart(data, "paused_seconds", "Paused", "s"),
        over_time_chart(data, "redeliveries_mean", "Would come again at a crash", "entries"),
        side_by_side_chart(data, "bytes_written", "Written", "bytes", BLUE),
        side_by_side_chart(data, "paused_seconds", "Paused", "s", ORANGE),
        side_by_side_chart(data, "redeliveries_mean", "Would come again", "entries", GREEN),
        side_by_side_chart(data, "delayed_memory_max", "Memory of delayed entries", "bytes", GREY),
    ]
    drawn = [spec for spec in specs if spec is not None]
    return page(
        "What if",
        data.source,
        (
            _cards(data.figures),
            _variants_table(data, numbers),
            section(charts(drawn)) if drawn else "",
            _subscriptions_table(data, numbers),
            paragraph(_NOTE),
        ),
    )


def _cards(figures: Mapping[str, Any]) -> str:
    names = ("variants", "subscriptions", "events", "writes_compared", "differences")
    more = ("events_skipped", "events_missing")
    chosen = (*names, *(name for name in more if figures[name]))
    return cards((count_text(figures[name]), name.replace("_", " ")) for name in chosen)


# ------------------------------------------------------------------------- tables


def _variants_table(data: WhatIfReport, numbers: Mapping[str, str]) -> str:
    heads = (
        Head("settings"),
        *_SUM_HEADS,
        Head("delayed buckets", "at once"),
        Head("their bytes", "memory"),
    )
    rows = [_variant_row(row, numbers[row["variant"]]) for row in data.variants]
    left_out = data.variants_left_out
    more = paragraph(f"and {left_out:,} variants more, in the results") if left_out else ""
    return section(table(heads, rows), more)


def _variant_row(row: Mapping[str, Any], number: str) -> list[Cell]:
    paced = "writes at moments of its own" if row["moments"] == "paced" else "moments as recorded"
    buckets, delayed_bytes = row["buckets_written"], row["delayed_bytes_written"]
    return [
        Cell(f"{number}  {row['variant'].replace(',', ', ')}", paced, int(number)),
        *_sums(row),
        Cell(count_text(buckets), count_text(row["buckets_max"]), buckets),
        Cell(bytes_text(delayed_bytes), bytes_text(row["delayed_memory_max"]), delayed_bytes),
    ]


_SUM_HEADS: Final = (
    Head("paused", "pauses"),
    Head("written", "writes"),
    Head("snapshots"),
    Head("would come again", "at most"),
    Head("of it acked", "not durable"),
    Head("left out", "entries of a record"),
)


def _sums(row: Mapping[str, Any]) -> list[Cell]:
    dropped, paused, written = (
        row[name] for name in ("entries_dropped_max", "paused_seconds", "bytes_written")
    )
    again = row["redeliveries_mean"]
    return [
        Cell(f"{paused:,.1f} s", count_text(row["pauses"]), paused, is_alarm=paused > 0),
        Cell(bytes_text(written), count_text(row["writes"]), written),
        Cell(count_text(row["snapshots"]), order=row["snapshots"]),
        Cell(count_text(again), count_text(row["redeliveries_max"]), again),
        Cell(count_text(row["not_durable_mean"]), order=row["not_durable_mean"]),
        Cell(count_text(dropped), order=dropped, is_alarm=dropped > 0),
    ]


def _subscriptions_table(data: WhatIfReport, numbers: Mapping[str, str]) -> str:
    if not data.subscriptions:
        return ""
    heads = (
        Head("subscription", "topic"),
        Head("settings", "by number"),
        *_SUM_HEADS,
    )
    rows = [
        [Cell(row["subscription"], row["topic"]), Cell(numbers[row["variant"]]), *_sums(row)]
        for row in data.subscriptions
        if row["variant"] in numbers
    ]
    left_out = data.subscriptions_left_out
    more = paragraph(f"and {left_out:,} rows more, in the results") if left_out else ""
    return section(table(heads, rows), more)


# -------------------------------------------------------------------------- charts


def over_time_chart(data: WhatIfReport, figure: str, title: str, unit: str) -> Spec | None:
    """Line chart of a figure over time, for `LINES_MAX` variants; None if all values are 0."""
    by_variant: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in data.times:
        by_variant[row["variant"]].append(row)
    numbers = {row["variant"]: f"{at}" for at, row in enumerate(data.variants)}
    shown = [row["variant"] for row in data.variants if row["variant"] in by_variant][:LINES_MAX]
    if not any(row[figure] for variant in shown for row in by_variant[variant]):
        return None
    words = {each: each if each == RECORDED else numbers[each] for each in shown}
    rows = [
        {"at_ms": calendar_ms(at_ms), "value": value, "series": words[variant]}
        for variant in shown
        for at_ms, value in _steps(by_variant[variant], figure)
    ]
    lines = layer(
        "times",
        line(),
        x=time("at_ms"),
        y=number("value", unit),
        color=series(list(words.values())),
        tooltip=tooltip(at_ms="at (UTC)", value=unit, series="settings"),
    )
    return chart(f"{title}, by time", {"times": rows}, [lines])


def _steps(rows: Sequence[Mapping[str, Any]], figure: str) -> list[tuple[float, float]]:
    """Points (ms, value) of a step line; 0 in gaps, during which nobody owned a topic."""
    points: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: row["from_ms"]):
        if points and points[-1][0] < row["from_ms"]:
            points += [(points[-1][0], 0), (row["from_ms"], 0)]
        points += [(row["from_ms"], row[figure]), (row["until_ms"], row[figure])]
    return points


def side_by_side_chart(
    data: WhatIfReport, figure: str, title: str, unit: str, color: str
) -> Spec | None:
    """Bar chart of a figure by variant; None for a single variant or if all values are 0."""
    variants = data.variants[:BARS_MAX]
    if len(variants) < 2 or not any(row[figure] for row in variants):
        return None
    rows = [
        {"number": f"{at}", "value": row[figure], "settings": row["variant"]}
        for at, row in enumerate(variants)
    ]
    bars = layer(
        "variants",
        bar(color),
        x=name("number", "settings, by number", order=[row["number"] for row in rows])
        | {"axis": {"labelAngle": 0, "labelOverlap": True}},
        y=number("value", unit, axis={"format": "~s"}),
        tooltip=tooltip(settings="settings", value=unit),
    )
    return chart(f"{title}, by settings", {"variants": rows}, [bars], has_zoom=False)
