"""The report: one HTML page that needs nothing beside itself, with pictures as inline SVG.

Pure. Its size is bounded: so many rows of the table, so many stretches of time; what is left out is
said.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import log10
from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.drawing.axes import (
    XAxis,
    count_text,
    count_ticks,
    short_text,
    time_axis,
)
from ackgate.pipeline.drawing.page import cards, cell, page, paragraph, plots, section, table
from ackgate.pipeline.drawing.plot import Plot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SORTS: Final = {
    "first": "first",
    "asked": "asked for, or consumer gone",
    "moved": "another owner, or a seek",
    "breach": "must not be",
}
_WAITS: Final = {
    "to_dispatch": ("line0", "publish to dispatch"),
    "to_ack": ("line1", "dispatch to ack"),
    "to_durable": ("line2", "ack to durable"),
}
_CAUSES: Final = (
    "nack_or_timeout",
    "consumer_closed",
    "restart",
    "ack_not_persisted",
    "outcome_dropped",
    "reset",
    "ack_lost",
    "unexplained",
)
_WRONG: Final = ("out_of_order", "findings", "ack_lost", "unexplained", "receipts_early")
_STYLE: Final = "td:nth-child(7) small { white-space: normal; min-width: 12em; }"
_NOTE: Final = (
    "Times are the broker's. A duplicate's cause is what happened between a delivery and the one before: "
    "asked for (a negative ack or an ack time-out, which are one command on the wire), its consumer gone, "
    "another owner of the topic (not acked, acked but not durable, or left out by a limit), or a seek. "
    "Lost is an entry that nobody has seen and that no owner will send; unknown one whose delivery may be "
    "among events that a killed broker did not write down."
)


@dataclass(frozen=True, slots=True)
class PageData:
    """What a report is made of."""

    source: str
    totals: Mapping[str, Any]
    """Of all subscriptions."""
    table: Sequence[Mapping[str, Any]]
    """Results by subscription, the worst first; not all of them."""
    deliveries: Sequence[tuple[float, float, str, int]]
    """From and until, in ms; sort; how many."""
    waits: Sequence[tuple[str, int, int]]
    """Kind; step (half powers of two of a microsecond); how many."""


def audit_page(data: PageData) -> str:
    """The page."""
    pictures = [picture for picture in (_deliveries_plot(data), _waits_plot(data)) if picture]
    return page(
        "Audit of deliveries",
        data.source,
        (
            _cards(data.totals),
            section(plots(pictures)) if pictures else "",
            _table(data),
            paragraph(_NOTE),
        ),
        style=_STYLE,
    )


def _cards(totals: Mapping[str, Any]) -> str:
    names = ("subscriptions", "expected", "acked", "outstanding", "lost", "unknown", "deliveries")
    more = ("duplicates", "findings", "out_of_order", "acks_late")
    return cards((count_text(totals[name]), name.replace("_", " ")) for name in (*names, *more))


# ---------------------------------------------------------------------- pictures


def _deliveries_plot(data: PageData) -> str:
    """Bars, by time: what was sent first, and again for which reason."""
    if not data.deliveries:
        return ""
    bars: dict[tuple[float, float], dict[str, int]] = defaultdict(dict)
    for from_ms, until_ms, sort, count in data.deliveries:
        bars[from_ms, until_ms][sort] = count
    ticks = count_ticks(max(sum(bar.values()) for bar in bars.values()))
    axis = time_axis(int(min(first for first, _ in bars)), int(max(last for _, last in bars)))
    plot = Plot("Deliveries", "entries", axis, ticks[-1])
    for (from_ms, until_ms), bar in bars.items():
        low = 0
        for number, sort in enumerate(_SORTS):
            high = low + bar.get(sort, 0)
            if high > low:
                plot.rectangle(f"box{number}", from_ms, until_ms, low, high)
            low = high
    legend = [("box", f"box{number}", words) for number, words in enumerate(_SORTS.values())]
    return plot.drawn([(tick, short_text(tick)) for tick in ticks], legend)


def _waits_plot(data: PageData) -> str:
    """Lines: what share waited no longer than that."""
    if not data.waits:
        return ""
    by_kind: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kind, step, count in sorted(data.waits):
        by_kind[kind].append((step, count))
    last = max(step for _, step, _ in data.waits) + 1
    powers = range(int(_power(last)) + 2)
    ticks = [(float(power), _wait_text(power)) for power in powers[:-1]]
    plot = Plot("Shares that waited no longer", "%", XAxis("time", 0, powers[-1], ticks), 100)
    legend = []
    for kind, (css, words) in _WAITS.items():
        steps = by_kind.get(kind)
        if not steps:
            continue
        whole = sum(count for _, count in steps)
        sums = accumulate(count for _, count in steps)
        line = [(_power(steps[0][0]), 0.0)]
        line += [
            (_power(step + 1), 100 * below / whole)
            for (step, _), below in zip(steps, sums, strict=True)
        ]
        plot.line(css, [*line, (powers[-1], 100.0)])
        legend.append(("line", css, words))
    return plot.drawn([(tick, f"{tick}") for tick in range(0, 101, 20)], legend)


def _power(step: int) -> float:
    """Where a step begins, as a power of ten of microseconds."""
    return step / 2 * log10(2)


def _wait_text(power: int) -> str:
    unit, size = ("µs", 0) if power < 3 else ("ms", 3) if power < 6 else ("s", 6)
    return f"{short_text(10 ** (power - size))} {unit}"


# ------------------------------------------------------------------------- table


def _table(data: PageData) -> str:
    heads = (
        ("subscription", "topic"),
        ("verdict", ""),
        ("expected", "acked"),
        ("outstanding", "unknown"),
        ("lost", ""),
        ("deliveries", "again"),
        ("why again", ""),
        ("must not be", "order, findings"),
        ("to dispatch", "50 %, 99 %"),
        ("to ack", "50 %, 99 %"),
        ("to durable", "50 %, 99 %"),
        ("late acks", "pending, gone"),
    )
    left_out = data.totals["subscriptions"] - len(data.table)
    more = f"{count_text(left_out)} more are in the results, not here."
    return section(table(heads, map(_row, data.table)), paragraph(more) if left_out else "")


def _row(one: Mapping[str, Any]) -> list[str]:
    wrong = sum(one[name] for name in _WRONG)
    causes = [
        f"{count_text(one[cause])} {cause.replace('_', ' ')}" for cause in _CAUSES if one[cause]
    ]
    return [
        cell(one["subscription"], one["topic"]),
        cell(one["verdict"], is_alarm=one["verdict"] == "broken"),
        cell(count_text(one["expected"]), count_text(one["acked"])),
        cell(count_text(one["outstanding"]), count_text(one["unknown"])),
        cell(count_text(one["lost"]), is_alarm=one["lost"] > 0),
        cell(count_text(one["deliveries"]), count_text(one["duplicates"])),
        cell("", ", ".join(causes)),
        cell(
            count_text(wrong),
            f"{count_text(one['out_of_order'])}, {count_text(one['findings'])}",
            is_alarm=wrong > 0,
        ),
        *(
            cell(_us_text(one[f"{wait}_us_p50"]), _us_text(one[f"{wait}_us_p99"]))
            for wait in _WAITS
        ),
        cell(
            count_text(one["acks_late"]),
            f"{count_text(one['acks_pending'])}, {count_text(one['acks_never_persisted'])}",
        ),
    ]


def _us_text(us: int | None) -> str:
    if us is None:
        return "-"
    for size, unit in ((1_000_000, "s"), (1_000, "ms")):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us} µs"
