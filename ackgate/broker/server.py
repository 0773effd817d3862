"""The broker process: services put together in order, served, and taken apart again.

Edge. Start: data directory locked, metadata store, bookies (their journals replayed), topics'
registry, protocol port, HTTP port, a place among the brokers. Stop: no new connections, then topics
(what is dirty is persisted, and other brokers take over), then the ports, then the stores. A topic
is loaded at its first use.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from ackgate.broker.cluster import DynamicConfiguration, Ownership, PolicyStore
from ackgate.broker.ledger_storage import ClusterStorage, open_ledger_storage
from ackgate.broker.orphans import delete_orphan_ledgers
from ackgate.broker.schemas import SchemaRegistry
from ackgate.broker.security import Authentication, Authorization, http_headers
from ackgate.broker.stats import SAMPLE_SECONDS, Overview, StatsSampler, consumer_rates
from ackgate.broker.stopping import Stopping
from ackgate.broker.topic import DiskSpace, SharedServices, TopicRegistry, Tracing
from ackgate.broker.upkeep import Chore, chores, run_chore
from ackgate.broker.wire import ProtocolServer
from ackgate.errors import AckGateError, ConfigurationError, InternalError
from ackgate.network import (
    NOWHERE,
    AdvertisedListener,
    CertificateFile,
    ClientTls,
    PemFile,
    ReloadedTls,
    ServerTls,
    Urls,
    advertised_host,
    expiry_warning,
    url_of,
    words_of,
)
from ackgate.persistence.messages.cache import EntryCache
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.metadata_url import (
    MetadataScheme,
    open_metadata_store,
    parse_metadata_url,
)
from ackgate.persistence.nodes.owner_nodes import BrokerRecord
from ackgate.persistence.ports import LedgerOptions
from ackgate.persistence.system.data_directory import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from ackgate.broker.admin import AdminServer, Peers
    from ackgate.broker.ledger_storage import LedgerStorage
    from ackgate.broker.wire import Connection
    from ackgate.config.settings import Settings
    from ackgate.config.tls import TlsSettings
    from ackgate.persistence.ports import LedgerClient, MetadataStore

    SharedPorts = Mapping[str, Sequence[socket.socket]]
    AnyServer = AdminServer | ProtocolServer

log = logging.getLogger(__name__)

LEVEL_SECONDS: Final = 1.0
"""How often a worker looks whether another one has far fewer bundles."""

CERTIFICATE_WARNING_SECONDS: Final = 86_400.0
"""How often the log warns of a certificate that expires soon."""

STORAGE_LOOK_SECONDS: Final = 30.0
"""How often the bookies of a cluster are counted."""


class _PortsTls:
    """TLS contexts of the ports, and for connections to other brokers.

    All certificate files are read here, before anything else is started.
    """

    def __init__(self, settings: Settings) -> None:
        """Read all certificate files. Raises `ConfigurationError`."""
        tls, broker = settings.tls, settings.broker
        self.protocol: ReloadedTls | None = None
        self.web: ReloadedTls | None = None
        self._peers: ReloadedTls | None = None
        self._client_files = dict(_client_files(settings))
        seconds = tls.tls_cert_refresh_check_duration_sec
        bound = {each.scheme for each in broker.bound_listeners}
        if broker.broker_service_port_tls is not None or "pulsar+ssl" in bound:
            port = _port_tls(tls, tls.tls_protocols, tls.tls_ciphers, "tlsCiphers")
            self.protocol = ReloadedTls(port, seconds)
        if broker.web_service_port_tls is not None or "https" in bound:
            port = _port_tls(
                tls,
                tls.web_service_tls_protocols,
                tls.web_service_tls_ciphers,
                "webServiceTlsCiphers",
            )
            self.web = ReloadedTls(port, seconds)
        if tls.broker_client_tls_enabled:
            self.peers(settings)

    def peers(self, settings: Settings) -> ReloadedTls | None:
        """TLS for connections to other brokers, or None if the settings turn it off.

        `settings`: the current ones. Raises `ConfigurationError`.
        """
        if not settings.tls.broker_client_tls_enabled:
            return None
        if self._peers is None:
            self._peers = ReloadedTls(
                _peers_tls(settings.tls), settings.tls.tls_cert_refresh_check_duration_sec
            )
        return self._peers

    @property
    def clients(self) -> Mapping[str, ReloadedTls | CertificateFile]:
        """Certificates shown to other servers, by the kind of those: `brokers`, `zookeeper` ..."""
        found: dict[str, ReloadedTls | CertificateFile] = dict(self._client_files)
        if self._peers is not None and self._peers.shows_certificate:
            found["brokers"] = self._peers
        return found


def _client_files(settings: Settings) -> Iterator[tuple[str, CertificateFile]]:
    persistence = settings.persistence
    tls = SessionOptions.of(persistence).tls
    if tls is not None and tls.certificate.path:
        yield "zookeeper", CertificateFile(tls.certificate)
    path = persistence.bookkeeper_tls_certificate_file_path
    has_bookies = bool(persistence.bookkeeper_metadata_service_uri)
    if has_bookies and persistence.bookkeeper_tls_client_authentication and path:
        file = PemFile("bookkeeperTLSCertificateFilePath", path)
        yield "bookies", CertificateFile(file)


def _peers_tls(tls: TlsSettings) -> ClientTls:
    return ClientTls(
        trust=PemFile("brokerClientTrustCertsFilePath", tls.broker_client_trust_certs_file_path),
        certificate=PemFile(
            "brokerClientCertificateFilePath", tls.broker_client_certificate_file_path
        ),
        key=PemFile("brokerClientKeyFilePath", tls.broker_client_key_file_path),
        verifies_server=not tls.tls_allow_insecure_connection,
        verifies_host_name=tls.tls_hostname_verification_enabled,
        protocols=tls.broker_client_tls_protocols,
        ciphers=tls.broker_client_tls_ciphers,
        ciphers_key="brokerClientTlsCiphers",
    )


def _port_tls(
    tls: TlsSettings, protocols: tuple[str, ...], ciphers: tuple[str, ...], ciphers_key: str
) -> ServerTls:
    trust = "" if tls.tls_allow_insecure_connection else tls.tls_trust_certs_file_path
    return ServerTls(
        certificate=PemFile("tlsCertificateFilePath", tls.tls_certificate_file_path),
        key=PemFile("tlsKeyFilePath", tls.tls_key_file_path),
        trust=PemFile("tlsTrustCertsFilePath", trust),
        requires_client_certificate=tls.tls_require_trusted_client_cert_on_connect,
        protocols=protocols,
        ciphers=ciphers,
        ciphers_key=ciphers_key,
    )


class BrokerServer:
    """A broker that serves. Make it with `start`."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        services: SharedServices,
        storage: LedgerStorage,
        tls: _PortsTls,
        authentication: Authentication | None,
    ) -> None:
        self.settings = settings
        self.storage = storage
        self.directory = directory
        self.services = services
        self.authentication = authentication
        self.authorization = _authorization(services)
        self.registry = TopicRegistry(services)
        self.ownership = Ownership(services, self.registry)
        self.registry.owners = self.ownership
        self.schemas = SchemaRegistry(services.metadata)
        self.dynamic = DynamicConfiguration(services, self._on_settings)
        self.sampler = StatsSampler(services.clock_ms)
        services.consumer_rates = partial(consumer_rates, sampler=self.sampler)
        self.overview = Overview(self.registry, self.sampler, services.clock_ms)
        self.started_at = time.time()
        self.worker: int | None = None
        """Number of this worker on its machine. None: the broker is no worker."""
        self.settings_without_effect: Mapping[str, str] = {}
        """Configured keys that nothing here reads, each with its source. Whoever read them sets
        this."""
        self._peers: Peers | None = None
        self.service = NOWHERE
        """Addresses for clients of the binary protocol."""
        self.web = NOWHERE
        """Addresses of the admin interface."""
        self._tls = tls
        self._protocol = ProtocolServer(
            services,
            self.registry,
            self.schemas,
            self.ownership,
            services.publish_buffer,
            authentication,
            self.authorization,
            settings.security.authentication_refresh_check_seconds,
        )
        services.policies.on_change(self._protocol.rights_changed)
        self._stopping = Stopping(lambda: 0.0)
        self._upkeep: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        settings: Settings,
        data_directory: Path,
        *,
        metadata: MetadataStore | None = None,
        shared_ports: SharedPorts | None = None,
        worker: int | None = None,
    ) -> Self:
        """Start. Raises `ConfigurationError`, `DataDirectoryBusyError`, `StorageError`.

        `metadata` (for those who embed brokers) is used instead of what the settings name; it
        becomes the broker's to close. `shared_ports`: listening sockets that other processes accept on,
        too, by their scheme (`pulsar`, `https`) or as `bindAddresses` names them; this broker does once it
        is a member of the cluster.
        `worker`: its number among these.
        """
        tracing = Tracing() if settings.broker.open_telemetry_traces_enabled else None
        _credentials(settings)  # what cannot be read is reported at the start
        authentication = Authentication.of(settings.security)
        tls = _PortsTls(settings)
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
            services = _make_services(settings, metadata, storage.client, storage.run, tracing)
            broker = cls(settings, directory, services, storage, tls, authentication)
            broker.worker = worker
            broker.services.disk_space = space
            space.mend = partial(_free_room, metadata, storage)
            broker.services.forget_topic = broker.registry.forget
            await broker.dynamic.load()
            await broker._serve(stopping)
            if shared_ports is not None:
                await broker._share(shared_ports)
                level = Chore(broker.ownership.level, lambda: LEVEL_SECONDS)
                broker._upkeep.append(asyncio.create_task(run_chore(level)))
            await space.look()  # the next start needs the space that this one has left free
            stopping.keep()
            broker._stopping = stopping
            # Settings may change while it runs.
            stopping.seconds = lambda: services.settings.broker.broker_shutdown_timeout_ms / 1000
        return broker

    async def _serve(self, stopping: Stopping) -> None:
        """Start the services in order.

        `stopping` gets a step for each, to stop them in reverse order.
        """
        broker = self.settings.broker
        old_ledgers = await self.storage.ledgers_so_far()
        stopping.then("connections", self._protocol.close)
        self.service = Urls(
            await self._listen("pulsar", self._protocol, broker.broker_service_port),
            await self._listen(
                "pulsar+ssl", self._protocol, broker.broker_service_port_tls, self._tls.protocol
            ),
        )
        from ackgate.broker.admin import Peers, serve_http  # noqa: PLC0415 - after the port answers

        self._peers = Peers(
            lambda: _credentials(self.services.settings),
            lambda: self._tls.peers(self.services.settings),
        )
        stopping.then("the other brokers", self._peers.close)
        self.ownership.ask_to_acquire = self._peers.acquire

        self._admin = serve_http(self)
        stopping.then("the admin interface", self._admin.close)
        self.web = Urls(
            await self._listen("http", self._admin, broker.web_service_port),
            await self._listen("https", self._admin, broker.web_service_port_tls, self._tls.web),
        )
        if self.worker is None:
            await self._listen_for_listeners({})
        # First: clients are waiting for that.
        stopping.then("closing topics", self._close_topics, share=6)
        stopping.then("the port", self._protocol.stop_accepting)
        self.ownership.on_joined(self.services.policies.follow)
        self.ownership.on_joined(self.dynamic.follow)
        stopping.then("policies", self.services.policies.stop)
        stopping.then("dynamic configuration", self.dynamic.stop)
        await self.ownership.join(self._record())
        addresses = (*self.service, *self.web)
        self.directory.describe(
            {address.partition(":")[0]: address for address in addresses if address}
        )
        stopping.then("upkeep", self._end_upkeep, share=3)  # it looks at the disks once more
        sampling = Chore(partial(self.sampler.sample, self.registry), lambda: SAMPLE_SECONDS)
        storing = Chore(self.storage.upkeep, lambda: STORAGE_LOOK_SECONDS)
        certificates = Chore(self._warn_of_certificates, lambda: CERTIFICATE_WARNING_SECONDS)
        self._upkeep = [
            asyncio.create_task(run_chore(chore))
            for chore in (sampling, storing, certificates, *chores(self.services, self.registry))
        ]
        await self._warn_of_certificates()
        self._upkeep.append(asyncio.create_task(self._delete_orphans(old_ledgers)))

    async def _listen(
        self, scheme: str, server: AnyServer, port: int | None, tls: ReloadedTls | None = None
    ) -> str:
        """Open one more port of a server.

        Returns its address, or an empty text if no port is configured.

        Raises `ConfigurationError`.
        """
        if port is None:
            return ""
        host = self.settings.broker.bind_address
        try:
            found = await server.listen(host, port, tls)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {words_of(error)}"
            ) from error
        return url_of(scheme, self._advertised_host, found)

    async def _listen_for_listeners(self, ports: SharedPorts) -> None:
        """Listen on `bindAddresses`, or accept on the sockets that `ports` has for them."""
        servers = self._servers
        for bound in self.settings.broker.bound_listeners:
            server, tls = servers[bound.scheme]
            sockets = ports.get(bound.text, ())
            try:
                await server.listen(bound.host, bound.port, tls, sockets, listener_name=bound.name)
            except OSError as error:
                raise ConfigurationError(
                    f"bindAddresses: cannot listen on {bound.host}:{bound.port}: {words_of(error)}"
                ) from error

    async def _share(self, ports: SharedPorts) -> None:
        """Accept on the sockets that several processes share."""
        for scheme, (server, tls) in self._servers.items():
            if scheme in ports:
                await server.listen("", 0, tls, ports[scheme])
        await self._listen_for_listeners(ports)

    @property
    def _servers(self) -> Mapping[str, tuple[AnyServer, ReloadedTls | None]]:
        """The server for each scheme, and its TLS context."""
        return {
            "pulsar": (self._protocol, None),
            "pulsar+ssl": (self._protocol, self._tls.protocol),
            "http": (self._admin, None),
            "https": (self._admin, self._tls.web),
        }

    def _on_settings(self) -> None:
        self.registry.configure()
        self._protocol.rights_changed()  # perhaps the superusers are others

    @property
    def tls_ports(self) -> Mapping[str, ReloadedTls]:
        """TLS contexts of the ports that have TLS, by scheme."""
        found = {"pulsar+ssl": self._tls.protocol, "https": self._tls.web}
        return {scheme: tls for scheme, tls in found.items() if tls is not None}

    @property
    def client_certificates(self) -> Mapping[str, ReloadedTls | CertificateFile]:
        """Certificates shown to other servers, by the keys `brokers`, `zookeeper` and `bookies`."""
        return self._tls.clients

    @property
    def peers(self) -> Peers:
        """Client of the other brokers' admin interfaces.

        Raises `InternalError` before this broker serves.
        """
        if self._peers is None:
            raise InternalError("other brokers are asked before this one serves")
        return self._peers

    def _record(self) -> BrokerRecord:
        listeners = self._listeners
        service, web = listeners[0][1:] if listeners else (self.service, self.web)
        web = web if web.any else self.web
        return BrokerRecord(
            broker_id=self.broker_id,
            service_url=service.plain,
            web_url=web.plain,
            instance="",
            bookies=self.storage.names,
            started_ms=int(self.started_at * 1000),
            run=self.storage.run,
            service_url_tls=service.tls,
            web_url_tls=web.tls,
            listeners=listeners,
        )

    @property
    def broker_id(self) -> str:
        """``host:port`` of the admin interface, by which Pulsar calls a broker."""
        return self.web.any.partition("://")[2]

    @property
    def service_url(self) -> str:
        """Address for clients of the binary protocol: in clear, else by TLS."""
        return self.service.any

    @property
    def web_url(self) -> str:
        """Address of the admin interface: in clear, else by TLS."""
        return self.web.any

    @property
    def protocol_port(self) -> int:
        """Port number in `service_url`."""
        return int(self.service_url.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        """Port number in `web_url`."""
        return int(self.web_url.rpartition(":")[2])

    @property
    def cluster_storage(self) -> ClusterStorage | None:
        """The BookKeeper cluster, or None if the bookies are directories."""
        return self.storage if isinstance(self.storage, ClusterStorage) else None

    @property
    def host_names(self) -> tuple[str, ...]:
        """Host names that lead to this broker, as far as it knows."""
        machine = socket.gethostname()
        return (
            *(each.web_host for each in self._listeners if each.web_host),
            self._advertised_host,
            self.settings.broker.bind_address,
            machine,
            machine.partition(".")[0],
        )

    @property
    def metadata_url(self) -> str:
        """Location of the metadata store, in the form of ``metadataStoreUrl``."""
        return _metadata_url(self.settings, self.directory)

    @property
    def _advertised_host(self) -> str:
        if self._listeners:
            return self._listeners[0].host
        broker = self.settings.broker
        return advertised_host(broker.advertised_address, broker.bind_address)

    @property
    def _listeners(self) -> tuple[AdvertisedListener, ...]:
        """The advertised listeners, the internal one first."""
        named = self.settings.broker.listeners.items()
        return tuple(AdvertisedListener.of(name, urls) for name, urls in named)

    @property
    def connections(self) -> Collection[Connection]:
        """Connected clients of the binary protocol."""
        return self._protocol.sessions

    async def _warn_of_certificates(self) -> None:
        shown: dict[str, ReloadedTls | CertificateFile] = {
            **{f"of port {scheme}": tls for scheme, tls in self.tls_ports.items()},
            **{f"shown to {to}": each for to, each in self.client_certificates.items()},
        }
        now = time.time()
        for which, certificate in shown.items():
            warning = expiry_warning(certificate.certificate_expires_at, now)
            if warning:
                log.warning("the certificate %s %s", which, warning)

    async def _delete_orphans(self, old_ledgers: Callable[[], Awaitable[list[int]]]) -> None:
        try:
            await delete_orphan_ledgers(self.services, await old_ledgers(), run=self.storage.run)
            await self.storage.mend()
        except AckGateError as error:
            log.warning("orphan ledgers were not looked for: %s", error)

    async def stop(self) -> bool:
        """Stop taking work, persist what is dirty, release the data directory. May be called twice.

        Returns within `brokerShutdownTimeoutMs`. False: something had not ended by then, and may
        still run.
        """
        await self._stopping.run()
        return not self._stopping.cut_short

    async def _close_topics(self) -> None:
        await self.ownership.leave()
        await self.registry.close()

    async def _end_upkeep(self) -> None:
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        # No chore looks at the disks any more, and a stop writes a lot.
        await self.services.disk_space.make_room(is_starting=False)


def _metadata_url(settings: Settings, directory: DataDirectory) -> str:
    return settings.persistence.metadata_store_url or f"sqlite:{directory.metadata_path}"


def _disk_space(settings: Settings, directory: DataDirectory) -> DiskSpace:
    persistence = settings.persistence
    metadata = parse_metadata_url(_metadata_url(settings, directory))
    if persistence.is_on_bookkeeper and metadata.scheme is not MetadataScheme.SQLITE:
        return DiskSpace.unwatched()  # nothing that matters is written to this machine's disks
    return DiskSpace(
        directory.root,
        persistence.bookie_paths(directory.root),
        bookies_needed=(
            0 if persistence.is_on_bookkeeper else persistence.managed_ledger_default_write_quorum
        ),
        reserve_bytes=persistence.disk_reserve_bytes,
    )


def _free_room(metadata: MetadataStore, storage: LedgerStorage) -> Iterator[Awaitable[object]]:
    """Work that frees disk space, or that was put off for lack of it."""
    if isinstance(metadata, SqliteMetadataStore):
        yield metadata.checkpoint()
    yield from storage.make_up()


def _authorization(services: SharedServices) -> Authorization | None:
    """The authorization that the settings ask for, or None if it is off."""
    security = services.settings.security
    if not security.authorization_enabled:
        return None
    log.info("roles may do what %s says", security.authorization_provider)
    return Authorization(services.policies, lambda: services.settings.security)


def _credentials(settings: Settings) -> Mapping[str, str]:
    """HTTP headers with the credentials that this broker shows to other brokers."""
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
    settings: Settings,
    metadata: MetadataStore,
    client: LedgerClient,
    run: int,
    tracing: Tracing | None,
) -> SharedServices:
    services = SharedServices(
        settings=settings,
        clock_ms=lambda: time.time_ns() // 1_000_000,
        ledger_client=client,
        metadata=metadata,
        ledger_options=LedgerOptions.of(settings.persistence),
        cache=EntryCache(settings.broker.managed_ledger_cache_size_mb * 1024 * 1024),
        policies=PolicyStore(metadata),
        producer_name_prefix=f"{settings.broker.cluster_name}-{run}",
        forget_topic=lambda _: None,
    )
    services.clock_us = lambda: time.time_ns() // 1_000
    services.tracing = tracing
    return services
