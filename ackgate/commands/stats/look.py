"""How statistics look at a terminal: width and colours, labelled lines, and a ledger's acks in one line.

Pure, but for `Look.of_terminal`. A message ledger is drawn so::

    ----------########=+: .:*#    :::::......
    all acked (to the mark-delete)
              acked wholly, mostly, hardly, not at all         not read yet

with blocks where the terminal has them. A cell looks full only when everything in it is acked, and
empty only when nothing is, so that a single hole in a million entries shows.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.stats import FULL
from ackgate.described import count

if TYPE_CHECKING:
    from ackgate.broker.stats import LedgerAcks
    from ackgate.cursor import Position

LABEL_COLUMNS: Final = 14
FIGURES_COLUMNS: Final = 44
"""Columns for the figures after a picture."""

CELLS_MIN: Final = 16


class Glyphs(NamedTuple):
    """Characters that a picture is drawn with."""

    densities: str
    """From nothing acked to everything acked."""
    passed: str
    """For entries at or below the mark-delete."""
    unread: str
    """For entries that are neither acked nor read yet."""


BLOCKS: Final = Glyphs(" ▁▂▃▄▅▆▇█", "━", "·")
ASCII: Final = Glyphs(" .:-=+*%#", "_", ",")


class Look(NamedTuple):
    """Width, colours and glyphs of the terminal."""

    columns: int = 100
    has_colours: bool = False
    glyphs: Glyphs = BLOCKS

    @classmethod
    def of_terminal(cls) -> Look:
        """As standard output allows: colours only on a terminal, blocks only with Unicode."""
        encoding = (sys.stdout.encoding or "").lower()
        return cls(
            columns=shutil.get_terminal_size((120, 24)).columns,
            has_colours=sys.stdout.isatty(),
            glyphs=BLOCKS if encoding.startswith("utf") else ASCII,
        )

    @property
    def cells(self) -> int:
        """Number of cells in a ledger's picture."""
        return max(CELLS_MIN, self.columns - LABEL_COLUMNS - FIGURES_COLUMNS)

    def bold(self, text: str) -> str:
        """Emphasize the subject of a line."""
        return self._in("1", text)

    def dim(self, text: str) -> str:
        """Dim what matters less."""
        return self._in("2", text)

    def good(self, text: str) -> str:
        return self._in("32", text)

    def bad(self, text: str) -> str:
        return self._in("31;1", text)

    def warning(self, text: str) -> str:
        return self._in("33", text)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_colours and text else text


def labelled(label: str, text: str) -> str:
    """A line of a block: the label in its column, then the text."""
    return f"  {label.ljust(LABEL_COLUMNS - 2)}{text}"


def picture_line(
    acks: LedgerAcks, mark_delete: Position, read_position: Position, look: Look
) -> str:
    """A message ledger's picture and figures. `read_position`: `LATEST` if it is not known."""
    passed, after = hole_picture(acks, mark_delete, read_position, look.glyphs)
    drawn = look.dim(passed) + look.good(after)
    padding = " " * (look.cells - len(acks.cells))
    figures = f"{acks.acked:,} of {acks.entries:,} acked, {count(acks.ranges, 'range')}"
    return labelled(f"ledger {acks.ledger_id}", f"{drawn}{padding}  {figures}")


def hole_picture(
    acks: LedgerAcks, mark_delete: Position, read_position: Position, glyphs: Glyphs = BLOCKS
) -> tuple[str, str]:
    """The cells up to the mark-delete, and those after it."""
    width = len(acks.cells)
    passed_entries = _entries_before(acks, mark_delete, itself=1)
    read_entries = _entries_before(acks, read_position, itself=0)
    passed = sum(acks.entries * (cell + 1) // width <= passed_entries for cell in range(width))
    after = "".join(
        glyphs.unread
        if value == 0 and acks.entries * cell // width >= read_entries
        else glyphs.densities[_level(value, len(glyphs.densities) - 1)]
        for cell, value in enumerate(acks.cells[passed:], passed)
    )
    return glyphs.passed * passed, after


def _entries_before(acks: LedgerAcks, position: Position, itself: int) -> int:
    """Entries of the ledger below the position, or up to it with `itself` = 1."""
    if position.ledger_id != acks.ledger_id:
        return acks.entries if position.ledger_id > acks.ledger_id else 0
    return min(position.entry_id + itself, acks.entries)


def _level(value: int, levels: int) -> int:
    """Map `value` to 0..`levels`. Only 0 becomes 0, and only `FULL` becomes `levels`."""
    if value in {0, FULL}:
        return levels if value else 0
    return 1 + (value - 1) * (levels - 1) // (FULL - 1)
