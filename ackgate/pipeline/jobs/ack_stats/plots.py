"""The pictures of one subscription: ranges against the limit, the hole heat map, bytes and outcomes.

Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ackgate.pipeline.drawing.axes import (
    bytes_text,
    count_text,
    count_ticks,
    short_text,
    span_text,
    time_axis,
    time_text,
)
from ackgate.pipeline.drawing.plot import Plot, number
from ackgate.pipeline.jobs.ack_stats.gate_plot import shut_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.drawing.axes import XAxis
    from ackgate.pipeline.jobs.ack_stats.gate import GateHistory
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionStats

SHADES: Final = (0.01, 0.05, 0.2, 0.5, 1.0)
"""Of the heat map: up to what share of a cell's entries lies in holes. A few are what matters most."""

LIMIT_DRAWN_UP_TO: Final = 4
"""A limit that is more times as high as all else would press that to the ground."""


def range_plot(stats: SubscriptionStats, gate: GateHistory) -> str:
    """Ranges over time, the limit, what is to come and the times at which the gate was shut."""
    counts = [point.ranges_in_memory_max for point in stats.history]
    highest = max([*counts, *(point.high for point in stats.curve), 1])
    is_limit_drawn = stats.range_limit <= LIMIT_DRAWN_UP_TO * highest
    top = _readable_top(stats, max(counts), highest)
    ticks = count_ticks(top)
    until_ms = max([stats.until_ms, *(point.time_ms for point in stats.curve)])
    plot = Plot(
        "Ranges against the limit", "ack ranges", time_axis(stats.from_ms, until_ms), ticks[-1]
    )
    legend = [("line", "ranges", "in memory"), ("line", "kept", "persisted")]
    for one in gate.intervals:
        if one.until_ms >= stats.from_ms and one.from_ms <= until_ms:
            shut_bar(plot, "shut", one, 0, plot.y_top)
    if stats.curve:
        _forecast(plot, stats)
        legend += [("line", "told", "expected"), ("box", "band", "90 % of errors")]
    plot.line("kept", [(point.until_ms, point.range_count) for point in stats.history])
    plot.line("ranges", [(point.until_ms, point.ranges_in_memory) for point in stats.history])
    if is_limit_drawn:
        plot.line("limit", _limit_line(stats, until_ms, plot.y_top))
        legend.append(("line", "limit", f"limit {count_text(stats.range_limit)}"))
    else:
        words = f"limit {count_text(stats.range_limit)}: far above"
        plot.text("note", stats.from_ms, plot.y_top * 0.95, words)
    if gate.intervals:
        legend.append(("box", "shut", "over the limit" if gate.is_guessed else "gate shut"))
    return plot.drawn([(tick, short_text(tick)) for tick in ticks], legend)


def _limit_line(stats: SubscriptionStats, until_ms: int, y_top: float) -> list[tuple[float, float]]:
    """A step for each change of the limit; above the picture it runs along its edge."""
    line: list[tuple[float, float]] = []
    ends = [step.from_ms for step in stats.limits[1:]] + [until_ms]
    for step, end_ms in zip(stats.limits, ends, strict=True):
        level = min(step.limit, y_top)
        line += [(max(step.from_ms, stats.from_ms), level), (max(end_ms, stats.from_ms), level)]
    return line


def _readable_top(stats: SubscriptionStats, seen: float, highest: float) -> float:
    """The band's upper edge may run away; what is drawn of it ends well above all that matters."""
    matters = max(seen, 1.0)
    if stats.range_limit <= LIMIT_DRAWN_UP_TO * highest:
        matters = max(matters, stats.range_limit * 1.15)
    return min(highest, max(2 * matters, 1.0)) if highest > matters else matters


def _forecast(plot: Plot, stats: SubscriptionStats) -> None:
    top = plot.y_top
    upper = [(point.time_ms, min(point.high, top)) for point in stats.curve]
    lower = [(point.time_ms, min(point.low, top)) for point in reversed(stats.curve)]
    path = " ".join(f"{number(plot.x(t))},{number(plot.y(v))}" for t, v in upper + lower)
    plot.add(f'<polygon class="band" points="{path}"/>')
    drawn = [(point.time_ms, point.expected) for point in stats.curve if point.expected <= top]
    if drawn:
        plot.line("told", drawn)
    plot.upright("now", stats.until_ms)


def heat_map(stats: SubscriptionStats) -> str:
    """Where the unacked entries between acked ones were, and when; the line is the mark-delete."""
    bins = len(stats.places)
    y_title = f"position (cells of {count_text(stats.place_entries)})"
    plot = Plot("Holes by position and time", y_title, _watched(stats), bins or 1)
    shades: list[list[str]] = [[] for _ in SHADES]
    points = stats.history
    ends = [point.from_ms for point in points[1:]] + [stats.until_ms]
    for place in range(bins):
        cells = [
            (_shade(point.hole_entries_by_place, place, stats.place_entries), point.from_ms, end)
            for point, end in zip(points, ends, strict=True)
        ]
        top, height = plot.y(place + 1), plot.y(place) - plot.y(place + 1)
        for shade, run in groupby(cells, key=lambda cell: cell[0]):
            of_run = list(run)
            if shade is None:
                continue
            left, right = plot.x(of_run[0][1]), plot.x(of_run[-1][2])
            width = number(max(right - left, 1))
            shades[shade].append(
                f"M{number(left)} {number(top)}h{width}v{number(height)}h-{width}z"
            )
    for shade, runs in enumerate(shades):
        if runs:
            plot.add(f'<path class="heat{shade}" d="{"".join(runs)}"/>')
    plot.line("mark", [(point.until_ms, point.mark_delete_place) for point in points])
    step = max(1, -(-bins // 6))
    ticks = [
        (float(place), f"{stats.places[place].ledger_id}:{stats.places[place].entry_id}")
        for place in range(0, bins, step)
    ]
    legend = [
        ("box", f"heat{shade}", f"\N{LESS-THAN OR EQUAL TO} {share:.0%}")
        for shade, share in enumerate(SHADES)
    ]
    legend += [("line", "mark", "mark-delete")]
    return plot.drawn(ticks, legend)


def _shade(unacked: Sequence[int], place: int, entries: int) -> int | None:
    """None: no hole here (or nothing known)."""
    if not unacked or not unacked[place]:
        return None
    share = unacked[place] / entries
    return bisect_left(SHADES[:-1], share)


def bytes_plot(stats: SubscriptionStats) -> str:
    """What was written, and which writes left something out or went to the node."""
    points = stats.history
    top = max([*(point.record_bytes for point in points), 1])
    power = min(int(math.log2(top)) // 10 * 10, 30)
    unit = {0: "B", 10: "KiB", 20: "MiB", 30: "GiB"}[power]
    ticks = count_ticks(top / (1 << power))
    plot = Plot(
        "Bytes written, and outcomes",
        f"{unit} in {span_text(points[0].until_ms - points[0].from_ms)}",
        time_axis(stats.from_ms, max(stats.until_ms, points[-1].until_ms)),
        ticks[-1] * (1 << power),
    )
    for point in points:
        css = "cut" if point.records_cut else "node" if point.node_records else "bytes"
        plot.add(f"<g><title>{_bytes_title(point.record_bytes, point.until_ms)}</title>")
        plot.rectangle(css, point.from_ms, point.until_ms, 0, point.record_bytes)
        plot.add("</g>")
    legend = [
        ("box", "bytes", "complete"),
        ("box", "node", "also in the metadata node"),
        ("box", "cut", "cut by a limit"),
    ]
    return plot.drawn([(tick * (1 << power), short_text(tick)) for tick in ticks], legend)


def _bytes_title(record_bytes: int, until_ms: int) -> str:
    return f"{bytes_text(record_bytes)} until {time_text(until_ms)}"


def hole_plot(stats: SubscriptionStats) -> str:
    """How many holes there were, and how long the oldest had been one."""
    known = [point for point in stats.history if point.holes is not None]
    ticks = count_ticks(max([*(point.holes or 0 for point in known), 1]))
    plot = Plot("Holes", "holes", _watched(stats), ticks[-1])
    if known:
        plot.line("ranges", [(point.until_ms, point.holes or 0) for point in known])
    ages = [
        (point.until_ms, max(point.until_ms - point.oldest_hole_since_ms, 0))
        for point in known
        if point.oldest_hole_since_ms is not None
    ]
    legend = [("line", "ranges", "holes")]
    if ages:
        oldest = max([*(age for _, age in ages), 1])
        scaled = [(at_ms, age / oldest * plot.y_top) for at_ms, age in ages]
        plot.line("age", scaled)
        legend.append(("line", "age", f"age of the oldest (upper edge: {span_text(oldest)})"))
    return plot.drawn([(tick, short_text(tick)) for tick in ticks], legend)


def _watched(stats: SubscriptionStats) -> XAxis:
    return time_axis(stats.from_ms, stats.until_ms)
