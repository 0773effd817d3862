"""Ledgers whose owner's node does not name them. Edge: metadata only.

The maker of a ledger names it in the node a moment later, so candidates must be older than every
possible maker: take `LedgerClient.ledger_ids` before the first cursor or journal is opened.

Each maker has a number of its own, which marks its ledgers, and a session. A broker announces itself as
such; a tool that writes beside brokers does it here, by an ephemeral node. ::

    /ackgate/makers/<run>      a tool that is writing; gone with its session

A ledger whose maker has a session is no orphan, although no node may name it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError, NoSuchLedgerError
from ackgate.persistence.nodes.changes import count_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ackgate.persistence.ports import LedgerClient, MetadataStore


RUN_COUNTER_PATH: Final = "/ackgate/runs"
"""Counts starts of brokers, and so says that the store was used; makes generated producer names
unique."""

OPENINGS_PATH: Final = "/ackgate/openings"
"""The same for hosts that embed: each opening is a later owner of all cursors of the store."""

MAKER_KEY: Final = "ackgate/maker"
"""Custom metadata of every ledger: the run of the broker or tool that made it."""

CLUSTER_KEY: Final = "ackgate/cluster"
"""Custom metadata of every ledger on a BookKeeper cluster: the name of the metadata store it belongs to."""

BOOKKEEPER_PATH: Final = "/ackgate/bookkeeper"
"""Names the BookKeeper cluster that keeps the ledgers; there is none where bookies are directories."""

MAKERS: Final = "/ackgate/makers"

DELETION_KEY: Final = "ackgate/to-be-deleted"
"""Custom metadata of a ledger: it is not needed once its owner's node no longer names it."""

ADOPTED_KEY: Final = "ackgate/adopted"
"""Custom metadata of a ledger that was put back after the metadata had forgotten it."""


async def refuse_bookkeeper(metadata: MetadataStore) -> None:
    """Raise `ConfigurationError` where ledgers lie on a BookKeeper cluster, and not in directories."""
    found = await metadata.get(BOOKKEEPER_PATH)
    if found is not None:
        raise ConfigurationError(
            "the ledgers of this metadata store lie on the BookKeeper cluster "
            f"{found.value.decode(errors='replace')}, not in directories: bookkeeperMetadataServiceUri has to"
            " name it"
        )


async def announce_maker(metadata: MetadataStore) -> int:
    """The number of a tool's run, which lives as long as its session does."""
    run = await count_up(metadata, RUN_COUNTER_PATH, first=0)
    await metadata.create(f"{MAKERS}/{run}", b"", ephemeral=True)
    return run


async def announced_makers(metadata: MetadataStore) -> set[int]:
    """Runs of tools whose session lives."""
    names = await metadata.children(MAKERS)
    return {int(name) for name in names if name.isascii() and name.isdigit()}


async def find_unnamed(
    client: LedgerClient,
    metadata: MetadataStore,
    candidates: Iterable[int],
    *,
    path_key: str,
    names: Callable[[bytes, str], Collection[int]],
) -> list[int]:
    """Those of the candidates that carry a node's path under `path_key`, and are not named there.

    `names`: the ledgers that a node names, by its value and its path.
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
        if found is None or ledger_id not in names(found.value, path):
            unnamed.append(ledger_id)
    return unnamed
