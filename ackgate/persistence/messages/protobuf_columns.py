"""The protobuf fields of many messages, read side by side: step k reads the k-th field of each.

Pure, and knows nothing of what the fields mean. As a rule it is the same field in nearly all messages,
so that a step is a handful of operations on whole arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; groups, which are obsolete, have others."""

_FIELD_MAX: Final = 63
"""Fields above are out of the ordinary: there is none yet, and garbage has many."""

_FAR: Final = 1 << 62


class Step(NamedTuple):
    """The same field, in some of the entries."""

    number: int
    """0: something unusual; the entry is left to the protobuf library."""
    wire_type: int
    rows: Ints
    values: Ints
    """A number's value, or where bytes begin."""
    stops: Ints
    """Where bytes end."""


def fields_of(data: Bytes, rows: Ints, starts: Ints, stops: Ints) -> Iterator[Step]:
    """All fields of the messages between `starts` and `stops`: first each one's first, and so on.

    `rows` is what the messages are called in the steps.
    """
    at = starts
    while True:
        left = np.flatnonzero(at < stops)
        if len(left) == 0:
            return
        if len(left) < len(rows):
            rows, at, stops = rows[left], at[left], stops[left]
        tags, at = _varints(data, at)
        tags[(tags < 0) | (tags >> 3 > _FIELD_MAX)] = 0
        for tag in _different(tags):
            which = np.flatnonzero(tags == tag)
            here = at[which]
            values, ends, step_stops = _one_field(data, tag & 7, here)
            number = tag >> 3
            if number == 0:
                ends = np.full(len(which), _FAR)
            is_good = ends <= stops[which]
            if is_good.all():
                yield Step(number, tag & 7, rows[which], values, step_stops)
            else:
                good, bad = np.flatnonzero(is_good), np.flatnonzero(~is_good)
                yield Step(0, 0, rows[which[bad]], values[bad], step_stops[bad])
                if len(good):
                    yield Step(number, tag & 7, rows[which[good]], values[good], step_stops[good])
            # A field that runs past its message ends here.
            at[which] = ends


def _different(tags: Ints) -> list[int]:
    if (tags == tags[0]).all():
        return [int(tags[0])]
    found: list[int] = np.unique(tags).tolist()
    return found


def _one_field(data: Bytes, wire_type: int, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Values (or starts), where the field ends, and where its bytes end."""
    if wire_type == VARINT:
        values, ends = _varints(data, at)
        return values, ends, ends
    if wire_type == BYTES:
        lengths, starts = _varints(data, at)
        ends = np.where((lengths >= 0) & (lengths < _FAR // 2), starts + lengths, _FAR)
        return starts, ends, ends
    if wire_type in (FIXED32, FIXED64):
        ends = at + (4 if wire_type == FIXED32 else 8)
        return at, ends, ends
    ends = np.full(len(at), _FAR)
    return ends, ends, ends


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The number at each place, and where it ends; `_FAR` when it does not end in ten bytes."""
    byte = data[at]
    values = (byte & 127).astype(np.int64)
    ends = at + 1
    going = np.flatnonzero(byte > 127)
    shift = 7
    while len(going):
        if shift > 63:
            ends[going] = _FAR
            break
        byte = data[ends[going]]
        values[going] |= (byte & 127).astype(np.int64) << shift
        ends[going] += 1
        going = going[byte > 127]
        shift += 7
    return values, ends
