"""Ledgers that were made for a cursor and that its node does not name. Edge: reads metadata only.

Whoever makes a ledger names it in the node a moment later; candidates must be older than everybody
who may yet do that: take `LedgerClient.ledger_ids` before the first cursor is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.errors import NoSuchLedgerError
from ackgate.persistence.cursor_node import decode_cursor_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.persistence.cursor_node import CursorNode
    from ackgate.persistence.ports import LedgerClient, MetadataStore


async def find_unnamed(
    client: LedgerClient,
    metadata: MetadataStore,
    candidates: Iterable[int],
    *,
    path_key: str,
    is_named: Callable[[CursorNode, int], bool],
) -> list[int]:
    """Those of the candidates that carry a node's path under `path_key`, and are not named there."""
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
        if found is None or not is_named(decode_cursor_node(found.value, path=path), ledger_id):
            unnamed.append(ledger_id)
    return unnamed
