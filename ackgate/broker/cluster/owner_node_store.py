"""Writes the nodes in which this broker describes itself and claims bundles.

Edge: the metadata store; remembers nothing. If a write gets no answer, it reads the node to see
what happened. It removes nodes of an earlier run of this broker.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from ackgate.broker.cluster.bundles import NamespaceBundles, local_policies_path
from ackgate.errors import (
    ConfigurationError,
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
    broker_path,
    decode_broker,
    decode_owner,
    encode_broker,
    encode_owner,
)

if TYPE_CHECKING:
    from ackgate.broker.cluster.bundles import Bundle
    from ackgate.persistence.nodes.owner_nodes import BrokerRecord, OwnerRecord
    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)


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
