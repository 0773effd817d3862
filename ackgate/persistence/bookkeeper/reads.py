"""Reading entries of one ledger from its bookies, and finding out how far it goes.

Edge. Entry e lies on the places ``(e + i) % ensemble_size``, i < write_quorum, of its fragment; they are
asked in this order, the next one after a failure, a damaged copy, or a while without an answer. Where
each bookie has every entry, they are asked for pieces of the range, many entries a request (4.17 and
later); what is missing then is asked for one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import (
    ConfigurationError,
    DigestMismatchError,
    NoSuchEntryError,
    StorageError,
)
from ackgate.persistence.bookkeeper.connections import BookieConnections, summed
from ackgate.persistence.bookkeeper.protocol import (
    LAST_ENTRY,
    NOT_HERE,
    Code,
    Flag,
    VerifiedEntry,
    code_name,
)
from ackgate.persistence.ledgers.handles import Confirmed
from ackgate.persistence.ledgers.quorum import (
    confirmed_parts,
    fragment_parts,
    is_covered,
    write_set,
)
from ackgate.persistence.ports import Fragment, LedgerEntry, LedgerMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.persistence.bookkeeper.connection import BookieConnection
    from ackgate.persistence.bookkeeper.protocol import BookieReply, EntryCodec
    from ackgate.persistence.bookkeeper.settings import BookKeeperSettings

logger = logging.getLogger(__name__)

_PIECE_ENTRIES: Final = 2_048
"""Entries that one batch read asks for: while one reply is taken apart, bookies make the next."""

_PIECES_AT_ONCE: Final = 3
"""Replies under way, each of them 5 MiB at most."""


class Copy(NamedTuple):
    """What one bookie answered when asked for an entry: at most one of these."""

    entry: VerifiedEntry | None = None
    is_absent: bool = False
    """It surely does not have it."""
    error: StorageError | DigestMismatchError | None = None


class BookKeeperReads:
    """Reads and verifies entries of one ledger."""

    def __init__(
        self,
        codec: EntryCodec,
        connections: BookieConnections,
        settings: BookKeeperSettings,
        without_batches: set[str],
        *,
        is_fencing: bool = False,
    ) -> None:
        """`without_batches`: bookies that do not know batch reads; shared by the client's ledgers.

        `is_fencing`: each bookie that is asked takes no more adds of the ledger's writer. For recoveries,
        on their own connections.
        """
        self.codec = codec
        self._connections = connections
        self._settings = settings
        self._without_batches = without_batches
        self._is_fencing = is_fencing
        self._key = codec.key if is_fencing else b""
        self._flags = Flag.DO_FENCING | Flag.HIGH_PRIORITY if is_fencing else Flag.NONE

    def fencing(self) -> BookKeeperReads:
        """The same for a recovery."""
        return BookKeeperReads(
            self.codec, self._connections, self._settings, self._without_batches, is_fencing=True
        )

    @property
    def ledger_id(self) -> int:
        return self.codec.ledger_id

    @property
    def at_once(self) -> int:
        """Single reads of one call that are under way at a time."""
        return self._settings.reads_at_once

    async def read(
        self, metadata: LedgerMetadata, first: int, last: int, last_add_confirmed: int
    ) -> list[LedgerEntry]:
        """As the port's `read`, with the border given."""
        entries: list[LedgerEntry] = []
        for fragment, start, end in confirmed_parts(metadata, first, last, last_add_confirmed):
            entries += await self._read_span(metadata, fragment, start, end)
        return entries

    async def _read_span(
        self, metadata: LedgerMetadata, fragment: Fragment, first: int, last: int
    ) -> list[LedgerEntry]:
        found: dict[int, LedgerEntry] = {}
        if metadata.write_quorum == metadata.ensemble_size and last > first:
            await self._read_batches(fragment, first, last, found)
            if len(found) == last - first + 1:
                return [found[entry_id] for entry_id in range(first, last + 1)]
        missing = [entry_id for entry_id in range(first, last + 1) if entry_id not in found]
        at_once = self._settings.reads_at_once
        for at in range(0, len(missing), at_once):
            some = missing[at : at + at_once]
            await self._read_first_copies(fragment, some, found)
            read = (self.read_one(metadata, fragment, i) for i in some if i not in found)
            for entry in await asyncio.gather(*read):
                found[entry.entry_id] = LedgerEntry(entry.entry_id, entry.payload)
        return [found[entry_id] for entry_id in range(first, last + 1)]

    async def read_available(
        self, metadata: LedgerMetadata, first: int, last: int
    ) -> dict[int, LedgerEntry]:
        """Entries of the last fragment, as far as one bookie each gives them. The rest is left out."""
        found: dict[int, LedgerEntry] = {}
        fragment = metadata.fragments[-1]
        if metadata.write_quorum == metadata.ensemble_size:
            await self._read_batches(fragment, first, last, found)
        missing = [entry_id for entry_id in range(first, last + 1) if entry_id not in found]
        at_once = self._settings.reads_at_once
        for at in range(0, len(missing), at_once):
            await self._read_first_copies(fragment, missing[at : at + at_once], found)
        return found

    async def _read_batches(
        self, fragment: Fragment, first: int, last: int, found: dict[int, LedgerEntry]
    ) -> None:
        pieces = deque(range(first, last + 1, _PIECE_ENTRIES))
        at_once = min(_PIECES_AT_ONCE, len(pieces))
        await asyncio.gather(
            *(self._read_pieces(fragment, pieces, last, found) for _ in range(at_once))
        )

    async def _read_pieces(
        self, fragment: Fragment, pieces: deque[int], last: int, found: dict[int, LedgerEntry]
    ) -> None:
        """Put the entries of pieces (by their first ones) into `found`, as far as bookies give them.

        Each piece begins with another bookie.
        """
        ensemble = fragment.ensemble
        while pieces:
            next_id = pieces.popleft()
            number, end = next_id // _PIECE_ENTRIES, min(next_id + _PIECE_ENTRIES - 1, last)
            for i in range(len(ensemble)):
                bookie_id = ensemble[(number + i) % len(ensemble)]
                next_id = await self.read_copies(bookie_id, next_id, end, found)
                if next_id > end:
                    break

    async def read_copies(
        self, bookie_id: str, next_id: int, end: int, found: dict[int, LedgerEntry]
    ) -> int:
        """Put into `found` what this bookie gives without a failure. Returns the next entry."""
        while next_id <= end:
            if bookie_id in self._without_batches or self._is_failing(bookie_id):
                break
            reply = await self._ask_batch(bookie_id, next_id, end - next_id + 1)
            if reply is None or reply.code != Code.OK:
                break
            try:
                entries = self.codec.decode_batch(reply.body, next_id)
            except ValueError as error:
                logger.error("bookie %s: %s", bookie_id, error)  # noqa: TRY400
                break
            if not entries:
                logger.error(
                    "bookie %s: entry %d:%d is damaged", bookie_id, self.ledger_id, next_id
                )
                break
            after = next_id + len(entries)
            found.update(zip(range(next_id, after), entries, strict=True))
            next_id = after
        return next_id

    async def _read_first_copies(
        self, fragment: Fragment, entry_ids: Sequence[int], found: dict[int, LedgerEntry]
    ) -> None:
        """Put into `found` what the bookies that come first give without a failure or a delay."""
        connections = [
            self._connections.current(bookie_id, is_for_recovery=self._is_fencing)
            for bookie_id in fragment.ensemble
        ]
        asked: dict[asyncio.Future[BookieReply], int] = {}
        for entry_id in entry_ids:
            connection = connections[entry_id % len(connections)]
            if connection is not None and connection.is_open:
                reply = connection.read(self.ledger_id, entry_id, key=self._key, flags=self._flags)
                asked[reply] = entry_id
        if not asked:
            return
        done, _ = await asyncio.wait(asked, timeout=self._settings.speculative_read_seconds)
        for future in done:
            if future.exception() is None and future.result().code == Code.OK:
                with contextlib.suppress(DigestMismatchError):  # `ask` reports it
                    entry = self.codec.decode(future.result().body, asked[future])
                    found[entry.entry_id] = LedgerEntry(entry.entry_id, entry.payload)

    async def _ask_batch(self, bookie_id: str, first: int, count: int) -> BookieReply | None:
        """None if it failed. A bookie that closes the connection over it is not asked so again."""
        connection: BookieConnection | None = None
        try:
            async with asyncio.timeout(self._settings.speculative_read_seconds):
                connection = await self._connections.get(
                    bookie_id, is_for_recovery=self._is_fencing
                )
                return await connection.read_batch(
                    self.ledger_id, first, count, key=self._key, flags=self._flags
                )
        except TimeoutError:
            return None
        except StorageError:
            if connection is not None and not connection.has_read_batches:
                self._without_batches.add(bookie_id)
            return None

    async def read_one(
        self, metadata: LedgerMetadata, fragment: Fragment, entry_id: int
    ) -> VerifiedEntry:
        """Read one entry: the first good copy.

        Raises `NoSuchEntryError`, `DigestMismatchError`, `StorageError`.
        """
        places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        bookie_ids = sorted((fragment.ensemble[place] for place in places), key=self._is_failing)
        failures: list[StorageError | DigestMismatchError] = []
        asked: set[asyncio.Task[Copy]] = set()
        seconds = self._settings.speculative_read_seconds
        try:
            for bookie_id in bookie_ids:
                asked.add(asyncio.ensure_future(self.ask(bookie_id, entry_id)))
                done, asked = await asyncio.wait(
                    asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if entry := _good(done, failures):
                    return entry
            while asked:
                done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                if entry := _good(done, failures):
                    return entry
        finally:
            for task in asked:
                task.cancel()
        text = f"entry {self.ledger_id}:{entry_id}"
        for failure in failures:
            if isinstance(failure, DigestMismatchError):
                raise DigestMismatchError(f"{text}: no copy has a digest that fits its bytes")
        if failures:
            raise summed(text, (f for f in failures if isinstance(f, StorageError)))
        raise NoSuchEntryError(f"{text}: on none of {', '.join(bookie_ids)}")

    def _is_failing(self, bookie_id: str) -> bool:
        return self._connections.is_failing(bookie_id, is_for_recovery=self._is_fencing)

    async def ask(self, bookie_id: str, entry_id: int) -> Copy:
        """What the bookie has of the entry. Raises `ConfigurationError` if it wants another password."""
        try:
            connection = await self._connections.get(bookie_id, is_for_recovery=self._is_fencing)
            reply = await connection.read(
                self.ledger_id, entry_id, key=self._key, flags=self._flags
            )
        except StorageError as error:
            return Copy(error=error)
        if reply.code in NOT_HERE:
            return Copy(is_absent=True)
        if reply.code == Code.UNAUTHORIZED:
            raise ConfigurationError(
                f"ledger {self.ledger_id}: bookie {bookie_id} wants another password"
            )
        if reply.code != Code.OK:
            return Copy(error=StorageError(f"bookie {bookie_id}: {code_name(reply.code)}"))
        try:
            return Copy(self.codec.decode(reply.body, entry_id))
        except DigestMismatchError as error:
            logger.error("%s, on bookie %s", error, bookie_id)  # noqa: TRY400
            return Copy(error=error)

    # ------------------------------------------------------------------------- how far the ledger goes

    async def last_confirmed(self, metadata: LedgerMetadata) -> Confirmed:
        """Up to where the bookies know the ledger to be confirmed.

        The last add confirmed is announced by the next add, so this may lag. Raises `StorageError`
        when so many do not answer that they may know more.
        """
        copies = await self.ask_ensemble(metadata, LAST_ENTRY)
        self.check_covered(metadata, copies)
        return await self.confirmed_by(metadata, copies)

    async def ask_ensemble(self, metadata: LedgerMetadata, entry_id: int) -> list[Copy]:
        """Ask each bookie of the last fragment's ensemble for the entry.

        Returns answers by place.
        """
        ensemble = metadata.fragments[-1].ensemble
        return await asyncio.gather(*(self.ask(bookie_id, entry_id) for bookie_id in ensemble))

    def check_covered(self, metadata: LedgerMetadata, copies: list[Copy]) -> None:
        """Raise `StorageError` unless a bookie of every possible ack quorum has answered."""
        silent = {place for place, copy in enumerate(copies) if copy.error is not None}
        quorums = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        if not is_covered(silent, *quorums):
            errors = (c.error for c in copies if isinstance(c.error, StorageError))
            raise summed(f"ledger {self.ledger_id}: too few bookies answer", errors)

    async def confirmed_by(self, metadata: LedgerMetadata, copies: Iterable[Copy]) -> Confirmed:
        """The highest last add confirmed of these, with its length."""
        entries = [copy.entry for copy in copies if copy.entry is not None]
        # A fragment begins after what was confirmed when it was made.
        border = metadata.fragments[-1].first_entry_id - 1
        last = max((entry.last_add_confirmed for entry in entries), default=-1)
        last = max(last, border)
        return Confirmed(last, await self.length_up_to(metadata, last))

    async def length_up_to(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """Payload bytes up to and with the entry; 0 before the first."""
        if entry_id < 0:
            return 0
        ((fragment, _, _),) = fragment_parts(metadata.fragments, entry_id, entry_id)
        return (await self.read_one(metadata, fragment, entry_id)).length_bytes

    async def last_found(self, metadata: LedgerMetadata, last_add_confirmed: int) -> int:
        """The highest entry that can be read, going up from the last add confirmed without a gap."""
        copies = await self.ask_ensemble(metadata, LAST_ENTRY)
        highest = max((copy.entry.entry_id for copy in copies if copy.entry), default=-1)
        fragment = metadata.fragments[-1]
        last = last_add_confirmed
        while last < highest:
            try:
                await self.read_one(metadata, fragment, last + 1)
            except (NoSuchEntryError, DigestMismatchError, StorageError):
                break
            last += 1
        return last


def _good(
    done: set[asyncio.Task[Copy]], failures: list[StorageError | DigestMismatchError]
) -> VerifiedEntry | None:
    for task in done:
        copy = task.result()
        if copy.entry is not None:
            return copy.entry
        if copy.error is not None:
            failures.append(copy.error)
    return None
