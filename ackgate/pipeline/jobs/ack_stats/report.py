"""The report: one HTML page that needs nothing beside itself, with pictures as inline SVG.

Pure. Its size is bounded: so many rows of the table, so many subscriptions with pictures; what is left
out is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ackgate.pipeline.drawing.axes import bytes_text, count_text, span_text, time_text
from ackgate.pipeline.drawing.markup import escaped
from ackgate.pipeline.drawing.page import (
    cards,
    cell,
    page,
    paragraph,
    plots,
    section,
    table,
)
from ackgate.pipeline.jobs.ack_stats.age_plot import age_plot
from ackgate.pipeline.jobs.ack_stats.gate import GateHistory
from ackgate.pipeline.jobs.ack_stats.gate_plot import gate_plot
from ackgate.pipeline.jobs.ack_stats.leavers import HoleLeavers
from ackgate.pipeline.jobs.ack_stats.plots import bytes_plot, heat_map, hole_plot, range_plot
from ackgate.pipeline.jobs.ack_stats.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.pipeline.jobs.ack_stats.leavers import Leaver
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionStats


@dataclass(frozen=True, slots=True)
class ReportData:
    """What a report is made of."""

    source: str
    """Where the ledgers are, for people."""
    table: Sequence[SubscriptionStats]
    """The most urgent ones first; without history, if not drawn."""
    drawn: int
    """How many of them get pictures, from the first on."""
    subscriptions: int
    """All that there are."""
    records: int
    record_bytes: int
    at_limit_expected: int
    with_cut_records: int
    """Subscriptions of each sort, of all."""
    gates: Mapping[tuple[str, str], GateHistory]
    leavers: Mapping[tuple[str, str], HoleLeavers]
    """By topic and subscription."""
    journal_from_ms: Mapping[str, int]
    """By topic; what has no journal is not there."""


_NOTE = (
    "Ranges, bytes and outcomes are those of the records that cursor ledgers still hold. A hole is a run "
    "of unacked entries that an acked entry of the same ledger follows. The forecast lays a straight line "
    "through the part of the past that would have told this series best; its band is what 90 % of such "
    "forecasts missed by. Where the count was at the limit, the limit that would have sufficed is foretold "
    "from the time before."
)


def report_page(data: ReportData) -> str:
    """The page."""
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
        style=STYLE,
    )


def _cards(data: ReportData) -> str:
    return cards(
        (
            (count_text(data.subscriptions), "subscriptions"),
            (count_text(data.records), "records"),
            (bytes_text(data.record_bytes), "written"),
            (count_text(data.at_limit_expected), "expected at their limit"),
            (count_text(data.with_cut_records), "with acks left out"),
        )
    )


def _table(data: ReportData, drawn: int) -> str:
    if not data.table:
        return section(
            paragraph("No cursor record was found: there is no subscription to speak of.")
        )
    heads = (
        ("subscription", ""),
        ("ranges", "now / most"),
        ("limit", "known from"),
        ("at the limit", "expected (UTC), band"),
        ("sufficient limit", "expected, band"),
        ("holes", "entries in them"),
        ("oldest hole", "for"),
        ("written", "records"),
        ("cut records", "entries dropped"),
    )
    rows = (_row(one, number if number < drawn else None) for number, one in enumerate(data.table))
    left_out = data.subscriptions - len(data.table)
    more = f"{count_text(left_out)} more are in the results, not here."
    return section(table(heads, rows), paragraph(more) if left_out else "")


def _row(one: SubscriptionStats, number: int | None) -> tuple[str, ...]:
    name = escaped(one.subscription)
    link = name if number is None else f'<a href="#s{number}">{name}</a>'
    return (
        f"{link}<small>{escaped(one.topic)}</small>",
        f"{count_text(one.ranges_in_memory)} / {count_text(one.ranges_in_memory_max)}",
        cell(count_text(one.range_limit), one.range_limit_source),
        _at_limit(one),
        _sufficient(one),
        cell(_known(one.holes), _known(one.hole_entries)),
        _oldest_hole(one),
        cell(bytes_text(one.record_bytes), count_text(one.records)),
        cell(
            count_text(one.records_cut),
            count_text(one.entries_dropped_max),
            is_alarm=one.records_cut > 0,
        ),
    )


def _oldest_hole(one: SubscriptionStats) -> str:
    if one.oldest_hole_since_ms is None:
        return "-"
    at = f"{one.oldest_hole_ledger_id}:{one.oldest_hole_entry_id}"
    return cell(at, span_text(max(one.until_ms - one.oldest_hole_since_ms, 0)))


def _known(value: int | None) -> str:
    return "unknown" if value is None else count_text(value)


def _at_limit(one: SubscriptionStats) -> str:
    if not one.has_forecast:
        return "too few records"
    earliest, expected = one.at_limit_earliest_ms, one.at_limit_expected_ms
    latest = one.at_limit_latest_ms
    if earliest is None:
        return f"not within {span_text(one.horizon_ms or 0)}"
    if earliest <= one.until_ms:
        return cell("now", is_alarm=True)
    until = "open" if latest is None else time_text(latest)
    what = "not expected" if expected is None else time_text(expected)
    band = f"{time_text(earliest)} to {until}"
    return cell(what, band, is_alarm=expected is not None)


def _sufficient(one: SubscriptionStats) -> str:
    low, high = count_text(one.sufficient_limit_low), count_text(one.sufficient_limit_high)
    if one.sufficient_limit_is_bound:
        return f"at least {low}"
    band = "" if low == high else f"{low} to {high}"
    return cell(count_text(one.sufficient_limit_expected), band)


def _section(number: int, one: SubscriptionStats, data: ReportData) -> str:
    key = (one.topic, one.subscription)
    gate, left = data.gates.get(key, GateHistory()), data.leavers.get(key, HoleLeavers())
    journal_from_ms = data.journal_from_ms.get(one.topic)
    pictures = [range_plot(one, gate), heat_map(one), hole_plot(one), bytes_plot(one)]
    if gate.intervals:
        pictures.append(gate_plot(one, gate))
    return section(
        f"<h2>{escaped(one.subscription)}</h2>",
        f"<p>{escaped(one.topic)}<br>{escaped(_words(one, gate, journal_from_ms))}</p>",
        plots(pictures),
        _leavers(left, journal_from_ms),
        anchor=f"s{number}",
    )


def _leavers(left: HoleLeavers, journal_from_ms: int | None) -> str:
    """Who left the holes of today: two tables."""
    if not left.consumers and not left.keys:
        return ""
    if journal_from_ms is None:
        whom = (
            "Which consumers left them is not known: deliveryJournalEnabled is off for this topic."
        )
    else:
        whom = f"Consumers are known since {time_text(journal_from_ms)}, by the delivery journal."
    consumers = _leaver_table("last given to", left.consumers, left.consumer_count)
    tables = consumers + _leaver_table("key", left.keys, left.key_count)
    return "".join(
        (
            "<h3>Who leaves holes</h3>",
            paragraph(f"Those with the most and those with the oldest holes of today. {whom}"),
            plots((age_plot(left.holes), f"<div>{tables}</div>")),
        )
    )


def _leaver_table(title: str, leavers: Sequence[Leaver], count: int) -> str:
    heads = (
        (title, f"{count_text(count)} in all"),
        ("holes", "entries"),
        ("oldest for", "in the mean"),
        ("redelivered", "at most"),
    )
    rows = (
        (
            escaped(one.name) if one.is_name else f"<i>{escaped(one.name)}</i>",
            cell(count_text(one.holes), count_text(one.entries)),
            cell(_span(one.oldest_age_ms), _span(one.mean_age_ms)),
            _known(one.redeliveries_max),
        )
        for one in leavers
    )
    return table(heads, rows)


def _span(span_ms: int | None) -> str:
    return "unknown" if span_ms is None else span_text(span_ms)


def _words(one: SubscriptionStats, gate: GateHistory, journal_from_ms: int | None) -> str:
    words = [f"{time_text(one.from_ms)} to {time_text(one.until_ms)} UTC."]
    if one.back_test_counts:
        share = round(100 * (one.back_test_counts_in_band or 0) / one.back_test_counts)
        words.append(
            f"Back test: {count_text(one.back_test_counts)} counts foretold from earlier points, {share} % "
            f"within the band, off by {count_text(round(one.back_test_error_median or 0, 1))} ranges in "
            "the median."
        )
    if one.back_test_crossings:
        words.append(
            f"Of {one.back_test_crossings} new peaks, taken as limits, "
            f"{one.back_test_crossings_in_band} were reached within the time foretold."
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
        return "There is no delivery journal to say when the gate was shut."
    if journal_from_ms is None:
        return (
            f"There were more ranges than the limit {total}; that the gate was shut then is a guess, since "
            "there is no delivery journal."
        )
    if not gate.count:
        return (
            f"The gate was not shut since {time_text(journal_from_ms)}, says the delivery journal."
        )
    reasons = ", ".join(sorted({each.reasons or "?" for each in gate.intervals}))
    left_out = gate.count - len(gate.intervals)
    more = f"; {count_text(left_out)} of them, older ones, are not drawn" if left_out else ""
    return f"The gate was shut {total} ({reasons}){more}."


def _left_out(data: ReportData, drawn: int) -> str:
    left_out = data.subscriptions - drawn
    if not left_out:
        return ""
    return paragraph(f"Pictures of {count_text(left_out)} more subscriptions are left out.")
