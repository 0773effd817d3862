"""Line charts as SVG files, drawn by hand: no plotting library is needed to look at a benchmark."""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WIDTH: Final = 720
HEIGHT: Final = 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 60
MARGIN: Final = 28
"""Beside the chart, for words that are longer than their place."""
COLOURS: Final = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e0b", "#555555")


class Line(NamedTuple):
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


def line_chart(path: Path, title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> None:
    """Write the chart. Both axes begin at zero; lines of one name share a colour."""
    x_step, x_top = _scale(max(x for line in lines for x, _ in line.points))
    y_step, y_top = _scale(max(y for line in lines for _, y in line.points))

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            round(LEFT + x / x_top * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - y / y_top * (HEIGHT - TOP - BOTTOM), 1),
        )

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} 0 {WIDTH + 2 * MARGIN} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect x="{-MARGIN}" width="{WIDTH + 2 * MARGIN}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, "middle", 15),
        _text(WIDTH / 2, HEIGHT - 12, x_label, "middle"),
        f'<g transform="translate(-10 {HEIGHT / 2}) rotate(-90)">{_text(0, 0, y_label, "middle")}</g>',
    ]
    for number in range(round(x_top / x_step) + 1):
        x, y = at(number * x_step, 0)
        parts.append(_text(x, y + 18, _number(number * x_step), "middle"))
    for number in range(round(y_top / y_step) + 1):
        x, y = at(0, number * y_step)
        parts.append(f'<path d="M{x} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(_text(x - 8, y + 4, _number(number * y_step), "end"))
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if line.is_dashed else ""
        points = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line.points))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts.extend(
            f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
            for x, y in (at(*point) for point in line.points)
        )
        y = TOP + 10 + 18 * number
        parts.append(
            f'<path d="M{LEFT + 14} {y}h28" stroke="{colour}" stroke-width="2"{dash}/>'
            + _text(LEFT + 50, y + 4, line.name, "start")
        )
    path.write_text("\n".join([*parts, "</svg>\n"]))


def _scale(most: float) -> tuple[float, float]:
    """A round step, and the end of the axis."""
    most = most or 1.0
    rough = most / 6
    size = 10 ** floor(log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
    return step, step * ceil(most / step - 1e-9)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
