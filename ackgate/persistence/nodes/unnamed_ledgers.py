"""Ledgers whose owner's node does not name them. Edge: metadata only.

The maker of a ledger names it in the node a moment later, so candidates must be older than every
possible maker: take `LedgerClient.ledger_ids` before the first cursor or journal is opened.

Each maker has a number of its own, which marks its ledgers, and a session. A broker announces itself as
such; a tool that writes beside brokers does it here, by an ephemeral node. ::

    /ackgate/makers/<run>      a tool that is writing; gone with its session

A ledger whose maker has a session is no orphan, although no node may name it yet.
"""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    NoSuchLedgerError,
    NoSuchNodeError,
)
from ackgate.persistence.nodes.changes import change_node, count_up
from ackgate.persistence.nodes.paths import ledger_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.persistence.ports import LedgerClient, MetadataStore


RUN_COUNTER_PATH: Final = "/ackgate/runs"
"""Counts starts of brokers, and so says that the store was used; makes generated producer names
unique."""

MAKER_KEY: Final = "ackgate/maker"
"""Custom metadata of every ledger: the run of the broker or tool that made it."""

MAKERS: Final = "/ackgate/makers"

DELETION_KEY: Final = "ackgate/to-be-deleted"
"""Custom metadata of a ledger: it is not needed once its owner's node no longer names it."""

ADOPTED_KEY: Final = "ackgate/adopted"
"""Custom metadata of a ledger that was put back after the metadata had forgotten it."""

_ANNOUNCEMENTS_MAX: Final = 100
"""Races with auditors and recoveries lost in a row: more than there are."""


async def announce_maker(metadata: MetadataStore) -> int:
    """The number of a tool's run, which lives as long as its session does."""
    run = await count_up(metadata, RUN_COUNTER_PATH, first=0)
    await metadata.create(f"{MAKERS}/{run}", b"", ephemeral=True)
    return run


async def announced_makers(metadata: MetadataStore) -> set[int]:
    """Runs of tools whose session lives."""
    names = await metadata.children(MAKERS)
    return {int(name) for name in names if name.isascii() and name.isdigit()}


async def announce_deletion(metadata: MetadataStore, ledger_ids: Iterable[int]) -> None:
    """Write into the ledgers' own nodes that they are about to be deleted.

    Their owner removes them from its node only after that: so the ledger itself proves that it was
    given up. Raises `StorageError`.
    """
    for ledger_id in ledger_ids:
        with contextlib.suppress(NoSuchNodeError):
            await change_node(
                metadata,
                ledger_path(ledger_id),
                _with_deletion,
                attempts_max=_ANNOUNCEMENTS_MAX,
            )


def _with_deletion(value: bytes | None) -> bytes | None:
    fields = json.loads(value) if value is not None else None
    if fields is None or DELETION_KEY in fields["custom"]:
        return None
    fields["custom"][DELETION_KEY] = base64.b64encode(b"1").decode()
    return json.dumps(fields, separators=(",", ":")).encode()


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
