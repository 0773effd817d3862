"""Adds up the figures of a replay under some settings, by intervals of time.

Pure. Intervals end at whole multiples of their width since 1970, so that those of different topics
and settings coincide.

`Exposure` counts the entries that would be delivered again if the broker crashed: entries acked in
memory and not durable, and entries delivered and not acked. Both are step functions of time. The
mean is their area divided by the time, the maximum their highest step::

    acked in memory    ____/~~~~/~~~~~~/~~      minus the entries acked in the last durable write:
    durable            ________/~~~~~~~~~/      its state when it began, without the entries that a
                                                limit left out
    in flight          ____/~~~~~~~~~/~~~~
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ackgate.persistence.records.outcome import PersistWhere

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.what_if.gating import ReplayedEdge
    from ackgate.pipeline.jobs.what_if.moments import ReplayedWrite, TapeWrites
    from ackgate.pipeline.jobs.what_if.tape import Tape


@dataclass(slots=True)
class Sums:
    """Figures of one stretch of time.

    Figures whose names end in `_max` are maxima; the others are sums.
    """

    recorded_us: int = 0
    """Time covered by the recording."""
    entries_acked: int = 0
    paused_us: int = 0
    pauses: int = 0
    postponed: int = 0
    """First deliveries of the recording that fall into a pause."""
    writes: int = 0
    snapshots: int = 0
    ledgers_begun: int = 0
    node_writes: int = 0
    failed_attempts: int = 0
    bytes_written: int = 0
    node_bytes: int = 0
    entries_dropped_max: int = 0
    """Most acked entries that a limit left out of one record."""
    ranges_max: int = 0
    not_durable_area: int = 0
    """Entries acked and not durable, integrated over time: entries x us."""
    in_flight_area: int = 0
    """Entries delivered and not acked, integrated over time: entries x us."""
    redeliveries_max: int = 0
    delayed_entries: int = 0
    """Entries that the delayed tracker took in."""
    buckets_written: int = 0
    """Snapshots written, of sealed and of merged buckets."""
    buckets_max: int = 0
    segments_written: int = 0
    segments_loaded: int = 0
    delayed_bytes_written: int = 0
    delayed_memory_max: int = 0
    """Most memory of the delayed tracker, in bytes."""

    def add(self, other: Sums) -> None:
        """Add the figures of another stretch: sum up, or take the maximum."""
        for each in fields(self):
            ours, theirs = getattr(self, each.name), getattr(other, each.name)
            is_max = each.name.endswith("_max")
            setattr(self, each.name, max(ours, theirs) if is_max else ours + theirs)


class Tallies:
    """Figures of one subscription under some settings."""

    def __init__(self, interval_us: int) -> None:
        self._interval_us = interval_us
        self.by_interval: defaultdict[int, Sums] = defaultdict(Sums)
        """Interval number (time divided by width, since 1970) -> sums."""
        self.paused_reasons_us: defaultdict[str, int] = defaultdict(int)
        """Reasons for which the gate shut, joined by commas -> paused time."""
        self._shut_since_us: int | None = None
        self._shut_for = ""
        self._acked = 0

    def total(self) -> Sums:
        """The sums over all intervals."""
        total = Sums()
        for sums in self.by_interval.values():
            total.add(sums)
        return total

    def at(self, time_us: int) -> Sums:
        """Return the sums of the interval that contains this time."""
        return self.by_interval[time_us // self._interval_us]

    def merge(self, other: Tallies) -> None:
        """Add the intervals of another tally, such as that of one life."""
        for number, sums in other.by_interval.items():
            self.by_interval[number].add(sums)

    # ---------------------------------------------------------------------- acks, writes

    def add_tape(self, tape: Tape) -> None:
        """Add the acked entries and the ranges of the tape, which no setting changes."""
        if not len(tape):
            return
        numbers = tape.times_us // self._interval_us
        lasts = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
        firsts = np.append([0], lasts[:-1] + 1)
        highest = np.maximum.reduceat(tape.ranges, firsts)
        for place, last in enumerate(lasts.tolist()):
            sums = self.by_interval[int(numbers[last])]
            acked = int(tape.acked[last])
            sums.entries_acked += acked - self._acked
            sums.ranges_max = max(sums.ranges_max, int(highest[place]))
            self._acked = acked

    def add_writes(self, tape: Tape, written: TapeWrites) -> None:
        for write in written.writes:
            self._add_write(write)
        if written.failed_attempts:
            sums = self.by_interval[tape.end_us // self._interval_us]
            sums.failed_attempts += written.failed_attempts

    def _add_write(self, write: ReplayedWrite) -> None:
        sums, outcome = self.by_interval[write.durable_us // self._interval_us], write.outcome
        sums.writes += 1
        sums.snapshots += not outcome.is_delta
        sums.ledgers_begun += outcome.is_ledger_begun
        sums.node_writes += outcome.where is PersistWhere.METADATA_STORE
        sums.bytes_written += outcome.bytes_written
        sums.node_bytes += outcome.node_bytes
        sums.entries_dropped_max = max(sums.entries_dropped_max, outcome.entries_dropped)

    # ----------------------------------------------------------------------------- pauses

    def add_edges(self, edges: Iterable[ReplayedEdge], tape: Tape) -> None:
        """Add the pauses within the tape. A pause that has not ended goes on in the next tape."""
        for edge in edges:
            if edge.is_shut:
                self._shut_since_us = edge.time_us
                self._shut_for = ",".join(sorted(edge.reasons))
                self.by_interval[edge.time_us // self._interval_us].pauses += 1
            elif self._shut_since_us is not None:
                self._add_pause(self._shut_since_us, edge.time_us, tape)
                self._shut_since_us = None
        if self._shut_since_us is not None:
            self._add_pause(self._shut_since_us, None, tape)

    def end_life(self) -> None:
        """Forget a pause that has not ended: the gate is gone."""
        self._shut_since_us = None

    def _add_pause(self, shut_us: int, opened_us: int | None, tape: Tape) -> None:
        """Add the part of a pause that lies within the tape. `opened_us` None: it has not ended."""
        begin_us = max(shut_us, tape.start_us)
        end_us = tape.end_us if opened_us is None else opened_us
        self.paused_reasons_us[self._shut_for] += end_us - begin_us
        reads_us, width = tape.reads_us, self._interval_us
        first = int(np.searchsorted(reads_us, shut_us, side="right"))
        last = reads_us.size if opened_us is None else int(np.searchsorted(reads_us, opened_us))
        for number, count in zip(
            *np.unique(reads_us[first:last] // width, return_counts=True), strict=True
        ):
            self.by_interval[int(number)].postponed += int(count)
        for start, stop in pairwise([begin_us, *self.borders(begin_us, end_us), end_us]):
            self.by_interval[start // width].paused_us += stop - start

    # --------------------------------------------------------------------------- exposure

    def borders(self, start_us: int, end_us: int) -> list[int]:
        """Return the interval borders between the two times, exclusive."""
        width = self._interval_us
        return list(range((start_us // width + 1) * width, end_us, width))

    def add_exposure(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        not_durable: NDArray[np.int64],
        in_flight: NDArray[np.int64],
    ) -> None:
        """Add steps of exposure: starts and lengths in us (cut at `borders`), counts of entries."""
        numbers = starts // self._interval_us
        firsts = np.flatnonzero(np.append([True], numbers[1:] != numbers[:-1]))
        parts = (
            np.add.reduceat(lengths * not_durable, firsts),
            np.add.reduceat(lengths * in_flight, firsts),
        )
        highest = np.maximum.reduceat(not_durable + in_flight, firsts)
        spans = np.add.reduceat(lengths, firsts)
        for place, number in enumerate(numbers[firsts].tolist()):
            sums = self.by_interval[number]
            sums.recorded_us += int(spans[place])
            sums.not_durable_area += int(parts[0][place])
            sums.in_flight_area += int(parts[1][place])
            sums.redeliveries_max = max(sums.redeliveries_max, int(highest[place]))


class Exposure:
    """Exposure to a crash over one life of a subscription under some settings (see the module)."""

    __slots__ = ("_acked", "_durable", "_in_flight", "_until_us")

    def __init__(self, start_us: int) -> None:
        self._until_us = start_us
        self._acked = 0
        self._durable = 0
        self._in_flight = 0

    def run(self, tape: Tape, writes: Sequence[ReplayedWrite], tallies: Tallies) -> None:
        """Add the exposure up to the tape's end to `tallies`."""
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
    """Values of a step function at the times `at`; `before` ahead of its first step."""
    if not times.size:
        return np.full(at.size, before, dtype=np.int64)
    place = np.searchsorted(times, at, side="right") - 1
    return np.where(place < 0, before, values[place])


def _last(values: NDArray[np.int64], before: int) -> int:
    return int(values[-1]) if values.size else before
