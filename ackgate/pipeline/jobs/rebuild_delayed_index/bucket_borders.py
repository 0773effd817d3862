"""Plans where each bucket ends, by the rule by which `BucketTracker` seals while entries are added.

Pure. Only counts matter. Entries come in order of position. A bucket of `entries_max` entries is
full, and a bucket of `entries_min` entries takes none of a higher ledger. ::

    ledger     7         8      9              10        entries_min 5, entries_max 9
    entries    # # # #   # # #  # # # # # # # # # # # #  # #
    bucket     |- 0 ----------| |- 1 ------------| |- 2 ------|

A broker keeps the last bucket in memory, and stores it at the end if it is worth a ledger. The same
rule applies here. If the last bucket is not stored, the broker reads its entries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.dispatcher.buckets import AGE_SEAL_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.dispatcher.buckets import BucketSettings


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
