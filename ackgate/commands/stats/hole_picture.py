"""The holes of one message ledger as one line of a terminal.

Pure. ::

    ----------########=+: .:*#    :::::......
    all acked (to the mark-delete)
              acked wholly, mostly, hardly, not at all         not read yet

with blocks where the terminal has them. A cell looks full only when everything in it is acked, and
empty only when nothing is, so that a single hole in a million entries shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.stats import FULL

if TYPE_CHECKING:
    from ackgate.broker.stats import LedgerAcks
    from ackgate.cursor import Position


class Glyphs(NamedTuple):
    """What a picture is drawn with."""

    densities: str
    """From nothing acked to everything."""
    passed: str
    """At or below the mark-delete."""
    unread: str
    """Nothing acked, not read yet."""


BLOCKS: Final = Glyphs(" ▁▂▃▄▅▆▇█", "━", "·")
ASCII: Final = Glyphs(" .:-=+*%#", "_", ",")


class Run(NamedTuple):
    """Neighbouring cells of one kind."""

    text: str
    is_passed: bool
    """At or below the mark-delete: of less interest than what follows."""


def hole_picture(
    acks: LedgerAcks, mark_delete: Position, read_position: Position, glyphs: Glyphs = BLOCKS
) -> tuple[Run, Run]:
    """The part up to the mark-delete, and the part after it."""
    width = len(acks.cells)
    passed_entries = _entries_before(acks, mark_delete, itself=1)
    read_entries = _entries_before(acks, read_position, itself=0)
    passed = sum(acks.entries * (cell + 1) // width <= passed_entries for cell in range(width))
    behind = "".join(
        glyphs.unread
        if value == 0 and acks.entries * cell // width >= read_entries
        else glyphs.densities[_level(value, len(glyphs.densities) - 1)]
        for cell, value in enumerate(acks.cells[passed:], passed)
    )
    return Run(glyphs.passed * passed, is_passed=True), Run(behind, is_passed=False)


def _entries_before(acks: LedgerAcks, position: Position, itself: int) -> int:
    """Entries of the ledger below the position, or up to it with `itself` = 1."""
    if position.ledger_id != acks.ledger_id:
        return acks.entries if position.ledger_id > acks.ledger_id else 0
    return min(position.entry_id + itself, acks.entries)


def _level(value: int, levels: int) -> int:
    """0 for nothing, `levels` for everything, and never either for what lies between."""
    if value in {0, FULL}:
        return levels if value else 0
    return 1 + (value - 1) * (levels - 1) // (FULL - 1)
