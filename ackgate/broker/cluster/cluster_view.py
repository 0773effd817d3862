"""A copy of which brokers live and which of them owns each bundle, kept up to date by watches.

Edge: reads the metadata store, and never writes. The copy answers at once, and may be a round trip
old; nothing that must be right relies on it. On a change the changed node is read again, so the
copy becomes right whatever the order of the notifications.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from ackgate.broker.cluster.bundles import bundle_of_owner_path
from ackgate.broker.cluster.node_follower import NodeFollower
from ackgate.errors import CorruptRecordError
from ackgate.persistence.nodes.owner_nodes import (
    BROKERS,
    OWNERS,
    broker_path,
    decode_broker,
    decode_owner,
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
