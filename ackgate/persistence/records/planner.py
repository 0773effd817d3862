"""What one write will hold: a snapshot or a delta, cut to the limits, and the figures about it.

Pure. This is the one place where anything is dropped:

    state in memory   [==] [==] [=]   [====]   [==]    [=]      ranges, lowest first
    cap of 4           kept kept kept   kept   dropped dropped
                                               '---------------- memory only, reported

The ranges next to the mark-delete are kept, because losing them would cost most when it moves. Caps
count ranges and partly acked entries apart. The size guard of a metadata node cuts both at one
position: everything from there on is dropped.

Pending nacks are cut before they come here (`cursor.earliest_nacks`). A metadata node that is
too small for all holds none of them: they are dropped before any ack is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, NO_NACKS, NackImage, Position, WrittenCounts, run_count
from ackgate.errors import NodeTooLargeError
from ackgate.persistence.records.outcome import PersistOutcome, PersistWhere
from ackgate.persistence.records.values import CursorRecord, DeltaRecord, SnapshotRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.cursor import CursorGrowth, CursorSnapshot
    from ackgate.persistence.records.limits import PersistLimits


class PersistPlan(NamedTuple):
    """A record to be written, and what there is to say about it when it is durable."""

    record: CursorRecord
    counts: WrittenCounts
    nacks: NackImage | None = None
    """The pending nacks as the record has them; None: it says nothing of them."""

    @property
    def version(self) -> int:
        """The version of the ack state that the record holds."""
        return self.counts.version

    @property
    def is_complete(self) -> bool:
        """Whether none of the acks is left out."""
        return self.counts.is_complete

    def outcome(
        self,
        *,
        where: PersistWhere,
        bytes_written: int,
        at_ms: int,
        duration_ms: float,
        is_ledger_begun: bool = False,
        is_last: bool = False,
        cursor_ledger_id: int | None = None,
        node_bytes: int = 0,
        properties_bytes: int = 0,
    ) -> PersistOutcome:
        """The outcome of having written this plan, with these figures."""
        counts, nacks = self.counts, self.nacks
        return PersistOutcome(
            version=counts.version,
            ranges_in_memory=counts.ranges_in_memory,
            ranges_persisted=counts.ranges_persisted,
            entries_dropped=counts.entries_dropped,
            batch_indexes_in_memory=counts.batch_indexes_in_memory,
            batch_indexes_persisted=counts.batch_indexes_persisted,
            size_guard_hit=counts.size_guard_hit,
            mark_delete=self.record.mark_delete,
            where=where,
            is_delta=isinstance(self.record, DeltaRecord),
            bytes_written=bytes_written,
            at_ms=at_ms,
            duration_ms=duration_ms,
            nacks_in_memory=None if nacks is None else nacks.entries_in_memory,
            nacks_persisted=None if nacks is None else nacks.nacks.entry_count,
            written_ms=self.record.written_ms,
            is_ledger_begun=is_ledger_begun,
            is_last=is_last,
            cursor_ledger_id=cursor_ledger_id,
            node_bytes=node_bytes,
            properties_bytes=properties_bytes,
        )


def plan_delta(
    growth: CursorGrowth,
    *,
    partly_acked_count: int,
    limits: PersistLimits,
    owner_epoch: int,
    now_ms: int,
    nacks: NackImage | None = None,
    base_snapshot_version: int | None = None,
) -> PersistPlan | None:
    """Write only the growth; None when the whole state is over a limit and must be cut.

    `nacks`: all that are pending, where they are to be written, too. `base_snapshot_version`: the
    snapshot that began the descent.
    """
    if growth.range_count > limits.ranges_max or partly_acked_count > limits.batch_indexes_max:
        return None
    return PersistPlan(
        record=DeltaRecord(
            owner_epoch,
            now_ms,
            growth,
            None if nacks is None else nacks.nacks,
            base_snapshot_version,
        ),
        counts=WrittenCounts(
            version=growth.version,
            ranges_in_memory=growth.range_count,
            ranges_persisted=growth.range_count,
            batch_indexes_in_memory=partly_acked_count,
            batch_indexes_persisted=partly_acked_count,
        ),
        nacks=nacks,
    )


def plan_snapshot(
    snapshot: CursorSnapshot,
    *,
    limits: PersistLimits,
    owner_epoch: int,
    now_ms: int,
    nacks: NackImage | None = None,
    base_snapshot_version: int | None = None,
) -> PersistPlan:
    """Write the whole state, cut to the caps.

    `base_snapshot_version`: the snapshot that began the descent; None: this one begins it.
    """
    capped = _capped(snapshot, limits)
    return _plan(snapshot, capped, owner_epoch, now_ms, nacks, base_snapshot_version)


def plan_node(
    snapshot: CursorSnapshot,
    *,
    limits: PersistLimits,
    owner_epoch: int,
    now_ms: int,
    bytes_max: int,
    encoded_bytes: Callable[[SnapshotRecord], int],
    nacks: NackImage | None = None,
) -> PersistPlan:
    """Write the whole state, cut to the caps and then to what fits into `bytes_max`.

    Raises `NodeTooLargeError` when not even the mark-delete and the properties fit.
    """
    capped = _capped(snapshot, limits)
    plan = _plan(snapshot, capped, owner_epoch, now_ms, nacks)
    if _size(plan, encoded_bytes) <= bytes_max:
        return plan
    if nacks is not None:
        nacks = nacks._replace(nacks=NO_NACKS)
        plan = _plan(snapshot, capped, owner_epoch, now_ms, nacks)
        if _size(plan, encoded_bytes) <= bytes_max:
            return plan
    # Size grows with what is kept, so a binary search over "keep the lowest n" finds the most that
    # fits in a few encodings. Compression makes it grow unevenly; what is chosen did fit, though.
    starts = _starts(capped)
    fits, too_many = -1, sum(len(bitmap) for bitmap in starts.values())
    best = None
    while too_many - fits > 1:
        keep = (fits + too_many) // 2
        kept = _cut(capped, _nth(starts, keep))
        plan = _plan(snapshot, kept, owner_epoch, now_ms, nacks)
        if _size(plan, encoded_bytes) <= bytes_max:
            best, fits = plan, keep
        else:
            too_many = keep
    if best is None:
        raise NodeTooLargeError(
            f"not even mark-delete {snapshot.mark_delete} and {len(snapshot.properties)} "
            f"properties fit into {bytes_max} bytes"
        )
    return best._replace(counts=replace(best.counts, size_guard_hit=True))


def _plan(
    whole: CursorSnapshot,
    kept: CursorSnapshot,
    owner_epoch: int,
    now_ms: int,
    nacks: NackImage | None,
    base_snapshot_version: int | None = None,
) -> PersistPlan:
    dropped = 0 if kept is whole else _acked_count(whole.acked) - _acked_count(kept.acked)
    return PersistPlan(
        record=SnapshotRecord(
            owner_epoch=owner_epoch,
            written_ms=now_ms,
            snapshot=kept,
            ranges_in_memory=whole.range_count,
            entries_dropped=dropped,
            batch_indexes_in_memory=len(whole.unacked_indexes),
            nacks=NO_NACKS if nacks is None else nacks.nacks,
            base_snapshot_version=base_snapshot_version,
        ),
        counts=WrittenCounts(
            version=whole.version,
            ranges_in_memory=whole.range_count,
            ranges_persisted=kept.range_count,
            entries_dropped=dropped,
            batch_indexes_in_memory=len(whole.unacked_indexes),
            batch_indexes_persisted=len(kept.unacked_indexes),
        ),
        nacks=nacks,
    )


def _size(plan: PersistPlan, encoded_bytes: Callable[[SnapshotRecord], int]) -> int:
    assert isinstance(plan.record, SnapshotRecord)
    return encoded_bytes(plan.record)


def _acked_count(acked: Mapping[int, BitMap]) -> int:
    return sum(len(bitmap) for bitmap in acked.values())


# ---------------------------------------------------------------------- the caps


def _capped(snapshot: CursorSnapshot, limits: PersistLimits) -> CursorSnapshot:
    """The snapshot itself when it is within the caps, else one with the lowest of each."""
    unacked_indexes = snapshot.unacked_indexes
    if len(unacked_indexes) > limits.batch_indexes_max:
        kept_positions = sorted(unacked_indexes)[: limits.batch_indexes_max]
        unacked_indexes = {position: unacked_indexes[position] for position in kept_positions}
        snapshot = replace(snapshot, unacked_indexes=unacked_indexes)
    if snapshot.range_count <= limits.ranges_max:
        return snapshot
    acked: dict[int, BitMap] = {}
    room = limits.ranges_max
    for ledger_id in sorted(snapshot.acked):
        if room == 0:
            break
        bitmap = snapshot.acked[ledger_id]
        starts = _run_starts(bitmap)
        if len(starts) > room:
            acked[ledger_id] = _below(bitmap, starts[room])
            break
        acked[ledger_id] = bitmap
        room -= len(starts)
    return replace(snapshot, acked=acked, range_count=limits.ranges_max)


# ---------------------------------------------------------------- the size guard


def _starts(snapshot: CursorSnapshot) -> dict[int, BitMap]:
    """Where each range and each partly acked entry begins: the places at which one can cut."""
    starts = {ledger_id: _run_starts(bitmap) for ledger_id, bitmap in snapshot.acked.items()}
    for ledger_id, entry_id in snapshot.unacked_indexes:
        starts.setdefault(ledger_id, BitMap()).add(entry_id)
    return {ledger_id: starts[ledger_id] for ledger_id in sorted(starts)}


def _nth(starts: Mapping[int, BitMap], n: int) -> Position:
    """Position of the n-th place to cut at, from 0. There is one."""
    for ledger_id, bitmap in starts.items():
        if n < len(bitmap):
            return Position(ledger_id, bitmap[n])
        n -= len(bitmap)
    raise IndexError(n)


def _cut(snapshot: CursorSnapshot, at: Position) -> CursorSnapshot:
    """Keep what lies below a position."""
    acked = {ledger_id: bitmap for ledger_id, bitmap in snapshot.acked.items() if ledger_id < at[0]}
    if at.ledger_id in snapshot.acked:
        below = _below(snapshot.acked[at.ledger_id], at.entry_id)
        if below:
            acked[at.ledger_id] = below
    return replace(
        snapshot,
        acked=acked,
        range_count=sum(run_count(bitmap) for bitmap in acked.values()),
        unacked_indexes={
            position: mask for position, mask in snapshot.unacked_indexes.items() if position < at
        },
    )


def _run_starts(bitmap: BitMap) -> BitMap:
    return bitmap - bitmap.shift(1)


def _below(bitmap: BitMap, entry_id: int) -> BitMap:
    kept = bitmap.copy()
    kept.remove_range(entry_id, ENTRY_ID_MAX + 1)
    return kept
