"""The ledgers that a tool looks at: a broker's directories, or a real BookKeeper cluster.

Read-only.

Edge. ``--metadata zk+hierarchical://HOST:PORT/ledgers`` names a cluster, or the broker's settings
do (`bookkeeperMetadataServiceUri`). Nothing is written to its ZooKeeper, and nothing is fenced.
Session, ledger password, and authentication at the bookies come from the broker's settings
(``--config FILE``, or the environment).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError, MetadataStoreError
from ackgate.extras import named_extras
from ackgate.persistence.offline_storage import on_cluster, opened_storage, places_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from ackgate.bookkeeper import BookKeeperClient
    from ackgate.persistence.offline_storage import OfflineStorage
    from ackgate.persistence.ports import LedgerClient


class OpenedLedgers(NamedTuple):
    """Ledgers opened for reading. One of `storage` and `cluster` is None."""

    client: LedgerClient
    password: bytes
    storage: OfflineStorage | None
    cluster: BookKeeperClient | None

    @property
    def left_out(self) -> Mapping[Path, str]:
        """Bookie directories that could not be opened, with the reason."""
        return self.storage.left_out if self.storage is not None else {}


@contextlib.asynccontextmanager
async def opened_ledgers(arguments: argparse.Namespace) -> AsyncIterator[OpenedLedgers]:
    """Open what the command line names; closed when the context ends.

    Raises `ConfigurationError` (also for a cluster that does not answer), `MetadataStoreError`.
    """
    settings = load_settings(arguments.config, is_serving=False).settings.persistence
    settings = on_cluster(settings, arguments.metadata)
    if not settings.is_on_bookkeeper:
        async with opened_storage(places_of(arguments)) as storage:
            yield OpenedLedgers(storage.client, storage.places.password, storage, None)
        return
    uri = settings.bookkeeper_metadata_service_uri
    for option in ("data_dir", "metadata_url", "bookies"):
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise ConfigurationError(f"{uri} is a BookKeeper cluster; --{name} is not of one")
    with named_extras("bookkeeper"):
        from ackgate.persistence.bookkeeper import (  # noqa: PLC0415 - only where it is wanted
            BookKeeperClient,
        )
    try:
        cluster = await BookKeeperClient.connect_with(settings, is_read_only=True)
    except MetadataStoreError as error:
        raise ConfigurationError(f"--metadata {uri}: {error}") from error
    try:
        yield OpenedLedgers(cluster, settings.ledger_password, None, cluster)
    finally:
        await cluster.close()
