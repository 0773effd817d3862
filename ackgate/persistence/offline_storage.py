"""A broker's storage, opened by a tool: ledgers and metadata of a data directory or of a cluster.

Edge. For looking, everything is opened read-only: no lock is taken, nothing is fenced, and a broker
that runs does not notice. For mending, the data directory is taken as a broker would take it, so that
none can run on it meanwhile; on a metadata store that several brokers share (ZooKeeper) they may run,
since what an auditor does there is safe beside them.

Ledgers lie in directories or on a BookKeeper cluster (`bookkeeperMetadataServiceUri`). `opened_ledgers`
opens either, for looking; `opened_storage` directories, and `opened_cluster` a cluster.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from ackgate.config.load import load_settings
from ackgate.config.persistence import METADATA_SERVICE_URI
from ackgate.errors import ConfigurationError
from ackgate.extras import named_extras
from ackgate.persistence.bookies.settings import bookie_settings, ledger_client_settings
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.persistence.ledgers.metadata_check import claim, known_cluster
from ackgate.persistence.ledgers.opening import BookieOpener, open_usable_bookies
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.metadata.sqlite_file import has_writer
from ackgate.persistence.metadata_url import (
    MetadataScheme,
    open_metadata_store,
    parse_metadata_url,
)
from ackgate.persistence.nodes.unnamed_ledgers import BOOKKEEPER_PATH, refuse_bookkeeper
from ackgate.persistence.system.data_directory import DataDirectory, metadata_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.bookkeeper import BookKeeperClient
    from ackgate.persistence.ports import LedgerClient, MetadataStore

T = TypeVar("T")


class StoragePlaces(NamedTuple):
    """Where the metadata and the ledgers are."""

    data_directory: Path
    metadata_url: str
    bookies: tuple[Path, ...]
    """Directories; none on a BookKeeper cluster, which `settings` name."""
    settings: PersistenceSettings

    @property
    def password(self) -> bytes:
        """Key of the ledgers' digests."""
        return self.settings.ledger_password

    @property
    def is_new(self) -> bool:
        """Whether nothing is there yet where the metadata should be."""
        scheme, address = parse_metadata_url(self.metadata_url)
        return scheme is MetadataScheme.SQLITE and not Path(address).is_file()

    @property
    def is_shared(self) -> bool:
        """Whether brokers may use the metadata store while we write to it."""
        return parse_metadata_url(self.metadata_url).scheme in {
            MetadataScheme.ZOOKEEPER,
            MetadataScheme.SOCKET,
        }

    @property
    def has_writer(self) -> bool:
        """Whether a process may be writing to the metadata store now."""
        scheme, address = parse_metadata_url(self.metadata_url)
        return scheme is not MetadataScheme.SQLITE or has_writer(Path(address))

    @property
    def source(self) -> str:
        """For people: the data directory, or the metadata store where that lies elsewhere."""
        is_inside = self.metadata_url == _own_metadata_url(self.data_directory)
        return str(self.data_directory) if is_inside else self.metadata_url


def _own_metadata_url(root: Path) -> str:
    return f"sqlite:{metadata_path(root)}"


class OfflineStorage(NamedTuple):
    """The opened metadata store and client of ledgers."""

    places: StoragePlaces
    metadata: MetadataStore
    client: BookieLedgerClient
    left_out: Mapping[Path, str]
    """Bookies' directories that could not be opened, and why."""

    @property
    def settings(self) -> PersistenceSettings:
        return self.places.settings

    @property
    def password(self) -> bytes:
        """Key of the ledgers' digests."""
        return self.places.password


class OfflineCluster(NamedTuple):
    """The opened metadata store, and a client of the BookKeeper cluster that has its ledgers."""

    metadata: MetadataStore
    client: BookKeeperClient
    settings: PersistenceSettings

    @property
    def password(self) -> bytes:
        """Key of the ledgers' digests."""
        return self.settings.ledger_password


class OpenedStorage(Protocol):
    """Metadata and ledgers, wherever these lie."""

    @property
    def metadata(self) -> MetadataStore: ...

    @property
    def client(self) -> LedgerClient: ...

    @property
    def password(self) -> bytes:
        """Key of the ledgers' digests."""

    @property
    def settings(self) -> PersistenceSettings: ...


def storage_places(
    *,
    data_directory: Path | None = None,
    config: Path | None = None,
    metadata_url: str | None = None,
    bookies: str | None = None,
    bookkeeper: str | None = None,
    may_be_new: bool = False,
) -> StoragePlaces:
    """The places that the command line names; the broker's settings are the default.

    `bookkeeper`: the URI of a BookKeeper cluster. `may_be_new`: lost metadata may be created again.
    Raises `ConfigurationError`.
    """
    settings = load_settings(config, is_serving=False).settings
    persistence = on_cluster(settings.persistence, bookkeeper)
    root = data_directory or Path(settings.broker.data_directory or "data")
    url = metadata_url or persistence.metadata_store_url or _own_metadata_url(root)
    scheme, address = parse_metadata_url(url)
    if scheme is MetadataScheme.MEMORY:
        raise ConfigurationError("memory: keeps nothing that could be looked at")
    is_missing = scheme is MetadataScheme.SQLITE and not _found(Path(address).is_file, address)
    if is_missing and not may_be_new:
        raise ConfigurationError(f"no broker has kept anything here: there is no {address}")
    if persistence.is_on_bookkeeper:
        if bookies is not None:
            raise ConfigurationError(
                f"--bookies {bookies}: the ledgers lie on the BookKeeper cluster"
                f" {persistence.bookkeeper_metadata_service_uri}, not in directories"
            )
        return StoragePlaces(root, url, (), persistence)
    if bookies is not None:
        paths = tuple(Path(part.strip()) for part in bookies.split(",") if part.strip())
    elif persistence.bookie_directories:
        paths = persistence.bookie_paths(root)
    else:
        above = root / "bookies"
        paths = tuple(_found(partial(_directories, above), above))
    if not paths:
        raise ConfigurationError(f"no bookies in {root / 'bookies'}; --bookies says where they are")
    return StoragePlaces(root, url, paths, persistence)


def _found(look: Callable[[], T], path: object) -> T:
    """What a look at the path returns. Raises `ConfigurationError` if nobody may look there."""
    try:
        return look()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error


def _directories(above: Path) -> list[Path]:
    """The directories in `above`, in order; none where there is no such. Raises `OSError`."""
    return [path for path in sorted(above.iterdir()) if path.is_dir()] if above.is_dir() else []


def _why_absent(directory: Path) -> str | None:
    """Why nobody can open it; None: it is there."""
    try:
        return None if directory.is_dir() else "there is no such directory"
    except OSError as error:
        return error.strerror or str(error)


def on_cluster(settings: PersistenceSettings, uri: str | None) -> PersistenceSettings:
    """The settings of a broker whose ledgers lie on this cluster; None: as they are.

    Raises `ConfigurationError` for a URI that is none.
    """
    if uri is None:
        return settings
    if METADATA_SERVICE_URI.fullmatch(uri) is None:
        raise ConfigurationError(
            f"{uri!r} is no BookKeeper cluster: it must read zk+hierarchical://HOST:PORT[;HOST:PORT...]/ledgers"
        )
    return settings.model_copy(update={"bookkeeper_metadata_service_uri": uri})


def places_of(arguments: argparse.Namespace, *, may_be_new: bool = False) -> StoragePlaces:
    """As `storage_places`, of a parsed command line."""
    return storage_places(
        data_directory=arguments.data_dir,
        config=arguments.config,
        metadata_url=arguments.metadata_url,
        bookies=arguments.bookies,
        bookkeeper=arguments.metadata,
        may_be_new=may_be_new,
    )


@contextlib.asynccontextmanager
async def opened_storage(
    places: StoragePlaces, *, is_writing: bool = False
) -> AsyncIterator[OfflineStorage]:
    """Open directories, and close them again.

    Raises `DataDirectoryBusyError` (writing, and a broker runs), `ConfigurationError`,
    `MetadataStoreError`.
    """
    refuse_cluster(places.settings, "this works on bookies that are directories")
    async with contextlib.AsyncExitStack() as stack:
        metadata = await _open_metadata(places, stack, is_writing=is_writing)
        await refuse_bookkeeper(metadata)
        # A writer would make what is not there; a mistyped name must not become a bookie.
        left_out = {path: why for path in places.bookies if (why := _why_absent(path)) is not None}
        present = [path for path in places.bookies if path not in left_out]
        opener = BookieOpener(
            settings=bookie_settings(places.settings), is_read_only=not is_writing
        )
        cluster = await known_cluster(metadata)
        if cluster is not None:
            opener.admit = partial(claim, cluster=cluster)
        bookies, absent = await open_usable_bookies(present, opener, least=0)
        client = BookieLedgerClient(
            bookies,
            metadata,
            settings=ledger_client_settings(places.settings),
            on_bad_copy=lambda _: None,
        )
        stack.push_async_callback(client.close)
        stack.push_async_callback(absent.close)
        yield OfflineStorage(places, metadata, client, {**left_out, **absent.reasons})


async def _open_metadata(
    places: StoragePlaces, stack: contextlib.AsyncExitStack, *, is_writing: bool
) -> MetadataStore:
    """Open the metadata store, and for writing take its directory; `stack` ends both."""
    root = places.data_directory
    if is_writing and not places.is_shared and _found(root.is_dir, root):
        stack.callback(DataDirectory.acquire(places.data_directory).release)
    metadata = await open_metadata_store(
        "memory:" if places.is_new and not is_writing else places.metadata_url,
        read_only=not is_writing,
        node_bytes_max=places.settings.metadata_store_max_node_bytes,
        session=SessionOptions.of(places.settings),
    )
    stack.push_async_callback(metadata.close)
    return metadata


def refuse_cluster(settings: PersistenceSettings, why: str) -> None:
    """Raise `ConfigurationError` if the ledgers lie on a BookKeeper cluster."""
    if settings.is_on_bookkeeper:
        uri = settings.bookkeeper_metadata_service_uri
        raise ConfigurationError(f"the ledgers lie on the BookKeeper cluster {uri}: {why}")


@contextlib.asynccontextmanager
async def opened_cluster(
    places: StoragePlaces, *, is_writing: bool = False, may_be_lost: bool = False
) -> AsyncIterator[OfflineCluster]:
    """Open what a broker with these settings would use on a BookKeeper cluster, and close it again.

    `may_be_lost`: metadata that are not there are read as empty. Raises `ConfigurationError`,
    `MetadataStoreError`, `DataDirectoryBusyError` (writing, and a broker runs).
    """
    with named_extras("bookkeeper"):
        from ackgate.persistence.bookkeeper import (  # noqa: PLC0415  only where it is wanted
            BookKeeperClient,
        )
    settings = places.settings
    async with contextlib.AsyncExitStack() as stack:
        try:
            metadata = await _open_metadata(places, stack, is_writing=is_writing)
        except ConfigurationError:
            if is_writing or not may_be_lost:
                raise
            metadata = await open_metadata_store("memory:")
            stack.push_async_callback(metadata.close)
        client = await BookKeeperClient.connect_with(settings, is_read_only=not is_writing)
        stack.push_async_callback(client.close)
        found = await metadata.get(BOOKKEEPER_PATH)
        if found is not None and found.value != client.instance_id.encode():
            raise ConfigurationError(
                f"the ledgers of {places.metadata_url} lie on another BookKeeper cluster, not on"
                f" {settings.bookkeeper_metadata_service_uri}"
            )
        yield OfflineCluster(metadata, client, settings)


@contextlib.asynccontextmanager
async def opened_ledgers(places: StoragePlaces) -> AsyncIterator[OpenedStorage]:
    """Open directories or a cluster for looking, and close them again. Raises as either."""
    if places.settings.is_on_bookkeeper:
        async with opened_cluster(places) as cluster:
            yield cluster
    else:
        async with opened_storage(places) as storage:
            yield storage


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the logs: a tool reports its findings itself, once."""
    logger = logging.getLogger("ackgate")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
