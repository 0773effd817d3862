"""Plans where each bucket ends, by the rule by which `BucketTracker` seals while entries are added.

Pure. Only counts matter. Entries come in order of position. A bucket of `entries_max` entries is
full, and a bucket of `entries_min` entries takes none of a higher ledger. ::

    ledger     7         8      9              10        entries_min 5, entries_max 9
    entries    # # # #   # # #  # # # # # # # # # # # #  # #
    bucket     |- 0 ----------| |- 1 ------------| |- 2 ------|

A broker keeps the last bucket in memory, and stores it at the end if it is worth a ledger. The same
rule applies here. If the last bucket is not stored, the broker reads its entries again.

Sizes of runs come from the tasks, and planned pieces go back to them: Arrow in, Arrow out; one row for
each run or piece.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from ackgate.dispatcher.buckets import AGE_SEAL_SHARE
from ackgate.pipeline.schema.tables import Column, Kind, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ackgate.dispatcher.buckets import BucketSettings

TARGET: Final = Column("target", Kind.INT, "Number of the subscription (or shared index).")
BUCKET: Final = Column("bucket", Kind.INT, "Number of its bucket.")

PIECE: Final = (
    TARGET,
    Column("ledger_id", Kind.LONG, "Of a run."),
    Column("first_entry_id", Kind.LONG, "Of a run."),
    Column("start", Kind.LONG, "Of the run's entries, from this one,"),
    Column("stop", Kind.LONG, "up to before this one."),
    BUCKET,
    Column("snapshot_id", Kind.LONG, "The ledger that it is for."),
)


class RunSize(NamedTuple):
    """Number of wanted entries of a run."""

    ledger_id: int
    first_entry_id: int
    """Together with the ledger it identifies the run."""
    entries: int


class Piece(NamedTuple):
    """Part of a run, by index: its entries `start` to `stop` - 1 belong to this bucket."""

    ledger_id: int
    first_entry_id: int
    start: int
    stop: int
    bucket: int


def plan_buckets(runs: Iterable[RunSize], settings: BucketSettings) -> list[Piece]:
    """Cut the runs of one target, in order of position, into the buckets that are worth storing."""
    pieces: list[Piece] = []
    bucket, filled, highest = 0, 0, -1
    for ledger_id, first_entry_id, entries in runs:
        start = 0
        while start < entries:
            if filled >= settings.entries_max or (
                filled >= settings.entries_min and ledger_id > highest
            ):
                bucket, filled = bucket + 1, 0
            stop = min(entries, start + settings.entries_max - filled)
            pieces.append(Piece(ledger_id, first_entry_id, start, stop, bucket))
            filled, highest, start = filled + stop - start, ledger_id, stop
    if AGE_SEAL_SHARE * filled < settings.entries_min:
        pieces = [piece for piece in pieces if piece.bucket != bucket]
    return pieces


class Counts(NamedTuple):
    """Entry counts of one target."""

    delayed: int = 0
    """Not due yet."""
    wanted: int = 0
    """Of these, the entries that its tracker would keep."""


class RunSizes(NamedTuple):
    """For each target: its runs in order of position, and its entry counts."""

    runs: Mapping[int, list[RunSize]]
    counts: Mapping[int, Counts]

    @classmethod
    def of_table(cls, sizes: pa.Table) -> RunSizes:
        """Read a table with the columns target, ledger_id, first_entry_id, delayed and entries."""
        by = ("target", "ledger_id", "first_entry_id")
        sizes = sizes.sort_by([(name, "ascending") for name in by])
        runs: dict[int, list[RunSize]] = defaultdict(list)
        counts: dict[int, Counts] = defaultdict(Counts)
        columns = (sizes.column(name).to_pylist() for name in (*by, "delayed", "entries"))
        for target, ledger_id, first_entry_id, delayed, entries in zip(*columns, strict=True):
            runs[target].append(RunSize(ledger_id, first_entry_id, entries))
            seen = counts[target]
            counts[target] = Counts(seen.delayed + delayed, seen.wanted + entries)
        return cls(dict(runs), dict(counts))

    def of(self, target: int) -> list[RunSize]:
        """The runs of one target."""
        return self.runs.get(target, [])


class PlannedBuckets(NamedTuple):
    """The border plan of all targets: the pieces of each bucket, and its snapshot ledger."""

    pieces: Sequence[tuple[int, Piece]]
    """Pairs of target number and piece."""
    snapshot_ids: Mapping[tuple[int, int], int]
    """(Target number, bucket number) -> id of the snapshot ledger."""

    @classmethod
    def of(
        cls, pieces: Sequence[tuple[int, Piece]], new_ids: Callable[[int], list[int]]
    ) -> PlannedBuckets:
        """Assign a snapshot ledger to each bucket; ``new_ids(count)`` returns that many ids."""
        buckets = list(dict.fromkeys((target, piece.bucket) for target, piece in pieces))
        return cls(pieces, dict(zip(buckets, new_ids(len(buckets)), strict=True)))

    @property
    def bucket_count(self) -> int:
        """Number of buckets of all targets."""
        return len(self.snapshot_ids)

    @property
    def entry_count(self) -> int:
        """Number of entries in all buckets."""
        return sum(piece.stop - piece.start for _, piece in self.pieces)

    def of_target(self, target: int) -> tuple[int, int]:
        """Return the number of the target's buckets, and of the entries in them."""
        mine = [piece for number, piece in self.pieces if number == target]
        return len({piece.bucket for piece in mine}), sum(p.stop - p.start for p in mine)

    def table(self) -> pa.Table:
        """Return a `PIECE` row for each piece."""
        rows = [
            (target, *piece, self.snapshot_ids[target, piece.bucket])
            for target, piece in self.pieces
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(PIECE)
        return pa.Table.from_arrays(columns, schema=arrow_schema(PIECE))
