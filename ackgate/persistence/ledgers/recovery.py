"""Recovery of a ledger that its writer did not close.

Edge. The steps; after a crash any process may repeat each of them:

    1  metadata OPEN -> IN_RECOVERY by compare-and-set: the writer's ensemble is fixed from here on
    2  fence the ledger on its bookies: the writer's adds are not confirmed any more
    3  from the last add confirmed on, entry by entry: found on any bookie -> write it again
       wherever its write set lacks it; surely on none -> that is the end
    4  metadata IN_RECOVERY -> CLOSED with last entry and length, by compare-and-set

Step 3 takes some entries at a time. A confirmed entry has an ack quorum of copies. So an entry is surely
not confirmed when so many of its write set answer "not here" that the rest makes no ack quorum. If fewer
answer, recovery fails and changes nothing, rather than cut off an entry that may exist.

Found entries are written to all of their write set again. A spare replaces a bookie that is gone or
rejects them: from this step's first entry on they are a fragment of their own. The spare is written to,
never asked: that it lacks an entry says nothing about what the writer's bookie has. Without a spare the
entries stay below their write quorum, which is logged, and which the auditor repairs: closing with one
copy is better than waiting. But an entry that was surely never confirmed, and cannot get an ack quorum
now, ends the ledger before it, so that it is never reported as stored.

An entry with only damaged copies stays part of the ledger, and reading it fails. Except if it was surely
never confirmed: fewer bookies than an ack quorum have it, and all of them answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, MetadataConflictError, StorageError
from ackgate.persistence.ledgers.entry_reads import DIGEST_DOES_NOT_FIT
from ackgate.persistence.ledgers.quorum import holds, is_covered, with_fragment, write_set
from ackgate.persistence.ports import Fragment, LedgerState

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookies.entry_codec import StoredEntry
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.catalog import CatalogEntry, LedgerCatalog
    from ackgate.persistence.ledgers.entry_reads import EntryReads
    from ackgate.persistence.ports import LedgerMetadata


logger = logging.getLogger(__name__)

STEP_ENTRIES: Final = 1000
"""Entries read in one step. As a rule there are fewer after the last add confirmed."""


class RecoveryStep:
    """Up to `STEP_ENTRIES` entries: read from the writer's ensemble, written to the last fragment's."""

    def __init__(
        self, metadata: LedgerMetadata, first: int, writers_ensemble: tuple[str, ...]
    ) -> None:
        self.first = first
        self._metadata = metadata
        self._ledger_id = metadata.ledger_id
        self._writers_ensemble = writers_ensemble
        self._ensemble = list(metadata.fragments[-1].ensemble)
        """The writer's, with spares of this recovery for bookies that failed."""
        self._copies: list[dict[int, list[StoredEntry]]] = []
        """Per place of the writer's ensemble."""
        self._silent: dict[int, str] = {}
        """Places of which it is not known what the writer's bookie has, and why."""
        self._failures: dict[int, str] = {}
        """Places whose bookie does not take what is written again, and why."""
        self._chosen: dict[int, StoredEntry] = {}
        self._absent: dict[int, set[int]] = {}
        """Per place the entries that the writer's bookie should have and has not."""

    async def look(self, pool: BookiePool) -> None:
        """Ask each of the writer's bookies for what it has."""
        for place, bookie_id in enumerate(self._writers_ensemble):
            copies: dict[int, list[StoredEntry]] = {}
            self._copies.append(copies)
            bookie = pool.get(bookie_id)
            if bookie is None:
                self._silent[place] = f"bookie {bookie_id} is not here"
                continue
            last = self.first + STEP_ENTRIES - 1
            try:
                stored = await bookie.read(self._ledger_id, self.first, last, STEP_ENTRIES)
            except StorageError as error:
                self._silent[place] = str(error)
                continue
            for entry in stored:
                copies.setdefault(entry.entry_id, []).append(entry)
        self._failures = {p: why for p, why in self._silent.items() if not self._has_spare(p)}

    def choose(self, entry_id: int, reads: EntryReads) -> StoredEntry | None:
        """A good copy of the entry, or a damaged one if there is no other; None if there is none.

        None, too, for damaged copies of what was surely never confirmed.
        """
        good: StoredEntry | None = None
        damaged: StoredEntry | None = None
        places_with: set[int] = set()
        places_damaged: set[int] = set()
        for place, copies in enumerate(self._copies):
            for entry in copies.get(entry_id, ()):
                if reads.digest.matches(entry):
                    good = good or entry
                    places_with.add(place)
                else:
                    damaged = damaged or entry
                    places_damaged.add(place)
                    reads.report(entry_id, self._writers_ensemble[place], DIGEST_DOES_NOT_FIT)
        if good is None and damaged is None:
            return None
        if good is None and self._silent:
            raise StorageError(
                f"entry {self._ledger_id}:{entry_id}: only damaged copies, and not every bookie "
                f"answers: {'; '.join(self._silent.values())}"
            )
        if (
            good is None
            and len(places_damaged) < self._metadata.ack_quorum
            and not self._is_confirmed_behind(entry_id, reads)
        ):
            return None
        if good is not None:
            for place in self._places():
                if self._belongs(entry_id, place) and place not in places_with:
                    self._absent.setdefault(place, set()).add(entry_id)
        chosen = good or damaged
        assert chosen is not None
        self._chosen[entry_id] = chosen
        return chosen

    def _is_confirmed_behind(self, entry_id: int, reads: EntryReads) -> bool:
        """Whether a later entry has an ack quorum: then this one had it, too."""
        later: Counter[int] = Counter()
        for copies in self._copies:
            later.update(
                each
                for each, entries in copies.items()
                if each > entry_id and any(map(reads.digest.matches, entries))
            )
        return any(count >= self._metadata.ack_quorum for count in later.values())

    def check_absent(self, entry_id: int) -> None:
        """Make sure that the entry was never confirmed.

        Raises `StorageError` when that is not sure.
        """
        metadata = self._metadata
        places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        silent = [self._silent[place] for place in places if place in self._silent]
        if len(silent) >= metadata.ack_quorum:
            raise StorageError(
                f"entry {self._ledger_id}:{entry_id} may be on bookies that do not answer: "
                f"{'; '.join(silent)}"
            )

    async def write_again(self, pool: BookiePool) -> LedgerMetadata:
        """Bring the entries to where they are lacking.

        Returns the metadata, with a fragment from this step's first entry on if spares took places.
        """
        lacking = {place: ids for place in self._places() if (ids := self._lacking_at(place))}
        await asyncio.gather(*(self._write_to(pool, place, ids) for place, ids in lacking.items()))
        is_changed = False
        for place, entry_ids in lacking.items():
            if place in self._failures:
                is_changed |= await self._write_to_spare(pool, place, entry_ids)
        if not is_changed:
            return self._metadata
        fragment = Fragment(self.first, tuple(self._ensemble))
        return replace(self._metadata, fragments=with_fragment(self._metadata.fragments, fragment))

    def first_to_leave_out(self, unfenced: AbstractSet[int], reads: EntryReads) -> int | None:
        """The first entry that was surely never confirmed and has no ack quorum, after `write_again`.

        A place that is not fenced may still take the entry, and its writer then confirm it.
        """
        ack_quorum, write_quorum = self._metadata.ack_quorum, self._metadata.write_quorum
        for entry_id in sorted(self._chosen):
            places = [place for place in self._places() if self._belongs(entry_id, place)]
            absent = {place for place in places if entry_id in self._absent.get(place, ())}
            unwritten = absent & self._failures.keys()
            if write_quorum - len(unwritten) >= ack_quorum:
                continue
            doubtful = absent & (self._silent.keys() | unfenced)
            is_sure = write_quorum - len(absent) + len(doubtful) < ack_quorum
            if is_sure and not self._is_confirmed_behind(entry_id, reads):
                return entry_id
        return None

    def _places(self) -> range:
        return range(len(self._ensemble))

    def _has_spare(self, place: int) -> bool:
        """Whether a spare took this place, in this step or in one before."""
        return self._ensemble[place] != self._writers_ensemble[place]

    def _lacking_at(self, place: int) -> list[int]:
        """Entries that the bookie at this place lacks. A spare lacks all that belong there."""
        if not self._has_spare(place):
            return sorted(self._absent.get(place, ()))
        return [entry_id for entry_id in sorted(self._chosen) if self._belongs(entry_id, place)]

    async def _write_to(self, pool: BookiePool, place: int, entry_ids: list[int]) -> None:
        bookie = pool.get(self._ensemble[place])
        if bookie is None or place in self._failures:
            return
        try:
            await self._write(bookie, entry_ids)
        except AckGateError as error:
            self._failures[place] = str(error)

    async def _write_to_spare(self, pool: BookiePool, place: int, lacking: list[int]) -> bool:
        """Let another bookie take the place. Returns whether the ensemble is another one now."""
        for _ in range(len(pool)):
            spare = await pool.spare(self._ensemble)
            if spare is None:
                break
            before, self._ensemble[place] = self._ensemble[place], spare.bookie_id
            try:
                await self._write(spare, self._lacking_at(place))
            except AckGateError as error:
                self._ensemble[place] = before
                self._failures[place] = str(error)
                continue
            del self._failures[place]
            return True
        logger.warning(
            "ledger %d: entries %d..%d stay below their write quorum: %s",
            self._ledger_id,
            lacking[0],
            lacking[-1],
            self._failures[place],
        )
        if not self._has_spare(place):
            return False
        self._ensemble[place] = self._writers_ensemble[place]
        return True

    async def _write(self, bookie: Bookie, entry_ids: list[int]) -> None:
        entries = [self._chosen[entry_id] for entry_id in entry_ids]
        await bookie.rewrite(entries, self.first)

    def _belongs(self, entry_id: int, place: int) -> bool:
        return holds(place, entry_id, len(self._ensemble), self._metadata.write_quorum)


class LedgerRecovery:
    """The recovery of one ledger; see the module for its steps."""

    def __init__(
        self, entry: CatalogEntry, catalog: LedgerCatalog, pool: BookiePool, reads: EntryReads
    ) -> None:
        self._entry = entry
        self._catalog = catalog
        self._pool = pool
        self._reads = reads
        self._ledger_id = entry.metadata.ledger_id

    async def run(self) -> LedgerMetadata:
        """Recover and close the ledger. Returns its metadata.

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
            # The writer, or another recovery, was faster. Read its state again.
            self._entry = await self._catalog.read(self._ledger_id)

    async def _fence(self, metadata: LedgerMetadata) -> set[int]:
        """Fence on as many bookies as are needed, at least; returns the places that are not."""
        ensemble = metadata.fragments[-1].ensemble
        results = await asyncio.gather(*map(self._fence_one, ensemble))
        unfenced = {place for place, result in enumerate(results) if result is not None}
        quorums = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        if not is_covered(unfenced, *quorums):
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
        writers_ensemble = metadata.fragments[-1].ensemble
        last, length_bytes = await self._reads.last_confirmed(metadata)
        while True:
            step = RecoveryStep(metadata, last + 1, writers_ensemble)
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
