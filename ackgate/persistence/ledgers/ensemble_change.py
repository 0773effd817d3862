"""Another bookie takes the place of one that failed.

Edge. From the entry behind the last add confirmed on, a new fragment with another ensemble. The
ledger's metadata changes first, by compare-and-set, and only if the ledger is still the writer's;
then what is in flight goes to the new bookie. While this is under way the writer confirms nothing,
so that the new fragment begins exactly behind what was confirmed.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ackgate.persistence.ports import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.persistence.ledgers.bookie import Bookie
    from ackgate.persistence.ledgers.bookie_pool import BookiePool
    from ackgate.persistence.ledgers.ledger_catalog import CatalogEntry, LedgerCatalog

logger = logging.getLogger(__name__)


class EnsembleChange(NamedTuple):
    """What was changed."""

    entry: CatalogEntry
    spares: Mapping[int, Bookie]
    """By the place that they take."""


async def change_ensemble(
    entry: CatalogEntry,
    catalog: LedgerCatalog,
    pool: BookiePool,
    lost: Iterable[int],
    last_add_confirmed: int,
) -> EnsembleChange | None:
    """Put spares in as many of the lost places as there are spares; None when there is no spare.

    Raises `MetadataConflictError` when the ledger is somebody else's now, `NoSuchLedgerError`,
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
    fragments = metadata.fragments
    if fragments[-1].first_entry_id == first:
        # Nothing was confirmed in it; its ensemble never counted.
        fragments = fragments[:-1]
    changed = replace(metadata, fragments=(*fragments, Fragment(first, tuple(ensemble))))
    replaced = await catalog.replace(entry, changed)
    logger.warning(
        "ledger %d: from entry %d on it goes to %s", metadata.ledger_id, first, ", ".join(ensemble)
    )
    return EnsembleChange(replaced, spares)
