"""Ledgers that a crash left behind.

They were made, but no node names them yet, or were taken out of their node, but not yet deleted.
Each carries in its custom metadata who it was made for, and by which run of a broker.

Edge. Between the making of a ledger and its naming lies a moment, which a stopped process can draw
out for ever; other brokers must not take such a ledger for an orphan. So it is asked, in this
order:

1. Which ledgers are there? (before this broker makes any)
2. Which runs of brokers (and of tools that write beside them) have a session now? A maker that is not
   among them can name nothing more: what it still sends belongs to a session that is over, and is
   refused.
3. Of those whose maker is gone: which does their owner's node not name? Those are deleted.

A ledger without a maker's mark was made before there were several brokers, by one that is gone.
What a broker that lives on has left behind (its session was lost in between) goes when it has ended
and another starts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ackgate.errors import NoSuchLedgerError
from ackgate.persistence.bucket_snapshots import find_orphan_snapshots
from ackgate.persistence.cursor_ledger import find_orphan_cursor_ledgers
from ackgate.persistence.delivery_journal import find_orphan_journals
from ackgate.persistence.ledgers.makers import MAKER_KEY, announced_makers
from ackgate.persistence.owner_nodes import BROKERS, decode_broker
from ackgate.persistence.topic_node import TOPIC_PATH_KEY, decode_topic_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.parts import BrokerParts
    from ackgate.persistence.ports import LedgerMetadata

log = logging.getLogger(__name__)

READS_AT_ONCE_MAX: Final = 50
"""Ledgers that are looked at at the same time: this is nothing that anybody waits for."""


async def delete_orphan_ledgers(parts: BrokerParts, candidates: Sequence[int]) -> list[int]:
    """Delete those of the candidates that are orphans of topics or cursors. Returns their ids.

    Snapshots of delayed entries are cursors', too, and delivery journals are topics'.
    """
    living = await _living_runs(parts)
    orphans: list[int] = []
    for start in range(0, len(candidates), READS_AT_ONCE_MAX):
        group = candidates[start : start + READS_AT_ONCE_MAX]
        found = await asyncio.gather(*(_metadata(parts, ledger_id) for ledger_id in group))
        left = [about for about in found if about is not None and _run_of(about) not in living]
        are_orphans = await asyncio.gather(*(_is_orphan_of_topic(parts, about) for about in left))
        orphans += [
            about.ledger_id for about, is_orphan in zip(left, are_orphans, strict=True) if is_orphan
        ]
        ids = [about.ledger_id for about in left]
        orphans += await find_orphan_cursor_ledgers(parts.ledger_client, parts.metadata, ids)
        orphans += await find_orphan_snapshots(parts.ledger_client, parts.metadata, ids)
        orphans += await find_orphan_journals(parts.ledger_client, parts.metadata, ids)
    for ledger_id in orphans:
        log.warning("ledger %d belongs to nothing and is deleted", ledger_id)
        try:
            await parts.ledger_client.delete(ledger_id)
        except NoSuchLedgerError:
            continue
    return orphans


async def _living_runs(parts: BrokerParts) -> set[int]:
    """Runs of brokers and tools whose session lives, as the metadata store has it now."""
    runs = await announced_makers(parts.metadata)
    for node in await parts.metadata.children(BROKERS):
        path = f"{BROKERS}/{node}"
        found = await parts.metadata.get(path)
        if found is not None:
            runs.add(decode_broker(found.value, path=path).run)
    return runs


def _run_of(about: LedgerMetadata) -> int | None:
    mark = about.custom_metadata.get(MAKER_KEY)
    return int(mark) if mark is not None else None


async def _metadata(parts: BrokerParts, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await parts.ledger_client.metadata(ledger_id)
    except NoSuchLedgerError:
        return None


async def _is_orphan_of_topic(parts: BrokerParts, about: LedgerMetadata) -> bool:
    path = about.custom_metadata.get(TOPIC_PATH_KEY)
    if path is None:
        return False
    stored = await parts.metadata.get(path.decode())
    if stored is None:
        return True
    node = decode_topic_node(stored.value, path=path.decode())
    return all(record.ledger_id != about.ledger_id for record in node.ledgers)
