"""The blocks decoded last.

Pure. A reader that walks through a ledger asks for some entries of the same block again and again;
decoding the whole block each time would be most of the work. Used from one lane only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from ackgate.persistence.ledgers.entry_codec import StoredEntry

BlockKey: TypeAlias = "tuple[Path, int]"
"""A file, and where the block begins in it."""


class DecodedBlocks:
    """A bounded number of blocks, least recently used goes first. Callers must not change them."""

    __slots__ = ("_blocks", "_blocks_max")

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[BlockKey, list[StoredEntry]] = OrderedDict()

    def get(self, key: BlockKey) -> list[StoredEntry] | None:
        """The block's entries, if they are still here."""
        entries = self._blocks.get(key)
        if entries is not None:
            self._blocks.move_to_end(key)
        return entries

    def put(self, key: BlockKey, entries: list[StoredEntry]) -> None:
        """Keep a block for a while."""
        self._blocks[key] = entries
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def forget(self, path: Path) -> None:
        """A file was cut or removed."""
        for key in [key for key in self._blocks if key[0] == path]:
            del self._blocks[key]
