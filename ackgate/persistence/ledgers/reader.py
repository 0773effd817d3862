"""A ledger opened for reading.

Edge. Two ways lead here: recovered and closed, where the last entry is known for good; or opened
without recovery beside a writer that goes on, where the border is what the writer knew to be
confirmed when it added its last entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ackgate.errors import ClosedHandleError, CorruptRecordError, StorageError
from ackgate.persistence.ledgers.entry_reads import Confirmed
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    from ackgate.persistence.ledgers.catalog import LedgerCatalog
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata


class BookieLedgerReader:
    """Implements `LedgerReader`."""

    __slots__ = ("_catalog", "_confirmed", "_is_closed", "_metadata", "_reads")

    def __init__(
        self,
        metadata: LedgerMetadata,
        reads: EntryReads,
        catalog: LedgerCatalog,
        confirmed: Confirmed,
    ) -> None:
        self._metadata = metadata
        self._reads = reads
        self._catalog = catalog
        self._confirmed = confirmed
        self._is_closed = False

    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._confirmed.last_add_confirmed

    @property
    def length_bytes(self) -> int:
        return self._confirmed.length_bytes

    async def read(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        self._check_open()
        border = self._confirmed.last_add_confirmed
        try:
            return await self._reads.read(self._metadata, first_entry_id, last_entry_id, border)
        except (StorageError, CorruptRecordError):
            if last_entry_id > border or not await self._has_moved():
                raise
            return await self._reads.read(self._metadata, first_entry_id, last_entry_id, border)

    async def _has_moved(self) -> bool:
        """Whether an auditor has brought entries to other bookies since the metadata was read."""
        try:
            found = (await self._catalog.read(self.ledger_id)).metadata
        except (StorageError, CorruptRecordError):
            return False
        has_moved = found.fragments != self._metadata.fragments
        self._metadata = replace(self._metadata, fragments=found.fragments)
        return has_moved

    async def read_unconfirmed(self, first_entry_id: int, last_entry_id: int) -> list[LedgerEntry]:
        """BookKeeper's readUnconfirmed: as `read`, without the border.

        What lies beyond it may be confirmed without a later entry saying so, or may never be, and
        vanish.
        """
        self._check_open()
        border = max(last_entry_id, self._confirmed.last_add_confirmed)
        return await self._reads.read(self._metadata, first_entry_id, last_entry_id, border)

    async def last_entry_found(self) -> int:
        """The highest entry behind the border without a gap, confirmed or not."""
        self._check_open()
        if self._metadata.state is LedgerState.CLOSED:
            return self._confirmed.last_add_confirmed
        return await self._reads.last_found(self._metadata, self._confirmed.last_add_confirmed)

    async def read_last_add_confirmed(self) -> int:
        self._check_open()
        if self._metadata.state is not LedgerState.CLOSED:
            entry = await self._catalog.read(self.ledger_id)
            self._metadata = entry.metadata
            found = await confirmed_of(self._metadata, self._reads)
            if found.last_add_confirmed > self._confirmed.last_add_confirmed:
                self._confirmed = found
        return self._confirmed.last_add_confirmed

    async def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError(f"ledger {self.ledger_id}: this handle is closed")


async def confirmed_of(metadata: LedgerMetadata, reads: EntryReads) -> Confirmed:
    """Up to where a ledger is known to be confirmed: by its metadata if closed, else by its bookies."""
    if metadata.state is LedgerState.CLOSED:
        return Confirmed(metadata.last_entry_id, metadata.length_bytes)
    return await reads.last_confirmed(metadata)
