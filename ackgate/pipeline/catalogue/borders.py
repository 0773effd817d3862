"""The last entry of each ledger that may be read.

Edge: reads the bookies of open ledgers, without fencing them or disturbing a running broker. ::

    closed                      its last entry
    open, a broker lives        the last add confirmed: later entries may still vanish
    open, its writer is dead    where a recovery would find the end now
    open, on another machine    the last add confirmed: whether its writer lives is unknown here
      or on a BookKeeper cluster
    open, a cursor's            the same, alive or not: its newest record is the last entry, and only
                                another one would confirm it
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, NoSuchLedgerError, StorageError
from ackgate.persistence.bookies.layout import JOURNAL_DIRECTORY, LOCK_FILE, is_writer_name
from ackgate.persistence.bookies.settings import bookie_settings, ledger_client_settings
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.persistence.ledgers.opening import BookieOpener
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata_url import (
    MetadataScheme,
    open_metadata_store,
    parse_metadata_url,
)
from ackgate.persistence.offline_storage import StoragePlaces, opened_storage, quiet_logs
from ackgate.persistence.ports import LedgerState
from ackgate.pipeline.catalogue.nodes import fetched_sqlite
from ackgate.pipeline.schema.addresses import is_remote
from ackgate.pipeline.storage.cluster_entries import ClusterPlace
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.ports import LedgerClient, LedgerMetadata
    from ackgate.pipeline.catalogue.catalogue import StorageAddress

READS_AT_ONCE_MAX: Final = 200
LOCKS: Final = Path("/proc/locks")
"""The machine's table of locks on files."""


def last_entries(
    address: StorageAddress, ledgers: Sequence[LedgerMetadata], *, is_found: bool | None = None
) -> dict[int, int]:
    """The last entry of each ledger, -1: none. Of one that is gone by now: -1, too.

    Of one that nobody closed: the last that is found, or (`is_found` False) confirmed. None: found,
    unless somebody may be writing. Raises `ConfigurationError`, `StorageError`, `CorruptRecordError`.
    """
    if is_found is None:
        is_found = not (address.settings.is_on_bookkeeper or is_written(address.bookies))
    return _asked(address, ledgers, is_found=is_found)


def last_confirmed(address: StorageAddress, ledgers: Sequence[LedgerMetadata]) -> dict[int, int]:
    """As `last_entries`, but never after the last add confirmed, even if all writers are dead."""
    return _asked(address, ledgers, is_found=False)


def is_written(bookies: Sequence[str]) -> bool:
    """Whether somebody writes to one of these bookies' directories, or may: elsewhere nobody knows."""
    return any(
        is_remote(bookie)
        or any(
            is_locked(writer / LOCK_FILE)
            for writer in (Path(bookie) / JOURNAL_DIRECTORY).glob("*")
            if is_writer_name(writer.name)
        )
        for bookie in bookies
    )


def _asked(
    address: StorageAddress, ledgers: Sequence[LedgerMetadata], *, is_found: bool
) -> dict[int, int]:
    found = {about.ledger_id: about.last_entry_id for about in ledgers}
    open_ones = [about.ledger_id for about in ledgers if about.state is not LedgerState.CLOSED]
    if open_ones:
        with quiet_logs():
            found |= asyncio.run(_of_open(address, open_ones, is_found=is_found))
    return found


async def _of_open(
    address: StorageAddress, ledger_ids: Sequence[int], *, is_found: bool
) -> dict[int, int]:
    found: dict[int, int] = {}
    async with opened_ledgers(address) as client:
        for start in range(0, len(ledger_ids), READS_AT_ONCE_MAX):
            ids = ledger_ids[start : start + READS_AT_ONCE_MAX]
            asked = (_last_entry(client, i, address.password, is_found=is_found) for i in ids)
            found.update(zip(ids, await asyncio.gather(*asked), strict=True))
    return found


async def _last_entry(
    client: LedgerClient, ledger_id: int, password: bytes, *, is_found: bool
) -> int:
    try:
        reader = await client.open_without_recovery(ledger_id, password=password)
    except NoSuchLedgerError:
        return -1
    try:
        return await reader.last_entry_found() if is_found else reader.last_add_confirmed
    finally:
        await reader.close()


@contextlib.asynccontextmanager
async def opened_ledgers(address: StorageAddress) -> AsyncIterator[LedgerClient]:
    """A client of these bookies that changes nothing. Those that cannot be opened are left out.

    Raises `ConfigurationError`, `MetadataStoreError`.
    """
    if address.settings.is_on_bookkeeper:
        cluster = await ClusterPlace(address.settings).connect()
        try:
            yield cluster
        finally:
            await cluster.close()
        return
    if not address.is_remote:
        bookies = tuple(map(Path, address.bookies))
        places = StoragePlaces(Path(), address.metadata_url, bookies, address.settings)
        async with opened_storage(places) as storage:
            yield storage.client
        return
    settings = address.settings
    async with contextlib.AsyncExitStack() as stack:
        scheme, where = parse_metadata_url(address.metadata_url)
        url = address.metadata_url
        if scheme is MetadataScheme.SQLITE and is_remote(where):
            url = f"sqlite:{stack.enter_context(fetched_sqlite(where))}"
        metadata = await open_metadata_store(
            url, read_only=True, session=SessionOptions.of(settings)
        )
        stack.push_async_callback(metadata.close)
        opened: list[Bookie] = []
        for bookie in address.bookies:
            disk, directory = place_of(bookie)
            opener = BookieOpener(settings=bookie_settings(settings), is_read_only=True, disk=disk)
            with contextlib.suppress(StorageError, ConfigurationError):
                opened.append(await opener.open(directory))
        client = BookieLedgerClient(
            opened, metadata, settings=ledger_client_settings(settings), on_bad_copy=lambda _: None
        )
        stack.push_async_callback(client.close)
        yield client


def is_locked(path: Path, locks: Path = LOCKS) -> bool:
    """Whether some process holds the lock of this file.

    Takes no lock to find out, so it delays no process that wants it. Without a table of locks, every lock
    counts as held.
    """
    try:
        about = path.stat()
    except FileNotFoundError:
        return False
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return True
    name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    return any(name in line.split() for line in lines)
