"""What a disk, or somebody with a shell, may do to a file: seeded, and told in words."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

BLOCK_BYTES = 512
"""A sector: what a disk loses at once."""


def flip(path: Path, rng: random.Random) -> str | None:
    """One bit."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    at = rng.randrange(len(content))
    bit = rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {len(content)} flipped"


def zero(path: Path, rng: random.Random) -> str | None:
    """A run of sectors. None: they were zeros before."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    start = rng.randrange(len(content)) // BLOCK_BYTES * BLOCK_BYTES
    end = min(start + BLOCK_BYTES * rng.choice((1, 1, 8)), len(content))
    if not any(content[start:end]):
        return None
    content[start:end] = bytes(end - start)
    path.write_bytes(content)
    return f"bytes {start} to {end} of {len(content)} zeroed"


def truncate(path: Path, rng: random.Random) -> str | None:
    """The end is gone; as often at the end of a sector."""
    size = path.stat().st_size
    if not size:
        return None
    left = rng.randrange(size)
    if rng.random() < 0.5:
        left = left // BLOCK_BYTES * BLOCK_BYTES
    with path.open("rb+") as file:
        file.truncate(left)
    return f"cut from {size} bytes to {left}"


def delete(path: Path, rng: random.Random) -> str | None:
    """The whole file."""
    del rng
    path.unlink()
    return "deleted"


def swapper(others: Sequence[Path]) -> Callable[[Path, random.Random], str | None]:
    """Its content changes places with that of one of the others."""

    def swap(path: Path, rng: random.Random) -> str | None:
        different = [
            other for other in others if other != path and other.read_bytes() != path.read_bytes()
        ]
        if not different:
            return None
        other = rng.choice(different)
        aside = path.with_name(path.name + ".aside")
        shutil.move(path, aside)
        shutil.move(other, path)
        shutil.move(aside, other)
        return f"changed places with {other.name}"

    return swap


DAMAGES: dict[str, Callable[[Path, random.Random], str | None]] = {
    "flip": flip,
    "zero": zero,
    "truncate": truncate,
    "delete": delete,
}
