"""Restores a state from stored records: finds the records, and folds them.

Pure. A ledger is read from its tail backwards until an intact snapshot is found; the deltas after it
are then applied in order, each on top of the record before it:

    entry    0          1       2       3          4       5       6 (torn)
            +----------+ +-----+ +-----+ +----------+ +-----+ +-----+ +--x
            | snapshot | | dlt | | dlt | | snapshot | | dlt | | dlt | | dl
            +----------+ +-----+ +-----+ +----------+ +-----+ +-----+ +--x
                                          '---- read and folded ----'   skipped: never confirmed

A damaged record loses only itself. An ack in a record holds throughout its descent, so records after a
gap are applied too, and the gap is counted:

            | snapshot | | dlt | |/////| | dlt |     lost: what only the third one held
            |//////////| | dlt | | dlt | | dlt |     lost: nothing, if the node holds that snapshot

Two rules prevent skipped messages. Records of different descents are never folded
together: the newest descent wins, even if its snapshot is lost and only deltas of it are left. And a
delta of an earlier build, which does not name its descent, counts only on top of the record that it
was built on.

`RecordFold` is the only way in which records become a state: at recovery, and in the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import (
    EARLIEST,
    NO_NACKS,
    CursorSnapshot,
    PendingNacks,
    Position,
    run_count,
    unacked_nacks,
)
from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.records.chunks import BackwardJoiner
from ackgate.persistence.records.codec import decode_record
from ackgate.persistence.records.values import (
    AnyRecord,
    ChunkRecord,
    CursorRecord,
    DeltaRecord,
    SnapshotRecord,
    Stamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyroaring import BitMap

    from ackgate.persistence.ports import LedgerEntry

NOTES_MAX: Final = 100
"""Skipped entries that a report names one by one."""

GAPS_NAMED_MAX: Final = 10
"""Gaps that a report names one by one."""


class StoredState(NamedTuple):
    """A state as storage has it, with what is known about the write that reached it."""

    record: SnapshotRecord
    """The folded state, in the form of the snapshot that would be written of it."""

    records_applied: int
    """The snapshot and its deltas."""


# ---------------------------------------------------------------------- the fold


class VersionGap(NamedTuple):
    """Versions of which no record is left."""

    after: int | None
    """The last version before the gap; None: no earlier record of the descent is left either."""
    through: int
    """The last version in the gap."""


class RecordFold:
    """The state that records leave, taken in the order of their stamps. Takes bitmaps over."""

    __slots__ = (
        "_acked",
        "_is_settled",
        "_nacks",
        "_properties",
        "_unacked_indexes",
        "_written_ms",
        "descent",
        "gaps",
        "is_from_node",
        "mark_delete",
        "records_applied",
        "records_unlinked",
        "snapshot",
        "stamp",
    )

    descent: Stamp | None
    """Of the records that count; None: there was none."""

    stamp: Stamp
    """Of the newest record that counts."""

    snapshot: SnapshotRecord | None
    """The last one; None: only deltas of its descent are left."""

    gaps: list[VersionGap]
    """What is missing of the state, ascending."""

    is_from_node: bool
    """Whether only the node holds the newest record that counts."""

    records_unlinked: int
    """Deltas that came after a gap."""

    def __init__(self) -> None:
        self.descent = None
        self.stamp = Stamp(-1, -1)
        self.snapshot = None
        self.mark_delete = EARLIEST
        self.gaps = []
        self.is_from_node = False
        self.records_applied = 0
        self.records_unlinked = 0
        self._acked: dict[int, BitMap] = {}
        self._is_settled = True
        self._unacked_indexes: dict[Position, int] = {}
        self._properties: Mapping[str, int] = {}
        self._nacks: PendingNacks = NO_NACKS
        self._written_ms = 0

    @property
    def is_whole(self) -> bool:
        """Whether there is a state and nothing of it is missing."""
        return self.descent is not None and not self.gaps

    @property
    def acked(self) -> dict[int, BitMap]:
        """Message ledger id -> entries acked above the mark-delete."""
        if not self._is_settled:
            self._acked = _above(self.mark_delete, self._acked)
            self._is_settled = True
        return self._acked

    def apply(self, record: CursorRecord, *, is_in_node: bool = False) -> bool:
        """The next record. False: it does not count, or says no more than what is known.

        `is_in_node`: it may hold less than the record of the same stamp in the ledger does.
        """
        if isinstance(record, SnapshotRecord):
            counts = self._apply_snapshot(record, is_in_node=is_in_node)
        else:
            counts = self._apply_delta(record)
        if counts:
            self.stamp, self._written_ms = record.stamp, record.written_ms
            self.is_from_node = is_in_node
            self.records_applied += 1
        return counts

    def _apply_snapshot(self, record: SnapshotRecord, *, is_in_node: bool) -> bool:
        if is_in_node and self.is_whole and record.stamp == self.stamp:
            return False
        snapshot = record.snapshot
        if is_in_node and not record.is_complete and record.descent == self.descent:
            self._unite(snapshot.acked, snapshot.unacked_indexes, snapshot.mark_delete)
        else:
            self._acked, self._is_settled = dict(snapshot.acked), True
            self._unacked_indexes = dict(snapshot.unacked_indexes)
            self.mark_delete = snapshot.mark_delete
            self.snapshot, self.descent = record, record.descent
            self.gaps.clear()
            self.records_applied = 0
        self._properties, self._nacks = snapshot.properties, record.nacks
        return True

    def _apply_delta(self, delta: DeltaRecord) -> bool:
        descent, growth = delta.descent, delta.growth
        if self.descent is None or delta.base != self.stamp:
            self.records_unlinked += 1
            if not self._crosses_gap(delta, descent):
                return False
        self._unite(growth.acked, growth.unacked_indexes, growth.mark_delete)
        if growth.properties is not None:
            self._properties = growth.properties
        if delta.nacks is not None:
            self._nacks = delta.nacks
        return True

    def _crosses_gap(self, delta: DeltaRecord, descent: Stamp | None) -> bool:
        """Whether a delta counts whose base is missing."""
        if self.descent is not None and descent == self.descent:
            self.gaps.append(VersionGap(self.stamp.version, delta.base.version))
            return True
        if descent is None or (self.descent is not None and descent < self.descent):
            after = None if self.descent is None else self.stamp.version
            if self.gaps and self.gaps[-1].after == after:
                self.gaps.pop()  # the one before did not count either
            self.gaps.append(VersionGap(after, delta.stamp.version))
            return False
        # A newer descent without its beginning: nothing from before it may count.
        self._acked, self._unacked_indexes = {}, {}
        self._properties, self._nacks = {}, NO_NACKS
        self.snapshot, self.descent = None, descent
        self.gaps = [VersionGap(None, delta.base.version)]
        self.records_applied = 0
        return True

    def _unite(
        self,
        acked: Mapping[int, BitMap],
        unacked_indexes: Mapping[Position, int],
        mark_delete: Position,
    ) -> None:
        mine = self._acked
        for ledger_id, bitmap in acked.items():
            if ledger_id in mine:
                mine[ledger_id] |= bitmap
            else:
                mine[ledger_id] = bitmap
        self._unacked_indexes.update(unacked_indexes)
        # Cutting once, later, equals cutting each time: within a descent it only moves forward.
        self.mark_delete = mark_delete
        self._is_settled = False

    def state(self) -> StoredState | None:
        """The state so far; None: no record counts."""
        if self.descent is None:
            return None
        if self.snapshot is not None and self.records_applied == 1:
            return StoredState(self.snapshot, 1)
        acked, mark_delete = self.acked, self.mark_delete
        acked = {ledger_id: acked[ledger_id] for ledger_id in sorted(acked)}
        snapshot = CursorSnapshot(
            version=self.stamp.version,
            mark_delete=mark_delete,
            acked=acked,
            range_count=sum(map(run_count, acked.values())),
            unacked_indexes={
                position: mask
                for position, mask in self._unacked_indexes.items()
                if position > mark_delete and position[1] not in acked.get(position[0], ())
            },
            properties=self._properties,
        )
        record = SnapshotRecord(
            owner_epoch=self.stamp.owner_epoch,
            written_ms=self._written_ms,
            snapshot=snapshot,
            ranges_in_memory=snapshot.range_count,
            entries_dropped=0,
            batch_indexes_in_memory=len(snapshot.unacked_indexes),
            nacks=unacked_nacks(self._nacks, mark_delete, acked),
        )
        return StoredState(record, self.records_applied)


def _above(mark_delete: Position, acked: Mapping[int, BitMap]) -> dict[int, BitMap]:
    kept = {}
    for ledger_id, bitmap in acked.items():
        if ledger_id < mark_delete.ledger_id:
            continue
        if ledger_id == mark_delete.ledger_id:
            bitmap.remove_range(0, mark_delete.entry_id + 1)
        if bitmap:
            kept[ledger_id] = bitmap
    return kept


# ------------------------------------------------------------- the search for records


class ScannedTail(NamedTuple):
    """What was found in a ledger."""

    records: tuple[CursorRecord, ...]
    """Oldest first: an intact snapshot and what came after it, or all deltas there are."""

    damaged_records: int
    """Records between and after them that were durable and cannot be read."""

    is_end_damaged: bool
    """Whether some of these come after the last intact record."""

    notes: tuple[str, ...]
    """What was skipped and why, newest first."""


class TailScan:
    """Takes a ledger's entries from the last to the first until it has a snapshot to begin with.

    Raises `UnknownFormatError` when it meets a record of a newer format: to skip that one would be
    to forget acks that are there.
    """

    __slots__ = (
        "_damaged_at",
        "_damaged_records",
        "_is_end_damaged",
        "_joiner",
        "_notes",
        "_records",
        "_skipped",
        "is_done",
    )

    is_done: bool
    """Whether earlier entries are of no more use."""

    def __init__(self) -> None:
        self._records: list[CursorRecord] = []  # newest first
        self._joiner = BackwardJoiner()
        self._notes: list[str] = []
        self._skipped = 0
        self._damaged_at: int | None = None
        """The earliest entry of the record that was found damaged last."""
        self._damaged_records = 0
        self._is_end_damaged = False
        self.is_done = False

    @property
    def is_joining(self) -> bool:
        """Whether the last chunks of a record were met and its first ones are still to come."""
        return self._joiner.is_begun

    @property
    def is_damaged(self) -> bool:
        """Whether something durable could not be read: then what lies further back may replace it."""
        return self._damaged_records > 0

    def feed(self, entries: Iterable[LedgerEntry]) -> None:
        """Take entries, newest first. Stops by itself when it is done."""
        for entry_id, payload in entries:
            if self.is_done:
                return
            self._take(entry_id, payload)

    def skip(self, entry_id: int, why: object) -> None:
        """An entry that no bookie could give."""
        self._damaged(entry_id, why, is_piece=self._abandon(entry_id + 1))

    def finish(self) -> ScannedTail:
        self._abandon(0)
        unnamed = self._skipped - len(self._notes)
        notes = (*self._notes, f"and {unnamed} more") if unnamed else tuple(self._notes)
        return ScannedTail(
            tuple(reversed(self._records)), self._damaged_records, self._is_end_damaged, notes
        )

    def _take(self, entry_id: int, payload: bytes) -> None:
        try:
            record = self._whole(entry_id, decode_record(payload))
        except UnknownFormatError as error:
            raise UnknownFormatError(f"entry {entry_id}: {error}") from error
        except CorruptRecordError as error:
            self._damaged(entry_id, error, is_piece=self._abandon(entry_id + 1))
            return
        if record is not None:
            self._records.append(record)
            self.is_done = isinstance(record, SnapshotRecord)

    def _whole(self, entry_id: int, record: AnyRecord) -> CursorRecord | None:
        """The record that this entry completes; None as long as earlier chunks must follow."""
        if not isinstance(record, ChunkRecord):
            self._abandon(entry_id + 1)
            return record
        if not self._joiner.expects(record):
            self._abandon(entry_id + 1)
            if not self._joiner.expects(record):
                self._uncommitted(entry_id, record)
                return None
        encoded = self._joiner.add(record)
        if encoded is None:
            return None
        joined = decode_record(encoded)
        if isinstance(joined, ChunkRecord) or joined.stamp != record.stamp:
            raise CorruptRecordError(f"the chunks of {record.stamp} hold something else")
        return joined

    def _uncommitted(self, entry_id: int, chunk: ChunkRecord) -> None:
        """A chunk without the later ones of its record: damage, but for a torn tail."""
        why = f"chunk {chunk.chunk_index} of {chunk.chunk_count} ({chunk.stamp}) was not committed"
        if self._records or self._damaged_records:
            self._damaged(entry_id, why, is_piece=self._damaged_at == entry_id + 1)
        else:
            self._note(entry_id, why)

    def _abandon(self, entry_id: int) -> bool:
        """Whether a record was begun, of which the chunk before this entry does not come."""
        missing = self._joiner.abandon()
        if missing is not None:
            self._damaged(entry_id, missing, is_piece=False)
        return missing is not None

    def _damaged(self, entry_id: int, why: object, *, is_piece: bool) -> None:
        """`is_piece`: of the record that was found damaged last."""
        self._damaged_at = entry_id
        self._damaged_records += not is_piece
        self._is_end_damaged = self._is_end_damaged or not self._records
        self._note(entry_id, why)

    def _note(self, entry_id: int, why: object) -> None:
        self._skipped += 1
        if len(self._notes) < NOTES_MAX:
            self._notes.append(f"entry {entry_id}: {why}")


# --------------------------------------------------------------- what comes of it


class Missing(NamedTuple):
    """Versions that were durable, and are in no intact record."""

    gaps: tuple[VersionGap, ...] = ()

    is_end_unknown: bool = False
    """Whether changes after the newest intact record are lost."""

    cut_entries: int = 0
    """Acked and partly acked entries that the node had no room for, and whose snapshot in the ledger
    is lost."""

    @property
    def is_nothing(self) -> bool:
        """Whether all that was durable is there."""
        return self.versions == 0

    @property
    def versions(self) -> int | None:
        """Changes of the cursor that are lost; None: at least one, of unknown number."""
        known = [through - after for after, through in self.gaps if after is not None]
        if self.is_end_unknown or self.cut_entries or len(known) < len(self.gaps):
            return None
        return sum(known)

    def text(self, version: int) -> str:
        """All of it in words; `version` is the one recovered."""
        texts = [_gap_text(gap) for gap in self.gaps[:GAPS_NAMED_MAX]]
        if len(self.gaps) > GAPS_NAMED_MAX:
            texts.append(f"{len(self.gaps) - GAPS_NAMED_MAX} more gaps")
        if self.cut_entries:
            texts.append(f"{self.cut_entries} acked entries that did not fit into the node")
        if self.is_end_unknown:
            texts.append(f"whatever came after version {version}")
        return ", ".join(texts)


def _gap_text(gap: VersionGap) -> str:
    if gap.after is None:
        return f"what was acked above the mark-delete up to version {gap.through}"
    if gap.through == gap.after + 1:
        return f"version {gap.through}"
    return f"versions {gap.after + 1} to {gap.through}"


class Recovered(NamedTuple):
    """What ledger and node hold together."""

    state: StoredState | None
    """None: neither holds any."""
    is_from_node: bool
    """Whether only the node holds its newest record."""
    missing: Missing


def recover(tail: ScannedTail | None, node: SnapshotRecord | None) -> Recovered:
    """The newest descent of ledger and node, as far as records of it are intact.

    `tail` None: the node names no ledger, or the ledger cannot be opened.
    """
    if tail is None:
        state = None if node is None else StoredState(node, 1)
        return Recovered(state, node is not None, Missing())
    fold = fold_records(tail.records, node)
    missing = Missing(
        gaps=tuple(fold.gaps),
        is_end_unknown=tail.is_end_damaged and not _is_first_record(tail, fold, node),
        cut_entries=node.entries_cut if node is not None and fold.snapshot is node else 0,
    )
    return Recovered(fold.state(), fold.is_from_node, missing)


def fold_records(records: Iterable[CursorRecord], node: SnapshotRecord | None) -> RecordFold:
    """The records of a ledger, in its order, and the one in its node."""
    fold = RecordFold()
    for record in records:
        # Of one stamp the ledger's holds no less than the node's: it comes after, and replaces it.
        if node is not None and node.stamp <= record.stamp:
            fold.apply(node, is_in_node=True)
            node = None
        fold.apply(record)
    if node is not None:
        fold.apply(node, is_in_node=True)
    return fold


def _is_first_record(tail: ScannedTail, fold: RecordFold, node: SnapshotRecord | None) -> bool:
    """Whether the only damaged record is the one that a ledger begins with, and that its node has."""
    return (
        node is not None
        and not tail.records
        and tail.damaged_records == 1
        and fold.snapshot is node
    )
