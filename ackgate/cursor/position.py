"""Positions of entries, (ledger id, entry id): single ones, and as arrays.

Pure. Positions order lexicographically. Entry -1 means "before the first entry of this ledger".

Arrays are checked as a whole before use. Rejected: arrays that are not one-dimensional, numbers that
are not whole (floats hide NaN and rounding, booleans hide masks), and ids out of bounds. The error
names the first bad value.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ackgate.errors import CallerError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    IdArray = NDArray[np.integer[Any]]

LEDGER_ID_MAX: Final = 2**63 - 1
"""Largest ledger id: a signed 64-bit number, as on BookKeeper's wire."""

ENTRY_ID_MAX: Final = 2**32 - 1
"""Largest entry id that an ack bitmap holds (a Roaring bitmap has 32-bit members)."""


POSITIONS_AS_TEXT: Final = {"positions": "LEDGER:ENTRY"}
"""The context in which pydantic writes positions in that form."""


class Position(NamedTuple):
    """One entry of one message ledger. A plain tuple underneath: cheap to hash and compare."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:  # noqa: ANN401
        """Written as a pair, or as `POSITIONS_AS_TEXT`; read from both."""
        from pydantic_core import core_schema  # noqa: PLC0415 - who reads JSON has it

        number = core_schema.int_schema()
        forms = (
            (cls._of_text, core_schema.str_schema()),
            (cls._make, core_schema.tuple_positional_schema([number, number])),
        )
        return core_schema.union_schema(
            [core_schema.no_info_after_validator_function(read, form) for read, form in forms],
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls._in_json, info_arg=True
            ),
        )

    def _in_json(self, info: Any) -> str | tuple[int, int]:  # noqa: ANN401 - a SerializationInfo
        return str(self) if info.context == POSITIONS_AS_TEXT else (self.ledger_id, self.entry_id)

    @classmethod
    def _of_text(cls, text: str) -> Position:
        ledger_id, entry_id = text.split(":")
        return cls(int(ledger_id), int(entry_id))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the form ``LEDGER:ENTRY``. Raises `PositionError` naming the text."""
        try:
            position = cls._of_text(text)
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


# ------------------------------------------------------------------------------ arrays


def checked_integers(
    numbers: ArrayLike, what: str, error: type[CallerError] = CallerError
) -> NDArray[np.integer[Any]]:
    """The array if it is one-dimensional and of integers. Raises `error`, which names `what`."""
    try:
        array = np.asarray(numbers)
    except (ValueError, OverflowError) as cause:
        raise error(f"{what} are no array of integers: {cause}") from None
    if array.ndim != 1:
        raise error(f"{what} must be one-dimensional, got {array.ndim} dimensions")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise error(f"{what} must be integers, got {array[0]!r} in an array of {array.dtype}")
    return array


def entry_ids_below(ids: ArrayLike, entry_count: int, ledger_id: int) -> IdArray:
    """The ids as an array of integers, every one of them an entry of the ledger."""
    array = checked_integers(ids, "entry ids", PositionError)
    if array.size:
        if int(array.min()) < 0:
            raise PositionError(f"entry id {int(array.min())} of ledger {ledger_id} is negative")
        if int(array.max()) >= entry_count:
            beyond = int(array[array >= entry_count][0])
            raise PositionError(
                f"entry id {beyond} is unknown: ledger {ledger_id} has {entry_count} entries"
            )
    return array


def by_ledger(ledger_ids: ArrayLike, entry_ids: ArrayLike) -> Iterator[tuple[int, IdArray]]:
    """Split pairs into one array of entry ids per ledger, ledgers ascending."""
    ledgers = checked_integers(ledger_ids, "ledger ids", PositionError)
    entries = checked_integers(entry_ids, "entry ids", PositionError)
    if ledgers.size != entries.size:
        raise PositionError(f"{ledgers.size} ledger ids do not pair with {entries.size} entry ids")
    if ledgers.size == 0:
        return
    lowest, highest = int(ledgers.min()), int(ledgers.max())
    if lowest < 0 or highest > LEDGER_ID_MAX:
        wrong = lowest if lowest < 0 else highest
        raise PositionError(f"ledger id {wrong} is not in 0..{LEDGER_ID_MAX}")
    if lowest == highest:
        yield lowest, entries
        return
    order = np.argsort(ledgers, kind="stable")
    ledgers = ledgers[order]
    borders = np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1
    for first, group in zip((0, *borders), np.split(entries[order], borders), strict=True):
        yield int(ledgers[first]), group
