"""The broker process: parts put together in order, served, and taken apart again.

Edge. Start: data directory locked, metadata store, bookies (their journals replayed), topics'
registry, protocol port, HTTP port, a place among the brokers. Stop: no new connections, then topics
(what is dirty is persisted, and other brokers take over), then the ports, then the stores. A topic
is loaded at its first use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from ackgate.broker.cluster import DynamicConfiguration, Ownership, PolicyStore
from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.broker.schemas import SchemaRegistry
from ackgate.broker.stats import SAMPLE_SECONDS, StatsSampler
from ackgate.broker.stopping import Stopping
from ackgate.broker.topic import BrokerParts, DiskSpace, TopicRegistry
from ackgate.broker.upkeep import Chore, chores, run_chore
from ackgate.broker.wire import ProtocolServer
from ackgate.errors import AckGateError, ConfigurationError, InternalError
from ackgate.persistence.bookies.settings import bookie_settings, ledger_client_settings
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.persistence.ledgers.cluster_mark import (
    claim,
    cluster_of,
    known_cluster,
    refuse_known_ledgers,
)
from ackgate.persistence.ledgers.metadata_age import refuse_older_metadata, remember_run
from ackgate.persistence.ledgers.opening import BookieOpener, open_usable_bookies
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.metadata.url import open_metadata_store
from ackgate.persistence.nodes.changes import count_up
from ackgate.persistence.nodes.owner_nodes import BrokerRecord
from ackgate.persistence.nodes.unnamed_ledgers import MAKER_KEY, RUN_COUNTER_PATH
from ackgate.persistence.ports import DigestType, LedgerOptions
from ackgate.persistence.system.data_directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

    from ackgate.broker.admin import Peers
    from ackgate.config.settings import Settings
    from ackgate.persistence.bookies.bookie import Bookie
    from ackgate.persistence.ports import LedgerClient, MetadataStore

log = logging.getLogger(__name__)

STARTS_AT_ONCE_MAX: Final = 1_000
"""Brokers that may start at the same time on one metadata store."""


class BrokerServer:
    """A broker that serves. Make it with `start`."""

    def __init__(
        self, settings: Settings, directory: DataDirectory, parts: BrokerParts, run: int
    ) -> None:
        self.settings = settings
        self.run = run
        """Number of this start among all starts of brokers on this metadata store."""
        self.directory = directory
        self.parts = parts
        self.registry = TopicRegistry(parts)
        self.ownership = Ownership(parts, self.registry)
        self.registry.owners = self.ownership
        self.schemas = SchemaRegistry(parts.metadata)
        self.dynamic = DynamicConfiguration(parts, self.registry.configure)
        self.sampler = StatsSampler(parts.clock_ms)
        self.started_at = time.time()
        self.bookie_ids: tuple[str, ...] = ()
        self._peers: Peers | None = None
        self.protocol_port = 0
        self.http_port = 0
        self._protocol = ProtocolServer(parts, self.registry, self.schemas, parts.publish_buffer)
        self._stopping = Stopping(lambda: 0.0)
        self._upkeep: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls, settings: Settings, data_directory: Path, *, metadata: MetadataStore | None = None
    ) -> Self:
        """Start. Raises `ConfigurationError`, `DataDirectoryBusyError`, `StorageError`.

        `metadata` (for those who embed brokers) is used instead of what the settings name; it
        becomes the broker's to close.
        """
        async with Stopping(lambda: settings.broker.broker_shutdown_timeout_ms / 1000) as stopping:
            directory = DataDirectory.acquire(data_directory)
            stopping.then("the data directory", directory.release)
            space = _disk_space(settings, directory)
            stopping.then("the look at the disks", space.close)
            await space.make_room(is_starting=True)
            metadata = metadata or await _open_metadata(settings, directory)
            stopping.then("the metadata store", metadata.close)
            client, run = await _open_ledgers(settings, directory, metadata)
            stopping.then("the bookies", client.close, share=2)
            broker = cls(settings, directory, _make_parts(settings, metadata, client, run), run)
            broker.parts.disk_space = space
            space.mend = partial(_free_room, metadata, client)
            broker.bookie_ids = tuple(bookie.bookie_id for bookie in client.bookies)
            broker.parts.forget_topic = broker.registry.forget
            await broker.dynamic.load()
            await broker._serve(stopping)
            await space.look()  # what the start has left free is for the next one
            stopping.keep()
            broker._stopping = stopping
            parts = broker.parts  # whose settings may change while it runs
            stopping.seconds = lambda: parts.settings.broker.broker_shutdown_timeout_ms / 1000
        return broker

    async def _serve(self, stopping: Stopping) -> None:
        """Start the services; `stopping` gets what to stop, in reverse order."""
        broker = self.settings.broker
        host = broker.bind_address
        old_ledgers = await self.parts.ledger_client.ledger_ids()
        stopping.then("connections", self._protocol.close)
        stopping.then("the other brokers", self._close_peers)
        self.protocol_port = await _listening(
            self._protocol.listen(host, broker.broker_service_port),
            host,
            broker.broker_service_port,
        )
        self._protocol.answer_lookups_by(self.ownership)
        from ackgate.broker.admin import Peers, serve_http  # noqa: PLC0415 - after the port answers

        self._peers = Peers()
        self.ownership.ask_to_acquire = self._peers.acquire

        self.http_port, stop_http = await serve_http(self, host, broker.web_service_port)
        stopping.then("the admin interface", stop_http)
        # First: clients are waiting for that.
        stopping.then("closing topics", self._close_topics, share=6)
        stopping.then("the port", self._protocol.stop_accepting)
        self.ownership.on_joined(self.parts.policies.follow)
        self.ownership.on_joined(self.dynamic.follow)
        stopping.then("policies", self.parts.policies.stop)
        stopping.then("dynamic configuration", self.dynamic.stop)
        await self.ownership.join(self._record())
        self.directory.describe({"pulsar": self.service_url, "http": self.web_url})
        stopping.then("upkeep", self._end_upkeep)
        sampling = Chore(self._sample, lambda: SAMPLE_SECONDS)
        self._upkeep = [
            asyncio.create_task(run_chore(chore))
            for chore in (sampling, *chores(self.parts, self.registry))
        ]
        self._upkeep.append(asyncio.create_task(self._delete_orphans(old_ledgers)))

    @property
    def peers(self) -> Peers:
        """The other brokers' admin interfaces; there once ours is."""
        if self._peers is None:
            raise InternalError("other brokers are asked before this one serves")
        return self._peers

    def _record(self) -> BrokerRecord:
        return BrokerRecord(
            broker_id=self.broker_id,
            service_url=self.service_url,
            web_url=self.web_url,
            instance="",
            bookies=self.bookie_ids,
            started_ms=int(self.started_at * 1000),
            run=self.run,
        )

    @property
    def broker_id(self) -> str:
        """``host:port`` of the admin interface, by which Pulsar calls a broker."""
        return self.web_url.removeprefix("http://")

    @property
    def service_url(self) -> str:
        return f"pulsar://{self._advertised_host}:{self.protocol_port}"

    @property
    def web_url(self) -> str:
        """Where the admin interface answers."""
        return f"http://{self._advertised_host}:{self.http_port}"

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names that lead to this broker, as far as it knows them."""
        machine = socket.gethostname()
        return (
            self._advertised_host,
            self.settings.broker.bind_address,
            machine,
            machine.partition(".")[0],
        )

    @property
    def metadata_url(self) -> str:
        """Where the metadata are, as ``metadataStoreUrl`` would say it."""
        return _metadata_url(self.settings, self.directory)

    @property
    def _advertised_host(self) -> str:
        broker = self.settings.broker
        if broker.advertised_address:
            return broker.advertised_address
        if broker.bind_address in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
            return socket.gethostname()
        return broker.bind_address

    @property
    def connection_count(self) -> int:
        """Connections of the binary protocol."""
        return len(self._protocol.sessions)

    async def _sample(self) -> None:
        await self.sampler.sample(self.registry)

    async def _delete_orphans(self, candidates: list[int]) -> None:
        try:
            await delete_orphan_ledgers(self.parts, candidates)
            client = self.parts.ledger_client
            if isinstance(client, BookieLedgerClient):
                await client.keep_origins()
        except AckGateError as error:
            log.warning("orphan ledgers were not looked for: %s", error)

    async def stop(self) -> bool:
        """Stop taking work, persist what is dirty, let go of the data directory. Twice is fine.

        Returns within `brokerShutdownTimeoutMs`; False: something was not through by then, and may go on.
        """
        await self._stopping.run()
        return not self._stopping.cut_short

    async def _close_topics(self) -> None:
        await self.ownership.leave()
        await self.registry.close()

    async def _close_peers(self) -> None:
        if self._peers is not None:
            await self._peers.close()

    async def _end_upkeep(self) -> None:
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        # Nobody looks any more, and a stop has much to write.
        await self.parts.disk_space.make_room(is_starting=False)


def _metadata_url(settings: Settings, directory: DataDirectory) -> str:
    return settings.persistence.metadata_store_url or f"sqlite:{directory.metadata_path}"


def _disk_space(settings: Settings, directory: DataDirectory) -> DiskSpace:
    persistence = settings.persistence
    return DiskSpace(
        directory.root,
        persistence.bookie_paths(directory.root),
        bookies_needed=persistence.managed_ledger_default_write_quorum,
        reserve_bytes=persistence.disk_reserve_bytes,
    )


def _free_room(metadata: MetadataStore, client: BookieLedgerClient) -> Iterator[Awaitable[object]]:
    """What makes logs shorter, and carries on what there was no room for."""
    if isinstance(metadata, SqliteMetadataStore):
        yield metadata.checkpoint()
    for bookie in client.bookies:
        yield bookie.make_up()


async def _open_metadata(settings: Settings, directory: DataDirectory) -> MetadataStore:
    persistence = settings.persistence
    return await open_metadata_store(
        _metadata_url(settings, directory),
        node_bytes_max=persistence.metadata_store_max_node_bytes,
        session=SessionOptions.of(persistence),
    )


async def _open_ledgers(
    settings: Settings, directory: DataDirectory, metadata: MetadataStore
) -> tuple[BookieLedgerClient, int]:
    """The ledger client, and the number of this start, which marks what it makes."""
    persistence = settings.persistence
    opener = BookieOpener(settings=bookie_settings(persistence))
    cluster = await known_cluster(metadata)
    if cluster is not None:
        opener.admit = partial(claim, cluster=cluster)
    bookies, absent = await open_usable_bookies(
        persistence.bookie_paths(directory.root),
        opener,
        least=persistence.managed_ledger_default_write_quorum,
    )
    try:
        await _refuse_lost_metadata(metadata, bookies)
        if cluster is None:
            cluster = await cluster_of(metadata)
            await asyncio.gather(*(claim(bookie, cluster) for bookie in bookies))
        await refuse_older_metadata(metadata, bookies, counter_path=RUN_COUNTER_PATH)

        async def admit(bookie: Bookie) -> None:
            await claim(bookie, cluster)
            await refuse_older_metadata(metadata, [bookie], counter_path=RUN_COUNTER_PATH)

        opener.admit = admit
        run = await count_up(metadata, RUN_COUNTER_PATH, first=0, attempts_max=STARTS_AT_ONCE_MAX)
        await remember_run(metadata, bookies, run)
    except BaseException:
        await BookieLedgerClient(bookies, metadata, absent=absent).close()
        raise
    settings_of_client = ledger_client_settings(persistence)
    marks = {MAKER_KEY: str(run).encode()}
    return (
        BookieLedgerClient(
            bookies, metadata, settings=settings_of_client, absent=absent, marks=marks, run=run
        ),
        run,
    )


async def _refuse_lost_metadata(metadata: MetadataStore, bookies: list[Bookie]) -> None:
    if await metadata.get(RUN_COUNTER_PATH) is not None:
        return
    try:
        await refuse_known_ledgers(bookies)
    except AckGateError:
        if await metadata.get(RUN_COUNTER_PATH) is None:
            raise  # else another broker has begun at the same time as this one


def _make_parts(
    settings: Settings, metadata: MetadataStore, client: LedgerClient, run: int
) -> BrokerParts:
    persistence = settings.persistence
    parts = BrokerParts(
        settings=settings,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        ledger_client=client,
        metadata=metadata,
        ledger_options=LedgerOptions(
            ensemble_size=persistence.managed_ledger_default_ensemble_size,
            write_quorum=persistence.managed_ledger_default_write_quorum,
            ack_quorum=persistence.managed_ledger_default_ack_quorum,
            digest_type=DigestType(persistence.managed_ledger_digest_type),
            password=persistence.managed_ledger_password.get_secret_value().encode(),
        ),
        cache=EntryCache(settings.broker.managed_ledger_cache_size_mb * 1024 * 1024),
        policies=PolicyStore(metadata),
        producer_name_prefix=f"{settings.broker.cluster_name}-{run}",
        forget_topic=lambda _: None,
    )
    parts.clock_us = lambda: time.time_ns() // 1_000
    return parts


async def _listening(listening: Awaitable[int], host: str, port: int) -> int:
    try:
        return await listening
    except OSError as error:
        # asyncio repeats the address in its own words; what has no number is about the name.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {why}") from error
