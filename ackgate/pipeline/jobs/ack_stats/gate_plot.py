"""The picture of one gate: when it was shut, and why.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.pipeline.drawing.axes import moment_text, span_text, time_axis
from ackgate.pipeline.drawing.markup import escaped
from ackgate.pipeline.drawing.plot import Plot

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.ack_stats.gate import GateHistory, GateInterval
    from ackgate.pipeline.jobs.ack_stats.stats import SubscriptionStats


def gate_plot(stats: SubscriptionStats, gate: GateHistory) -> str:
    """The intervals in which the gate was shut, a line for each reason, to the millisecond."""
    reasons = sorted({reason for one in gate.intervals for reason in _reasons(one)})
    from_ms = min([stats.from_ms, *(one.from_ms for one in gate.intervals)])
    until_ms = max([stats.until_ms, *(one.until_ms for one in gate.intervals)])
    title = "More ranges than the limit (guessed)" if gate.is_guessed else "Gate shut, by reason"
    plot = Plot(
        title, "", time_axis(from_ms, until_ms), len(reasons) or 1, height=110 + 32 * len(reasons)
    )
    for one in gate.intervals:
        for reason in _reasons(one):
            row = len(reasons) - 1 - reasons.index(reason)
            shut_bar(plot, "shut-bar", one, row + 0.2, row + 0.8)
    ticks = [(len(reasons) - 0.5 - row, reason) for row, reason in enumerate(reasons)]
    return plot.drawn(ticks, [])


def _reasons(one: GateInterval) -> list[str]:
    return one.reasons.split(",") if one.reasons else ["ranges"]


def shut_bar(plot: Plot, css: str, one: GateInterval, low: float, high: float) -> None:
    """An interval as far as it is within the picture; pointing at it tells it whole."""
    from_ms = max(one.from_ms, plot.x.first)
    until_ms = min(one.until_ms, plot.x.last)
    words = f"{moment_text(one.from_ms)} to {moment_text(one.until_ms)}"
    words += f", {span_text(one.until_ms - one.from_ms)}: {one.reasons or 'guessed'}"
    plot.add(f"<g><title>{escaped(words)}</title>")
    plot.rectangle(css, from_ms, until_ms, low, high)
    plot.add("</g>")
