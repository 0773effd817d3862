"""The page of ack-stats: one HTML file.

Pure. The page shows a bounded number of table rows and charts, and states how many are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.pipeline.jobs.ack_stats.charts import age_chart, history_charts
from ackgate.pipeline.jobs.ack_stats.leavers import HoleLeavers
from ackgate.pipeline.jobs.ack_stats.limits import GateHistory
from ackgate.pipeline.report.page import (
    Cell,
    Head,
    beside,
    cards,
    charts,
    heading,
    page,
    paragraph,
    section,
    table,
)
from ackgate.pipeline.report.text import bytes_text, count_text, span_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.pipeline.jobs.ack_stats.leavers import Leaver
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionFigures


@dataclass(frozen=True, slots=True)
class AckStatsReport:
    """The data of the report's page."""

    source: str
    """Address of the ledgers, as shown to people."""
    table: Sequence[SubscriptionFigures]
    """The most urgent subscriptions first. Those without charts come without history."""
    drawn: int
    """How many of `table`, from the first on, get charts."""
    subscriptions: int
    """Number of all subscriptions."""
    records: int
    record_bytes: int
    at_limit_expected: int
    """Subscriptions expected to reach their limit."""
    with_cut_records: int
    """Subscriptions with records from which a limit left something out."""
    without_history: int
    """Subscriptions with a single known record."""
    gates: Mapping[tuple[str, str], GateHistory]
    leavers: Mapping[tuple[str, str], HoleLeavers]
    """`gates` and `leavers`: by topic and subscription."""
    journal_from_ms: Mapping[str, int]
    """Topic -> time of its oldest journal event; topics without a journal are absent."""


_NOTE: Final = (
    "Ranges, bytes and outcomes come from the records that cursor ledgers still hold, and from the writes "
    "in the delivery journal. A hole is a run of unacked entries that an acked entry of the same ledger "
    "follows. The forecast is a straight line through the part of the past that would have predicted this "
    "series best; 90 % of such forecasts missed by no more than its band. Where the count was at the limit, "
    "the limit that would have sufficed is predicted from the time before."
)


def ack_stats_page(data: AckStatsReport) -> str:
    """The report as one HTML page."""
    drawn = [one for one in data.table[: data.drawn] if one.history]
    return page(
        "Ack statistics",
        data.source,
        (
            _cards(data),
            _table(data, len(drawn)),
            *(_section(number, one, data) for number, one in enumerate(drawn)),
            _left_out(data, len(drawn)),
            paragraph(_NOTE),
        ),
    )


def _cards(data: AckStatsReport) -> str:
    figures = [
        (count_text(data.subscriptions), "subscriptions"),
        (count_text(data.records), "records"),
        (bytes_text(data.record_bytes), "written"),
        (count_text(data.at_limit_expected), "expected at their limit"),
        (count_text(data.with_cut_records), "with acks left out"),
    ]
    if data.without_history:
        figures.append((count_text(data.without_history), "without a history"))
    return cards(figures)


# --------------------------------------------------------------------------- table


def _table(data: AckStatsReport, drawn: int) -> str:
    if not data.table:
        return section(paragraph("No cursor record was found, so there is no subscription."))
    heads = (
        Head("subscription", "topic"),
        Head("ranges", "now / most"),
        Head("limit", "known from"),
        Head("at the limit", "expected (UTC), band"),
        Head("sufficient limit", "expected, band"),
        Head("holes", "entries in them"),
        Head("oldest hole", "for"),
        Head("written", "records"),
        Head("cut records", "entries dropped"),
    )
    rows = (_row(one, number if number < drawn else None) for number, one in enumerate(data.table))
    left_out = data.subscriptions - len(data.table)
    more = f"{count_text(left_out)} more are in the results, not here."
    return section(table(heads, rows), paragraph(more) if left_out else "")


def _row(one: SubscriptionFigures, number: int | None) -> tuple[Cell, ...]:
    most = one.ranges_in_memory_max if one.has_history else None
    return (
        Cell(one.subscription, one.topic, anchor=None if number is None else f"s{number}"),
        Cell(
            f"{count_text(one.ranges_in_memory)} / {_known(most)}",
            order=one.ranges_in_memory,
        ),
        Cell(count_text(one.range_limit), one.range_limit_source, one.range_limit),
        _at_limit(one),
        _sufficient(one),
        Cell(_known(one.holes), _known(one.hole_entries), _order(one.holes)),
        _oldest_hole(one),
        Cell(bytes_text(one.record_bytes), count_text(one.records), one.record_bytes),
        Cell(
            _known(one.records_cut),
            _known(one.entries_dropped_max),
            _order(one.records_cut),
            is_alarm=bool(one.records_cut),
        ),
    )


def _order(value: float | None) -> float | str:
    """Return the sort key of a cell; unknown figures sort last."""
    return "" if value is None else value


def _oldest_hole(one: SubscriptionFigures) -> Cell:
    if one.oldest_hole_since_ms is None:
        return Cell("-", order="")
    age_ms = max(one.until_ms - one.oldest_hole_since_ms, 0)
    at = f"{one.oldest_hole_ledger_id}:{one.oldest_hole_entry_id}"
    if one.records - one.journal_records <= 1:
        return Cell(at, "unknown", "")  # one record proves the hole, not its age
    return Cell(at, span_text(age_ms), age_ms)


def _known(value: int | None) -> str:
    return "unknown" if value is None else count_text(value)


def _at_limit(one: SubscriptionFigures) -> Cell:
    if not one.has_history:
        return Cell("no history", order="")
    if not one.has_forecast:
        return Cell("too few records", order="")
    earliest, expected = one.at_limit_earliest_ms, one.at_limit_expected_ms
    latest = one.at_limit_latest_ms
    if earliest is None:
        return Cell(f"not within {span_text(one.horizon_ms or 0)}", order="")
    if earliest <= one.until_ms:
        return Cell("now", order=earliest, is_alarm=True)
    until = "open" if latest is None else time_text(latest)
    words = "not expected" if expected is None else time_text(expected)
    band = f"{time_text(earliest)} to {until}"
    return Cell(words, band, expected or earliest, is_alarm=expected is not None)


def _sufficient(one: SubscriptionFigures) -> Cell:
    expected = one.sufficient_limit_expected
    if expected is None:
        return Cell("unknown", order="")
    low, high = _known(one.sufficient_limit_low), _known(one.sufficient_limit_high)
    if one.sufficient_limit_is_bound:
        return Cell(f"at least {low}", order=one.sufficient_limit_low)
    return Cell(count_text(expected), "" if low == high else f"{low} to {high}", expected)


# --------------------------------------------------------------- one subscription


def _section(number: int, one: SubscriptionFigures, data: AckStatsReport) -> str:
    key = (one.topic, one.subscription)
    gate, left = data.gates.get(key, GateHistory()), data.leavers.get(key, HoleLeavers())
    journal_from_ms = data.journal_from_ms.get(one.topic)
    return section(
        heading(one.subscription),
        paragraph(one.topic, _words(one, gate, journal_from_ms)),
        charts(history_charts(one, gate)),
        _leavers(left, journal_from_ms),
        anchor=f"s{number}",
    )


def _leavers(left: HoleLeavers, journal_from_ms: int | None) -> str:
    """Render who left the present holes: a chart and two tables."""
    if not left.consumers and not left.keys:
        return ""
    if journal_from_ms is None:
        whom = "Which consumers left them is unknown: deliveryJournalEnabled is off for this topic."
    else:
        whom = f"The delivery journal knows consumers since {time_text(journal_from_ms)}."
    tables = (
        _leaver_table("last given to", left.consumers, left.consumer_count),
        _leaver_table("key", left.keys, left.key_count),
    )
    return "".join(
        (
            heading("Who leaves holes", 3),
            paragraph(f"Those with the most and those with the oldest holes of today. {whom}"),
            beside(charts([age_chart(left.holes)]) if left.holes else "", "".join(tables)),
        )
    )


def _leaver_table(title: str, leavers: Sequence[Leaver], count: int) -> str:
    heads = (
        Head(title, f"{count_text(count)} in all"),
        Head("holes", "entries"),
        Head("oldest for", "mean"),
        Head("redelivered", "at most"),
    )
    rows = (
        (
            Cell(one.name, is_quiet=not one.is_name),
            Cell(count_text(one.holes), count_text(one.entries), one.holes),
            Cell(_span(one.oldest_age_ms), _span(one.mean_age_ms), _order(one.oldest_age_ms)),
            Cell(_known(one.redeliveries_max), order=_order(one.redeliveries_max)),
        )
        for one in leavers
    )
    return table(heads, rows)


def _span(span_ms: int | None) -> str:
    return "unknown" if span_ms is None else span_text(span_ms)


def _words(one: SubscriptionFigures, gate: GateHistory, journal_from_ms: int | None) -> str:
    words = [f"{time_text(one.from_ms)} to {time_text(one.until_ms)} UTC."]
    if not one.has_history:
        words.append(
            "No history: a cursor that is closed keeps its last record only. With deliveryJournalEnabled "
            "the journal keeps the others."
        )
    elif one.journal_records:
        words.append(
            f"{count_text(one.journal_records)} of {count_text(one.records)} records are gone; the delivery "
            "journal has their writes, but not the holes of that time."
        )
    if one.back_test_counts:
        share = round(100 * (one.back_test_counts_in_band or 0) / one.back_test_counts)
        words.append(
            f"Back test: {count_text(one.back_test_counts)} counts predicted from earlier points, {share} % "
            f"within the band, off by {count_text(round(one.back_test_error_median or 0, 1))} ranges in "
            "the median."
        )
    if one.back_test_crossings:
        words.append(
            f"Of {one.back_test_crossings} new peaks, taken as limits, "
            f"{one.back_test_crossings_in_band} were reached within the predicted time."
        )
    if one.records_unlinked:
        words.append(
            f"{count_text(one.records_unlinked)} deltas build on records that are gone; until the next "
            "snapshot the holes are unknown."
        )
    return " ".join([*words, _gate_words(gate, journal_from_ms)])


def _gate_words(gate: GateHistory, journal_from_ms: int | None) -> str:
    total = f"{count_text(gate.count)} times, {span_text(gate.total_ms)} in all"
    if journal_from_ms is None and not gate.count:
        return "Without a delivery journal the times at which the gate was shut are unknown."
    if journal_from_ms is None:
        return (
            f"There were more ranges than the limit {total}; that the gate was shut then is a guess, since "
            "there is no delivery journal."
        )
    if not gate.count:
        return f"The gate was not shut since {time_text(journal_from_ms)}, by the delivery journal."
    reasons = ", ".join(sorted({each.reasons or "?" for each in gate.intervals}))
    left_out = gate.count - len(gate.intervals)
    more = f"; {count_text(left_out)} of them, older ones, are not drawn" if left_out else ""
    return f"The gate was shut {total} ({reasons}){more}."


def _left_out(data: AckStatsReport, drawn: int) -> str:
    left_out = data.subscriptions - drawn
    if not left_out:
        return ""
    return paragraph(f"The charts of {count_text(left_out)} more subscriptions are left out.")
