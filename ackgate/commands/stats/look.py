"""How statistics look: the terminal's width, colours and glyphs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.commands.stats.hole_picture import BLOCKS

if TYPE_CHECKING:
    from ackgate.commands.stats.hole_picture import Glyphs

LABEL_COLUMNS: Final = 14
FIGURES_COLUMNS: Final = 44
"""Room for the words after a picture."""

CELLS_MIN: Final = 16


class Look(NamedTuple):
    """Width, colours and glyphs of the terminal."""

    columns: int = 100
    has_colours: bool = False
    glyphs: Glyphs = BLOCKS

    @property
    def cells(self) -> int:
        """Cells of a ledger's picture."""
        return max(CELLS_MIN, self.columns - LABEL_COLUMNS - FIGURES_COLUMNS)

    def bold(self, text: str) -> str:
        """Mark the subject of a line."""
        return self._in("1", text)

    def dim(self, text: str) -> str:
        """What is of less interest."""
        return self._in("2", text)

    def good(self, text: str) -> str:
        return self._in("32", text)

    def bad(self, text: str) -> str:
        return self._in("31;1", text)

    def warning(self, text: str) -> str:
        return self._in("33", text)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_colours and text else text
