"""What a power loss may make of the changes that no sync has covered: one choice of all.

Pure. See `disk` for what is allowed; the crash consistency tests go through the choices one by one,
here a generator makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.simulation.inodes import KEPT, LOST, Fate, Write

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.support.simulation.inodes import Change

SECTOR_BYTES: Final = 512
"""A sector is written whole or not at all; sectors of one write in any order."""


def choose_fates(changes: Sequence[Change], rng: random.Random) -> dict[int, Fate]:
    """A legal fate for each change; `changes` in the order in which they were made."""
    kind = rng.choice(("all lost", "all kept", "in order", "any", "any"))
    if kind == "in order":
        # A file system that writes in order: all up to some moment, and a part of what came then.
        kept = rng.randint(0, len(changes))
        fates = {change.sequence: KEPT for change in changes[:kept]}
        fates.update((change.sequence, LOST) for change in changes[kept:])
        if kept < len(changes) and isinstance(torn := changes[kept], Write):
            fates[torn.sequence] = torn_prefix(rng.randint(0, len(torn.data)))
        return fates
    if kind == "any":
        return {change.sequence: _any_fate(change, rng) for change in changes}
    fate = KEPT if kind == "all kept" else LOST
    return {change.sequence: fate for change in changes}


def torn_prefix(size: int) -> Fate:
    """The beginning of a write."""
    return LOST if not size else Fate(is_kept=True, size=size, pieces=((0, size),))


def zeros(size: int) -> Fate:
    """The size reached the disk and the bytes did not."""
    return Fate(is_kept=True, size=size)


def torn_head(write: Write) -> Fate | None:
    """All but the first sector of a write; None when there is no other."""
    first = SECTOR_BYTES - write.offset % SECTOR_BYTES
    size = len(write.data)
    return Fate(is_kept=True, size=size, pieces=((first, size),)) if first < size else None


def _any_fate(change: Change, rng: random.Random) -> Fate:
    roll = rng.random()
    if roll < 0.45:
        return KEPT
    if roll < 0.8 or not isinstance(change, Write) or not change.data:
        return LOST if roll < 0.8 else KEPT
    if roll < 0.87:
        return torn_prefix(rng.randint(1, len(change.data)))
    size = len(change.data) if rng.random() < 0.5 else rng.randint(1, len(change.data))
    pieces: list[tuple[int, int]] = []
    start = 0
    stop = SECTOR_BYTES - change.offset % SECTOR_BYTES
    while start < size:
        if rng.random() < 0.5:
            pieces.append((start, min(stop, size)))
        start, stop = stop, stop + SECTOR_BYTES
    return Fate(is_kept=True, size=size, pieces=tuple(pieces))
