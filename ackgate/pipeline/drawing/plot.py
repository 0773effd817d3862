"""Pieces of an inline SVG picture: a frame with axes, titles and a legend.

Pure: text in, text out. Everything that comes from outside goes through `escaped`. Colours are classes,
so that the page's style sheet has one set for light and one for dark::

    plot = Plot("Latency", "messages", count_axis("ms", 250), y_top=ticks[-1])
    plot.line("line0", points)
    svg = plot.drawn([(tick, short_text(tick)) for tick in ticks], [("line", "line0", "acked")])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ackgate.pipeline.drawing.axes import Scale
from ackgate.pipeline.drawing.markup import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.pipeline.drawing.axes import XAxis

WIDTH: Final = 640
LEFT: Final = 78
RIGHT: Final = 14
TOP: Final = 46
BOTTOM: Final = 42


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(slots=True)
class Plot:
    """A picture in the making: time (or something else) to the right, something else upwards."""

    title: str
    y_title: str
    x_axis: XAxis
    y_top: float
    """Value at the upper edge; the lower one is 0."""
    height: int = 270
    x: Scale = field(init=False)
    y: Scale = field(init=False)
    _parts: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.x = Scale(self.x_axis.first, self.x_axis.last, LEFT, WIDTH - RIGHT)
        self.y = Scale(0, self.y_top, self.height - BOTTOM, TOP)

    def add(self, part: str) -> None:
        """Any element."""
        self._parts.append(part)

    def rectangle(self, css: str, first: float, last: float, low: float, high: float) -> None:
        """At least a pixel wide."""
        left, right = self.x(first), self.x(last)
        top, bottom = self.y(high), self.y(low)
        self.add(
            f'<rect class="{css}" x="{number(left)}" y="{number(top)}" '
            f'width="{number(max(right - left, 1))}" height="{number(bottom - top)}"/>'
        )

    def line(self, css: str, points: Iterable[tuple[float, float]]) -> None:
        """Straight pieces between (x, y)."""
        path = " ".join(f"{number(self.x(x))},{number(self.y(y))}" for x, y in points)
        self.add(f'<polyline class="{css}" points="{path}"/>')

    def level(self, css: str, value: float) -> None:
        """A line across."""
        self.line(css, [(self.x.first, value), (self.x.last, value)])

    def upright(self, css: str, at: float) -> None:
        """A line from the lower to the upper edge."""
        self.line(css, [(at, 0), (at, self.y_top)])

    def text(self, css: str, at: float, value: float, text: str) -> None:
        """Words at a place."""
        x, y = number(self.x(at)), number(self.y(value))
        self.add(f'<text class="{css}" x="{x}" y="{y}">{escaped(text)}</text>')

    def drawn(
        self, y_ticks: Sequence[tuple[float, str]], legend: Sequence[tuple[str, str, str]]
    ) -> str:
        """The picture. `legend`: (shape: line or box, CSS class, words)."""
        return "".join(
            (
                (
                    f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" '
                    f'aria-label="{escaped(self.title)}">'
                ),
                f'<text class="title" x="{LEFT}" y="16">{escaped(self.title)}</text>',
                self._legend(legend),
                self._y_axis(y_ticks),
                *self._parts,
                self._x_axis(),
                "</svg>",
            )
        )

    def _legend(self, legend: Sequence[tuple[str, str, str]]) -> str:
        parts, x = [], float(LEFT)
        for shape, css, words in legend:
            if shape == "line":
                parts.append(
                    f'<polyline class="{css}" points="{number(x)},30 {number(x + 16)},30"/>'
                )
            else:
                parts.append(f'<rect class="{css}" x="{number(x)}" y="25" width="12" height="10"/>')
            parts.append(f'<text class="key" x="{number(x + 20)}" y="34">{escaped(words)}</text>')
            x += 34 + 6.1 * len(words)
        return "".join(parts)

    def _y_axis(self, ticks: Sequence[tuple[float, str]]) -> str:
        middle = (self.y.from_px + self.y.until_px) / 2
        parts = [
            (
                f'<text class="axis" transform="translate(13 {number(middle)}) rotate(-90)" '
                f'text-anchor="middle">{escaped(self.y_title)}</text>'
            )
        ]
        for value, label in ticks:
            y = number(self.y(value))
            parts.append(
                f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
                f'<text class="tick" x="{LEFT - 6}" y="{number(self.y(value) + 3.5)}" '
                f'text-anchor="end">{escaped(label)}</text>'
            )
        return "".join(parts)

    def _x_axis(self) -> str:
        base = self.height - BOTTOM
        parts = [f'<path class="base" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>']
        for at, label in self.x_axis.ticks:
            x = number(self.x(at))
            parts.append(
                f'<path class="base" d="M{x} {base}v4"/>'
                f'<text class="tick" x="{x}" y="{base + 17}" text-anchor="middle">'
                f"{escaped(label)}</text>"
            )
        parts.append(
            f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{self.height - 6}" '
            f'text-anchor="middle">{escaped(self.x_axis.title)}</text>'
        )
        return "".join(parts)
