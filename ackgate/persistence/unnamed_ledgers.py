"""Ledgers that were made for somebody whose node does not name them. Edge: reads metadata only.

Whoever makes a ledger names it in the node a moment later; candidates must be older than everybody
who may yet do that: take `LedgerClient.ledger_ids` before the first cursor or journal is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.errors import NoSuchLedgerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.persistence.ports import LedgerClient, MetadataStore


async def find_unnamed(
    client: LedgerClient,
    metadata: MetadataStore,
    candidates: Iterable[int],
    *,
    path_key: str,
    is_named: Callable[[bytes, str, int], bool],
) -> list[int]:
    """Those of the candidates that carry a node's path under `path_key`, and are not named there.

    `is_named` is asked with the node's value, its path and the ledger.
    """
    unnamed = []
    for ledger_id in candidates:
        try:
            about = await client.metadata(ledger_id)
        except NoSuchLedgerError:
            continue
        stored_path = about.custom_metadata.get(path_key)
        if stored_path is None:
            continue
        path = stored_path.decode()
        found = await metadata.get(path)
        if found is None or not is_named(found.value, path, ledger_id):
            unnamed.append(ledger_id)
    return unnamed
