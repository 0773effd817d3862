"""Whole numbers as the fewest bytes of one width that hold them, for columns.

Pure. Either the numbers themselves or the steps between them are stored, whichever is narrower,
each less the least of them; little-endian, so that other languages read them as they are.

    numbers  500 501 502 504     less 500:  0 1 2 4       1 byte each
    steps        1   1   2       less 1:    0 0 1         1 byte each
    numbers  7 7 7 7                        -             nothing: the least is all of them

Arithmetic is modulo 2**64, so there is no number that it does not bring back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_WIDTHS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def pack_numbers(numbers: NDArray[np.int64]) -> dict[str, Any]:
    """The fields of an Avro record ``PackedNumbers``."""
    width, least = _width(numbers)
    if width > 1:
        steps = np.diff(numbers)
        step_width, least_step = _width(steps)
        if step_width < width:
            values = _bytes(steps, least_step, step_width)
            return _fields(least_step, step_width, values, first=int(numbers[0]))
    return _fields(least, width, _bytes(numbers, least, width))


def unpack_numbers(fields: Mapping[str, Any], count: int) -> NDArray[np.int64]:
    """So many numbers again. Raises `CorruptRecordError` when there are others than these."""
    width, first = fields["width"], fields["first"]
    if first is None:
        return _numbers(fields, width, count)
    if count == 0:
        raise CorruptRecordError("numbers begin where none are announced")
    numbers = np.empty(count, dtype=np.int64)
    numbers[0] = first
    numbers[1:] = _numbers(fields, width, count - 1)
    return np.cumsum(numbers, dtype=np.int64)


def _fields(least: int, width: int, values: bytes, first: int | None = None) -> dict[str, Any]:
    return {"least": least, "width": width, "first": first, "values": values}


def _width(numbers: NDArray[np.int64]) -> tuple[int, int]:
    if not numbers.size:
        return 0, 0
    least = int(numbers.min())
    span = int(numbers.max()) - least
    return (span.bit_length() + 7) // 8 if span < 1 << 16 else 4 if span < 1 << 32 else 8, least


def _bytes(numbers: NDArray[np.int64], least: int, width: int) -> bytes:
    if not width:
        return b""
    return (numbers - np.int64(least)).astype(_WIDTHS[width]).tobytes()


def _numbers(fields: Mapping[str, Any], width: int, count: int) -> NDArray[np.int64]:
    least, values = fields["least"], fields["values"]
    if width not in _WIDTHS and width != 0:
        raise CorruptRecordError(f"numbers of {width} bytes each cannot be")
    if len(values) != count * width:
        raise CorruptRecordError(f"{len(values)} bytes are not {count} numbers of {width} bytes")
    if not width:
        return np.full(count, least, dtype=np.int64)
    wide: NDArray[np.uint64] = np.frombuffer(values, dtype=_WIDTHS[width]).astype(np.uint64)
    return wide.view(np.int64) + np.int64(least)
