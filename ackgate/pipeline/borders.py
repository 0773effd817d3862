"""The last entry of each ledger that may be read.

Edge: asks the bookies of ledgers that nobody closed; nothing is fenced, and a broker that runs does
not notice. ::

    closed                      its last entry
    open, a broker lives        the last add confirmed: what is behind it may vanish yet
    open, its writer is dead    where a recovery would find the end now
    open, a cursor's            the same, alive or not: its newest record is the last entry, and only
                                another one would confirm it
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackgate.errors import NoSuchLedgerError
from ackgate.persistence.ledgers.layout import JOURNAL_DIRECTORY, LOCK_FILE, is_writer_name
from ackgate.persistence.offline_storage import StoragePlaces, opened_storage, quiet_logs
from ackgate.persistence.ports import LedgerState
from ackgate.pipeline.file_locks import is_locked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.persistence.ports import LedgerClient, LedgerMetadata
    from ackgate.pipeline.catalogue import StorageAddress

READS_AT_ONCE_MAX: Final = 200


def last_entries(
    address: StorageAddress, ledgers: Sequence[LedgerMetadata], *, is_cursors: bool = False
) -> dict[int, int]:
    """The last entry of each ledger, -1: none. Of one that is gone by now: -1, too.

    Raises `ConfigurationError`, `StorageError`, `CorruptRecordError`.
    """
    found = {about.ledger_id: about.last_entry_id for about in ledgers}
    open_ones = [about for about in ledgers if about.state is not LedgerState.CLOSED]
    if open_ones:
        with quiet_logs():
            found |= asyncio.run(_of_open(address, open_ones, is_cursors=is_cursors))
    return found


def is_written(bookies: Sequence[Path]) -> bool:
    """Whether somebody writes to one of these bookies' directories."""
    return any(
        is_locked(writer / LOCK_FILE)
        for bookie in bookies
        for writer in (bookie / JOURNAL_DIRECTORY).glob("*")
        if is_writer_name(writer.name)
    )


async def _of_open(
    address: StorageAddress, ledgers: Sequence[LedgerMetadata], *, is_cursors: bool
) -> dict[int, int]:
    bookies = tuple(map(Path, address.bookies))
    places = StoragePlaces(Path(), address.metadata_url, bookies, address.settings)
    is_found = is_cursors or not is_written(bookies)
    found: dict[int, int] = {}
    async with opened_storage(places) as storage:
        for start in range(0, len(ledgers), READS_AT_ONCE_MAX):
            ids = [about.ledger_id for about in ledgers[start : start + READS_AT_ONCE_MAX]]
            asked = (
                _last_entry(storage.client, ledger_id, places.password, is_found=is_found)
                for ledger_id in ids
            )
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
