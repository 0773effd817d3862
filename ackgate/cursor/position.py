"""Where an entry lies: (ledger id, entry id).

Pure. Positions order lexicographically. Entry -1 means "before the first entry of this ledger".
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import PositionError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEDGER_ID_MAX: Final = 2**63 - 1
"""Largest ledger id: a signed 64-bit number, as on BookKeeper's wire."""

ENTRY_ID_MAX: Final = 2**32 - 1
"""Largest entry id that an ack bitmap holds (a Roaring bitmap has 32-bit members)."""


class Position(NamedTuple):
    """One entry of one message ledger. A plain tuple underneath: cheap to hash and compare."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the form ``LEDGER:ENTRY``. Raises `PositionError` naming the text."""
        try:
            ledger, entry = text.split(":")
            position = cls(int(ledger), int(entry))
        except ValueError:
            raise PositionError(f"not a position: {text!r}; expected LEDGER:ENTRY") from None
        return check_position(position)


_from_pair = partial(tuple.__new__, Position)

EARLIEST: Final = Position(-1, -1)
"""Before every entry."""

LATEST: Final = Position(LEDGER_ID_MAX, LEDGER_ID_MAX)
"""After every entry. A request ("start here"), never a stored position."""


def run_of_positions(ledger_id: int, start: int, stop: int) -> list[Position]:
    """Positions of entries start..stop-1 of one ledger, three times as fast as one by one."""
    return list(map(_from_pair, zip(repeat(ledger_id), range(start, stop), strict=False)))


def positions_of(ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> list[Position]:
    """Two columns as positions."""
    return list(map(_from_pair, zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)))


def check_position(position: Position) -> Position:
    """Return the position if both ids are in bounds, else raise `PositionError`."""
    ledger_id, entry_id = position
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise PositionError(
            f"ledger id {ledger_id} is not in 0..{LEDGER_ID_MAX} (position {position})"
        )
    if not -1 <= entry_id <= ENTRY_ID_MAX:
        raise PositionError(
            f"entry id {entry_id} is not in -1..{ENTRY_ID_MAX} (position {position})"
        )
    return position
