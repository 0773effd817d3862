"""How long to wait before the next try.

Pure. Doubles from a first delay to a bound; the jitter comes from a hash of a seed and the attempt,
so it differs from cursor to cursor, repeats in a replay, and keeps no generator per cursor.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

_DOUBLINGS_MAX: Final = 32


def backoff_seconds(attempt: int, *, first: float, longest: float, seed: int) -> float:
    """Delay before the next try after `attempt` failures (1 = the first one).

    Between half of the exponential delay and all of it, so that cursors which failed together do
    not come back together.
    """
    exponential = min(longest, first * float(2 ** min(attempt - 1, _DOUBLINGS_MAX)))
    jitter = crc32(f"{seed}:{attempt}".encode()) / 2**32
    return exponential * (0.5 + jitter / 2)
