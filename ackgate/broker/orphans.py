"""Finds and deletes ledgers that a crash left without an owner.

They were made before any node named them, or removed from their node before they were deleted.
The custom metadata of each name its owner, and the run of the broker that made it.

Edge. Between the making of a ledger and its naming there is a moment, which lasts as long as a
process is stopped; such a ledger is no orphan. So the search goes in this order:

1. Which ledgers are there? (before this broker makes any)
2. Which runs of brokers (and of tools that write beside them) have a session now? A maker that is not
   among them can no longer name a ledger: its requests belong to an expired session, and are
   rejected.
3. Of those whose maker is gone: which are not named by their owner's node?
4. Of those: which are empty, or were given up, as the metadata prove (`given_up`)? Those are deleted.
   The log names all others.

A ledger without a maker's mark was made before there were several brokers, by one that is gone.
The orphans of a broker that lost its session and still runs are deleted after its end, when another
starts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ackgate.errors import LedgerGivenUpError, NoSuchLedgerError
from ackgate.persistence.buckets.snapshots import find_orphan_snapshots
from ackgate.persistence.cursors.ledger import find_orphan_cursor_ledgers
from ackgate.persistence.deliveries.journal import find_orphan_journals
from ackgate.persistence.ledger_owner import is_given_up
from ackgate.persistence.nodes.owner_nodes import BROKERS, decode_broker
from ackgate.persistence.nodes.topic_node import TOPIC_PATH_KEY, decode_topic_node
from ackgate.persistence.nodes.unnamed_ledgers import MAKER_KEY, announced_makers
from ackgate.persistence.ports import DigestType, Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.topic import SharedServices

log = logging.getLogger(__name__)

READS_AT_ONCE_MAX: Final = 50
"""Ledgers that are checked at the same time; nothing waits for this."""

PAUSES_SECONDS: Final = (2.0, 4.0, 8.0, 30.0, 60.0)
"""Waits between looks at ledgers not yet given up. A cursor's ledger is given up once a later owner
has opened the cursor; this broker may become that owner."""

_GIVEN_UP: Final = LedgerMetadata(
    -1, LedgerState.CLOSED, 1, 1, 1, DigestType.CRC32C, (Fragment(0, ("",)),), -1, 0, 0
)
"""Stands for the metadata of a ledger whose deletion was begun."""


async def delete_orphan_ledgers(
    services: SharedServices,
    candidates: Sequence[int],
    *,
    run: int | None = None,
    pauses: Sequence[float] = PAUSES_SECONDS,
) -> list[int]:
    """Delete those of the candidates that are orphans of topics or cursors. Returns their ids.

    Snapshots of delayed entries are cursors', too, and delivery journals are topics'. Ledgers of runs
    after `run` (the broker's own) are left to a later start. What is not proved to be given up is looked
    at again after each of the pauses, and kept in the end.
    """
    living = await _living_runs(services)
    deleted: list[int] = []
    unnamed: list[int] = []
    for start in range(0, len(candidates), READS_AT_ONCE_MAX):
        group = candidates[start : start + READS_AT_ONCE_MAX]
        found = await asyncio.gather(*(_metadata(services, ledger_id) for ledger_id in group))
        unfinished = [i for i, about in zip(group, found, strict=True) if about is _GIVEN_UP]
        await _delete(services, unfinished)
        deleted += unfinished
        left = [
            about
            for about in found
            if about is not None
            and about is not _GIVEN_UP
            and _run_of(about) not in living
            and (run is None or (_run_of(about) or 0) <= run)
        ]
        unnamed += await _unnamed(services, left)
    for pause in (0.0, *pauses):
        if not unnamed:
            return deleted
        if pause:
            await asyncio.sleep(pause)
        found = await asyncio.gather(*(_metadata(services, ledger_id) for ledger_id in unnamed))
        left = [about for about in found if about is not None and about is not _GIVEN_UP]
        unnamed = await _unnamed(services, left)
        given_up = [
            about.ledger_id
            for about in left
            if about.ledger_id in unnamed
            and await is_given_up(services.ledger_client, services.metadata, about)
        ]
        await _delete(services, given_up)
        deleted += given_up
        unnamed = [ledger_id for ledger_id in unnamed if ledger_id not in given_up]
    log.warning(
        "ledgers %s hold entries and are named by nothing, and the metadata do not say that they were"
        " given up: they are kept (`ackgate ledgers adopt` puts them back)",
        ", ".join(map(str, unnamed)),
    )
    return deleted


async def _delete(services: SharedServices, ledger_ids: Sequence[int]) -> None:
    for ledger_id in ledger_ids:
        log.warning("ledger %d belongs to nothing and is deleted", ledger_id)
        try:
            await services.ledger_client.delete(ledger_id)
        except NoSuchLedgerError:
            continue


async def _unnamed(services: SharedServices, found: Sequence[LedgerMetadata]) -> list[int]:
    """The ledgers that their owner's node does not name."""
    client, metadata = services.ledger_client, services.metadata
    are_orphans = await asyncio.gather(*(_is_orphan_of_topic(services, about) for about in found))
    ids = [about.ledger_id for about in found]
    return [
        *(ledger_id for ledger_id, is_it in zip(ids, are_orphans, strict=True) if is_it),
        *await find_orphan_cursor_ledgers(client, metadata, ids),
        *await find_orphan_snapshots(client, metadata, ids),
        *await find_orphan_journals(client, metadata, ids),
    ]


async def _living_runs(services: SharedServices) -> set[int]:
    """Runs of brokers and tools whose session lives, as the metadata store has it now."""
    runs = await announced_makers(services.metadata)
    for node in await services.metadata.children(BROKERS):
        path = f"{BROKERS}/{node}"
        found = await services.metadata.get(path)
        if found is not None:
            runs.add(decode_broker(found.value, path=path).run)
    return runs


def _run_of(about: LedgerMetadata) -> int | None:
    mark = about.custom_metadata.get(MAKER_KEY)
    return int(mark) if mark is not None else None


async def _metadata(services: SharedServices, ledger_id: int) -> LedgerMetadata | None:
    """The ledger's metadata; None when it was deleted."""
    try:
        return await services.ledger_client.metadata(ledger_id)
    except LedgerGivenUpError:
        return _GIVEN_UP
    except NoSuchLedgerError:
        return None


async def _is_orphan_of_topic(services: SharedServices, about: LedgerMetadata) -> bool:
    path = about.custom_metadata.get(TOPIC_PATH_KEY)
    if path is None:
        return False
    stored = await services.metadata.get(path.decode())
    if stored is None:
        return True
    node = decode_topic_node(stored.value, path=path.decode())
    return all(record.ledger_id != about.ledger_id for record in node.ledgers)
