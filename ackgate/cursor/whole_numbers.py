"""Whole numbers that arrive as an array: the check that comes before all others.

Pure. Refused: anything that is not one-dimensional and whole-numbered (floats hide NaN and
rounding, booleans hide masks). What range they must be in is for the caller to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ackgate.errors import CallerError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def whole_numbers(
    numbers: ArrayLike, what: str, error: type[CallerError] = CallerError
) -> NDArray[np.integer[Any]]:
    """The array, if it is one of integers, else `error`, which says `what` is wrong."""
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
