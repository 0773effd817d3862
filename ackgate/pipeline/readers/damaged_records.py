"""What becomes of records that are as they were stored, and still cannot be read.

Pure. A bookie's copy of such an entry is good, so that no other copy helps; it is named by ledger and
entry, as no place in a file is to blame.
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
        """Raise it again with its place, unless damaged records are left out.

        Records of a later version are never left out silently, which would forget acks: they are reported,
        or fail.
        """
        is_later = isinstance(error, UnknownFormatError)
        if self.on_corrupt == "fail" or (self.on_corrupt == "skip" and is_later):
            place = f"{ledger} ledger {ledger_id}, entry {entry_id}"
            raise type(error)(f"{place}: {error}") from error
        why = f"entry {entry_id}: {error}"
        where = f"ledger {ledger_id}"
        self.damages.append(Damage(ledger_id, None, where, 0, 0, why, entry_id - 1, entries_lost=1))


FAILING = DamagedRecords()
"""Every one is an error."""
