"""Ack state in one directory: what a host opens that embeds cursors and has no broker.

Edge: owns the metadata store, the bookie and the cursor stores that are opened through it. ::

    async with open_embedded(directory) as storage:
        store = await storage.open_cursor("orders", "billing", ledgers, create_at=Position(0, -1))
        store.cursor.ack(Position(0, 41))
        await until_durable(store)

`ledgers` are the host's: they say which messages exist. A host that keeps its messages here too
writes them through `EmbeddedStorage.ledger_client`.

Leaving the block writes what is dirty. A process that ends otherwise loses what was not durable,
and nothing else. One process at a time: a second one gets `DataDirectoryBusyError`.

A directory that a broker has used is refused, as is one whose metadata store is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from ackgate.config.persistence import PersistenceSettings
from ackgate.errors import CallerError, ConfigurationError
from ackgate.persistence.cursor_ledger import find_orphan_cursor_ledgers
from ackgate.persistence.cursor_store import CursorStore
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies, wall_clock_ms
from ackgate.persistence.ledgers.lost_metadata import refuse_known_ledgers
from ackgate.persistence.limits import bookie_settings, ledger_client_settings
from ackgate.persistence.metadata.changes import count_up
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.paths import cursor_path, topic_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from ackgate.cursor.message_ledgers import MessageLedgers
    from ackgate.cursor.position import Position
    from ackgate.persistence.ports import LedgerClient, MetadataStore

OPENINGS_PATH: Final = "/ackgate/openings"
"""Counts how often the directory was opened: each opening is a later owner of all its cursors."""


class EmbeddedStorage:
    """The stores of one directory. Made by `open_embedded`."""

    __slots__ = ("_epoch", "_opened", "_stack", "ledger_client", "metadata", "settings")

    def __init__(
        self,
        metadata: MetadataStore,
        ledger_client: LedgerClient,
        settings: PersistenceSettings,
        *,
        epoch: int,
        stack: AsyncExitStack,
    ) -> None:
        self.metadata = metadata
        self.ledger_client = ledger_client
        self.settings = settings
        self._epoch = epoch
        self._stack = stack
        self._opened: set[str] = set()

    async def open_cursor(
        self,
        topic: str,
        name: str,
        ledgers: MessageLedgers,
        *,
        create_at: Position | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> CursorStore:
        """Recover the cursor `name` of `topic`, or make it with `create_at` as its mark-delete.

        Each cursor is opened once and closed with the storage. `properties` are attached to a new
        one. Raises `NoSuchNodeError` (none, and not to be made), `CallerError` (open already),
        `StorageError`, `CorruptRecordError`.
        """
        path = cursor_path(topic_path("embedded", "default", topic), name)
        if path in self._opened:
            raise CallerError(f"cursor {name!r} of {topic!r} is open already")
        self._opened.add(path)
        try:
            store = await CursorStore.open(
                path=path,
                ledgers=ledgers,
                ledger_client=self.ledger_client,
                metadata=self.metadata,
                settings=self.settings,
                batch_index_acks=True,
                owner_epoch=self._epoch,
                clock_ms=wall_clock_ms,
                create_at=create_at,
                cursor_properties=properties,
            )
        except BaseException:
            self._opened.remove(path)
            raise
        self._stack.push_async_callback(store.close)
        return store


@asynccontextmanager
async def open_embedded(
    directory: Path, *, settings: PersistenceSettings | None = None
) -> AsyncIterator[EmbeddedStorage]:
    """Open the directory, made if absent, and replay what a crash left in its journal.

    Raises `DataDirectoryBusyError`, `ConfigurationError`, `StorageError`.
    """
    settings = settings or PersistenceSettings()
    try:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"directory {directory} cannot be used: {error.strerror or error}"
        ) from error
    async with AsyncExitStack() as stack:
        metadata = await SqliteMetadataStore.open(
            directory / "metadata.sqlite", node_bytes_max=settings.metadata_store_max_node_bytes
        )
        stack.push_async_callback(metadata.close)
        bookies = await open_bookies(
            settings.bookie_paths(directory), settings=bookie_settings(settings)
        )
        client = BookieLedgerClient(bookies, metadata, settings=ledger_client_settings(settings))
        stack.push_async_callback(client.close)
        if await metadata.get(OPENINGS_PATH) is None:
            await refuse_known_ledgers(bookies)
        opening = await count_up(metadata, OPENINGS_PATH, first=1)
        known = await client.ledger_ids()
        for orphan in await find_orphan_cursor_ledgers(client, metadata, known):
            await client.delete(orphan)
        yield EmbeddedStorage(metadata, client, settings, epoch=opening, stack=stack)


async def until_durable(store: CursorStore) -> None:
    """Return when everything that is acked now survives a crash.

    Raises `PersistTimeoutError` when that takes longer than `ackReceiptTimeoutSeconds` (the store
    goes on trying), `CursorClosedError`, `OwnershipError`.
    """
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if durable.done():  # nobody waits any more
            return
        if error is None:
            durable.set_result(None)
        else:
            durable.set_exception(error)

    store.when_durable(store.cursor.version, done)
    store.notify()
    await durable
