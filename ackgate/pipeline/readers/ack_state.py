"""Rows of the table `ack_state`: the state of one cursor as storage has it, now or as it was.

Pure: from decoded records to a state, by the fold that recovery uses, and from it to Arrow. Ranges
come out of the bitmaps by set algebra, never one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ackgate.cursor import run_bounds
from ackgate.persistence.records.recovery import fold_records
from ackgate.pipeline.readers.cursor_records import mask_bytes
from ackgate.pipeline.schema.tables import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ackgate.persistence.records.recovery import StoredState
    from ackgate.persistence.records.values import CursorRecord, SnapshotRecord
    from ackgate.pipeline.schema.tables import Column

BATCH_ROWS: Final = 65_536


class StateAt(NamedTuple):
    """Which state is asked for; neither: the newest."""

    version: int | None = None
    at_ms: int | None = None

    def takes(self, record: CursorRecord) -> bool:
        """Whether the record was there by then."""
        if self.version is not None:
            return record.stamp.version <= self.version
        return self.at_ms is None or record.written_ms <= self.at_ms


NEWEST: Final = StateAt()


def state_of(
    records: Iterable[CursorRecord], node: StoredState | None, at: StateAt = NEWEST
) -> StoredState | None:
    """The newest state of ledger and node that `at` lets pass; None: there is none so old.

    `records` are those of the ledger, in order. What counts of them is what counts at recovery.
    """
    taken = (record for record in records if at.takes(record))
    in_node = None if node is None or not at.takes(node.record) else node.record
    return fold_records(taken, in_node).state()


def state_rows(
    state: StoredState, columns: Sequence[Column], *, topic: str, subscription: str
) -> Iterator[pa.RecordBatch]:
    """A row for the mark-delete, for each range, and for each partly acked entry."""
    record = state.record
    constants = {
        "topic": topic,
        "subscription": subscription,
        "owner_epoch": record.owner_epoch,
        "version": record.snapshot.version,
        "written_ms": record.written_ms,
    }
    for part in _parts(record):
        for start in range(0, part.firsts.size, BATCH_ROWS):
            yield _batch(part.rows(start, start + BATCH_ROWS), columns, constants)


class _Part(NamedTuple):
    """Rows of one kind, as columns."""

    kind: str
    ledger_ids: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    masks: list[bytes] | None = None

    def rows(self, start: int, stop: int) -> _Part:
        return _Part(
            self.kind,
            self.ledger_ids[start:stop],
            self.firsts[start:stop],
            self.ends[start:stop],
            None if self.masks is None else self.masks[start:stop],
        )


def _parts(record: SnapshotRecord) -> Iterator[_Part]:
    ledger_id, entry_id = record.mark_delete
    yield _Part("mark_delete", _array([ledger_id]), _array([0]), _array([entry_id + 1]))
    for message_ledger_id, bitmap in sorted(record.snapshot.acked.items()):
        starts, stops = run_bounds(bitmap)
        yield _Part("range", np.full(starts.size, message_ledger_id, np.int64), starts, stops)
    partly = sorted(record.snapshot.unacked_indexes.items())
    if partly:
        entries = _array([position[1] for position, _ in partly])
        ledgers = _array([position[0] for position, _ in partly])
        masks = [mask_bytes(mask) for _, mask in partly]
        yield _Part("partly_acked", ledgers, entries, entries + 1, masks)


def _array(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _batch(part: _Part, columns: Sequence[Column], constants: dict[str, Any]) -> pa.RecordBatch:
    schema = arrow_schema(columns)
    size = part.firsts.size
    varying = {
        "ledger_id": part.ledger_ids,
        "first_entry_id": part.firsts,
        "end_entry_id": part.ends,
    }
    constants = {**constants, "kind": part.kind}
    arrays = []
    for field in schema:
        if field.name in varying:
            arrays.append(pa.array(varying[field.name], type=field.type))
        elif field.name == "unacked_indexes":
            masks = part.masks
            arrays.append(
                pa.nulls(size, field.type) if masks is None else pa.array(masks, field.type)
            )
        else:
            arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), size))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
