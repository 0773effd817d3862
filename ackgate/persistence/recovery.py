"""From stored records back to a state: the fold, and the search for what to fold.

Pure. A ledger is read from its tail backwards until its newest complete snapshot is found; the
deltas behind it are then applied in order, each to the record that it was built on:

    entry    0          1       2       3          4       5       6 (torn)
            +----------+ +-----+ +-----+ +----------+ +-----+ +-----+ +--x
            | snapshot | | dlt | | dlt | | snapshot | | dlt | | dlt | | dl
            +----------+ +-----+ +-----+ +----------+ +-----+ +-----+ +--x
                                          '-- newest complete chain --'   skipped, reported

What is torn or corrupt is skipped and named. A delta whose base is missing is skipped too, and all
behind it, so the state is always one that the cursor really had. `fold` is the only way in which
deltas are applied, live (in tests) and at recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ackgate.cursor.bitmap_runs import run_count
from ackgate.cursor.pending_nacks import unacked
from ackgate.cursor.snapshot import CursorSnapshot
from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.chunks import BackwardJoiner
from ackgate.persistence.codec import decode_record
from ackgate.persistence.records import (
    AnyRecord,
    ChunkRecord,
    CursorRecord,
    DeltaRecord,
    SnapshotRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.cursor.position import Position
    from ackgate.persistence.ports import LedgerEntry

NOTES_MAX: Final = 100
"""Skipped entries that a report names one by one."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state as storage has it, with what is known about the write that reached it."""

    record: SnapshotRecord
    """The folded state, in the form of the snapshot that would be written of it."""

    records_applied: int
    """The snapshot and its deltas."""


# ---------------------------------------------------------------------- the fold


def fold(snapshot: SnapshotRecord, deltas: Sequence[DeltaRecord]) -> StoredState:
    """Apply deltas that link up, in order. Takes the snapshot's bitmaps over.

    Union first and cutting once at the end equals cutting after each delta, because the mark-delete
    only moves forward while a state grows.
    """
    if not deltas:
        return StoredState(snapshot, 1)
    state = snapshot.snapshot
    acked = dict(state.acked)
    unacked_indexes = dict(state.unacked_indexes)
    properties: Mapping[str, int] = state.properties
    nacks = snapshot.nacks
    for delta in deltas:
        growth = delta.growth
        for ledger_id, bitmap in growth.acked.items():
            if ledger_id in acked:
                acked[ledger_id] |= bitmap
            else:
                acked[ledger_id] = bitmap
        unacked_indexes.update(growth.unacked_indexes)
        if growth.properties is not None:
            properties = growth.properties
        if delta.nacks is not None:
            nacks = delta.nacks
    last = deltas[-1]
    mark_delete = last.growth.mark_delete
    acked = _above(mark_delete, acked)
    folded = CursorSnapshot(
        version=last.growth.version,
        mark_delete=mark_delete,
        acked=acked,
        range_count=sum(run_count(bitmap) for bitmap in acked.values()),
        unacked_indexes={
            position: mask
            for position, mask in unacked_indexes.items()
            if position > mark_delete and position[1] not in acked.get(position[0], ())
        },
        properties=properties,
    )
    record = SnapshotRecord(
        owner_epoch=last.owner_epoch,
        written_ms=last.written_ms,
        snapshot=folded,
        ranges_in_memory=folded.range_count,
        entries_dropped=0,
        batch_indexes_in_memory=len(folded.unacked_indexes),
        nacks=unacked(nacks, mark_delete, acked),
    )
    return StoredState(record, 1 + len(deltas))


def _above(mark_delete: Position, acked: Mapping[int, BitMap]) -> dict[int, BitMap]:
    kept = {}
    for ledger_id in sorted(acked):
        bitmap = acked[ledger_id]
        if ledger_id < mark_delete.ledger_id:
            continue
        if ledger_id == mark_delete.ledger_id:
            bitmap.remove_range(0, mark_delete.entry_id + 1)
        if bitmap:
            kept[ledger_id] = bitmap
    return kept


# ------------------------------------------------------------- the search for it


class TailScan:
    """Takes a ledger's entries from the last to the first until it has a snapshot to begin with.

    Raises `UnknownFormatError` when it meets a record of a newer format: to skip that one would be
    to forget acks that are there.
    """

    __slots__ = ("_deltas", "_joiner", "_notes", "_skipped", "_snapshot")

    def __init__(self) -> None:
        self._snapshot: tuple[int, SnapshotRecord] | None = None
        self._deltas: list[tuple[int, DeltaRecord]] = []  # newest first
        self._joiner = BackwardJoiner()
        self._notes: list[str] = []
        self._skipped = 0

    @property
    def is_done(self) -> bool:
        """Whether earlier entries are of no more use."""
        return self._snapshot is not None

    @property
    def is_joining(self) -> bool:
        """Whether the last chunks of a record were met and its first ones are still to come."""
        return self._joiner.is_begun

    @property
    def notes(self) -> tuple[str, ...]:
        """What was skipped and why, newest first."""
        unnamed = self._skipped - len(self._notes)
        return (*self._notes, f"and {unnamed} more") if unnamed else tuple(self._notes)

    def feed(self, entries: Iterable[LedgerEntry]) -> None:
        """Take entries, newest first. Stops by itself when it is done."""
        for entry_id, payload in entries:
            if self.is_done:
                return
            self._take(entry_id, payload)

    def skip(self, entry_id: int, why: object) -> None:
        """An entry that no bookie could give."""
        self._abandon(entry_id + 1)
        self._note(entry_id, why)

    def finish(self) -> StoredState | None:
        """No more entries: the state of the newest complete chain, or None."""
        self._abandon(0)
        if self._snapshot is None:
            for entry_id, delta in self._deltas:
                self._note(entry_id, f"the snapshot below delta {delta.stamp} is missing")
            return None
        _, snapshot = self._snapshot
        linked: list[DeltaRecord] = []
        stamp = snapshot.stamp
        for entry_id, delta in reversed(self._deltas):
            if delta.base == stamp:
                linked.append(delta)
                stamp = delta.stamp
            else:
                self._note(entry_id, f"{delta.stamp} builds on {delta.base}, which is missing")
        return fold(snapshot, linked)

    def _take(self, entry_id: int, payload: bytes) -> None:
        try:
            record = self._whole(entry_id, decode_record(payload))
        except UnknownFormatError as error:
            raise UnknownFormatError(f"entry {entry_id}: {error}") from error
        except CorruptRecordError as error:
            self._abandon(entry_id + 1)
            self._note(entry_id, error)
            return
        if isinstance(record, SnapshotRecord):
            self._snapshot = (entry_id, record)
        elif record is not None:
            self._deltas.append((entry_id, record))

    def _whole(self, entry_id: int, record: AnyRecord) -> CursorRecord | None:
        """The record that this entry completes; None as long as earlier chunks must follow."""
        if not isinstance(record, ChunkRecord):
            self._abandon(entry_id + 1)
            return record
        if not self._joiner.expects(record):
            self._abandon(entry_id + 1)
        encoded = self._joiner.add(record)
        if encoded is None:
            return None
        joined = decode_record(encoded)
        if isinstance(joined, ChunkRecord) or joined.stamp != record.stamp:
            raise CorruptRecordError(f"the chunks of {record.stamp} hold something else")
        return joined

    def _abandon(self, entry_id: int) -> None:
        """A record was begun whose earlier chunks do not come."""
        missing = self._joiner.abandon()
        if missing is not None:
            self._note(entry_id, missing)

    def _note(self, entry_id: int, why: object) -> None:
        self._skipped += 1
        if len(self._notes) < NOTES_MAX:
            self._notes.append(f"entry {entry_id}: {why}")


# --------------------------------------------------------------- which state wins


def newest(ledger: StoredState | None, node: StoredState | None) -> StoredState | None:
    """The newer of the two by (owner epoch, version).

    A node written by a roll-over has the ledger's version but may hold less: the ledger wins a tie.
    """
    if ledger is None or node is None:
        return ledger or node
    return node if node.record.stamp > ledger.record.stamp else ledger
