"""From a bucket's entries to the ledger entries of its snapshot: the broker's own code, in a task.

Pure, but for `keep` and `kept`: a task leaves the ledger entries in a file that the driver takes up,
one bucket at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ackgate.dispatcher.buckets import Draft, in_order
from ackgate.errors import StorageError
from ackgate.persistence.buckets.encoding import SnapshotEncoding

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import Position, SnapshotSegment
    from ackgate.dispatcher.buckets import BucketSettings
    from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import EntryRun


class SealedEntries(NamedTuple):
    """A bucket, ready to be stored."""

    first: Position
    last: Position
    entries: int
    segments: int
    first_key_ms: int
    last_key_ms: int
    payloads: list[bytes]
    """The entries of its snapshot's ledger."""

    @property
    def bytes(self) -> int:
        """Bytes of its snapshot."""
        return sum(map(len, self.payloads))


def draft_of(runs: Sequence[EntryRun], settings: BucketSettings) -> Draft:
    """The bucket's entries by key, cut into segments as its tracker would."""
    draft = Draft(_columns(runs), settings)
    while not draft.go_on():
        pass
    return draft


def seal(
    runs: Sequence[EntryRun],
    snapshot_id: int,
    settings: BucketSettings,
    persistence: PersistenceSettings,
) -> SealedEntries:
    """The bucket of these runs, whose times are keys."""
    draft = draft_of(runs, settings)
    plan = draft.plan(0)
    encoding = SnapshotEncoding(snapshot_id, plan.first, plan.last, persistence)
    for columns, summary in zip(plan.segments, plan.metadata, strict=True):
        encoding.add(columns, summary)
    while encoding.describe():
        pass
    return SealedEntries(
        plan.first,
        plan.last,
        int(draft.columns.keys_ms.size),
        len(plan.segments),
        int(draft.columns.keys_ms[0]),
        int(draft.columns.keys_ms[-1]),
        encoding.payloads,
    )


def _columns(runs: Sequence[EntryRun]) -> SnapshotSegment:
    sizes = [run.entry_ids.size for run in runs]
    return in_order(
        np.concatenate([run.times_ms for run in runs]),
        np.repeat(np.array([run.ledger_id for run in runs], np.int64), sizes),
        np.concatenate([run.entry_ids for run in runs]),
    )


# -- on its way to the driver ----------------------------------------------------------------------


def keep(directory: Path, snapshot_id: int, payloads: Sequence[bytes]) -> None:
    """Leave them in the directory; a task that is run twice leaves them once."""
    name = file_of(directory, snapshot_id)
    unfinished = name.with_suffix(f".{os.getpid()}.tmp")
    batch = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], ["payload"])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        unfinished.replace(name)
    except OSError as error:
        raise StorageError(f"sealed buckets cannot be left in {directory}: {error}") from error


def kept(directory: Path, snapshot_id: int) -> list[bytes]:
    """What `keep` has left. Raises `StorageError` when it is not there."""
    name = file_of(directory, snapshot_id)
    try:
        with pa.OSFile(str(name), "rb") as source, pa.ipc.open_file(source) as file:
            return [value.as_py() for value in file.read_all().column("payload")]
    except OSError as error:
        raise StorageError(
            f"{name} is missing, which a worker has written: --output must be a directory that the "
            f"workers and this process share ({error})"
        ) from error


def file_of(directory: Path, snapshot_id: int) -> Path:
    """Where a bucket's ledger entries lie in between."""
    return directory / f"{snapshot_id}.arrow"
