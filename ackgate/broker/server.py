"""The broker process: services put together in order, served, and taken apart again.

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
from ackgate.broker.ledger_storage import ClusterStorage, open_ledger_storage
from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.broker.schemas import SchemaRegistry
from ackgate.broker.security import Authentication, http_headers
from ackgate.broker.stats import SAMPLE_SECONDS, Overview, StatsSampler
from ackgate.broker.stopping import Stopping
from ackgate.broker.topic import DiskSpace, SharedServices, TopicRegistry
from ackgate.broker.upkeep import Chore, chores, run_chore
from ackgate.broker.wire import ProtocolServer
from ackgate.errors import AckGateError, ConfigurationError, InternalError
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.metadata.url import (
    MetadataScheme,
    open_metadata_store,
    parse_metadata_url,
)
from ackgate.persistence.nodes.owner_nodes import BrokerRecord
from ackgate.persistence.ports import DigestType, LedgerOptions
from ackgate.persistence.system.data_directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from ackgate.broker.admin import Peers
    from ackgate.broker.ledger_storage import LedgerStorage
    from ackgate.config.settings import Settings
    from ackgate.persistence.ports import LedgerClient, MetadataStore

log = logging.getLogger(__name__)

STORAGE_LOOK_SECONDS: Final = 30.0
"""How often the bookies of a cluster are counted."""


class BrokerServer:
    """A broker that serves. Make it with `start`."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        services: SharedServices,
        storage: LedgerStorage,
        authentication: Authentication | None = None,
    ) -> None:
        self.settings = settings
        self.storage = storage
        self.directory = directory
        self.services = services
        self.authentication = authentication
        self.registry = TopicRegistry(services)
        self.ownership = Ownership(services, self.registry)
        self.registry.owners = self.ownership
        self.schemas = SchemaRegistry(services.metadata)
        self.dynamic = DynamicConfiguration(services, self.registry.configure)
        self.sampler = StatsSampler(services.clock_ms)
        self.overview = Overview(self.registry, self.sampler, services.clock_ms)
        self.started_at = time.time()
        self._peers: Peers | None = None
        self.protocol_port = 0
        self.http_port = 0
        self._protocol = ProtocolServer(
            services, self.registry, self.schemas, services.publish_buffer, authentication
        )
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
        authentication = _authentication(settings)
        async with Stopping(lambda: settings.broker.broker_shutdown_timeout_ms / 1000) as stopping:
            directory = DataDirectory.acquire(data_directory)
            stopping.then("the data directory", directory.release)
            space = _disk_space(settings, directory)
            stopping.then("the look at the disks", space.close)
            await space.make_room(is_starting=True)
            metadata = metadata or await _open_metadata(settings, directory)
            stopping.then("the metadata store", metadata.close)
            storage = await open_ledger_storage(settings.persistence, directory.root, metadata)
            stopping.then("the bookies", storage.client.close, share=2)
            services = _make_services(settings, metadata, storage.client, storage.run)
            broker = cls(settings, directory, services, storage, authentication)
            broker.services.disk_space = space
            space.mend = partial(_free_room, metadata, storage)
            broker.services.forget_topic = broker.registry.forget
            await broker.dynamic.load()
            await broker._serve(stopping)
            await space.look()  # what the start has left free is for the next one
            stopping.keep()
            broker._stopping = stopping
            # Settings may change while it runs.
            stopping.seconds = lambda: services.settings.broker.broker_shutdown_timeout_ms / 1000
        return broker

    async def _serve(self, stopping: Stopping) -> None:
        """Start the services; `stopping` gets what to stop, in reverse order."""
        broker = self.settings.broker
        host = broker.bind_address
        old_ledgers = await self.storage.ledgers_so_far()
        stopping.then("connections", self._protocol.close)
        stopping.then("the other brokers", self._close_peers)
        self.protocol_port = await _listening(
            self._protocol.listen(host, broker.broker_service_port),
            host,
            broker.broker_service_port,
        )
        self._protocol.answer_lookups_by(self.ownership)
        from ackgate.broker.admin import Peers, serve_http  # noqa: PLC0415 - after the port answers

        self._peers = Peers(lambda: _credentials(self.services.settings))
        self.ownership.ask_to_acquire = self._peers.acquire

        self.http_port, stop_http = await serve_http(self, host, broker.web_service_port)
        stopping.then("the admin interface", stop_http)
        # First: clients are waiting for that.
        stopping.then("closing topics", self._close_topics, share=6)
        stopping.then("the port", self._protocol.stop_accepting)
        self.ownership.on_joined(self.services.policies.follow)
        self.ownership.on_joined(self.dynamic.follow)
        stopping.then("policies", self.services.policies.stop)
        stopping.then("dynamic configuration", self.dynamic.stop)
        await self.ownership.join(self._record())
        self.directory.describe({"pulsar": self.service_url, "http": self.web_url})
        stopping.then("upkeep", self._end_upkeep)
        sampling = Chore(self._sample, lambda: SAMPLE_SECONDS)
        counting = Chore(self.storage.count_bookies, lambda: STORAGE_LOOK_SECONDS)
        self._upkeep = [
            asyncio.create_task(run_chore(chore))
            for chore in (sampling, counting, *chores(self.services, self.registry))
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
            bookies=self.storage.names,
            started_ms=int(self.started_at * 1000),
            run=self.storage.run,
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
    def cluster_storage(self) -> ClusterStorage | None:
        """The BookKeeper cluster; None: bookies are directories."""
        return self.storage if isinstance(self.storage, ClusterStorage) else None

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

    async def _delete_orphans(self, old_ledgers: Callable[[], Awaitable[list[int]]]) -> None:
        try:
            await delete_orphan_ledgers(self.services, await old_ledgers(), run=self.storage.run)
            await self.storage.mend()
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
        await self.services.disk_space.make_room(is_starting=False)


def _metadata_url(settings: Settings, directory: DataDirectory) -> str:
    return settings.persistence.metadata_store_url or f"sqlite:{directory.metadata_path}"


def _disk_space(settings: Settings, directory: DataDirectory) -> DiskSpace:
    persistence = settings.persistence
    metadata = parse_metadata_url(_metadata_url(settings, directory))
    if persistence.is_on_bookkeeper and metadata.scheme is not MetadataScheme.SQLITE:
        return DiskSpace.unwatched()  # nothing that counts is written to this machine's disks
    return DiskSpace(
        directory.root,
        persistence.bookie_paths(directory.root),
        bookies_needed=(
            0 if persistence.is_on_bookkeeper else persistence.managed_ledger_default_write_quorum
        ),
        reserve_bytes=persistence.disk_reserve_bytes,
    )


def _free_room(metadata: MetadataStore, storage: LedgerStorage) -> Iterator[Awaitable[object]]:
    """What makes logs shorter, and carries on what there was no room for."""
    if isinstance(metadata, SqliteMetadataStore):
        yield metadata.checkpoint()
    yield from storage.make_up()


def _authentication(settings: Settings) -> Authentication | None:
    """None: it is off. Raises `ConfigurationError`."""
    _credentials(settings)  # what cannot be read is to be known at the start
    if not settings.security.authentication_enabled:
        return None
    return Authentication.of(settings.security)


def _credentials(settings: Settings) -> Mapping[str, str]:
    """What this broker shows to the others."""
    security = settings.security
    return http_headers(
        security.broker_client_authentication_plugin,
        security.broker_client_authentication_parameters.get_secret_value(),
        what="brokerClientAuthenticationParameters",
    )


async def _open_metadata(settings: Settings, directory: DataDirectory) -> MetadataStore:
    persistence = settings.persistence
    return await open_metadata_store(
        _metadata_url(settings, directory),
        node_bytes_max=persistence.metadata_store_max_node_bytes,
        session=SessionOptions.of(persistence),
    )


def _make_services(
    settings: Settings, metadata: MetadataStore, client: LedgerClient, run: int
) -> SharedServices:
    persistence = settings.persistence
    services = SharedServices(
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
    services.clock_us = lambda: time.time_ns() // 1_000
    return services


async def _listening(listening: Awaitable[int], host: str, port: int) -> int:
    try:
        return await listening
    except OSError as error:
        # asyncio repeats the address in its own words; what has no number is about the name.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {why}") from error
