"""Recovery of a ledger that its writer did not close.

Edge. The steps, each of which may be done again by anybody after a crash in between:

    1  metadata OPEN -> IN_RECOVERY by compare-and-set: the writer's ensemble is fixed from here on
    2  fence the ledger on its bookies: the writer's adds are not confirmed any more
    3  from the last add confirmed on, entry by entry: found on any bookie -> write it again
       wherever its write set lacks it; surely on none -> that is the end
    4  metadata IN_RECOVERY -> CLOSED with last entry and length, by compare-and-set

An entry that may have been confirmed has an ack quorum of copies. So it is surely not confirmed
when so many of its write set say "not here" that the rest makes no ack quorum; as long as fewer
answer, recovery fails and changes nothing, rather than cut off what may be there.

An entry of which only damaged copies are left stays part of the ledger: reading it says so.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, MetadataConflictError, StorageError
from ackgate.persistence.ledgers.entry_batch import batch_of
from ackgate.persistence.ledgers.entry_reads import DIGEST_DOES_NOT_FIT
from ackgate.persistence.ledgers.quorum import holds, write_set
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.entry_codec import StoredEntry
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ledgers.ledger_catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ports import Fragment, LedgerMetadata

logger = logging.getLogger(__name__)

_STEP_ENTRIES: Final = 1000
"""Entries looked at in one go beyond the last add confirmed. As a rule there are fewer."""


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
            await self._fence(metadata)
            last_entry_id, length_bytes = await self._mend(metadata)
            closed = replace(
                metadata,
                state=LedgerState.CLOSED,
                last_entry_id=last_entry_id,
                length_bytes=length_bytes,
            )
            await self._change(closed)
        return self._entry.metadata

    async def _change(self, metadata: LedgerMetadata) -> None:
        try:
            self._entry = await self._catalog.replace(self._entry, metadata)
        except MetadataConflictError:
            # The writer, or somebody else who recovers it, was faster. Look what it is now.
            self._entry = await self._catalog.read(self._ledger_id)

    async def _fence(self, metadata: LedgerMetadata) -> None:
        ensemble = metadata.fragments[-1].ensemble
        results = await asyncio.gather(*map(self._fence_one, ensemble))
        unfenced = {place for place, result in enumerate(results) if result is not None}
        for stripe in range(metadata.ensemble_size):
            places = write_set(stripe, metadata.ensemble_size, metadata.write_quorum)
            if len(unfenced.intersection(places)) >= metadata.ack_quorum:
                reasons = "; ".join(result for result in results if result is not None)
                raise StorageError(f"ledger {self._ledger_id} cannot be fenced: {reasons}")

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

    async def _mend(self, metadata: LedgerMetadata) -> tuple[int, int]:
        """Step 3. Last entry and length of the ledger."""
        last, length_bytes = await self._reads.last_confirmed(metadata)
        while True:
            step = _Step(self._ledger_id, metadata, last + 1)
            await step.look(self._pool)
            for entry_id in range(last + 1, last + 1 + _STEP_ENTRIES):
                entry = step.choose(entry_id, self._reads)
                if entry is None:
                    step.check_absent(entry_id)
                    break
                length_bytes += len(entry.payload)
                last = entry_id
            await step.write_again(self._pool)
            if last < step.first + _STEP_ENTRIES - 1:
                return last, length_bytes


class _Step:
    """What the bookies of the last fragment hold of some entries, and what they lack."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, first: int) -> None:
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._fragment: Fragment = metadata.fragments[-1]
        self.first = first
        self._copies: list[dict[int, list[StoredEntry]]] = []
        """Per place of the ensemble."""
        self._failures: dict[int, str] = {}
        self._lacking: dict[int, list[StoredEntry]] = {}
        self._good_copies: dict[int, int] = {}

    async def look(self, pool: BookiePool) -> None:
        for place, bookie_id in enumerate(self._fragment.ensemble):
            copies: dict[int, list[StoredEntry]] = {}
            self._copies.append(copies)
            bookie = pool.get(bookie_id)
            if bookie is None:
                self._failures[place] = f"bookie {bookie_id} is not here"
                continue
            last = self.first + _STEP_ENTRIES - 1
            try:
                stored = await bookie.read(self._ledger_id, self.first, last, _STEP_ENTRIES)
            except StorageError as error:
                self._failures[place] = str(error)
                continue
            for entry in stored:
                copies.setdefault(entry.entry_id, []).append(entry)

    def choose(self, entry_id: int, reads: EntryReads) -> StoredEntry | None:
        """A good copy of the entry, or a damaged one if there is no other; None if there is none.

        Notes who lacks it.
        """
        good: StoredEntry | None = None
        damaged: StoredEntry | None = None
        places_with: set[int] = set()
        for place, copies in enumerate(self._copies):
            for entry in copies.get(entry_id, ()):
                if reads.digest.matches(entry):
                    good = good or entry
                    places_with.add(place)
                else:
                    damaged = damaged or entry
                    reads.report(entry_id, self._fragment.ensemble[place], DIGEST_DOES_NOT_FIT)
        if good is None:
            if damaged is not None and self._failures:
                raise StorageError(
                    f"entry {self._ledger_id}:{entry_id}: only damaged copies, and not every bookie "
                    f"answers: {'; '.join(self._failures.values())}"
                )
            return damaged
        size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum
        for place in range(size):
            if holds(place, entry_id, size, quorum) and place not in places_with:
                self._lacking.setdefault(place, []).append(good)
        self._good_copies[entry_id] = len(places_with)
        return good

    def check_absent(self, entry_id: int) -> None:
        """Make sure that the entry was never confirmed.

        Raises `StorageError` when that is not sure.
        """
        metadata = self._metadata
        places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        silent = [self._failures[place] for place in places if place in self._failures]
        if len(silent) >= metadata.ack_quorum:
            raise StorageError(
                f"entry {self._ledger_id}:{entry_id} may be on bookies that do not answer: "
                f"{'; '.join(silent)}"
            )

    async def write_again(self, pool: BookiePool) -> None:
        """Bring the entries to where their write set lacks them."""
        writes = {
            place: self._write(pool, place, entries)
            for place, entries in self._lacking.items()
            if place not in self._failures
        }
        results = await asyncio.gather(*writes.values(), return_exceptions=True)
        for place, result in zip(writes, results, strict=True):
            if isinstance(result, AckGateError):
                self._failures[place] = str(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                for entry in self._lacking[place]:
                    self._good_copies[entry.entry_id] += 1
        few = [e for e, count in self._good_copies.items() if count < self._metadata.ack_quorum]
        if few:
            raise StorageError(
                f"entry {self._ledger_id}:{few[0]} cannot be brought to its ack quorum: "
                f"{'; '.join(self._failures.values())}"
            )

    async def _write(self, pool: BookiePool, place: int, entries: list[StoredEntry]) -> None:
        bookie = pool.get(self._fragment.ensemble[place])
        assert bookie is not None
        sink = _Rewrite(self._ledger_id)
        bookie.add(batch_of(entries, self._fragment.first_entry_id), sink)
        await sink.done


class _Rewrite:
    """Waits for entries written again. Implements `AddSink`."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.is_recovery = True
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def synced(self, last_entry_id: int) -> None:  # noqa: ARG002
        """They are there."""
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, error: AckGateError) -> None:
        """They are not."""
        if not self.done.done():
            self.done.set_exception(error)

    def fenced(self) -> None:
        """Never told: it is recovery that fences."""
