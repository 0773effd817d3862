"""What becomes of records that are as they were stored, and still cannot be read.

Pure. A bookie's copy of such an entry is good, so that no other copy helps; it is named by ledger and
entry, as no place in a file is to blame. A cursor's node in the metadata is named by its path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.errors import UnknownFormatError
from ackgate.pipeline.storage.damage import Damage

if TYPE_CHECKING:
    from ackgate.errors import CorruptRecordError
    from ackgate.pipeline.storage.reading import OnCorrupt


@dataclass(frozen=True, slots=True)
class DamagedRecords:
    """How to treat damaged records, and those found so far."""

    on_corrupt: OnCorrupt = "fail"
    damages: list[Damage] = field(default_factory=list)
    """Damaged places of files, too."""

    def meet(self, ledger: str, ledger_id: int, entry_id: int, error: CorruptRecordError) -> None:
        """Raise it again with its place, unless damaged records are left out."""
        self._raise_unless_left_out(
            f"{ledger} ledger {ledger_id}, entry {entry_id}", error, str(error)
        )
        why = f"entry {entry_id}: {error}"
        where = f"ledger {ledger_id}"
        self.damages.append(Damage(ledger_id, None, where, 0, 0, why, entry_id - 1, entries_lost=1))

    def meet_node(
        self, topic: str, subscription: str, path: str, size: int, error: CorruptRecordError
    ) -> None:
        """As `meet`, for a cursor's node. `size`: bytes of the damaged value, the node's or one in it."""
        why = str(error).removeprefix(f"cursor node {path}: ")
        self._raise_unless_left_out(
            f"subscription {subscription!r} of {topic}: its node: {path}", error, why
        )
        self.damages.append(Damage(None, None, f"node {path}", 0, size, why, -1))

    def _raise_unless_left_out(self, place: str, error: CorruptRecordError, why: str) -> None:
        """Records of a later version are never skipped, which would forget acks."""
        is_later = isinstance(error, UnknownFormatError)
        if self.on_corrupt == "fail" or (self.on_corrupt == "skip" and is_later):
            raise type(error)(f"{place}: {why}") from error


FAILING = DamagedRecords()
"""Every one is an error."""
