"""The page of the audit: one HTML file.

Pure. The page shows a bounded number of table rows and time bins, and states how many rows are left
out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.report.charts import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    bar,
    chart,
    layer,
    line,
    number,
    series,
    time,
    tooltip,
    until,
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
from ackgate.pipeline.report.text import calendar_ms, count_text, us_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.pipeline.report.charts import Spec

_SORTS: Final = {
    "first": ("first", BLUE),
    "asked": ("asked for, or consumer gone", ORANGE),
    "moved": ("another owner, or a seek", GREEN),
    "breach": ("must not be", RED),
}
_WAITS: Final = {
    "to_dispatch": ("publish to dispatch", BLUE),
    "to_ack": ("dispatch to ack", ORANGE),
    "to_durable": ("ack to durable", GREEN),
}
_CAUSES: Final = (
    "nack_or_timeout",
    "consumer_closed",
    "restart",
    "ack_not_persisted",
    "outcome_dropped",
    "reset",
    "unrecorded",
    "ack_lost",
    "unexplained",
)
_WRONG: Final = ("out_of_order", "findings", "ack_lost", "unexplained", "receipts_early")
_NOTE: Final = (
    "Times are the broker's. A duplicate's cause is what happened between a delivery and the one before: "
    "asked for (a negative ack or an ack time-out, which are one command on the wire), its consumer gone, "
    "another owner of the topic (not acked, acked but not durable, or left out by a limit), or a seek. "
    "A killed broker does not write the last moments of its journal. An entry is lost if no consumer "
    "has seen it and no owner will send it; it is unknown if it may have been sent in such a moment. A "
    "redelivery of an acked entry is unrecorded if a seek in such a moment may explain it."
)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The data of the report's page."""

    source: str
    totals: Mapping[str, Any]
    """Totals over all subscriptions."""
    table: Sequence[Mapping[str, Any]]
    """The worst subscriptions, the worst first, with the columns of `Audit.by_subscription`."""
    deliveries: Sequence[tuple[float, float, str, int]]
    """Rows of `delivery_counts`: from and until, in ms; sort; count."""
    waits: Sequence[tuple[str, int, int]]
    """Rows of `latency_counts`: kind; step, whose lower bound is 2 ** (step / 2) us; count."""


def audit_page(data: AuditReport) -> str:
    """The report as one HTML page."""
    specs = []
    if data.deliveries:
        specs.append(deliveries_chart(data.deliveries))
    if data.waits:
        specs.append(waits_chart(data.waits))
    return page(
        "Audit of deliveries",
        data.source,
        (
            _cards(data.totals),
            section(charts(specs)) if specs else "",
            _table(data),
            paragraph(_NOTE),
        ),
    )


def _cards(totals: Mapping[str, Any]) -> str:
    names = ("subscriptions", "expected", "acked", "outstanding", "lost", "unknown", "deliveries")
    more = ("duplicates", "findings", "out_of_order", "acks_late")
    return cards((count_text(totals[name]), name.replace("_", " ")) for name in (*names, *more))


# -------------------------------------------------------------------------- charts


def deliveries_chart(deliveries: Sequence[tuple[float, float, str, int]]) -> Spec:
    """Return a chart of deliveries over time, as bars stacked by sort."""
    rows: list[dict[str, Any]] = []
    tops: dict[float, int] = defaultdict(int)
    order = list(_SORTS)
    for from_ms, until_ms, sort, count in sorted(
        deliveries, key=lambda each: (each[0], order.index(each[2]))
    ):
        low, high = tops[from_ms], tops[from_ms] + count
        tops[from_ms] = high
        rows.append(
            {
                "from_ms": calendar_ms(from_ms),
                "until_ms": calendar_ms(until_ms),
                "low": low,
                "high": high,
                "entries": count,
                "series": _SORTS[sort][0],
            }
        )
    words, colors = zip(*_SORTS.values(), strict=True)
    bars = layer(
        "deliveries",
        bar(),
        x=time("from_ms"),
        x2=until("until_ms"),
        y=number("low", "entries", scale={"zero": True}),
        y2=until("high"),
        color=series(words, colors),
        tooltip=tooltip(from_ms="from (UTC)", until_ms="until", series="sent", entries="entries"),
    )
    return chart("Deliveries", {"deliveries": rows}, [bars])


def waits_chart(waits: Sequence[tuple[str, int, int]]) -> Spec:
    """Return a chart of cumulative shares: how many waited no longer than a time, by kind."""
    by_kind: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kind, step, count in sorted(waits):
        by_kind[kind].append((step, count))
    end_us = _step_us(max(step for _, step, _ in waits) + 1)
    rows = []
    for kind, (words, _) in _WAITS.items():
        steps = by_kind.get(kind, [])
        whole = sum(count for _, count in steps)
        below = accumulate(count for _, count in steps)
        points = [(_step_us(step), 0.0) for step, _ in steps[:1]]
        points += [
            (_step_us(step + 1), share / whole)
            for (step, _), share in zip(steps, below, strict=True)
        ]
        if points and points[-1][0] < end_us:
            points.append((end_us, 1.0))
        rows += [
            {"us": us, "share": share, "wait": us_text(round(us)), "series": words}
            for us, share in points
        ]
    shown = [pair for kind, pair in _WAITS.items() if kind in by_kind]
    words_of, colors = zip(*shown, strict=True)
    unit = (
        "datum.value < 1e3 ? datum.value + ' µs' : "
        "datum.value < 1e6 ? datum.value / 1e3 + ' ms' : datum.value / 1e6 + ' s'"
    )
    tens = [10**power for power in range(9)]  # 1 µs to 100 s
    lines = layer(
        "waits",
        line(),
        x=number(
            "us",
            "time",
            scale={"type": "log", "nice": False},
            axis={"labelExpr": unit, "values": tens},
        ),
        y=number("share", None, top=1, axis={"format": ".0%"}),
        color=series(words_of, colors),
        tooltip=tooltip(series="of", wait="no longer than", share="share"),
    )
    return chart("Shares that waited no longer", {"waits": rows}, [lines])


def _step_us(step: int) -> float:
    """Return the lower bound of a step, in microseconds."""
    return float(2 ** (step / 2))


# ------------------------------------------------------------------------- table


def _table(data: AuditReport) -> str:
    heads = (
        Head("subscription", "topic"),
        Head("verdict"),
        Head("expected", "acked"),
        Head("outstanding", "unknown"),
        Head("lost"),
        Head("deliveries", "again"),
        Head("why again"),
        Head("must not be", "order, findings"),
        Head("to dispatch", "50 %, 99 %"),
        Head("to ack", "50 %, 99 %"),
        Head("to durable", "50 %, 99 %"),
        Head("late acks", "pending, gone"),
    )
    left_out = data.totals["subscriptions"] - len(data.table)
    more = f"{count_text(left_out)} more are in the results, not here."
    return section(table(heads, map(_row, data.table)), paragraph(more) if left_out else "")


def _row(one: Mapping[str, Any]) -> list[Cell]:
    wrong = sum(one[name] for name in _WRONG)
    causes = [
        f"{count_text(one[cause])} {cause.replace('_', ' ')}" for cause in _CAUSES if one[cause]
    ]

    def counts(first: str, *others: str, is_alarm: bool = False) -> Cell:
        small = ", ".join(count_text(one[other]) for other in others)
        return Cell(count_text(one[first]), small, one[first], is_alarm=is_alarm)

    def wait(name: str) -> Cell:
        half, most = one[f"{name}_us_p50"], one[f"{name}_us_p99"]
        return Cell(us_text(half), us_text(most), "" if half is None else half)

    return [
        Cell(one["subscription"], one["topic"]),
        Cell(one["verdict"], is_alarm=one["verdict"] == "broken"),
        counts("expected", "acked"),
        counts("outstanding", "unknown"),
        counts("lost", is_alarm=one["lost"] > 0),
        counts("deliveries", "duplicates"),
        Cell("", ", ".join(causes), sum(one[cause] for cause in _CAUSES)),
        Cell(
            count_text(wrong),
            f"{count_text(one['out_of_order'])}, {count_text(one['findings'])}",
            wrong,
            is_alarm=wrong > 0,
        ),
        *map(wait, _WAITS),
        counts("acks_late", "acks_pending", "acks_never_persisted"),
    ]
