"""A damaged place of a bookie's files or of the metadata, and what it cost.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Damage:
    """A stretch of a file, or a node, that is not what was written."""

    ledger_id: int | None
    """None: of a cursor's node, which may not even say its ledger."""
    bookie: str | None
    """The bookie with the damaged copy. None: all copies are alike."""
    file: str
    offset: int
    end_offset: int
    why: str
    behind_entry_id: int
    """Last entry that the file holds whole in front of it; -1: none."""
    is_tail: bool = False
    """Nothing whole follows: a broker is writing there, or was when it was killed."""
    is_later_format: bool = False
    """A later version wrote the file: nothing is wrong with it."""
    entries_lost: int = 0
    """Entries that should be here and that no other copy could give either."""

    def __str__(self) -> str:
        span = f"bytes {self.offset} to {self.end_offset}"
        return f"bookie {self.bookie}: {self.file}: {span}: {self.why}"
