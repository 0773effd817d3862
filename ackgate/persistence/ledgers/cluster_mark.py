"""Bookies belong to one cluster: the metadata store that gave their ledgers' ids away.

Edge: asks both. A second store gives the same ids away once more, and with one directory in two
clusters each would read, fence and delete what is the other's. So the store has a name of its own,
and each bookie keeps the name of the store that used it first. BookKeeper calls it instance id.

A metadata store that was never used cannot be that of bookies with ledgers: going on would give their
ledgers' ids away a second time, and old entries would be served as those of new ledgers.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, StorageError
from ackgate.persistence.nodes.changes import read_or_create

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.ports import MetadataStore


logger = logging.getLogger(__name__)

CLUSTER_PATH: Final = "/ackgate/cluster"
_NAME_BYTES: Final = 8


async def refuse_known_ledgers(bookies: Iterable[Bookie]) -> None:
    """The metadata store is new: so must they be. Raises `ConfigurationError`."""
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
