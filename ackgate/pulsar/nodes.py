"""Pulsar's nodes in ZooKeeper, for reading only: there is no method here that writes.

Edge, over our ZooKeeper store, which is opened read-only as well. Names are encoded as Pulsar's `Codec`
does::

    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>            a topic: its ledgers
    /managed-ledgers/<tenant>/<namespace>/persistent/<topic>/<cursor>   a cursor
    /managed-ledgers/<tenant>/<cluster>/<namespace>/persistent/<topic>  the same of names of before 2.0
    /admin/partitioned-topics/<tenant>/<namespace>/persistent/<topic>   {"partitions": N}
    /admin/policies/<tenant>/<namespace>                                policies, in JSON
    /admin/configuration                                                keys of all brokers, in JSON
    /schemas/<tenant>/<namespace>/<topic>                               where its schemas lie
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import quote_plus, unquote_plus

from google.protobuf.message import DecodeError

from ackgate.cursor import Position
from ackgate.errors import CallerError, ConfigurationError, CorruptRecordError
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore
from ackgate.pulsar.proto.stored_pb2 import SchemaLocator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ackgate.persistence.ports import NodeValue

MANAGED_LEDGERS: Final = "/managed-ledgers"
READS_AT_ONCE: Final = 64
"""Requests under way to ZooKeeper at a time: enough to hide the way there, and little for its server."""

_SCHEME: Final = "zk:"
_PERSISTENT: Final = "persistent"
_PARTITION: Final = "-partition-"


class PulsarTopic(NamedTuple):
    """A topic, or a partition of one, by its place in ZooKeeper."""

    tenant: str
    namespace: str
    """``cluster/namespace`` in names of before 2.0."""
    local_name: str

    def __str__(self) -> str:
        return f"persistent://{self.tenant}/{self.namespace}/{self.local_name}"

    @classmethod
    def parse(cls, text: str) -> PulsarTopic:
        """Take ``TOPIC``, ``TENANT/NAMESPACE/TOPIC`` or the full name. Raises `CallerError`."""
        domain, found, rest = text.partition("://")
        if not found:
            domain, rest = _PERSISTENT, text if "/" in text else f"public/default/{text}"
        parts = rest.split("/")
        if domain != _PERSISTENT or len(parts) not in {3, 4} or not all(parts):
            raise CallerError(
                f"topic {text!r}: a name is TOPIC, TENANT/NAMESPACE/TOPIC or "
                "persistent://TENANT/NAMESPACE/TOPIC"
            )
        return cls(parts[0], "/".join(parts[1:-1]), parts[-1])

    @classmethod
    def of_managed_ledger(cls, name: str) -> PulsarTopic | None:
        """The topic that brokers call so; None: the name is no topic's."""
        parts = name.split("/")
        if len(parts) not in {4, 5} or parts[-2] != _PERSISTENT:
            return None
        return cls(parts[0], "/".join(parts[1:-2]), decoded(parts[-1]))

    @property
    def managed_ledger(self) -> str:
        """As brokers call it: in logs, and in the metadata of its ledgers."""
        return f"{self.tenant}/{self.namespace}/{_PERSISTENT}/{encoded(self.local_name)}"

    @property
    def path(self) -> str:
        return f"{MANAGED_LEDGERS}/{self.managed_ledger}"

    @property
    def partitioned(self) -> PulsarTopic:
        """The topic that this is a partition of, or itself."""
        name, found, number = self.local_name.rpartition(_PARTITION)
        return self._replace(local_name=name) if found and number.isdecimal() else self

    def partition(self, index: int) -> PulsarTopic:
        return self._replace(local_name=f"{self.local_name}{_PARTITION}{index}")


def encoded(name: str) -> str:
    """The node's name for a topic's or a subscription's name (Java's `URLEncoder`)."""
    return quote_plus(name, safe="*").replace("~", "%7E")


def decoded(node: str) -> str:
    """The name for a node's name; the reverse of `encoded`."""
    return unquote_plus(node, errors="replace")


class PulsarNodes:
    """A session to ZooKeeper that reads. Make it with `open`."""

    def __init__(self, store: ZooKeeperMetadataStore, url: str) -> None:
        self._store = store
        self._at_once = asyncio.Semaphore(READS_AT_ONCE)
        self.url = url

    @classmethod
    async def open(cls, url: str, session: SessionOptions | None = None) -> Self:
        """`url`: ``zk:HOST:PORT[,HOST:PORT...][/CHROOT]``.

        Raises `ConfigurationError` (the address, no Pulsar there), `MetadataStoreError` (no server).
        """
        address = zookeeper_address(url)
        store = await ZooKeeperMetadataStore.open(
            address, read_only=True, options=session or SessionOptions()
        )
        nodes = cls(store, url)
        try:
            is_pulsar = await nodes.get(MANAGED_LEDGERS) is not None
        except BaseException:
            await store.close()
            raise
        if not is_pulsar:
            await store.close()
            raise ConfigurationError(
                f"{url} has no node {MANAGED_LEDGERS}: it is not the metadata store of a Pulsar "
                "cluster (or its chroot is missing)"
            )
        return nodes

    async def close(self) -> None:
        """End the session to ZooKeeper."""
        await self._store.close()

    async def get(self, path: str) -> NodeValue | None:
        """A node; None: there is none. Raises `MetadataStoreError`."""
        async with self._at_once:
            return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        """Names below a node, in order; none where there is no such node."""
        async with self._at_once:
            return await self._store.children(path)

    async def json(self, path: str) -> dict[str, Any]:
        """A node's object; empty: there is none. Raises `CorruptRecordError`."""
        node = await self.get(path)
        if node is None or not node.value:
            return {}
        try:
            found = json.loads(node.value)
        except ValueError as error:
            raise CorruptRecordError(f"{path}: it is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise CorruptRecordError(f"{path}: it is not an object of JSON")
        return found

    async def namespaces(self) -> AsyncIterator[tuple[str, str]]:
        """(tenant, namespace) of all that have topics; ``cluster/namespace`` of the old form."""
        for tenant in await self.children(MANAGED_LEDGERS):
            for name in await self.children(f"{MANAGED_LEDGERS}/{tenant}"):
                below = await self.children(f"{MANAGED_LEDGERS}/{tenant}/{name}")
                if _PERSISTENT in below:
                    yield tenant, name
                for old in below:
                    path = f"{MANAGED_LEDGERS}/{tenant}/{name}/{old}"
                    if old != _PERSISTENT and _PERSISTENT in await self.children(path):
                        yield tenant, f"{name}/{old}"

    async def topics(self, namespace: str | None = None) -> AsyncIterator[PulsarTopic]:
        """All topics and partitions, or those of one ``TENANT/NAMESPACE``: a namespace at a time.

        Raises `CallerError` for a namespace without topics.
        """
        if namespace is not None:
            tenant, found, name = namespace.partition("/")
            names = await self._topics_of(tenant, name) if found and name else []
            if not names:
                raise CallerError(f"there is no namespace {namespace} with topics in {self.url}")
            for topic in names:
                yield topic
            return
        async for tenant, name in self.namespaces():
            for topic in await self._topics_of(tenant, name):
                yield topic

    async def _topics_of(self, tenant: str, namespace: str) -> Sequence[PulsarTopic]:
        above = f"{MANAGED_LEDGERS}/{tenant}/{namespace}/{_PERSISTENT}"
        return [
            PulsarTopic(tenant, namespace, decoded(name)) for name in await self.children(above)
        ]

    async def partition_count(self, topic: PulsarTopic) -> int:
        """Partitions of the topic; 0: it is not partitioned. Raises `CorruptRecordError`."""
        above = f"/admin/partitioned-topics/{topic.tenant}/{topic.namespace}/{_PERSISTENT}"
        path = f"{above}/{encoded(topic.local_name)}"
        count = (await self.json(path)).get("partitions", 0)
        if not isinstance(count, int) or count < 0:
            raise CorruptRecordError(f"{path}: {count!r} partitions")
        return count

    async def subscriptions(self, topic: PulsarTopic) -> list[str]:
        """Names of the topic's cursors; those that brokers keep for themselves are among them."""
        return [decoded(name) for name in await self.children(topic.path)]

    async def schema_places(self, topic: PulsarTopic) -> list[tuple[int, Position]]:
        """(version, entry) of each schema; partitions share them. Raises `CorruptRecordError`."""
        whole = topic.partitioned
        path = f"/schemas/{whole.tenant}/{whole.namespace}/{encoded(whole.local_name)}"
        node = await self.get(path)
        if node is None:
            return []
        try:
            stored = SchemaLocator.FromString(node.value)
        except DecodeError as error:
            raise CorruptRecordError(f"{self.url}{path}: {error}") from error
        return [
            (each.version, Position(each.position.ledgerId, each.position.entryId))
            for each in stored.index
        ]

    async def namespace_policies(self, topic: PulsarTopic) -> dict[str, Any]:
        """The policies of its namespace, as stored. Those of a topic lie in a topic of their own."""
        return await self.json(f"/admin/policies/{topic.tenant}/{topic.namespace}")

    async def dynamic_configuration(self) -> dict[str, str]:
        """Keys of broker.conf that were changed at run time, for all brokers."""
        found = await self.json("/admin/configuration")
        return {key: str(value) for key, value in found.items()}


def zookeeper_address(url: str) -> str:
    """``HOST:PORT,.../CHROOT`` of the URL. Raises `ConfigurationError`."""
    address = url.removeprefix(_SCHEME).removeprefix("//").rstrip("/")
    if not url.startswith(_SCHEME) or not address:
        raise ConfigurationError(
            f"metadata {url!r}: it must read zk:HOST:PORT[,HOST:PORT...][/CHROOT]; other metadata "
            "stores of Pulsar (etcd, RocksDB, Oxia) are not read"
        )
    return address
