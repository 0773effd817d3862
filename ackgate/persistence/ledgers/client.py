"""BookKeeper's client over bookies that are directories.

Edge: the way in. `open_bookies` opens directories, `BookieLedgerClient` makes ledgers of them:

    bookies = await open_bookies([data / "bookies" / "0"])
    client = BookieLedgerClient(bookies, metadata_store)
    writer = await client.create(LedgerOptions())
    entry_id = await writer.add_entry(b"...")

Several processes may have the same directories open. Opened read-only, nothing is changed and no
lock is taken: for tools beside a running broker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING

from ackgate.errors import CallerError, ClosedHandleError, StorageError
from ackgate.persistence.ledgers.auditor import Auditor
from ackgate.persistence.ledgers.bookie_opening import BookieOpener, distinct
from ackgate.persistence.ledgers.bookie_pool import BookiePool
from ackgate.persistence.ledgers.entry_reads import EntryReads, log_bad_copy
from ackgate.persistence.ledgers.io_lane import ThreadLane
from ackgate.persistence.ledgers.ledger_catalog import LedgerCatalog
from ackgate.persistence.ledgers.ledger_password import PasswordCheck
from ackgate.persistence.ledgers.ledger_recovery import LedgerRecovery
from ackgate.persistence.ledgers.quorum import check_quorum
from ackgate.persistence.ledgers.reader import BookieLedgerReader, confirmed_of
from ackgate.persistence.ledgers.settings import AuditSettings, LedgerClientSettings
from ackgate.persistence.ledgers.writer import BookieLedgerWriter
from ackgate.persistence.ports import Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ackgate.persistence.ledgers.bookie import Bookie
    from ackgate.persistence.ledgers.bookie_opening import AbsentBookies
    from ackgate.persistence.ledgers.disk import Disk
    from ackgate.persistence.ledgers.entry_reads import BadCopy
    from ackgate.persistence.ledgers.io_lane import IoLane
    from ackgate.persistence.ledgers.ledger_catalog import CatalogEntry
    from ackgate.persistence.ledgers.settings import BookieSettings
    from ackgate.persistence.ports import LedgerOptions, MetadataStore

logger = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def open_bookies(
    directories: Sequence[Path],
    *,
    settings: BookieSettings | None = None,
    is_read_only: bool = False,
    disk: Disk | None = None,
    lane: Callable[[str], IoLane] = ThreadLane,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> list[Bookie]:
    """Open a bookie per directory, made if absent, and replay what a crash left in its journal.

    Raises `StorageError` when a directory cannot be read or written, `ConfigurationError` when it
    is not a bookie's or is named twice; then none is left open.
    """
    opener = BookieOpener(
        settings=settings,
        is_read_only=is_read_only,
        disk=disk,
        lane=lane,
        random_bytes=random_bytes,
    )
    bookies: list[Bookie] = []
    try:
        for directory in distinct(directories):
            bookies.append(await opener.open(directory))  # noqa: PERF401  what is open is closed
        BookiePool(bookies)
    except BaseException:
        for bookie in bookies:
            await bookie.close()
        raise
    return bookies


class BookieLedgerClient:
    """Implements `LedgerClient`. Owns its bookies: `close` closes them."""

    def __init__(
        self,
        bookies: Iterable[Bookie],
        metadata: MetadataStore,
        *,
        settings: LedgerClientSettings | None = None,
        on_bad_copy: Callable[[BadCopy], None] = log_bad_copy,
        clock_ms: Callable[[], int] = wall_clock_ms,
        random_bytes: Callable[[int], bytes] = os.urandom,
        absent: AbsentBookies | None = None,
        marks: Mapping[str, bytes] | None = None,
    ) -> None:
        """`absent`: bookies that may come later. They are the client's too.

        `marks` go into the custom metadata of every ledger that is made here.
        """
        self._marks = dict(marks or {})
        self._pool = BookiePool(bookies)
        self._absent = absent
        if absent is not None:
            absent.start(self._pool.add)
        self._catalog = LedgerCatalog(metadata)
        self._settings = settings or LedgerClientSettings()
        self._on_bad_copy = on_bad_copy
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes
        self._is_closed = False

    @property
    def bookies(self) -> tuple[Bookie, ...]:
        """The bookies of this client."""
        return tuple(self._pool)

    @property
    def absent_bookies(self) -> Mapping[Path, str]:
        """Directories that could not be opened, and why."""
        return dict(self._absent.reasons) if self._absent is not None else {}

    async def new_ledger_id(self) -> int:
        """An id that nobody else is given, for a ledger that is made later or never."""
        self._check_writable()
        return await self._catalog.new_id()

    async def create(
        self, options: LedgerOptions, *, ledger_id: int | None = None
    ) -> BookieLedgerWriter:
        """As the port has it; of an id that `new_ledger_id` gave (BookKeeper's createLedgerAdv)."""
        self._check_writable()
        check_quorum(options.ensemble_size, options.write_quorum, options.ack_quorum)
        ensemble = await self._choose_ensemble(options)
        metadata = LedgerMetadata(
            ledger_id=await self._catalog.new_id() if ledger_id is None else ledger_id,
            state=LedgerState.OPEN,
            ensemble_size=len(ensemble),
            write_quorum=options.write_quorum,
            ack_quorum=options.ack_quorum,
            digest_type=options.digest_type,
            fragments=(Fragment(0, ensemble),),
            last_entry_id=-1,
            length_bytes=0,
            created_ms=self._clock_ms(),
            custom_metadata={**options.custom_metadata, **self._marks},
        )
        password = PasswordCheck.of(options.password, self._random_bytes)
        entry = await self._catalog.create(metadata, password)
        reads = self._reads(entry, options.password)
        return BookieLedgerWriter(entry, self._catalog, self._pool, reads, self._settings)

    async def _choose_ensemble(self, options: LedgerOptions) -> tuple[str, ...]:
        # BookKeeper's opportunistic striping: fewer bookies will do while some of ours are not well.
        size = options.ensemble_size
        is_enough = len(self._pool) + len(self.absent_bookies) >= size
        return await self._pool.ensemble(size, options.write_quorum if is_enough else None)

    async def open(self, ledger_id: int, *, password: bytes = b"") -> BookieLedgerReader:
        self._check_writable()
        entry = await self._catalog.read(ledger_id)
        reads = self._reads(entry, password)
        metadata = await LedgerRecovery(entry, self._catalog, self._pool, reads).run()
        confirmed = await confirmed_of(metadata, reads)
        return BookieLedgerReader(metadata, reads, self._catalog, confirmed)

    async def open_without_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> BookieLedgerReader:
        self._check_open()
        entry = await self._catalog.read(ledger_id)
        reads = self._reads(entry, password)
        confirmed = await confirmed_of(entry.metadata, reads)
        return BookieLedgerReader(entry.metadata, reads, self._catalog, confirmed)

    async def delete(self, ledger_id: int) -> None:
        self._check_writable()
        await self._catalog.remove(ledger_id)
        await self._remove_files(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        self._check_open()
        return (await self._catalog.read(ledger_id)).metadata

    async def ledger_ids(self) -> list[int]:
        self._check_open()
        return await self._catalog.ledger_ids()

    async def delete_orphans(self) -> list[int]:
        """Remove files of ledgers that have no metadata.

        A crash came between the two steps of a deletion, or brought files back. Returns the
        ledgers.
        """
        self._check_writable()
        # First what is stored, then what is known: a ledger is known before anything of it is stored.
        stored: set[int] = set()
        for bookie in self._pool:
            try:
                stored |= await bookie.ledger_ids()
            except StorageError as error:
                logger.warning("orphans on bookie %s are left: %s", bookie.bookie_id, error)
        orphans = sorted(stored.difference(await self._catalog.ledger_ids()))
        for ledger_id in orphans:
            await self._remove_files(ledger_id)
        return orphans

    def auditor(self, settings: AuditSettings | None = None, *, password: bytes = b"") -> Auditor:
        """Who looks whether all copies of all ledgers are there and good, and mends what is not."""
        self._check_open()
        return Auditor(self._catalog, self._pool, settings or AuditSettings(), password=password)

    async def close(self) -> None:
        """Close the bookies. Handles that are still open take no more adds."""
        if not self._is_closed:
            self._is_closed = True
            if self._absent is not None:
                await self._absent.close()
            await asyncio.gather(*(bookie.close() for bookie in self._pool))

    async def _remove_files(self, ledger_id: int) -> None:
        for bookie in self._pool:
            try:
                await bookie.delete_ledger(ledger_id)
            except StorageError as error:
                # Nothing refers to them any more; `delete_orphans` tries again.
                logger.warning("ledger %d: files not removed: %s", ledger_id, error)

    def _reads(self, entry: CatalogEntry, password: bytes) -> EntryReads:
        ledger_id = entry.metadata.ledger_id
        digest = entry.password.digest(ledger_id, entry.metadata.digest_type, password)
        seconds = self._settings.speculative_read_seconds
        return EntryReads(ledger_id, digest, self._pool, self._on_bad_copy, seconds)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedHandleError("this ledger client is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if any(bookie.is_read_only for bookie in self._pool):
            raise CallerError("these bookies are open for reading only")
