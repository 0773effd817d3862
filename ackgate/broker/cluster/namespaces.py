"""Which tenants and namespaces there are.

Edge: the metadata store. A tenant or namespace exists when it was made, or has a topic or a policy
(topics of earlier builds made theirs by themselves), and ``public/default`` always does. Topics are
created in a namespace that exists only; ``allowAutoTopicCreation`` is about topics, as in Pulsar.

Nothing is remembered here: another broker may make or delete a namespace at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.cluster.partition_counts import PARTITIONED_TOPICS
from ackgate.broker.wire import NamespaceName, NamespaceNotFoundError
from ackgate.errors import CallerError
from ackgate.persistence.nodes.changes import delete_node
from ackgate.persistence.nodes.paths import (
    MANAGED_LEDGERS,
    NAMESPACE_POLICIES,
    name_of_node,
    namespace_policies_path,
    node_of_name,
)

if TYPE_CHECKING:
    from ackgate.persistence.ports import MetadataStore

_ALWAYS: Final = NamespaceName("public", "default")
_ROOTS: Final = (MANAGED_LEDGERS, PARTITIONED_TOPICS, NAMESPACE_POLICIES)
"""Nodes below which lies one node per tenant, and below that one per namespace."""


class Namespaces:
    """The tenants and namespaces of a metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def tenants(self) -> list[str]:
        """Names of all tenants, sorted."""
        return await self._below("", {_ALWAYS.tenant})

    async def of(self, tenant: str) -> list[str]:
        """Names of a tenant's namespaces, without the tenant; empty if there is no such tenant."""
        always = {_ALWAYS.namespace} if tenant == _ALWAYS.tenant else set()
        return await self._below(f"/{node_of_name(tenant)}", always)

    async def exists(self, name: NamespaceName) -> bool:
        """Whether a namespace was created, or has a topic or a policy."""
        if name == _ALWAYS:
            return True
        path = namespace_policies_path(name.tenant, name.namespace)
        return await self._metadata.get(path) is not None or name.namespace in await self.of(
            name.tenant
        )

    async def require(self, name: NamespaceName) -> None:
        """Return if a namespace exists. Raises `NamespaceNotFoundError`."""
        if not await self.exists(name):
            raise NamespaceNotFoundError(f"Namespace not found: {name}")  # Pulsar's words

    async def forget_tenant(self, tenant: str) -> None:
        """Remove the nodes of a tenant without namespaces."""
        await self._prune(f"/{node_of_name(tenant)}")

    async def forget(self, name: NamespaceName) -> None:
        """Remove the nodes of a namespace without topics and policies."""
        below = f"/{node_of_name(name.tenant)}/{node_of_name(name.namespace)}"
        await self._prune(f"{below}/persistent")
        await self._prune(below)

    async def _below(self, path: str, always: set[str]) -> list[str]:
        names = set(always)
        for root in _ROOTS:
            names.update(map(name_of_node, await self._metadata.children(root + path)))
        return sorted(names)

    async def _prune(self, path: str) -> None:
        """Remove the node at this path below each root, unless it has children."""
        for root in _ROOTS:
            try:
                await delete_node(self._metadata, root + path)
            except CallerError:  # it does not exist, or has just got a child
                continue
