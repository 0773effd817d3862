"""What the metadata store says is there: topics, their ledgers, their cursors. Read-only.

Edge: `nodes`. Nodes are read in bulk, a directory of them at a time, and the ledgers' own
at most once::

    with open_catalogue(options) as catalogue:
        for topic in catalogue.topics(options.topics):
            catalogue.message_ledgers(topic), catalogue.cursors(topic)

A topic that owns no node of its own (a host that embeds cursors has none) has no message ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ackgate.config.load import load_settings
from ackgate.errors import CallerError, ConfigurationError, NoSuchLedgerError
from ackgate.persistence.buckets.registry import registered_buckets
from ackgate.persistence.cursors.node import decode_cursor_node
from ackgate.persistence.deliveries.node import DeliveryJournalNode, decode_journal_node
from ackgate.persistence.ledgers.catalog import decode_metadata
from ackgate.persistence.ledgers.metadata_check import CLUSTER_PATH
from ackgate.persistence.metadata_url import MetadataScheme, parse_metadata_url
from ackgate.persistence.nodes.paths import (
    LEDGERS,
    MANAGED_LEDGERS,
    delivery_journal_path,
    name_of_node,
)
from ackgate.persistence.nodes.topic_node import TopicNode, decode_topic_node
from ackgate.persistence.nodes.unnamed_ledgers import CLUSTER_KEY
from ackgate.persistence.offline_storage import on_cluster
from ackgate.persistence.system.data_directory import metadata_path
from ackgate.pipeline.catalogue.nodes import FetchedSqliteNodes, SqliteNodes, ZooKeeperNodes
from ackgate.pipeline.schema.addresses import (
    bookies_below,
    check_directory,
    is_remote,
    joined,
    plain_address,
)
from ackgate.pipeline.schema.options import near_matches
from ackgate.pipeline.storage.cluster_entries import ClusterPlace, OpenCluster
from ackgate.pipeline.storage.places import find_bookies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import BucketRecord
    from ackgate.persistence.cursors.node import CursorNode
    from ackgate.persistence.ledgers.catalog import PasswordCheck
    from ackgate.persistence.ports import LedgerMetadata
    from ackgate.pipeline.catalogue.nodes import Nodes
    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.storage.reading import LedgerPlaces

PARTITION: Final = "-partition-"
"""Between the name of a partitioned topic and the number of a partition."""


class CatalogueTopic(NamedTuple):
    """A topic, or a partition of one."""

    name: str
    """In full: ``persistent://tenant/namespace/topic``."""
    path: str
    """Path of its metadata node."""


class KnownLedger(NamedTuple):
    """A ledger that is there."""

    metadata: LedgerMetadata
    password_check: PasswordCheck | None
    """What the node keeps of its password. None: on a BookKeeper cluster, whose client looks itself."""


@dataclass(frozen=True)
class Cursor:
    """A cursor and what its node says, decoded when it is asked for."""

    topic: CatalogueTopic
    name: str
    path: str
    value: bytes
    """The node as stored."""

    @cached_property
    def node(self) -> CursorNode:
        """Raises `CorruptRecordError` naming the path."""
        return decode_cursor_node(self.value, path=self.path)

    @property
    def buckets(self) -> list[BucketRecord]:
        """Its sealed buckets of delayed entries. Raises `CorruptRecordError`."""
        return registered_buckets(self.node.cursor_properties)


@dataclass(frozen=True, slots=True)
class StorageAddress:
    """Where the metadata and the ledgers lie, and how their digests are made."""

    metadata_url: str = field(repr=False)
    """May hold a user's password, when it is an fsspec address."""
    bookies: tuple[str, ...] = field(repr=False)
    """Directories; none on a BookKeeper cluster, which `settings` name."""
    settings: PersistenceSettings = field(repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether any of it takes fsspec to open."""
        scheme, where = parse_metadata_url(self.metadata_url)
        is_remote_store = scheme is MetadataScheme.SQLITE and is_remote(where)
        return is_remote_store or any(map(is_remote, self.bookies))

    @property
    def password(self) -> bytes:
        """Key of the ledgers' digests."""
        return self.settings.ledger_password


def full_topic_name(text: str) -> str:
    """A name as the broker has it. Raises `CallerError`."""
    domain, found, rest = text.partition("://")
    if not found:
        domain, rest = "persistent", text if "/" in text else f"public/default/{text}"
    if domain != "persistent" or len(parts := rest.split("/", 2)) != 3 or not all(parts):
        raise CallerError(
            f"topic {text!r}: a name is TOPIC, TENANT/NAMESPACE/TOPIC or "
            "persistent://TENANT/NAMESPACE/TOPIC"
        )
    return f"persistent://{rest}"


class Catalogue:
    """A metadata store, opened for looking. Close it, or use it in a `with`."""

    def __init__(self, nodes: Nodes, settings: PersistenceSettings | None = None) -> None:
        """`settings`: of a broker whose ledgers may lie on a BookKeeper cluster."""
        self._nodes = nodes
        self._cluster: OpenCluster | None = None
        self._on_cluster: dict[int, LedgerMetadata] = {}
        """Of its ledgers those that were asked for so far."""
        if settings is not None and settings.is_on_bookkeeper:
            named = nodes.get(CLUSTER_PATH)
            marks = {} if named is None else {CLUSTER_KEY: named}
            self._cluster = OpenCluster(ClusterPlace(settings, marks))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store."""
        try:
            if self._cluster is not None:
                self._cluster.close()
        finally:
            self._nodes.close()

    def value(self, path: str) -> bytes | None:
        """Any node's value; None when there is no such node."""
        return self._nodes.get(path)

    # ------------------------------------------------------------------- topics

    def topics(self, names: Sequence[str] = ()) -> list[CatalogueTopic]:
        """Those of these names (a partitioned one: its partitions), or all.

        Raises `CallerError` with near matches for one that is not there.
        """
        if not names:
            return list(self._topics.values())
        chosen: dict[str, CatalogueTopic] = {}
        for name in names:
            full = full_topic_name(name)
            found = [self._topics[full]] if full in self._topics else self._partitions(full)
            if not found:
                raise CallerError(self._unknown_topic(full))
            chosen.update((topic.name, topic) for topic in found)
        return list(chosen.values())

    def topic(self, name: str) -> CatalogueTopic:
        """The one of this name. Raises as `topics`."""
        full = full_topic_name(name)
        if full not in self._topics:
            raise CallerError(self._unknown_topic(full))
        return self._topics[full]

    @cached_property
    def _topics(self) -> dict[str, CatalogueTopic]:
        found = {}
        for tenant in self._nodes.children(MANAGED_LEDGERS):
            for namespace in self._nodes.children(f"{MANAGED_LEDGERS}/{tenant}"):
                above = f"{MANAGED_LEDGERS}/{tenant}/{namespace}/persistent"
                for node in self._nodes.children(above):
                    parts = "/".join(map(name_of_node, (tenant, namespace, node)))
                    topic = CatalogueTopic(f"persistent://{parts}", f"{above}/{node}")
                    found[topic.name] = topic
        return found

    def _partitions(self, name: str) -> list[CatalogueTopic]:
        prefix = name + PARTITION
        found = [
            (int(number), topic)
            for full, topic in self._topics.items()
            if full.startswith(prefix)
            and (number := full.removeprefix(prefix)).isascii()
            and number.isdigit()
        ]
        return [topic for _, topic in sorted(found)]

    def _unknown_topic(self, name: str) -> str:
        known = list(self._topics)
        end = near_matches(name, known) or f"; there are {len(known)} topics"
        return f"there is no topic {name} in {self._nodes.where}{end}"

    def message_ledgers(self, topic: CatalogueTopic) -> TopicNode:
        """The topic's node. Raises `CorruptRecordError` naming it."""
        value = self._nodes.get(topic.path)
        return decode_topic_node(value, path=topic.path) if value else TopicNode()

    def journal(self, topic: CatalogueTopic) -> DeliveryJournalNode:
        """The node of the topic's delivery journal. Raises `CorruptRecordError` naming it."""
        path = delivery_journal_path(*topic.name.removeprefix("persistent://").split("/", 2))
        value = self._nodes.get(path)
        return decode_journal_node(value, path=path) if value else DeliveryJournalNode()

    # ------------------------------------------------------------------ cursors

    def cursors(self, topic: CatalogueTopic, subscription: str | None = None) -> list[Cursor]:
        """The topic's cursors, or the one of this name; none when it has no such one."""
        return [
            Cursor(topic, name, f"{topic.path}/{node}", value)
            for node, value in self._nodes.children(topic.path).items()
            if (name := name_of_node(node)) == subscription or subscription is None
        ]

    def all_cursors(
        self, topics: Sequence[CatalogueTopic], subscription: str | None
    ) -> list[Cursor]:
        """The cursors of all these topics. Raises `CallerError` when none has the subscription."""
        found = [cursor for topic in topics for cursor in self.cursors(topic, subscription)]
        if found or subscription is None:
            return found
        known = {name_of_node(n) for topic in topics for n in self._nodes.children(topic.path)}
        end = near_matches(subscription, sorted(known))
        raise CallerError(f"there is no subscription {subscription!r} in {self._nodes.where}{end}")

    # ------------------------------------------------------------------ ledgers

    @cached_property
    def ledger_nodes(self) -> dict[int, bytes]:
        """Every ledger's node as stored, ascending. None on a BookKeeper cluster."""
        nodes = self._nodes.children(LEDGERS)
        found = {int(n): v for n, v in nodes.items() if n.isascii() and n.isdigit()}
        return dict(sorted(found.items()))

    def ledger_ids(self) -> list[int]:
        """Every ledger of the store, ascending."""
        return list(self.ledger_nodes) if self._cluster is None else self._cluster.ledger_ids()

    def ledger(self, ledger_id: int) -> LedgerMetadata:
        return self.entry(ledger_id).metadata

    def entry(self, ledger_id: int) -> KnownLedger:
        """As `ledger`, with what verifies the ledger's password."""
        found = self.entries([ledger_id])
        if not found:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return found[0]

    def entries(self, ledger_ids: Iterable[int]) -> list[KnownLedger]:
        """Those of these ledgers that exist, in this order."""
        if self._cluster is None:
            known = self.ledger_nodes
            return [KnownLedger(*decode_metadata(i, known[i])) for i in ledger_ids if i in known]
        wanted = list(ledger_ids)
        unknown = [ledger_id for ledger_id in wanted if ledger_id not in self._on_cluster]
        self._on_cluster |= self._cluster.metadata_of(unknown)
        return [KnownLedger(self._on_cluster[i], None) for i in wanted if i in self._on_cluster]


# -------------------------------------------------------------------- opening it


def storage_address(options: SourceOptions) -> StorageAddress:
    """Where things lie. Raises `ConfigurationError`, `CallerError`, `StorageError`."""
    config = Path(options.config) if options.config else None
    if config is not None and not _is_file(config):
        raise CallerError(f"option config: there is no file {config}")
    settings = load_settings(config, is_serving=False).settings
    persistence = on_cluster(settings.persistence, options.bookkeeper)
    roots = options.paths or tuple(filter(None, (settings.broker.data_directory,)))
    roots = tuple(map(plain_address, roots))
    url = options.metadata_url or persistence.metadata_store_url
    if not url and not roots:
        raise CallerError("option path is missing: it names the data directory")
    url = url or f"sqlite:{joined(roots[0], metadata_path(Path()).name)}"
    if persistence.is_on_bookkeeper:
        _check_on_cluster(options, persistence.bookkeeper_metadata_service_uri)
        return StorageAddress(_plain_url(url), (), persistence)
    bookies = tuple(map(plain_address, _bookies(options, persistence, roots)))
    return StorageAddress(_plain_url(url), bookies, persistence)


def ledger_places(address: StorageAddress) -> LedgerPlaces:
    """For the driver and every worker. Raises `ConfigurationError` when no bookies are there."""
    if address.settings.is_on_bookkeeper:
        return ClusterPlace(address.settings)
    return find_bookies(address.bookies, password=address.password)


def _check_on_cluster(options: SourceOptions, uri: str) -> None:
    if options.bookies:
        raise CallerError(f"option bookies: the ledgers lie on the BookKeeper cluster {uri}")
    if options.table.name == "corrupt":
        raise CallerError(
            "table corrupt is of files, and the bookies of a cluster keep theirs: `ackgate bookies check"
            f" --metadata {uri}` verifies every copy"
        )


def _is_file(path: Path) -> bool:
    """Whether there is such a file. Raises `ConfigurationError` if nobody may look there."""
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error


def _plain_url(url: str) -> str:
    scheme, where = parse_metadata_url(url)
    return f"sqlite:{plain_address(where)}" if scheme is MetadataScheme.SQLITE else url


def open_catalogue(options: SourceOptions) -> Catalogue:
    """Open the catalogue that the options name.

    Raises `ConfigurationError`, `CallerError`, `StorageError`.
    """
    address = storage_address(options)
    scheme, where = parse_metadata_url(address.metadata_url)
    match scheme:
        case MetadataScheme.MEMORY:
            raise ConfigurationError("memory: keeps nothing that could be looked at")
        case MetadataScheme.SOCKET:
            raise ConfigurationError(
                f"{address.metadata_url} is for brokers: what they keep is read from their data"
                " directory, also while they run"
            )
        case MetadataScheme.ZOOKEEPER:
            nodes: Nodes = ZooKeeperNodes(address.metadata_url, address.settings)
        case MetadataScheme.SQLITE:
            if is_remote(where):
                nodes = FetchedSqliteNodes(where)
            elif not _is_file(Path(where)):
                raise ConfigurationError(f"no broker has kept anything here: there is no {where}")
            else:
                nodes = SqliteNodes(Path(where))
    return Catalogue(nodes, address.settings)


def _bookies(
    options: SourceOptions, settings: PersistenceSettings, roots: Sequence[str]
) -> tuple[str, ...]:
    if options.bookies:
        return options.bookies
    if settings.bookie_directories:
        return tuple(map(str, settings.bookie_paths(Path(roots[0] if roots else "."))))
    if not roots:
        raise CallerError("option bookies is missing: it names their directories")
    for root in roots:
        check_directory(root)
    return tuple(bookie for root in roots for bookie in bookies_below(root))
