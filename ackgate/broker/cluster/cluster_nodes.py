"""The nodes of brokers and of bundles' owners in the metadata store: a copy of all, and writes of our own.

Edge. `ClusterView` is the copy, kept up to date by watches; it never writes. It answers at once, and may be
a round trip old; nothing that must be right relies on it. On a change the changed node is read again, so
the copy becomes right whatever the order of the notifications.

`OwnerNodeStore` writes the nodes in which this broker describes itself and claims bundles, and remembers
nothing. If a write gets no answer, it reads the node to see what happened. It removes nodes of an earlier
run of this broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from ackgate.broker.cluster.bundles import (
    NamespaceBundles,
    bundle_of_owner_path,
    local_policies_path,
)
from ackgate.broker.cluster.node_follower import NodeFollower
from ackgate.errors import (
    ConfigurationError,
    CorruptRecordError,
    MetadataConflictError,
    NodeExistsError,
    NoSuchNodeError,
    OutcomeUnknownError,
)
from ackgate.persistence.nodes.changes import (
    count_up,
    read_or_create,
    until_answered,
    until_won,
)
from ackgate.persistence.nodes.owner_nodes import (
    BROKERS,
    OWNERS,
    broker_path,
    decode_broker,
    decode_owner,
    encode_broker,
    encode_owner,
)
from ackgate.persistence.nodes.paths import name_of_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.broker.cluster.bundles import Bundle
    from ackgate.persistence.nodes.owner_nodes import BrokerRecord, OwnerRecord
    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)

READS_AT_ONCE_MAX: Final = 200
"""Nodes that are read at the same time."""


class ClusterView:
    """The known brokers and owners. It is kept up to date from `start` to `stop`."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        on_owner: Callable[[Bundle, OwnerRecord | None], None],
        on_broker: Callable[[BrokerRecord], None],
    ) -> None:
        self._metadata = metadata
        self._on_owner = on_owner
        self._on_broker = on_broker
        self.brokers: dict[str, BrokerRecord] = {}
        self.owners: dict[Bundle, OwnerRecord] = {}
        self._joined_ms: dict[str, int] = {}
        self._follower = NodeFollower(metadata, (BROKERS, OWNERS), self._read)

    async def start(self) -> None:
        """Watch, then read everything. Raises the metadata store's errors."""
        self._follower.start()
        self.brokers, self.owners, self._joined_ms = {}, {}, {}
        brokers = await self._metadata.children(BROKERS)
        paths = {f"{BROKERS}/{node}" for node in brokers}
        level = [OWNERS]
        for _ in ("tenants", "namespaces", "bundles"):
            found = await asyncio.gather(*map(self._metadata.children, level))
            level = [
                f"{parent}/{name}"
                for parent, names in zip(level, found, strict=True)
                for name in names
            ]
        await self._read(paths | set(level))

    def stop(self) -> None:
        """Stop watching. What is known stays."""
        self._follower.stop()

    @property
    def leader(self) -> BrokerRecord | None:
        """The broker that joined first; None if no broker is known."""
        return min(
            self.brokers.values(),
            key=lambda broker: (self._joined_ms[broker.broker_id], broker.broker_id),
            default=None,
        )

    def bundles_per_broker(self) -> Counter[str]:
        """How many bundles each broker owns, by broker id."""
        return Counter(owner.broker_id for owner in self.owners.values())

    def settled(self, before_ms: int) -> dict[str, int]:
        """How many bundles each broker owns, of those that joined by then, by broker id."""
        counts = self.bundles_per_broker()
        return {
            broker_id: counts[broker_id]
            for broker_id, joined_ms in self._joined_ms.items()
            if joined_ms <= before_ms
        }

    async def _read(self, paths: Iterable[str]) -> None:
        waiting = sorted(path for path in paths if _is_known(path))
        for start in range(0, len(waiting), READS_AT_ONCE_MAX):
            group = waiting[start : start + READS_AT_ONCE_MAX]
            await asyncio.gather(*map(self._read_one, group))

    async def _read_one(self, path: str) -> None:
        found = await self._metadata.get(path)
        bundle = bundle_of_owner_path(path)
        try:
            if bundle is None:
                broker = decode_broker(found.value, path=path) if found else None
                if broker is None or found is None:
                    self._forget_broker(name_of_node(path.rpartition("/")[2]))
                else:
                    self._joined_ms[broker.broker_id] = found.created_ms
                    if self.brokers.get(broker.broker_id) != broker:
                        log.info("broker %s is here: %s", broker.broker_id, broker.service_url)
                    self.brokers[broker.broker_id] = broker
                    self._on_broker(broker)
                return
            self.put_owner(bundle, decode_owner(found.value, path=path) if found else None)
        except CorruptRecordError as error:
            log.error("%s", error)  # noqa: TRY400 - the trace says nothing more

    def put_owner(self, bundle: Bundle, owner: OwnerRecord | None) -> None:
        """Store what is known of a bundle's owner; None: it has none."""
        if owner is None:
            self.owners.pop(bundle, None)
        else:
            self.owners[bundle] = owner
        self._on_owner(bundle, owner)

    def _forget_broker(self, broker_id: str) -> None:
        if self.brokers.pop(broker_id, None) is not None:
            log.info("broker %s is gone", broker_id)
        self._joined_ms.pop(broker_id, None)


def _is_known(path: str) -> bool:
    is_broker = path.startswith(f"{BROKERS}/") and path == broker_path(
        name_of_node(path.rpartition("/")[2])
    )
    return is_broker or bundle_of_owner_path(path) is not None


class OwnerNodeStore:
    """The nodes of brokers, of bundles and of their owners."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def announce(self, me: BrokerRecord, *, is_insisting: bool = False) -> None:
        """Make this broker's node.

        Raises `ConfigurationError` if a broker that started later has announced the same address.
        With `is_insisting` it replaces that broker's node instead.
        """
        path, value = broker_path(me.broker_id), encode_broker(me)

        async def attempt() -> None:
            try:
                await self._metadata.create(path, value, ephemeral=True)
            except (NodeExistsError, OutcomeUnknownError):
                found = await self._metadata.get(path)
                if found is None:
                    raise
                present = decode_broker(found.value, path=path)
                if present.instance == me.instance:
                    return
                if present.run > me.run and not is_insisting:
                    raise address_taken(present) from None
                # Most likely our own earlier run. Otherwise it lives, and announces itself again.
                log.info("broker %s is announced already, by run %d", me.broker_id, present.run)
                await self.delete(path, found.version)
                raise

        await until_won(attempt, of=path)

    async def bundles(self, wanted: NamespaceBundles) -> NamespaceBundles:
        """The stored bundles of a namespace; stores `wanted` if there are none."""
        path = local_policies_path(wanted.namespace)
        value = await read_or_create(self._metadata, path, wanted.encode)
        return NamespaceBundles.decode(wanted.namespace, value)

    async def owner(self, bundle: Bundle) -> OwnerRecord | None:
        """Read who owns a bundle; None: nobody."""
        found = await self._metadata.get(bundle.owner_path)
        return decode_owner(found.value, path=bundle.owner_path) if found else None

    async def next_epoch(self, bundle: Bundle) -> int:
        """Count one more owner of a bundle. Returns the count."""
        return await count_up(self._metadata, bundle.epoch_path, first=1)

    async def claim(self, bundle: Bundle, wanted: OwnerRecord) -> OwnerRecord:
        """Make our owner's node. Returns the owner: `wanted`, or the broker that was faster."""
        path = bundle.owner_path

        async def attempt() -> OwnerRecord:
            try:
                await self._metadata.create(path, encode_owner(wanted), ephemeral=True)
            except (NodeExistsError, OutcomeUnknownError):
                found = await self._metadata.get(path)
                if found is None:
                    raise
                owner = decode_owner(found.value, path=path)
                if owner == wanted or owner.broker_id != wanted.broker_id:
                    return owner
                await self.delete(path, found.version)  # of an earlier run
                raise
            return wanted

        return await until_won(attempt, of=path)

    async def remove(self, bundle: Bundle, me: BrokerRecord) -> OwnerRecord | None:
        """Delete our owner's node. Returns another broker that owns the bundle by now, if known."""

        async def attempt(is_doubtful: bool) -> OwnerRecord | None:  # noqa: FBT001
            if is_doubtful:
                owner = await self.owner(bundle)
                if owner is None or owner.instance != me.instance:
                    return owner  # an earlier attempt deleted it
            with contextlib.suppress(NoSuchNodeError):
                await self._metadata.delete(bundle.owner_path)
            return None

        return await until_answered(attempt, of=bundle.owner_path)

    async def delete(self, path: str, version: int | None) -> None:
        """Delete a node of this version. It is fine if it is gone or has changed."""

        async def attempt(_is_doubtful: bool) -> None:  # noqa: FBT001
            with contextlib.suppress(NoSuchNodeError, MetadataConflictError):
                await self._metadata.delete(path, expected_version=version)

        await until_answered(attempt, of=path)


def address_taken(other: BrokerRecord) -> ConfigurationError:
    """The error for a second broker that announces the same address."""
    return ConfigurationError(
        f"another broker says that it is {other.broker_id}, and lives (run {other.run}): each needs "
        "an advertisedAddress, or ports, of its own"
    )
