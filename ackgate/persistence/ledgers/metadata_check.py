"""Whether a metadata store is that of its bookies, and not older than they.

Edge: reads both.

*Bookies belong to one cluster*: the metadata store that gave their ledgers' ids away. A second store gives
the same ids away once more, and with one directory in two clusters each would read, fence and delete what is
the other's. So the store has a name of its own, and each bookie keeps the name of the store that used it
first. BookKeeper calls it instance id. A metadata store that was never used cannot be that of bookies with
ledgers: going on would give their ledgers' ids away a second time, and old entries would be served as those
of new ledgers.

*A metadata store that is older than its bookies is refused.* A copy of the store was restored from before
ledgers were written that the bookies hold. Going on would give the ids of those ledgers away a second time:
entries of one topic would be delivered as another's, and ledgers that hold confirmed messages would look like
orphans.

Three things show it, each of them enough:

    the bookie has seen                     the store has                    it was put back to
    a higher next ledger id                 a lower counter of ledger ids    before those ids
    a later run of a broker                 counted fewer runs               before that start
    a ledger with entries, begun and        no node of that ledger           before it was made
      not deleted there

The bookies are asked first, then the store, which is always ahead of what bookies have seen of it. A
follower of ZooKeeper may lag: before a store is called older, something is written to it, and it is asked
again.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, StorageError
from ackgate.persistence.bookies.register import Mark
from ackgate.persistence.ledgers.catalog import LedgerCatalog
from ackgate.persistence.nodes.changes import read_or_create

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.ports import MetadataStore

logger = logging.getLogger(__name__)

CLUSTER_PATH: Final = "/ackgate/cluster"
_NAME_BYTES: Final = 8

COMPARED_PATH: Final = "/ackgate/compared"
"""Written when a store seems older than its bookies, so that what is read next is the newest state."""

_NAMED_MAX: Final = 10
"""Most ledgers that an error names."""

WAY_BACK: Final = (
    "put the newest metadata back, or stop all brokers and run `ackgate ledgers adopt`, which puts what"
    " they have forgotten back under its topics (docs/operations.md, Backup and restore)"
)


# ---- whose bookies they are


async def refuse_known_ledgers(bookies: Iterable[Bookie]) -> None:
    """Raise `ConfigurationError` if bookies hold ledgers: the metadata store is new."""
    for bookie in bookies:
        ledger_ids = await bookie.ledger_ids()
        if ledger_ids:
            raise ConfigurationError(
                f"the metadata store is empty, but bookie {bookie.directory} holds"
                f" {len(ledger_ids)} ledgers: bring back the metadata store (metadata.sqlite of the"
                " data directory, unless metadataStoreUrl says otherwise), or use other directories"
            )


async def known_cluster(metadata: MetadataStore) -> str | None:
    """The store's name; None while it has none. Raises `MetadataStoreError`."""
    stored = await metadata.get(CLUSTER_PATH)
    return stored.value.decode(errors="replace") if stored is not None else None


async def cluster_of(metadata: MetadataStore) -> str:
    """The store's name, given now if it has none yet. Raises `MetadataStoreError`."""
    name = await read_or_create(
        metadata, CLUSTER_PATH, lambda: os.urandom(_NAME_BYTES).hex().encode()
    )
    return name.decode(errors="replace")


async def claim(bookie: Bookie, cluster: str) -> None:
    """Mark it if it is not yet. Raises `ConfigurationError` when it is another cluster's.

    What cannot be marked now, because its disk is full or silent, is marked another time.
    """
    try:
        await bookie.claim(cluster)
    except StorageError as error:
        logger.warning("bookie %s is not marked as this cluster's: %s", bookie.bookie_id, error)


# ---- as new as its bookies


async def refuse_older_metadata(
    metadata: MetadataStore, bookies: Iterable[Bookie], *, counter_path: str
) -> None:
    """Raise `ConfigurationError` if the metadata are older than one of the bookies.

    `counter_path`: the node that counts runs. Raises `StorageError`.
    """
    for bookie in bookies:
        reason = await _why_older(metadata, bookie, counter_path)
        if reason is None:
            continue
        await metadata.put(COMPARED_PATH, b"", expected_version=None)
        reason = await _why_older(metadata, bookie, counter_path)
        if reason is not None:
            raise ConfigurationError(
                f"the metadata store is older than bookie {bookie.directory}: {reason}: {WAY_BACK}"
            )


async def remember_run(metadata: MetadataStore, bookies: Iterable[Bookie], run: int) -> None:
    """Record this run on the bookies. One that cannot write it now gets it with its next ledger."""
    mark = Mark(await LedgerCatalog(metadata).next_id(), run)
    for bookie in bookies:
        try:
            await bookie.raise_mark(mark)
        except StorageError as error:
            logger.warning("bookie %s has not noted run %d yet: %s", bookie.bookie_id, run, error)


async def _why_older(metadata: MetadataStore, bookie: Bookie, counter_path: str) -> str | None:
    mark = bookie.mark
    forgotten = await forgotten_ledgers(metadata, bookie)
    catalog = LedgerCatalog(metadata)
    next_id = await catalog.next_id()
    if mark.next_ledger_id > next_id:
        return (
            f"it has given out ledger ids below {next_id}, the bookie has seen ids up to"
            f" {mark.next_ledger_id - 1}"
        )
    runs = await runs_counted(metadata, counter_path)
    if mark.run > runs:
        counted = f"runs up to {runs}" if runs >= 0 else "no runs"
        return f"it has counted {counted}, the bookie has seen run {mark.run}"
    if forgotten:
        named = ", ".join(map(str, sorted(forgotten)[:_NAMED_MAX]))
        rest = ", ..." if len(forgotten) > _NAMED_MAX else ""
        return f"it does not know {len(forgotten)} ledgers that hold entries there ({named}{rest})"
    return None


async def runs_counted(metadata: MetadataStore, counter_path: str) -> int:
    """The number of the last run; -1: there was none, or it is unknown."""
    stored = await metadata.get(counter_path)
    if stored is None or not stored.value.isdigit():
        return -1
    return int(stored.value)


async def forgotten_ledgers(metadata: MetadataStore, bookie: Bookie) -> set[int]:
    """Ledgers that were begun on the bookie, were not deleted, hold entries, and have no node."""
    stored = await bookie.kept_ledger_ids()
    unknown = stored.difference(await LedgerCatalog(metadata).ledger_ids())
    if unknown:
        # What was deleted meanwhile, by another broker, is not there any more.
        unknown &= await bookie.kept_ledger_ids()
    return {ledger_id for ledger_id in unknown if await bookie.last_entries(ledger_id)}
