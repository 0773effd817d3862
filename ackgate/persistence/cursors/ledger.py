"""Cursor ledgers: made, removed, and found again after a crash.

Edge: the ledger client. Each ledger names its cursor in its custom metadata, so that one which no node
refers to any more can be recognised and deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ackgate.errors import AckGateError, NoSuchLedgerError
from ackgate.persistence.cursors.node import ledgers_of_cursor
from ackgate.persistence.nodes.unnamed_ledgers import find_unnamed
from ackgate.persistence.ports import LedgerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.ports import LedgerClient, MetadataStore

log = logging.getLogger(__name__)

CURSOR_PATH_KEY: Final = "ackgate/cursor"
"""Custom metadata: the node of the cursor that a ledger belongs to."""


OWNER_EPOCH_KEY: Final = "ackgate/owner-epoch"
"""Custom metadata: the owner of the cursor that made the ledger."""


def ledger_options(
    path: str, settings: PersistenceSettings, *, owner_epoch: int | None = None
) -> LedgerOptions:
    """How the ledger of the cursor at `path` is to be stored."""
    made_by = {} if owner_epoch is None else {OWNER_EPOCH_KEY: str(owner_epoch).encode()}
    custom = {
        "application": b"ackgate",
        "component": b"cursor",
        CURSOR_PATH_KEY: path.encode(),
        **made_by,
    }
    return LedgerOptions.of(settings, custom)


async def delete_ledger(client: LedgerClient, ledger_id: int) -> bool:
    """Delete a ledger that nothing refers to. False when that must be tried again later."""
    try:
        await client.delete(ledger_id)
    except NoSuchLedgerError:
        return True
    except AckGateError as error:
        log.warning("cursor ledger %d could not be deleted yet: %s", ledger_id, error)
        return False
    return True


async def find_orphan_cursor_ledgers(
    client: LedgerClient, metadata: MetadataStore, candidates: Iterable[int]
) -> list[int]:
    """Those of the candidates that are cursor ledgers and that their cursor's node does not name."""
    return await find_unnamed(
        client, metadata, candidates, path_key=CURSOR_PATH_KEY, names=ledgers_of_cursor
    )
