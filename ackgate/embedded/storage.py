"""Topics and cursors in one directory: what a host opens that has no broker.

Edge: owns the metadata store, the bookie, and everything that is opened through it. ::

    async with open_embedded("data") as storage:
        topic = await storage.topic("orders")
        subscription = await topic.subscribe("billing", kind=Shared(), gate=GateSettings(enabled=True))
        consumer = subscription.attach("alice")
        await topic.publish([b"order 1", b"order 2"])
        async for message in consumer:
            await consumer.ack(message)

`open_cursor` is the lower door: a durable cursor alone, for a host that dispatches by itself.

Leaving the block writes what is dirty; after that nothing takes acks. A process that ends otherwise loses
what was not durable, and nothing else. One process at a time: a second one gets `DataDirectoryBusyError`.

A directory that a broker has used is refused, as is one whose metadata store is gone, or was put back to an
older state than its bookies are in. Ledgers that a crash left without a name (of cursors, of buckets of
delayed entries, of messages) are deleted at the opening.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.config.persistence import PersistenceSettings
from ackgate.cursor import MessageLedgers
from ackgate.embedded.topic import EmbeddedTopic
from ackgate.errors import CallerError, ClosedHandleError, ConfigurationError
from ackgate.persistence.bookies.settings import bookie_settings, ledger_client_settings
from ackgate.persistence.buckets.snapshots import find_orphan_snapshots
from ackgate.persistence.cursors.ledger import find_orphan_cursor_ledgers
from ackgate.persistence.cursors.store import CursorStore
from ackgate.persistence.ledger_owner import is_given_up
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies, wall_clock_ms
from ackgate.persistence.ledgers.metadata_check import (
    refuse_known_ledgers,
    refuse_older_metadata,
    remember_run,
)
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.messages.rules import Retention
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.nodes.changes import count_up
from ackgate.persistence.nodes.paths import cursor_path, embedded_topic_path, name_of_node
from ackgate.persistence.nodes.topic_node import TOPIC_PATH_KEY, ledgers_of_topic
from ackgate.persistence.nodes.unnamed_ledgers import OPENINGS_PATH, find_unnamed
from ackgate.persistence.ports import LedgerOptions
from ackgate.persistence.system.data_directory import make_private_directory
from ackgate.persistence.system.platform_files import require_supported_platform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from ackgate.cursor import Position
    from ackgate.embedded.message import TopicEntry
    from ackgate.embedded.topic import HostRead
    from ackgate.persistence.ports import LedgerClient, MetadataStore
    from ackgate.persistence.records.outcome import PersistOutcome

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for messages that were written lately, over all topics."""


class EmbeddedStorage:
    """The topics and cursors of one directory. Made by `open_embedded`; belongs to its event loop."""

    def __init__(
        self,
        metadata: MetadataStore,
        ledger_client: LedgerClient,
        settings: PersistenceSettings,
        *,
        epoch: int,
        clock_ms: Callable[[], int],
    ) -> None:
        self.metadata = metadata
        self.ledger_client = ledger_client
        self.settings = settings
        self.now_ms = clock_ms
        """Milliseconds since 1970."""
        self.cache: EntryCache[TopicEntry] = EntryCache(CACHE_BYTES_MAX)
        self._epoch = epoch
        self._loop = asyncio.get_running_loop()
        self._opened: set[str] = set()
        self._topics: dict[str, EmbeddedTopic] = {}
        self._opening: set[str] = set()
        self._cursors: list[CursorStore] = []
        self._is_closed = False

    @property
    def ledger_options(self) -> LedgerOptions:
        """How message ledgers are stored."""
        return LedgerOptions.of(self.settings)

    # ---------------------------------------------------------------- what hosts call

    async def topic(
        self,
        name: str,
        *,
        ledgers: MessageLedgers | None = None,
        read: HostRead | None = None,
        retention: Retention | None = None,
    ) -> EmbeddedTopic:
        """Open a topic, made if absent; one that is open already is returned as it is.

        Its messages are kept here, unless the host passes `ledgers`, which say which messages there are:
        then `read` (spans to entries, in order) returns what consumers get as `message.entry`; without it
        they get positions only. `retention`: how long messages stay that every subscription has acked.

        Raises `CallerError`, `StorageError`, `OwnershipError`, `CorruptRecordError`.
        """
        self.check()
        _check_name("topic", name)
        if ledgers is not None and not isinstance(ledgers, MessageLedgers):
            raise CallerError(f"ledgers are MessageLedgers, not {ledgers!r}")
        if read is not None and (ledgers is None or not callable(read)):
            raise CallerError("`read` is a function, and goes with the host's `ledgers`")
        retention = Retention() if retention is None else retention
        if not isinstance(retention, Retention):
            raise CallerError(f"retention is a Retention, not {retention!r}")
        known = self._topics.get(name)
        if known is not None:
            if ledgers is not None and ledgers is not known.message_ledgers:
                raise CallerError(f"topic {name!r} is open already, with other ledgers")
            return known
        if name in self._opening:
            raise CallerError(f"topic {name!r} is being opened")
        topic = EmbeddedTopic(self, name, ledgers=ledgers, read=read, retention=retention)
        self._opening.add(name)
        try:
            await topic.open()
        finally:
            self._opening.discard(name)
        if self._is_closed:  # in the meantime
            await topic.close()
            self.check()
        self._topics[name] = topic
        return topic

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

        The host keeps the messages, and dispatches them. Each cursor is opened once and closed with the
        storage. `properties` are attached to a new one. Raises `NoSuchNodeError` (none, and not to be
        made), `CallerError` (open already), `StorageError`, `CorruptRecordError`.
        """
        self.check()
        _check_name("topic", topic)
        _check_name("cursor", name)
        if not isinstance(ledgers, MessageLedgers):
            raise CallerError(f"ledgers are MessageLedgers, not {ledgers!r}")
        path = embedded_topic_path(topic)
        store = await self.open_store(
            cursor_path(path, name), ledgers, create_at=create_at, properties=properties
        )
        if self._is_closed:
            await store.close()
            self.check()
        self._cursors.append(store)
        return store

    # ---------------------------------------------------------------- what topics call

    async def open_store(
        self,
        path: str,
        ledgers: MessageLedgers,
        *,
        create_at: Position | None,
        properties: Mapping[str, str] | None = None,
    ) -> CursorStore:
        """The store of the cursor at this node. Raises `CallerError` (open already)."""
        if path in self._opened:
            topic, name = map(name_of_node, path.split("/")[-2:])
            raise CallerError(f"cursor {name!r} of {topic!r} is open already")
        self._opened.add(path)
        try:
            return await CursorStore.open(
                path=path,
                ledgers=ledgers,
                ledger_client=self.ledger_client,
                metadata=self.metadata,
                settings=self.settings,
                batch_index_acks=True,
                owner_epoch=self._epoch,
                clock_ms=self.now_ms,
                create_at=create_at,
                cursor_properties=properties,
            )
        except BaseException:
            self._opened.remove(path)
            raise

    def store_closed(self, path: str) -> None:
        """Note that a store is closed: the cursor at this node may be opened again."""
        self._opened.discard(path)

    def topic_closed(self, topic: EmbeddedTopic) -> None:
        """Note that a topic is closed: it may be opened again."""
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]

    def check_loop(self) -> None:
        """Raise `CallerError` outside of the storage's event loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise CallerError("the storage belongs to another event loop, or to another thread")

    def check(self) -> None:
        """Raise if the storage is closed, or used from another event loop or thread."""
        self.check_loop()
        if self._is_closed:
            raise ClosedHandleError("the storage is closed")

    async def close(self) -> None:
        """Take no more calls, and close every topic and cursor, also if one of them raises."""
        self._is_closed = True
        async with AsyncExitStack() as stack:
            for cursor in self._cursors:
                stack.push_async_callback(cursor.close)
            for topic in self._topics.values():
                stack.push_async_callback(topic.close)


@asynccontextmanager
async def open_embedded(
    directory: str | PathLike[str] | None = None,
    *,
    metadata: MetadataStore | None = None,
    ledger_client: LedgerClient | None = None,
    settings: PersistenceSettings | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[EmbeddedStorage]:
    """Open the directory, made if absent, and replay what a crash left in its journal.

    `metadata` and `ledger_client` take the place of the directory's; with both, no directory is needed.
    What is passed in stays open, and is not searched for ledgers that a crash left. `clock_ms`: ms since
    1970, for tests in a time of their own. Raises `CallerError`,
    `DataDirectoryBusyError`, `ConfigurationError`, `StorageError`.
    """
    settings = PersistenceSettings.defaults() if settings is None else settings
    _check_ports(metadata, ledger_client, settings, clock_ms)
    is_own = metadata is None and ledger_client is None
    async with AsyncExitStack() as stack:
        place = None
        if metadata is None or ledger_client is None:
            place = await _directory(directory)
        if metadata is None:
            assert place is not None
            metadata = await SqliteMetadataStore.open(
                place / "metadata.sqlite", node_bytes_max=settings.metadata_store_max_node_bytes
            )
            stack.push_async_callback(metadata.close)
        if ledger_client is None:
            assert place is not None
            ledger_client, opening = await _own_ledgers(place, metadata, settings, stack)
        else:
            opening = await count_up(metadata, OPENINGS_PATH, first=1)
        if is_own:
            await _sweep(ledger_client, metadata)
        storage = EmbeddedStorage(
            metadata, ledger_client, settings, epoch=opening, clock_ms=clock_ms
        )
        try:
            yield storage
        finally:
            await storage.close()


async def _directory(directory: object) -> Path:
    if not isinstance(directory, str | PathLike) or not str(directory):
        raise CallerError(f"a directory is a path, not {directory!r}")
    require_supported_platform()
    place = Path(directory)
    try:
        await asyncio.to_thread(make_private_directory, place)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"directory {place} cannot be used: {why}") from error
    return place


async def _own_ledgers(
    place: Path, metadata: MetadataStore, settings: PersistenceSettings, stack: AsyncExitStack
) -> tuple[LedgerClient, int]:
    """The ledgers in the directory, and the number of this opening."""
    bookies = await open_bookies(settings.bookie_paths(place), settings=bookie_settings(settings))
    client = BookieLedgerClient(bookies, metadata, settings=ledger_client_settings(settings))
    stack.push_async_callback(client.close)
    if await metadata.get(OPENINGS_PATH) is None:
        await refuse_known_ledgers(bookies)
    await refuse_older_metadata(metadata, bookies, counter_path=OPENINGS_PATH)
    client.run = opening = await count_up(metadata, OPENINGS_PATH, first=1)
    await remember_run(metadata, bookies, opening)
    await client.delete_orphans()
    await client.keep_origins()
    return client, opening


async def _sweep(client: LedgerClient, metadata: MetadataStore) -> None:
    """Delete ledgers that no node names and no owner needs. No other process can be about to name one."""
    known = await client.ledger_ids()
    orphans = await find_orphan_cursor_ledgers(client, metadata, known)
    orphans += await find_orphan_snapshots(client, metadata, known)
    orphans += await find_unnamed(
        client, metadata, known, path_key=TOPIC_PATH_KEY, names=ledgers_of_topic
    )
    for orphan in orphans:
        if await is_given_up(client, metadata, await client.metadata(orphan)):
            await client.delete(orphan)


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise CallerError(f"the name of a {what} is text, not {name!r}")


def _check_ports(
    metadata: Any,  # noqa: ANN401
    ledger_client: Any,  # noqa: ANN401
    settings: object,
    clock_ms: object,
) -> None:
    if metadata is not None and not callable(getattr(metadata, "put", None)):
        raise CallerError(f"metadata is a MetadataStore, not {metadata!r}")
    if ledger_client is not None and not callable(getattr(ledger_client, "open", None)):
        raise CallerError(f"ledger_client is a LedgerClient, not {ledger_client!r}")
    if not isinstance(settings, PersistenceSettings):
        raise CallerError(f"settings are PersistenceSettings, not {settings!r}")
    if not callable(clock_ms):
        raise CallerError(f"clock_ms is a function, not {clock_ms!r}")


async def until_durable(store: CursorStore) -> PersistOutcome:
    """Wait for a durable write of everything that is acked now. Returns its outcome.

    Its `is_complete` says whether all of it survives a crash. What a limit left out
    (`entries_dropped`, `batch_indexes_dropped`) is only in memory. Without a write since the opening,
    the outcome describes what was recovered.

    Raises `PersistTimeoutError` when that takes longer than `ackReceiptTimeoutSeconds` (the store
    goes on trying), `CursorClosedError`, `OwnershipError`.
    """
    return await store.until_durable()
