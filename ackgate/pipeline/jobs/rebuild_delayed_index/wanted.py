"""Selects the entries of a run that a tracker would keep: not acked, not cancelled and not due.

Pure. A broker adds to the tracker what its subscription reads, partly acked entries included. The
tracker keeps entries that are due more than one tick from now (strict mode: any time after now).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ackgate.cursor import Position
from ackgate.persistence.nodes.paths import CANCELLED_CURSOR
from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import EntryRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import Numbers
    from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Target

    Flags = NDArray[np.bool_]

NOTHING: Final = Position(-1, -1)
"""Mark-delete of a cursor that has acked nothing."""


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
