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
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    CorruptRecordError,
    LedgerGivenUpError,
    NoSuchLedgerError,
    StorageError,
)
from ackgate.persistence.bookies.origins import LedgerOrigin
from ackgate.persistence.bookies.register import Mark
from ackgate.persistence.bookies.settings import AuditSettings, LedgerClientSettings
from ackgate.persistence.ledgers.bookie_pool import BookiePool
from ackgate.persistence.ledgers.catalog import LedgerCatalog, PasswordCheck, encode_metadata
from ackgate.persistence.ledgers.entry_reads import EntryReads, log_bad_copy
from ackgate.persistence.ledgers.handles import ReadHandle, confirmed_of
from ackgate.persistence.ledgers.opening import BookieOpener, distinct
from ackgate.persistence.ledgers.quorum import check_quorum
from ackgate.persistence.ledgers.recovery import LedgerRecovery
from ackgate.persistence.ledgers.writer import BookieLedgerWriter, take_in
from ackgate.persistence.ports import DigestType, Fragment, LedgerMetadata, LedgerState
from ackgate.persistence.system.io_lane import ThreadLane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.bookies.register import Beginning
    from ackgate.persistence.bookies.settings import BookieSettings
    from ackgate.persistence.ledgers.auditor import Auditor
    from ackgate.persistence.ledgers.catalog import CatalogEntry
    from ackgate.persistence.ledgers.entry_reads import BadCopy
    from ackgate.persistence.ledgers.opening import AbsentBookies
    from ackgate.persistence.ports import LedgerOptions, MetadataStore
    from ackgate.persistence.system.disk import Disk
    from ackgate.persistence.system.io_lane import IoLane

logger = logging.getLogger(__name__)


def wall_clock_ms() -> int:
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
        run: int = -1,
    ) -> None:
        """`absent`: bookies that may come later. They are the client's too.

        `marks` go into the custom metadata of every ledger that is made here.
        """
        self.run = run
        """Number of this start among all on the metadata store; bookies remember the highest."""
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
        """A unique id for a ledger that is made later or never."""
        self._check_writable()
        return await self._catalog.new_id()

    async def create(
        self, options: LedgerOptions, *, ledger_id: int | None = None
    ) -> BookieLedgerWriter:
        """Make a ledger, as the port says.

        `ledger_id`: one from `new_ledger_id` (createLedgerAdv).
        """
        self._check_writable()
        check_quorum(options.ensemble_size, options.write_quorum, options.ack_quorum)
        if options.digest_type not in {DigestType.CRC32C, DigestType.MAC}:
            raise ConfigurationError(
                f"digest type {options.digest_type.value}: these bookies have CRC32C and MAC"
            )
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
        encoded = encode_metadata(metadata, password)
        beginnings = await self._begin(metadata, encoded)
        try:
            entry = await self._catalog.create(metadata, password, encoded)
        except AckGateError:
            await self._give_back(metadata)
            raise
        await self._until_kept(beginnings)
        reads = self._reads(entry, options.password)
        return BookieLedgerWriter(entry, self._catalog, self._pool, reads, self._settings)

    async def _begin(self, metadata: LedgerMetadata, encoded: bytes) -> list[Beginning]:
        """Let the ledger's bookies store its origin.

        Raises `ConfigurationError` if one of them has the ledger already.
        """
        origin = LedgerOrigin(metadata.ledger_id, encoded)
        mark = Mark(max(self._catalog.issued_below, origin.ledger_id + 1), self.run)
        bookies = self._bookies_of(metadata)
        beginnings = [bookie.begin(origin, mark) for bookie in bookies]
        refusals = [await beginning.refused for beginning in beginnings]
        for refusal in refusals:
            if refusal is None:
                continue
            await asyncio.gather(
                *(
                    bookie.give_back(origin.ledger_id)
                    for bookie, other in zip(bookies, refusals, strict=True)
                    if other is None
                ),
                return_exceptions=True,
            )
            raise refusal
        return beginnings

    async def _until_kept(self, beginnings: Iterable[Beginning]) -> None:
        """Return when the bookies keep it durably, or cannot now, and will later."""
        for beginning in beginnings:
            error = await beginning.durable
            if isinstance(error, StorageError):
                ledger_id = beginning.origin.ledger_id
                logger.warning("ledger %d: its origin is not written yet: %s", ledger_id, error)
            elif error is not None:
                raise error

    async def _give_back(self, metadata: LedgerMetadata) -> None:
        given_back = (b.give_back(metadata.ledger_id) for b in self._bookies_of(metadata))
        await asyncio.gather(*given_back, return_exceptions=True)

    def _bookies_of(self, metadata: LedgerMetadata) -> list[Bookie]:
        ensemble = metadata.fragments[-1].ensemble
        return [bookie for i in ensemble if (bookie := self._pool.get(i)) is not None]

    async def _choose_ensemble(self, options: LedgerOptions) -> tuple[str, ...]:
        # BookKeeper's opportunistic striping: fewer bookies are enough while some of ours fail.
        size = options.ensemble_size
        is_enough = len(self._pool) + len(self.absent_bookies) >= size
        return await self._pool.ensemble(size, options.write_quorum if is_enough else None)

    async def open(self, ledger_id: int, *, password: bytes = b"") -> ReadHandle[CatalogEntry]:
        self._check_writable()
        entry = await self._catalog.read(ledger_id)
        reads = self._reads(entry, password)
        metadata = await LedgerRecovery(entry, self._catalog, self._pool, reads).run()
        confirmed = await confirmed_of(metadata, reads)
        return ReadHandle(metadata, reads, self._catalog, confirmed)

    async def open_without_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> ReadHandle[CatalogEntry]:
        self._check_open()
        entry = await self._catalog.read(ledger_id)
        reads = self._reads(entry, password)
        confirmed = await confirmed_of(entry.metadata, reads)
        return ReadHandle(entry.metadata, reads, self._catalog, confirmed)

    async def delete(self, ledger_id: int) -> None:
        self._check_writable()
        named = await self._catalog.give_up(ledger_id)
        # The mark of its deletion stays until no file of it is left anywhere.
        if await self._remove_files(ledger_id) and all(map(self._pool.get, named)):
            with contextlib.suppress(NoSuchLedgerError):
                await self._catalog.remove(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        self._check_open()
        return (await self._catalog.read(ledger_id)).metadata

    async def is_empty(self, ledger_id: int) -> bool:
        self._check_open()
        metadata = (await self._catalog.read(ledger_id)).metadata
        if metadata.state is LedgerState.CLOSED:
            return metadata.last_entry_id < 0
        if not all(self._pool.get(each) for f in metadata.fragments for each in f.ensemble):
            return False
        found = await asyncio.gather(*(bookie.last_entries(ledger_id) for bookie in self._pool))
        return not any(found)

    async def announce_deletion(self, ledger_ids: Iterable[int]) -> None:
        self._check_writable()
        for ledger_id in ledger_ids:
            await self._catalog.announce_deletion(ledger_id)

    async def ledger_ids(self) -> list[int]:
        self._check_open()
        return await self._catalog.ledger_ids()

    async def delete_orphans(self) -> list[int]:
        """Finish deletions that a crash, or a bookie that was away, has left unfinished.

        Returns the ledgers. What has no metadata is left alone: nothing says that it was deleted.
        """
        self._check_writable()
        unfinished = []
        for ledger_id in await self._catalog.ledger_ids():
            try:
                await self._catalog.read(ledger_id)
            except LedgerGivenUpError:
                unfinished.append(ledger_id)
            except CorruptRecordError:
                continue
        for ledger_id in unfinished:
            with contextlib.suppress(NoSuchLedgerError):
                await self.delete(ledger_id)
        return unfinished

    async def keep_origins(self) -> int:
        """Bookies that lack the origin of a ledger, or have a damaged one, get it from the metadata.

        Returns how many were written. Ledgers of versions that kept no origins get theirs here, too.
        """
        self._check_writable()
        kept = {bookie: await bookie.readable_origin_ids() for bookie in self._pool}
        written = 0
        for ledger_id in await self._catalog.ledger_ids():
            if all(ledger_id in ids for ids in kept.values()):
                continue
            try:
                entry = await self._catalog.read(ledger_id)
            except (NoSuchLedgerError, CorruptRecordError):
                continue
            for bookie in self._bookies_of(entry.metadata):
                if ledger_id not in kept.get(bookie, ()):
                    written += 1
                    await take_in(bookie, entry)
        if written:
            logger.warning(
                "the origins of %d ledgers were missing, and were written again", written
            )
        return written

    def auditor(self, settings: AuditSettings | None = None, *, password: bytes = b"") -> Auditor:
        """An auditor, which verifies and repairs all copies of all ledgers."""
        self._check_open()
        # Imported late, since most programs never audit.
        from ackgate.persistence.ledgers.auditor import Auditor  # noqa: PLC0415

        return Auditor(self._catalog, self._pool, settings or AuditSettings(), password=password)

    async def close(self) -> None:
        """Close the bookies. Handles that are still open take no more adds."""
        if not self._is_closed:
            self._is_closed = True
            if self._absent is not None:
                await self._absent.close()
            await asyncio.gather(*(bookie.close() for bookie in self._pool))

    async def _remove_files(self, ledger_id: int) -> bool:
        """Remove the ledger's files.

        Returns whether no bookie that is here has any of them left.
        """
        is_gone = True
        for bookie in self._pool:
            try:
                await bookie.delete_ledger(ledger_id)
            except StorageError as error:
                # The next start tries again.
                logger.warning("ledger %d: files not removed: %s", ledger_id, error)
                is_gone = False
        return is_gone

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
