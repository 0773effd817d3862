"""Encodes a bucket as the ledger entries of its snapshot, with the broker's own code, in a task.

Pure, except for `keep` and `kept`: a task writes the ledger entries of each bucket to a file, and
the driver reads one file at a time.
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
    """A bucket encoded as a snapshot, ready to be stored."""

    first: Position
    last: Position
    entries: int
    segments: int
    first_key_ms: int
    last_key_ms: int
    payloads: list[bytes]
    """Entries of the snapshot's ledger, in order."""

    @property
    def bytes(self) -> int:
        """Size of the snapshot in bytes."""
        return sum(map(len, self.payloads))


def draft_of(runs: Sequence[EntryRun], settings: BucketSettings) -> Draft:
    """Sort the bucket's entries by key and cut them into segments, as its tracker does."""
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
    """Encode the bucket that consists of these runs; their `times_ms` hold the tracker's keys."""
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
    """Write the payloads to `file_of`, atomically: a repeated task replaces the file.

    Raises `StorageError`.
    """
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
    """Read the payloads that `keep` wrote. Raises `StorageError` if the file is missing."""
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
    """Path of the file with a bucket's ledger entries."""
    return directory / f"{snapshot_id}.arrow"
