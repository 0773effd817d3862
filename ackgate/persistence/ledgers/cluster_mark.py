"""Bookies belong to one cluster: the metadata store that gave their ledgers' ids away.

Edge: asks both. A second store gives the same ids away once more, and with one directory in two
clusters each would read, fence and delete what is the other's. So the store has a name of its own,
and each bookie keeps the name of the store that used it first. BookKeeper calls it instance id.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from ackgate.errors import StorageError
from ackgate.persistence.metadata.changes import read_or_create

if TYPE_CHECKING:
    from ackgate.persistence.ledgers.bookie import Bookie
    from ackgate.persistence.ports import MetadataStore

logger = logging.getLogger(__name__)

CLUSTER_PATH: Final = "/ackgate/cluster"
_NAME_BYTES: Final = 8


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
