"""Ledgers that a crash left behind.

They were made, but no node names them yet, or were taken out of their node, but not yet deleted.
Each carries in its custom metadata who it was made for.

Edge. Looks only at ledgers that existed when the broker started, and deletes one only if its
owner's node exists and does not name it, or does not exist at all, now.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ackgate.broker.managed_ledger import TOPIC_PATH_KEY
from ackgate.errors import NoSuchLedgerError
from ackgate.persistence.cursor_ledger import find_orphan_cursor_ledgers
from ackgate.persistence.topic_node import decode_topic_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.parts import BrokerParts

log = logging.getLogger(__name__)


async def delete_orphan_ledgers(parts: BrokerParts, candidates: Sequence[int]) -> list[int]:
    """Delete those of the candidates that are orphans of topics or cursors. Returns their ids.

    `candidates` must be older than every topic that is open: a ledger is made before its node names
    it, so a younger one might be taken for an orphan.
    """
    orphans = await find_orphan_cursor_ledgers(parts.ledger_client, parts.metadata, candidates)
    for ledger_id in candidates:
        if await _is_orphan_of_topic(parts, ledger_id):
            orphans.append(ledger_id)
    for ledger_id in orphans:
        log.warning("ledger %d belongs to nothing and is deleted", ledger_id)
        try:
            await parts.ledger_client.delete(ledger_id)
        except NoSuchLedgerError:
            continue
    return orphans


async def _is_orphan_of_topic(parts: BrokerParts, ledger_id: int) -> bool:
    try:
        about = await parts.ledger_client.metadata(ledger_id)
    except NoSuchLedgerError:
        return False
    path = about.custom_metadata.get(TOPIC_PATH_KEY)
    if path is None:
        return False
    stored = await parts.metadata.get(path.decode())
    if stored is None:
        return True
    node = decode_topic_node(stored.value, path=path.decode())
    return all(record.ledger_id != ledger_id for record in node.ledgers)
