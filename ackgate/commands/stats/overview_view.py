"""An `OverviewAnswer` for people: a line of figures for each subscription, and why below it.

Pure. Names come from clients, so nothing of them moves the cursor of the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.stats import Severity
from ackgate.commands.terminal.tables import printable
from ackgate.described import count, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.broker.stats import OverviewAnswer, OverviewRow
    from ackgate.commands.stats.look import Look

STATE_COLUMNS: Final = 9
SPARK_COLUMNS: Final = 16


def render_overview(answer: OverviewAnswer, look: Look) -> str:
    """The whole answer as text."""
    return "\n".join(_lines(answer, look))


def _lines(answer: OverviewAnswer, look: Look) -> Iterator[str]:
    source = (
        f"loaded by {answer.source}"
        if answer.is_live
        else f"as persisted in {answer.source}; a running broker may know more"
    )
    states = ", ".join(f"{number:,} {name}" for name, number in answer.severities.items() if number)
    total = look.bold(count(answer.total, "subscription"))
    yield f"{total}{': ' if states else ''}{states}  {look.dim(source)}"
    for why in answer.missing:
        yield look.bad(printable(f"not in it: {why}"))
    for row in answer.rows:
        yield from _row(row, answer.taken_ms, look)
    shown = answer.offset + len(answer.rows)
    if not answer.rows:
        yield look.dim("none matches" if answer.total else "none")
    elif shown < answer.matching or answer.offset:
        yield look.dim(
            f"{answer.offset + 1:,} to {shown:,} of {answer.matching:,}: --offset, --rows"
        )


def _row(row: OverviewRow, now_ms: int, look: Look) -> Iterator[str]:
    paint = {
        Severity.STUCK: look.bad,
        Severity.AT_RISK: look.warning,
        Severity.WAITING: look.bold,
        Severity.FINE: look.good,
    }[row.severity]
    topic = printable(row.topic.removeprefix("persistent://"))
    figures = "  ".join(_figures(row, now_ms, look))
    yield (
        f"{paint(row.severity.value.ljust(STATE_COLUMNS))}"
        f"{look.bold(printable(row.subscription))}  {look.dim(topic)}  {figures}"
    )
    for sentence in row.why:
        yield " " * STATE_COLUMNS + printable(sentence)


def _figures(row: OverviewRow, now_ms: int, look: Look) -> Iterator[str]:
    limit = "" if row.ranges_max is None else f"/{row.ranges_max:,}"
    yield f"ranges {row.ranges:,}{limit}"
    if len(row.ranges_history) > 1:
        yield _sparkline(row, look)
    if row.shut_since_ms is not None:
        yield look.bad(f"gate shut for {span(now_ms - row.shut_since_ms)}")
    if row.backlog is not None:
        yield f"backlog {row.backlog:,}"
    if row.unacked_messages:
        yield f"unacked {row.unacked_messages:,}"
    if row.comes_again:
        yield look.bad(f"again {row.comes_again:,}")
    if row.delayed:
        yield f"delayed {row.delayed:,}"
    if row.nacks:
        yield f"nacks {row.nacks:,}"


def _sparkline(row: OverviewRow, look: Look) -> str:
    """The ranges over the time that is known, as high as their share of the limit."""
    points = row.ranges_history
    first, last = points[0][0], points[-1][0]
    top = max(row.ranges_max or 0, *(value for _, value in points), 1)
    glyphs, drawn, place = look.glyphs.densities, [], 0
    for column in range(SPARK_COLUMNS):
        at = first + (last - first) * column // (SPARK_COLUMNS - 1)
        while place + 1 < len(points) and points[place + 1][0] <= at:
            place += 1
        value = points[place][1]
        drawn.append(glyphs[-(-value * (len(glyphs) - 1) // top)])
    return "".join(drawn)
