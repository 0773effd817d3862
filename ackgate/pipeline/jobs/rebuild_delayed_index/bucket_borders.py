"""Where a bucket ends and the next one begins: as `BucketTracker` seals while it is offered entries.

Pure. Only counts matter: entries come in order of position; a bucket that has `entries_max` takes no
more, and one that has `entries_min` takes none of a further ledger. ::

    ledger     7         8      9              10        entries_min 5, entries_max 9
    entries    # # # #   # # #  # # # # # # # # # # # #  # #
    bucket     |- 0 ----------| |- 1 ------------| |- 2 ------|

The last bucket stays in a broker's memory until it is closed, and is stored then if it is worth a
ledger. So it is here; what is not stored is read by the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.dispatcher.buckets import AGE_SEAL_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.dispatcher.buckets import BucketSettings


class RunSize(NamedTuple):
    """How many entries a run has."""

    ledger_id: int
    first_entry_id: int
    """With the ledger it names the run."""
    entries: int


class Piece(NamedTuple):
    """Entries `start` to `stop` - 1 of a run are in this bucket."""

    ledger_id: int
    first_entry_id: int
    start: int
    stop: int
    bucket: int


def plan_buckets(runs: Iterable[RunSize], settings: BucketSettings) -> list[Piece]:
    """The pieces of all buckets that are worth storing; `runs` in order of position."""
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
