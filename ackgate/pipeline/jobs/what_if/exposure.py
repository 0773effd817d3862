"""What would come again if the broker crashed at a random moment: integrated over the recording.

Pure. Two things do: entries that are acked in memory and not durable, and entries delivered and not
acked. Both are step functions of time; the mean is their area over the time, the most their highest
step::

    acked in memory    ____/~~~~/~~~~~~/~~      less what the last durable write had
    durable            ________/~~~~~~~~~/      (its state is that of when it began), and what a limit
                                                made it leave out comes again, too
    in flight          ____/~~~~~~~~~/~~~~
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.what_if.moments import ReplayedWrite
    from ackgate.pipeline.jobs.what_if.tallies import Tallies
    from ackgate.pipeline.jobs.what_if.tape import Tape


class Exposure:
    """Of one life of a subscription under some settings."""

    __slots__ = ("_acked", "_durable", "_in_flight", "_until_us")

    def __init__(self, start_us: int) -> None:
        self._until_us = start_us
        self._acked = 0
        self._durable = 0
        self._in_flight = 0

    def run(self, tape: Tape, writes: Sequence[ReplayedWrite], tallies: Tallies) -> None:
        """Add the stretch up to the tape's end."""
        durable_us = np.array([write.durable_us for write in writes], dtype=np.int64)
        durable = np.array(
            [write.acked - write.outcome.entries_dropped for write in writes], dtype=np.int64
        )
        starts = np.unique(
            np.concatenate(
                (
                    [self._until_us],
                    tape.times_us,
                    durable_us,
                    tape.in_flight_us,
                    tallies.borders(self._until_us, tape.end_us),
                )
            ).astype(np.int64)
        )
        starts = starts[(starts >= self._until_us) & (starts < tape.end_us)]
        acked = _step(starts, tape.times_us, tape.acked, self._acked)
        kept = _step(starts, durable_us, durable, self._durable)
        flying = _step(starts, tape.in_flight_us, tape.in_flight, self._in_flight)
        not_durable = np.maximum(acked - kept, 0)
        if starts.size:
            lengths = np.diff(np.append(starts, tape.end_us))
            tallies.add_exposure(starts, lengths, not_durable, flying)
        self._until_us = max(self._until_us, tape.end_us)
        self._acked = _last(tape.acked, self._acked)
        self._durable = _last(durable, self._durable)
        self._in_flight = _last(tape.in_flight, self._in_flight)


def _step(
    at: NDArray[np.int64], times: NDArray[np.int64], values: NDArray[np.int64], before: int
) -> NDArray[np.int64]:
    """A step function, at these times."""
    if not times.size:
        return np.full(at.size, before, dtype=np.int64)
    place = np.searchsorted(times, at, side="right") - 1
    return np.where(place < 0, before, values[place])


def _last(values: NDArray[np.int64], before: int) -> int:
    return int(values[-1]) if values.size else before
