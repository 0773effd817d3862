"""The charts of one subscription: ranges and limit, holes, bytes, the gate, and present holes.

Pure. Each chart carries its data; see `ackgate.pipeline.report.charts`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.report.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    RED,
    area,
    bar,
    box,
    chart,
    layer,
    line,
    name,
    number,
    rule,
    series,
    time,
    tooltip,
    until,
)
from ackgate.pipeline.report.text import (
    calendar_ms,
    count_text,
    largest_unit,
    moment_text,
    shortened,
    span_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.jobs.ack_stats.leavers import OpenHole
    from ackgate.pipeline.jobs.ack_stats.limits import GateHistory, GateInterval
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionFigures
    from ackgate.pipeline.report.charts import Spec

SHADES: Final = (0.01, 0.05, 0.2, 0.5, 1.0)
"""Upper bounds of the heat map's shades: share of a cell's entries in holes. Finest near 0."""

LIMIT_DRAWN_UP_TO: Final = 4
"""The limit is drawn up to this many times the highest value; above, it would flatten the chart."""

IN_MEMORY: Final = "in memory"
PERSISTED: Final = "persisted"
EXPECTED: Final = "expected"
LIMIT: Final = "limit"
COMPLETE: Final = "complete"
IN_NODE: Final = "also in the metadata node"
CUT: Final = "cut by a limit"
OTHERS: Final = "others"


def history_charts(stats: SubscriptionFigures, gate: GateHistory) -> list[Spec]:
    """Return the charts of history and gate; without history and pauses, an empty list."""
    specs = []
    if stats.has_history:
        specs.append(range_chart(stats, gate))
        if any(point.holes is not None for point in stats.history[:-1]):
            specs += [hole_map(stats), hole_chart(stats)]
        specs.append(bytes_chart(stats))
    if gate.intervals:
        specs.append(gate_chart(stats, gate))
    return specs


def range_chart(stats: SubscriptionFigures, gate: GateHistory) -> Spec:
    """Return the chart of ranges over time with limit, forecast band and gate pauses."""
    counts = [point.ranges_in_memory_max for point in stats.history]
    highest = max([*counts, *(point.high for point in stats.curve), 1])
    is_limit_drawn = stats.range_limit <= LIMIT_DRAWN_UP_TO * highest
    until_ms = max([stats.until_ms, *(point.time_ms for point in stats.curve)])
    rows = [
        {"at_ms": point.until_ms, "ranges": count, "series": which}
        for which, counts in (
            (IN_MEMORY, [point.ranges_in_memory for point in stats.history]),
            (PERSISTED, [point.range_count for point in stats.history]),
        )
        for point, count in zip(stats.history, counts, strict=True)
    ]
    rows += [
        {"at_ms": point.time_ms, "ranges": point.expected, "series": EXPECTED}
        for point in stats.curve
    ]
    shown = [IN_MEMORY, PERSISTED, *([EXPECTED] if stats.curve else [])]
    if is_limit_drawn:
        rows += _limit_rows(stats, until_ms)
        shown.append(LIMIT)
    colors = {IN_MEMORY: BLUE, PERSISTED: GREEN, EXPECTED: ORANGE, LIMIT: RED}
    data: dict[str, Sequence[Any]] = {"counts": [_on_calendar(row) for row in rows]}
    lines = layer(
        "counts",
        line(),
        x=time("at_ms"),
        y=number("ranges", "ack ranges", top=_readable_top(stats, max(counts), highest)),
        color=series(shown, [colors[each] for each in shown]),
        tooltip=tooltip(at_ms="at (UTC)", ranges="ranges", series="which"),
    )
    layers = [lines]
    if stats.curve:
        data["band"] = [
            {"at_ms": calendar_ms(point.time_ms), "low": point.low, "high": point.high}
            for point in stats.curve
        ]
        data["now"] = [{"at_ms": calendar_ms(stats.until_ms)}]
        band = layer(
            "band", area(ORANGE), x=time("at_ms"), y=number("low", "ack ranges"), y2=until("high")
        )
        layers = [band, *layers, layer("now", rule(GREY), x=time("at_ms"))]
    drawn = [one for one in gate.intervals if stats.from_ms <= one.until_ms]
    if drawn:
        data["shut"] = [_shut_row(one, gate) for one in drawn]
        layers = [*layers, _shut_layer(box(RED, opacity=0.18))]
    return chart(
        "Ranges against the limit",
        data,
        layers,
        subtitle=_range_subtitle(stats, gate if drawn else None, is_limit_drawn=is_limit_drawn),
    )


def _range_subtitle(
    stats: SubscriptionFigures, gate: GateHistory | None, *, is_limit_drawn: bool
) -> str | None:
    words = [] if is_limit_drawn else [f"limit {count_text(stats.range_limit)}: far above"]
    if stats.curve:
        words.append("band: 90 % of errors")
    if gate is not None:
        words.append("red: over the limit" if gate.is_guessed else "red: gate shut")
    return "; ".join(words) or None


def _limit_rows(stats: SubscriptionFigures, until_ms: int) -> list[dict[str, Any]]:
    """Return two rows, beginning and end, for each step of the limit."""
    ends = [step.from_ms for step in stats.limits[1:]] + [until_ms]
    return [
        {"at_ms": max(at_ms, stats.from_ms), "ranges": step.limit, "series": LIMIT}
        for step, end_ms in zip(stats.limits, ends, strict=True)
        for at_ms in (step.from_ms, end_ms)
    ]


def _readable_top(stats: SubscriptionFigures, seen: float, highest: float) -> float:
    """Return the top of the axis, below the band's upper edge if that would flatten the counts."""
    matters = max(seen, 1.0)
    if stats.range_limit <= LIMIT_DRAWN_UP_TO * highest:
        matters = max(matters, stats.range_limit * 1.15)
    return min(highest, max(2 * matters, 1.0)) if highest > matters else matters


def hole_map(stats: SubscriptionFigures) -> Spec:
    """Return a heat map of unacked entries in holes by time and position, with the mark-delete."""
    points = stats.history
    ends = [point.from_ms for point in points[1:]] + [stats.until_ms]
    cells = []
    for place in range(len(stats.places)):
        shades = [
            (_shade(point.hole_entries_by_place, place, stats.place_entries), point, end_ms)
            for point, end_ms in zip(points, ends, strict=True)
        ]
        for shade, run in groupby(shades, key=lambda each: each[0]):
            if shade is None:
                continue
            of_run = list(run)
            cells.append(
                {
                    "from_ms": calendar_ms(of_run[0][1].from_ms),
                    "until_ms": calendar_ms(of_run[-1][2]),
                    "place": place,
                    "place_end": place + 1,
                    "shade": SHADES[shade],
                    "position": _position(stats, place),
                }
            )
    marks = [
        {"at_ms": calendar_ms(point.until_ms), "place": point.mark_delete_place} for point in points
    ]
    step = max(1, -(-len(stats.places) // 6))
    labels = {place: _position(stats, place) for place in range(0, len(stats.places), step)}
    # Labels consist of numbers only, so no name from outside gets into the expression.
    words = ",".join(f"'{place}':'{label}'" for place, label in labels.items())
    axis = {"values": list(labels), "labelExpr": f"({{{words}}})[datum.value]", "grid": False}
    shade_scale = {
        "field": "shade",
        "type": "ordinal",
        "title": "of a cell in holes, up to",
        "scale": {
            "domain": list(SHADES),
            "range": ["#c9dcf8", "#97bbf0", "#6398e6", "#3974d0", "#1d4f9e"],
        },
        "legend": {"format": ".0%"},
    }
    boxes = layer(
        "cells",
        box(),
        x=time("from_ms"),
        x2=until("until_ms"),
        y=number(
            "place",
            f"position (cells of {count_text(stats.place_entries)})",
            top=max(len(stats.places), 1),
            scale={"nice": False},
            axis=axis,
        ),
        y2=until("place_end"),
        color=shade_scale,
        tooltip=tooltip(from_ms="from (UTC)", until_ms="until", position="from position"),
    )
    mark_delete = layer("mark_delete", line(ORANGE), x=time("at_ms"), y=number("place"))
    return chart(
        "Holes by position and time",
        {"cells": cells, "mark_delete": marks},
        [boxes, mark_delete],
        subtitle="orange: mark-delete",
    )


def _position(stats: SubscriptionFigures, place: int) -> str:
    return f"{stats.places[place].ledger_id}:{stats.places[place].entry_id}"


def _shade(unacked: Sequence[int], place: int, entries: int) -> int | None:
    """Return the index in `SHADES` of a cell; None if it has no hole or the state is unknown."""
    if not unacked or not unacked[place]:
        return None
    return bisect_left(SHADES[:-1], unacked[place] / entries)


def hole_chart(stats: SubscriptionFigures) -> Spec:
    """Return the chart of the number of holes and the age of the oldest hole over time."""
    known = [point for point in stats.history if point.holes is not None]
    ages = {
        point.until_ms: max(point.until_ms - point.oldest_hole_since_ms, 0)
        for point in known
        if point.oldest_hole_since_ms is not None
    }
    unit, unit_ms = largest_unit(max(ages.values(), default=0))
    counts = [{"at_ms": calendar_ms(point.until_ms), "holes": point.holes} for point in known]
    layers = [
        layer(
            "holes",
            line(BLUE),
            x=time("at_ms"),
            y=number("holes", "holes"),
            tooltip=tooltip(at_ms="at (UTC)", holes="holes"),
        )
    ]
    if ages:
        layers.append(
            layer(
                "oldest",
                line(ORANGE),
                x=time("at_ms"),
                y=number(
                    "age", f"age of the oldest ({unit})", axis={"titleColor": ORANGE, "grid": False}
                ),
                tooltip=tooltip(at_ms="at (UTC)", age=f"{unit} old"),
            )
        )
    oldest = [
        {"at_ms": calendar_ms(at_ms), "age": round(age / unit_ms, 3)} for at_ms, age in ages.items()
    ]
    return chart(
        "Holes", {"holes": counts, "oldest": oldest}, layers, has_two_scales=len(layers) > 1
    )


def bytes_chart(stats: SubscriptionFigures) -> Spec:
    """Return the chart of bytes written per time bin. Colours: cut and metadata-node records."""
    rows = [
        {
            "from_ms": calendar_ms(point.from_ms),
            "until_ms": calendar_ms(point.until_ms),
            "bytes": point.record_bytes,
            "records": point.records,
            "dropped": point.entries_dropped_max,
            "series": CUT if point.records_cut else IN_NODE if point.node_records else COMPLETE,
        }
        for point in stats.history
    ]
    width_ms = stats.history[0].until_ms - stats.history[0].from_ms
    bars = layer(
        "writes",
        bar(),
        x=time("from_ms"),
        x2=until("until_ms"),
        y=number("bytes", f"bytes in {span_text(width_ms)}", axis={"format": "~s"}),
        y2={"datum": 0},
        color=series((COMPLETE, IN_NODE, CUT), (BLUE, ORANGE, RED)),
        tooltip=tooltip(
            from_ms="from (UTC)",
            until_ms="until",
            bytes="bytes",
            records="records",
            dropped="entries dropped at most",
        ),
    )
    return chart("Bytes written, and outcomes", {"writes": rows}, [bars])


def gate_chart(stats: SubscriptionFigures, gate: GateHistory) -> Spec:
    """Return the chart of the gate's pauses, one row per reason, exact to the millisecond."""
    rows = [
        _shut_row(one, gate, reason)
        for one in gate.intervals
        for reason in _reasons(one, gate).split(",")
    ]
    title = "More ranges than the limit (guessed)" if gate.is_guessed else "Gate shut, by reason"
    reasons = sorted({row["reason"] for row in rows})
    span_ms = (
        calendar_ms(min([stats.from_ms, *(one.from_ms for one in gate.intervals)])),
        calendar_ms(max([stats.until_ms, *(one.until_ms for one in gate.intervals)])),
    )
    return chart(
        title,
        {"shut": rows},
        [_shut_layer(box(RED), span_ms=span_ms, y=name("reason", order=reasons))],
        height=36 * len(reasons),
    )


def _shut_layer(mark: Spec, *, span_ms: tuple[int, int] | None = None, **more: Spec) -> Spec:
    tips = tooltip(from_text="from (UTC)", until_text="until", span="for", reasons="reasons")
    x = time("from_ms", span_ms=span_ms)
    return layer("shut", mark, x=x, x2=until("until_ms"), tooltip=tips, **more)


def _shut_row(one: GateInterval, gate: GateHistory, reason: str = "") -> dict[str, Any]:
    reasons = _reasons(one, gate)
    return {
        "from_ms": calendar_ms(one.from_ms),
        "until_ms": calendar_ms(one.until_ms),
        "from_text": moment_text(one.from_ms),
        "until_text": moment_text(one.until_ms),
        "span": span_text(one.until_ms - one.from_ms),
        "reason": reason or reasons,
        "reasons": reasons,
    }


def _reasons(one: GateInterval, gate: GateHistory) -> str:
    """Its reasons, with commas between. A journal that began while the gate was shut has none."""
    return one.reasons or ("guessed" if gate.is_guessed else "not known")


def age_chart(holes: Sequence[OpenHole]) -> Spec:
    """Return a bar chart of hole ages by position, coloured by the consumer that got it last."""
    unit, unit_ms = largest_unit(max((hole.age_ms for hole in holes), default=0))
    names = [who for who, _ in Counter(hole.consumer for hole in holes).most_common()]
    if len(names) > len(PALETTE):
        names = [*names[: len(PALETTE) - 1], OTHERS]
    labels = {who: shortened(who) for who in names}
    ordered = sorted(holes, key=lambda hole: (hole.ledger_id, hole.first_entry_id))
    rows = [
        {
            "position": f"{hole.ledger_id}:{hole.first_entry_id}",
            "age": round(hole.age_ms / unit_ms, 3),
            "entries": hole.entries,
            "consumer": hole.consumer,
            "key": hole.key,
            "series": labels.get(hole.consumer, OTHERS),
        }
        for hole in ordered
    ]
    places = name("position", "holes by position", order=[f"{row['position']}" for row in rows])
    bars = layer(
        "holes",
        bar(),
        x=places | {"axis": {"labelOverlap": True, "labelAngle": 0}},
        y=number("age", f"age in {unit}"),
        color=series(list(dict.fromkeys(labels.values()))),
        tooltip=tooltip(
            position="first entry",
            entries="unacked",
            age=f"{unit} old",
            consumer="given to last",
            key="key",
        ),
    )
    return chart("Holes of today: age, and given to", {"holes": rows}, [bars], has_zoom=False)


def _on_calendar(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"at_ms": calendar_ms(row["at_ms"])}
