"""Recovery of a ledger that its writer did not close, on a BookKeeper cluster.

Edge. The steps, each of which any client may do again after a crash in between::

    1  metadata OPEN -> IN_RECOVERY by compare-and-set: the writer's ensemble is fixed from here on
    2  fence the ledger on its last ensemble, until no ack quorum is left that has not answered
    3  from the last add confirmed on, many entries at a time: a good copy -> add it again to all of
       its write set; surely on too many places not there -> that is the end
    4  metadata IN_RECOVERY -> CLOSED with last entry, length and new fragments, by compare-and-set

A bookie that registers and does not serve yet, or begins to listen again, is met in the middle of it: after
a failure that was quick the steps from 2 on are done again, with backoff, within the client's time-out.

As BookKeeper's `LedgerRecoveryOp`, but for that and two things more. Entries are read in batches as far as
the fence found any, and looked at place by place only where one is missing. And the length is counted from
the head of the last confirmed entry, which is right where BookKeeper's (first of the fragment, nothing behind
it) is 0.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    BookieRefusedError,
    DigestMismatchError,
    MetadataConflictError,
    MetadataStoreError,
    NotEnoughBookiesError,
    StorageError,
)
from ackgate.persistence.bookkeeper.connection import AddBlock
from ackgate.persistence.bookkeeper.protocol import LAST_ENTRY, PARTS_PER_ADD, Flag, code_name
from ackgate.persistence.ledgers.quorum import holds, with_fragment, write_set
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.ports import Fragment, LedgerEntry, LedgerState
from ackgate.persistence.system.backoff import backoff_seconds
from ackgate.persistence.system.futures import fail_quietly, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster
    from ackgate.persistence.bookkeeper.connection import BookieConnection
    from ackgate.persistence.bookkeeper.connections import BookieConnections
    from ackgate.persistence.bookkeeper.metadata_format import StoredMetadata
    from ackgate.persistence.bookkeeper.protocol import VerifiedEntry
    from ackgate.persistence.bookkeeper.reads import BookKeeperReads, Copy
    from ackgate.persistence.ports import LedgerMetadata

logger = logging.getLogger(__name__)

_ADD: Final = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
_STEP_BYTES: Final = 16 * 1024 * 1024
"""Aim of one step: what it reads is in memory until it was added again."""

_FIRST_STEP_ENTRIES: Final = 128
"""Entries of the first step: their size shows how many may follow."""

_LOOK_AT_ONCE: Final = 128
_RETRY_FIRST_SECONDS: Final = 0.05
_RETRY_LONGEST_SECONDS: Final = 1.0

_CONFLICTS_MAX: Final = 100
"""Metadata writes lost in a row against others who recover the same ledger."""


class Recovery:
    """One recovery of one ledger."""

    def __init__(
        self,
        stored: StoredMetadata,
        cluster: BookKeeperCluster,
        connections: BookieConnections,
        reads: BookKeeperReads,
        step_entries: int,
    ) -> None:
        self._stored = stored
        self._cluster = cluster
        self._connections = connections
        self._reads = reads.fencing()
        self._step_entries = step_entries
        self._ensemble: list[str] = []
        """Who gets what is found: the writer's bookies, and spares for those that fail."""
        self._new_fragments: list[Fragment] = []
        """Of this recovery, by what failed meanwhile. Written with the last step."""

    async def run(self, timeout_seconds: float) -> LedgerMetadata:
        """The metadata of the closed ledger.

        `timeout_seconds`: how long it is tried again when too few bookies answer. Raises `StorageError`
        then, `NoSuchLedgerError`, `ConfigurationError` for a wrong password. The ledger may be recovered
        again then.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        failures = 0
        while await self._begin():
            try:
                return await self._attempt()
            except (BookieRefusedError, MetadataStoreError):
                raise
            except StorageError as error:
                failures += 1
                left = deadline - loop.time()
                if left <= 0:
                    raise
                logger.warning("recovery of ledger %d: %s", self._stored.metadata.ledger_id, error)
                pause = backoff_seconds(
                    failures,
                    first=_RETRY_FIRST_SECONDS,
                    longest=_RETRY_LONGEST_SECONDS,
                    seed=self._stored.metadata.ledger_id,
                )
                await asyncio.sleep(min(pause, left))
        return self._stored.metadata

    async def _attempt(self) -> LedgerMetadata:
        metadata = self._stored.metadata
        self._ensemble = list(metadata.fragments[-1].ensemble)
        self._new_fragments.clear()
        copies = await self._reads.ask_ensemble(metadata, LAST_ENTRY)
        self._reads.check_covered(metadata, copies)
        found = [copy.entry for copy in copies if copy.entry is not None]
        highest = max((entry.entry_id for entry in found), default=-1)
        size = max((len(entry.payload) for entry in found), default=0)
        last, length = await self._reads.confirmed_by(metadata, copies)
        step_max = min(_FIRST_STEP_ENTRIES, self._step_entries)
        while True:
            step = min(step_max, max(_STEP_BYTES // max(size, 1), 1))
            end = min(last + step, max(highest, last) + 1)
            entries = await self._look(last + 1, end)
            if entries:
                await self._add_again(entries, last, length)
                read_bytes = sum(len(entry.payload) for entry in entries)
                last, length = entries[-1].entry_id, length + read_bytes
                size = read_bytes // len(entries)
            if last < end:
                return await self._close(last, length)
            step_max = self._step_entries

    async def _begin(self) -> bool:
        """Put the ledger into recovery. False: it is closed already."""

        async def attempt() -> bool:
            metadata = self._stored.metadata
            match metadata.state:
                case LedgerState.CLOSED:
                    return False
                case LedgerState.OPEN:
                    changed = replace(metadata, state=LedgerState.IN_RECOVERY)
                    try:
                        self._stored = await self._cluster.replace(self._stored, changed)
                    except MetadataConflictError:
                        self._stored = await self._cluster.read(metadata.ledger_id)
                        raise
            return True

        name = f"the metadata of ledger {self._stored.metadata.ledger_id}"
        return await until_won(attempt, of=name, attempts_max=_CONFLICTS_MAX)

    async def _look(self, first: int, end: int) -> list[LedgerEntry]:
        """The entries from `first` on, up to `end`, or to where the ledger ends before that."""
        found = await self._reads.read_available(self._stored.metadata, first, end)
        missing = [entry_id for entry_id in range(first, end + 1) if entry_id not in found]
        entries = [found[entry_id] for entry_id in range(first, min(missing, default=end + 1))]
        for at in range(0, len(missing), _LOOK_AT_ONCE):
            some = missing[at : at + _LOOK_AT_ONCE]
            for entry_id, copies in zip(
                some, await asyncio.gather(*map(self._copies, some)), strict=True
            ):
                entry = self._chosen(entry_id, copies)
                if entry is None:
                    return entries
                entries.append(LedgerEntry(entry_id, entry.payload))
                while (after := found.get(entries[-1].entry_id + 1)) is not None:
                    entries.append(after)
        return entries

    async def _copies(self, entry_id: int) -> list[Copy]:
        """Of the writer's bookies: a spare of ours has nothing to say about what they lack."""
        metadata = self._stored.metadata
        places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        ensemble = metadata.fragments[-1].ensemble
        return await asyncio.gather(*(self._reads.ask(ensemble[p], entry_id) for p in places))

    def _chosen(self, entry_id: int, copies: Sequence[Copy]) -> VerifiedEntry | None:
        """A good copy; None: the entry was surely never confirmed."""
        for copy in copies:
            if copy.entry is not None:
                return copy.entry
        metadata = self._stored.metadata
        absent = sum(copy.is_absent for copy in copies)
        if absent > metadata.write_quorum - metadata.ack_quorum:
            return None
        text = f"entry {metadata.ledger_id}:{entry_id}"
        if absent + sum(isinstance(c.error, DigestMismatchError) for c in copies) == len(copies):
            raise DigestMismatchError(f"{text}: no copy has a digest that fits its bytes")
        reasons = "; ".join(str(copy.error) for copy in copies if copy.error is not None)
        raise StorageError(f"{text} may be on bookies that do not answer: {reasons}")

    # --------------------------------------------------------------------------------- adding again

    async def _add_again(
        self, entries: Sequence[LedgerEntry], last_add_confirmed: int, length_bytes: int
    ) -> None:
        """Bring them to all of their write sets. Raises `StorageError` below the ack quorum.

        `length_bytes`: of all entries before them.
        """
        metadata = self._stored.metadata
        first = entries[0].entry_id
        parts = self._reads.codec.add_parts(
            first,
            last_add_confirmed,
            length_bytes,
            [entry.payload for entry in entries],
            _ADD,
        )
        frames = [
            b"".join(parts[at : at + PARTS_PER_ADD]) for at in range(0, len(parts), PARTS_PER_ADD)
        ]
        places = range(metadata.ensemble_size)
        errors = await asyncio.gather(*(self._add_at(place, first, frames) for place in places))
        lost = {place: error for place, error in enumerate(errors) if error is not None}
        for place in tuple(lost):
            try:
                (spare,) = await self._connections.choose(1, besides=self._ensemble)
            except NotEnoughBookiesError:
                break
            before, self._ensemble[place] = self._ensemble[place], spare
            if await self._add_at(place, first, frames) is None:
                del lost[place]
                self._new_fragments.append(Fragment(first, tuple(self._ensemble)))
            else:
                self._ensemble[place] = before
        if not lost:
            return
        reasons = "; ".join(map(str, lost.values()))
        for entry in entries:
            written = write_set(entry.entry_id, metadata.ensemble_size, metadata.write_quorum)
            if sum(place not in lost for place in written) < metadata.ack_quorum:
                raise StorageError(
                    f"entry {metadata.ledger_id}:{entry.entry_id} is below its ack quorum: {reasons}"
                )
        logger.warning(
            "ledger %d: entries %d..%d stay below their write quorum: %s",
            metadata.ledger_id,
            first,
            entries[-1].entry_id,
            reasons,
        )

    async def _add_at(self, place: int, first: int, frames: Sequence[bytes]) -> StorageError | None:
        """Add the entries that belong at the place. Returns why it failed, or None."""
        metadata = self._stored.metadata
        wanted = {
            first + i: frame
            for i, frame in enumerate(frames)
            if holds(place, first + i, metadata.ensemble_size, metadata.write_quorum)
        }
        if not wanted:
            return None
        try:
            connection = await self._connections.get(self._ensemble[place], is_for_recovery=True)
            adds = _RecoveryAdds(connection, metadata.ledger_id, set(wanted))
            await adds.run(AddBlock(b"".join(wanted.values()), len(wanted)))
        except StorageError as error:
            return error
        return None

    # ------------------------------------------------------------------------------------- the end

    async def _close(self, last: int, length: int) -> LedgerMetadata:
        async def attempt() -> LedgerMetadata:
            metadata = self._stored.metadata
            if metadata.state is LedgerState.CLOSED:
                return metadata
            changed = replace(
                metadata,
                state=LedgerState.CLOSED,
                last_entry_id=last,
                length_bytes=length,
                fragments=reduce(with_fragment, self._new_fragments, metadata.fragments),
            )
            try:
                self._stored = await self._cluster.replace(self._stored, changed)
            except MetadataConflictError:
                self._stored = await self._cluster.read(metadata.ledger_id)
                raise
            return self._stored.metadata

        name = f"the metadata of ledger {self._stored.metadata.ledger_id}"
        return await until_won(attempt, of=name, attempts_max=_CONFLICTS_MAX)


class _RecoveryAdds:
    """Adds of recovered entries to one bookie. Implements `AddReplies`."""

    def __init__(self, connection: BookieConnection, ledger_id: int, wanted: set[int]) -> None:
        self._connection = connection
        self._ledger_id = ledger_id
        self._wanted = wanted
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, block: AddBlock) -> None:
        """Send the frames and wait until the bookie has taken all. Raises `StorageError`."""
        self._connection.begin(self._ledger_id, self)
        try:
            self._connection.add(block)
            await self._done
        finally:
            self._connection.end(self._ledger_id, self)

    def added(self, entry_ids: NDArray[np.int64] | list[int]) -> None:
        self._wanted.difference_update(
            entry_ids if isinstance(entry_ids, list) else entry_ids.tolist()
        )
        if not self._wanted:
            resolve(self._done)

    def refused(self, entry_id: int, code: int) -> None:
        bookie_id = self._connection.bookie_id
        text = f"bookie {bookie_id}: {code_name(code)} to entry {self._ledger_id}:{entry_id}"
        fail_quietly(self._done, StorageError(text))

    def lost(self, error: StorageError) -> None:
        fail_quietly(self._done, error)
