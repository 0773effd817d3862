"""Draws the pictures of docs/trackers.md: ``python scripts/draw_trackers.py docs/pictures``."""

from __future__ import annotations

import math
import sys
from html import escape
from pathlib import Path
from typing import Final

INK, PALE, BLUE, ORANGE, GREEN, GREY = "#333", "#f4f4f4", "#9cc4e4", "#f3c282", "#a8d5a2", "#ddd"
STYLE: Final = (
    "<style>text{font:13px sans-serif;fill:#333}.s{font-size:11px}.b{font-weight:bold}"
    ".m{text-anchor:middle}</style>"
)


class Drawing:
    """Shapes on white."""

    def __init__(self, width: int, height: int) -> None:
        self._parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}">'
            ),
            STYLE,
            f'<rect width="{width}" height="{height}" fill="white"/>',
            (
                '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
                f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker>'
            ),
        ]

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """`kind`: letters of small, bold, middle."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{" ".join(kind)}">{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = ""
    ) -> None:
        """A box with a text in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
            f'stroke="{INK}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, "sm")

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """From the first point to the second."""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" '
            'marker-end="url(#a)"/>'
        )

    def sector(
        self, centre: tuple[float, float], radii: tuple[float, float], slot: int, fill: str
    ) -> None:
        """One of 12 slots of a ring."""
        (x, y), (inner, outer) = centre, radii
        turns = [2 * math.pi * (slot + side) / 12 - math.pi / 2 for side in (0, 1)]
        (ax, ay), (bx, by) = ((math.cos(turn), math.sin(turn)) for turn in turns)
        self._parts.append(
            f'<path d="M{x + inner * ax:.1f} {y + inner * ay:.1f}L{x + outer * ax:.1f} '
            f"{y + outer * ay:.1f}A{outer} {outer} 0 0 1 {x + outer * bx:.1f} {y + outer * by:.1f}"
            f"L{x + inner * bx:.1f} {y + inner * by:.1f}A{inner} {inner} 0 0 0 "
            f'{x + inner * ax:.1f} {y + inner * ay:.1f}z" fill="{fill}" stroke="{INK}"/>'
        )

    def write(self, path: Path) -> None:
        """As a file."""
        path.write_text("\n".join((*self._parts, "</svg>", "")))


def wheel() -> Drawing:
    """Three levels, the clock in slot 1, 2 and 3 of them, and a timer that falls."""
    drawing = Drawing(760, 300)
    levels = (
        (150, "level 2: 144 ticks a slot", 1, {5: ORANGE}),
        (390, "level 1: 12 ticks a slot", 2, {2: GREY, 7: ORANGE}),
        (630, "level 0: a tick a slot", 3, {5: ORANGE, 8: ORANGE, 9: ORANGE}),
    )
    for x, name, now, timers in levels:
        for slot in range(12):
            passed = GREY if slot < now else (GREEN if slot == now else "white")
            drawing.sector(
                (x, 150), (55, 95), slot, passed if slot <= now else timers.get(slot, passed)
            )
        drawing.text(x, 154, "now", "sm")
        turn = 2 * math.pi * (now + 0.5) / 12 - math.pi / 2
        cos, sin = math.cos(turn), math.sin(turn)
        drawing.arrow(x + 18 * cos, 150 + 18 * sin, x + 52 * cos, 150 + 52 * sin)
        drawing.text(x, 275, name, "m")
    drawing.arrow(252, 150, 288, 150)
    drawing.arrow(492, 150, 528, 150)
    drawing.text(
        380,
        24,
        "A timer lies in the lowest level whose turn has its tick; it falls when the clock",
        "m",
    )
    drawing.text(
        380,
        42,
        "comes to its slot. The clock goes to the next slot that is not empty, at once.",
        "m",
    )
    drawing.text(
        380, 295, "green: where the clock is; grey: passed, empty; orange: timers wait", "sm"
    )
    return drawing


def buckets() -> Drawing:
    """Topic, buckets, their segments by time, and what of them is in memory."""
    drawing = Drawing(760, 430)
    drawing.text(20, 24, "positions of the topic", "b")
    drawing.arrow(195, 20, 740, 20)
    for x, width, name in ((20, 220, "ledger 7"), (240, 220, "ledger 8"), (460, 280, "ledger 9")):
        drawing.box(x, 36, width, 24, PALE, name)
    for x, width, name, fill in (
        (20, 220, "sealed bucket A", BLUE),
        (240, 220, "sealed bucket B", BLUE),
        (460, 150, "mutable bucket", GREEN),
    ):
        drawing.box(x, 68, width, 30, fill, name)
    drawing.text(620, 88, "not read yet", "s")
    drawing.text(20, 132, "segments, by time of delivery", "b")
    segments = (
        (20, ("10:00-10:05", "10:05-10:09", "10:11-10:15", "10:15-10:20", "10:21-10:24")),
        (240, ("10:02-10:07", "10:07-10:12", "10:12-10:16", "10:17-10:20")),
    )
    for x, times in segments:
        for row, text in enumerate(times):
            drawing.box(x + 30, 146 + 30 * row, 160, 26, ORANGE if row == 0 else "white", text)
        drawing.arrow(x + 15, 146, x + 15, 146 + 30 * len(times))
    drawing.box(490, 146, 90, 26, ORANGE, "all of it")
    drawing.box(596, 146, 18, 14, ORANGE)
    drawing.text(620, 158, "times in memory", "s")
    drawing.box(596, 168, 18, 14, "white")
    drawing.text(620, 180, "times in the snapshot,", "s")
    drawing.text(620, 194, "a bitmap in memory", "s")
    drawing.text(20, 334, "snapshot of A: a ledger of its own", "b")
    for place, name in enumerate(("metadata", "segment 0", "segment 1", "segment 2", "...")):
        drawing.box(20 + 90 * place, 346, 84, 26, GREY if place == 0 else PALE, name)
    drawing.text(480, 363, "written once, checksummed, closed", "s")
    drawing.text(20, 402, "registry, in the cursor's node:", "b")
    drawing.text(265, 402, "7:0..7:49999 -> ledger 12,  8:0..8:49999 -> ledger 15", "")
    drawing.text(265, 420, "changed in one compare-and-set; what it does not name is nothing", "s")
    return drawing


def main() -> None:
    """Write all of them into the directory that is named."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    wheel().write(directory / "timing_wheel.svg")
    buckets().write(directory / "delayed_buckets.svg")


if __name__ == "__main__":
    main()
