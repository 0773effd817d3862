"""Replaces a failed bookie in the ensemble of an open ledger.

Edge. A new fragment with another ensemble begins after the last add confirmed. The ledger's metadata
change first, by compare-and-set, and only if the writer still owns the ledger; then the entries in
flight go to the new bookie. Until then the writer confirms nothing, so the new fragment begins
exactly after the last confirmed entry.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ackgate.errors import StorageError
from ackgate.persistence.bookies.origins import LedgerOrigin
from ackgate.persistence.ledgers.catalog import encode_metadata
from ackgate.persistence.ledgers.handles import change_as_writer
from ackgate.persistence.ledgers.quorum import with_fragment
from ackgate.persistence.ports import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.catalog import CatalogEntry
    from ackgate.persistence.ledgers.handles import Catalog
    from ackgate.persistence.ports import LedgerMetadata

logger = logging.getLogger(__name__)


class EnsembleChange(NamedTuple):
    """The ledger's new metadata, and the spares that took lost places."""

    entry: CatalogEntry
    spares: Mapping[int, Bookie]
    """By the place that they take."""


async def change_ensemble(
    entry: CatalogEntry,
    catalog: Catalog[CatalogEntry],
    pool: BookiePool,
    lost: Iterable[int],
    last_add_confirmed: int,
) -> EnsembleChange | None:
    """Put spares in as many of the lost places as there are spares; None when there is no spare.

    Raises `MetadataConflictError` when the ledger has another owner now, `NoSuchLedgerError`,
    `MetadataStoreError`.
    """
    metadata = entry.metadata
    ensemble = list(metadata.fragments[-1].ensemble)
    spares: dict[int, Bookie] = {}
    for place in sorted(lost):
        spare = await pool.spare(ensemble)
        if spare is None:
            break
        ensemble[place] = spare.bookie_id
        spares[place] = spare
    if not spares:
        return None
    first = last_add_confirmed + 1

    fragment = Fragment(first, tuple(ensemble))

    def changed(found: LedgerMetadata) -> LedgerMetadata:
        return replace(found, fragments=with_fragment(found.fragments, fragment))

    replaced = await change_as_writer(entry, catalog, changed)
    logger.warning(
        "ledger %d: entries from %d on are written to %s",
        metadata.ledger_id,
        first,
        ", ".join(ensemble),
    )
    return EnsembleChange(replaced, spares)


async def take_in(bookie: Bookie, entry: CatalogEntry) -> None:
    """Let a bookie that gets a ledger later in its life store the ledger's origin."""
    value = encode_metadata(entry.metadata, entry.password)
    try:
        await bookie.take_in(LedgerOrigin(entry.metadata.ledger_id, value))
    except StorageError as error:
        logger.warning("ledger %d: its origin is not written: %s", entry.metadata.ledger_id, error)
