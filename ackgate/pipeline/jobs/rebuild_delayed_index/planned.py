"""Run sizes as they come from the tasks, and the border plan as it goes to them.

Pure: Arrow in, Arrow out; a line for each run, piece and bucket.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from ackgate.pipeline.jobs.rebuild_delayed_index.bucket_borders import Piece, RunSize
from ackgate.pipeline.schema.tables import Column, Kind, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


class Counts(NamedTuple):
    """Counts of entries of one target."""

    delayed: int = 0
    """Not due yet."""
    wanted: int = 0
    """Of these, what its tracker would keep."""


class RunSizes(NamedTuple):
    """By target: its runs in order of position, and what they count."""

    runs: Mapping[int, list[RunSize]]
    counts: Mapping[int, Counts]

    @classmethod
    def of_table(cls, sizes: pa.Table) -> RunSizes:
        """Of columns target, ledger_id, first_entry_id, delayed and entries."""
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
    """Which entries are in which bucket of which target, and the ledger that each is for."""

    pieces: Sequence[tuple[int, Piece]]
    """With their targets."""
    snapshot_ids: Mapping[tuple[int, int], int]
    """By target and bucket."""

    @classmethod
    def of(
        cls, pieces: Sequence[tuple[int, Piece]], new_ids: Callable[[int], list[int]]
    ) -> PlannedBuckets:
        """`new_ids` gives so many ids for ledgers."""
        buckets = list(dict.fromkeys((target, piece.bucket) for target, piece in pieces))
        return cls(pieces, dict(zip(buckets, new_ids(len(buckets)), strict=True)))

    @property
    def bucket_count(self) -> int:
        """Buckets of all targets."""
        return len(self.snapshot_ids)

    @property
    def entry_count(self) -> int:
        """Entries in all buckets."""
        return sum(piece.stop - piece.start for _, piece in self.pieces)

    def of_target(self, target: int) -> tuple[int, int]:
        """Number of the target's buckets, and of the entries in them."""
        mine = [piece for number, piece in self.pieces if number == target]
        return len({piece.bucket for piece in mine}), sum(p.stop - p.start for p in mine)

    def table(self) -> pa.Table:
        """A line for each piece."""
        rows = [
            (target, *piece, self.snapshot_ids[target, piece.bucket])
            for target, piece in self.pieces
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(PIECE)
        return pa.Table.from_arrays(columns, schema=arrow_schema(PIECE))
