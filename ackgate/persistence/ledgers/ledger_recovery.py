"""Recovery of a ledger that its writer did not close.

Edge. The steps, each of which may be done again by anybody after a crash in between:

    1  metadata OPEN -> IN_RECOVERY by compare-and-set: the writer's ensemble is fixed from here on
    2  fence the ledger on its bookies: the writer's adds are not confirmed any more
    3  from the last add confirmed on, entry by entry: found on any bookie -> write it again
       wherever its write set lacks it; surely on none -> that is the end
    4  metadata IN_RECOVERY -> CLOSED with last entry and length, by compare-and-set
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ackgate.errors import MetadataConflictError, StorageError
from ackgate.persistence.ledgers.quorum import write_set
from ackgate.persistence.ledgers.recovery_step import STEP_ENTRIES, RecoveryStep
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ledgers.ledger_catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ports import LedgerMetadata

logger = logging.getLogger(__name__)


class LedgerRecovery:
    """Recovers one ledger."""

    def __init__(
        self, entry: CatalogEntry, catalog: LedgerCatalog, pool: BookiePool, reads: EntryReads
    ) -> None:
        self._entry = entry
        self._catalog = catalog
        self._pool = pool
        self._reads = reads
        self._ledger_id = entry.metadata.ledger_id

    async def run(self) -> LedgerMetadata:
        """Returns the metadata of the closed ledger.

        Raises `StorageError` when too few bookies answer.
        """
        while self._entry.metadata.state is not LedgerState.CLOSED:
            if self._entry.metadata.state is LedgerState.OPEN:
                await self._change(replace(self._entry.metadata, state=LedgerState.IN_RECOVERY))
                continue
            metadata = self._entry.metadata
            unfenced = await self._fence(metadata)
            await self._change(await self._mend(metadata, unfenced))
        return self._entry.metadata

    async def _change(self, metadata: LedgerMetadata) -> None:
        try:
            self._entry = await self._catalog.replace(self._entry, metadata)
        except MetadataConflictError:
            # The writer, or somebody else who recovers it, was faster. Look what it is now.
            self._entry = await self._catalog.read(self._ledger_id)

    async def _fence(self, metadata: LedgerMetadata) -> set[int]:
        """Fence on as many bookies as are needed, at least; returns the places that are not."""
        ensemble = metadata.fragments[-1].ensemble
        results = await asyncio.gather(*map(self._fence_one, ensemble))
        unfenced = {place for place, result in enumerate(results) if result is not None}
        for stripe in range(metadata.ensemble_size):
            places = write_set(stripe, metadata.ensemble_size, metadata.write_quorum)
            if len(unfenced.intersection(places)) >= metadata.ack_quorum:
                reasons = "; ".join(result for result in results if result is not None)
                raise StorageError(f"ledger {self._ledger_id} cannot be fenced: {reasons}")
        return unfenced

    async def _fence_one(self, bookie_id: str) -> str | None:
        """Why this bookie could not be fenced, or None."""
        bookie = self._pool.get(bookie_id)
        if bookie is None:
            return f"bookie {bookie_id} is not here"
        try:
            await bookie.fence(self._ledger_id)
        except StorageError as error:
            return str(error)
        return None

    async def _mend(self, metadata: LedgerMetadata, unfenced: set[int]) -> LedgerMetadata:
        """Step 3. Returns the metadata as they are to be in step 4."""
        last, length_bytes = await self._reads.last_confirmed(metadata)
        while True:
            step = RecoveryStep(metadata, last + 1)
            lengths = {last: length_bytes}
            await step.look(self._pool)
            for entry_id in range(step.first, step.first + STEP_ENTRIES):
                entry = step.choose(entry_id, self._reads)
                if entry is None:
                    step.check_absent(entry_id)
                    break
                length_bytes += len(entry.payload)
                last = entry_id
                lengths[last] = length_bytes
            metadata = await step.write_again(self._pool)
            left_out = step.first_to_leave_out(unfenced, self._reads)
            if left_out is not None:
                logger.warning(
                    "ledger %d ends before entry %d, which was never confirmed and reaches no ack quorum",
                    self._ledger_id,
                    left_out,
                )
                last = left_out - 1
                length_bytes = lengths[last]
            if last < step.first + STEP_ENTRIES - 1:
                return replace(
                    metadata,
                    state=LedgerState.CLOSED,
                    last_entry_id=last,
                    length_bytes=length_bytes,
                )
