"""Runs: delayed entries of one message ledger, and those of them that a tracker would keep.

Pure: NumPy and Arrow. A run is one Spark row with two binary columns: a row for each entry would
cost more than all the rest. ::

    ledger_id  entry_id  deliver_at_ms        ledger_id  first_entry_id  entries  entry_ids  times_ms
        7          0       1700                   7            0            3      0 2 5     17 ..
        7          2       1650         -->       8            1            1      1         18
        7          5       1800
        8          1       1810

A broker adds to a tracker what its subscription reads, partly acked entries included. The tracker
keeps entries that are due more than one tick from now (strict mode: any time after now).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ackgate.cursor import Position
from ackgate.persistence.nodes.paths import CANCELLED_CURSOR
from ackgate.pipeline.schema.tables import Column, Kind, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Target

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

RUN_ENTRIES_MAX: Final = 65_536
"""Most entries collected before they are packed, and so of one run. Bounds a task's memory."""

NOTHING: Final = Position(-1, -1)
"""Mark-delete of a cursor that has acked nothing."""

NUMBER: Final = np.dtype("<i8")
"""Type of the numbers in the binary columns."""

RUN: Final = (
    Column("ledger_id", Kind.LONG, "Of all its entries."),
    Column("first_entry_id", Kind.LONG, "The lowest."),
    Column("entries", Kind.LONG, "How many."),
    Column("entry_ids", Kind.BINARY, "All of them, as `NUMBER`s."),
    Column("times_ms", Kind.BINARY, "When each is to be delivered."),
)


class EntryRun(NamedTuple):
    """Entries of one ledger, in ascending order: two arrays of one length."""

    ledger_id: int
    entry_ids: Numbers
    times_ms: Numbers


def pack_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack rows (ledger_id, entry_id, deliver_at_ms), ascending in each ledger, into `RUN` rows."""
    gathered: list[pa.RecordBatch] = []
    entries = 0
    for batch in batches:
        for start in range(0, batch.num_rows, RUN_ENTRIES_MAX):
            part = batch.slice(start, RUN_ENTRIES_MAX)
            if entries + part.num_rows > RUN_ENTRIES_MAX:
                yield _packed(gathered)
                gathered, entries = [], 0
            gathered.append(part)
            entries += part.num_rows
    if entries:
        yield _packed(gathered)


def _packed(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    ledger_ids, entry_ids, times_ms = (
        table.column(name).to_numpy().astype(NUMBER, copy=False)
        for name in ("ledger_id", "entry_id", "deliver_at_ms")
    )
    starts = np.concatenate(([0], np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1))
    bounds = np.append(starts, ledger_ids.size)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ledger_ids[starts]),
            pa.array(entry_ids[starts]),
            pa.array(np.diff(bounds)),
            binary_slices(entry_ids, bounds),
            binary_slices(times_ms, bounds),
        ],
        schema=arrow_schema(RUN),
    )


def binary_slices(numbers: Numbers, bounds: Numbers) -> pa.Array:
    """Return a binary column whose row i holds ``numbers[bounds[i] : bounds[i + 1]]``."""
    offsets = (bounds * NUMBER.itemsize).astype(np.int32)
    data = pa.py_buffer(np.ascontiguousarray(numbers, NUMBER))
    return pa.Array.from_buffers(pa.binary(), bounds.size - 1, [None, pa.py_buffer(offsets), data])


def numbers_of(column: pa.Array, row: int) -> Numbers:
    """Return the numbers in one row of a binary column, as a view."""
    return np.frombuffer(column[row].as_buffer(), NUMBER)


class AckedRanges(NamedTuple):
    """Acked ranges of one ledger after the mark-delete, ascending and disjoint, as two columns."""

    firsts: Numbers
    ends: Numbers
    """Entry id after the last entry of each range."""

    @classmethod
    def of(cls, firsts: Numbers, ends: Numbers) -> AckedRanges:
        """Sort ranges that come in any order."""
        order = np.argsort(firsts)
        return cls(firsts[order], ends[order])

    def hold(self, entry_ids: Numbers) -> Flags:
        """Return a mask of the entries that lie in a range."""
        if not self.firsts.size:
            return np.zeros(entry_ids.size, np.bool_)
        places = self.firsts.searchsorted(entry_ids, "right") - 1
        return (places >= 0) & (entry_ids < self.ends[places])


def wanted_of(
    run: EntryRun, target: Target, acked: Mapping[str, AckedRanges], now_ms: int
) -> EntryRun:
    """Return the entries that the target's tracker would keep, with its keys in place of the times.

    `acked` has the acked ranges of the run's ledger by cursor. An entry counts as acked if all
    readers of the target have acked it.
    """
    keys = target.keys
    is_wanted = run.times_ms > keys.refused_through(now_ms)
    if target.cancelled_through is not None:
        is_wanted &= ~_acked(run, target.cancelled_through, acked.get(CANCELLED_CURSOR))
    is_acked = np.ones(run.entry_ids.size, np.bool_)
    for subscription, mark_delete in target.readers.items():
        is_acked &= _acked(run, mark_delete, acked.get(subscription))
    is_wanted &= ~is_acked
    return EntryRun(run.ledger_id, run.entry_ids[is_wanted], keys.keys(run.times_ms[is_wanted]))


def _acked(run: EntryRun, mark_delete: Position, ranges: AckedRanges | None) -> Flags:
    if run.ledger_id < mark_delete.ledger_id:
        return np.ones(run.entry_ids.size, np.bool_)
    through = mark_delete.entry_id if run.ledger_id == mark_delete.ledger_id else -1
    is_acked: Flags = run.entry_ids <= through
    return is_acked if ranges is None else is_acked | ranges.hold(run.entry_ids)
