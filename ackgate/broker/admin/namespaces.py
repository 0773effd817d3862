"""Tenants and namespaces, as far as this broker knows of them.

Edge. Names are not registered here: a tenant or namespace exists when it was made, or has a topic
or a policy, and ``public/default`` always does. Making one is allowed, and remembered, because
scripts written for Pulsar do that first. Roles and replication are not kept. Where a deleted
namespace was cut into bundles stays known, since brokers that have read it would not learn anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.call import DONE, json_reply
from ackgate.broker.admin.refusals import RefusedError
from ackgate.broker.admin.router import Route
from ackgate.broker.names import NamespaceName
from ackgate.broker.partition_counts import PARTITIONED_TOPICS
from ackgate.broker.policies import (
    DELAYED_DELIVERY,
    MESSAGE_TTL_SECONDS,
    PAUSE_ON_ACK_STATE,
    REDELIVERY_BACKOFF,
    RETENTION_MB,
    RETENTION_MINUTES,
    namespace_policy_path,
)
from ackgate.errors import CallerError, NodeExistsError
from ackgate.persistence.paths import (
    MANAGED_LEDGERS,
    NAMESPACE_POLICIES,
    name_of_node,
    node_of_name,
)

if TYPE_CHECKING:
    from ackgate.broker.admin.call import Call, Reply

_ALWAYS: Final = NamespaceName("public", "default")
_ROOTS: Final = (MANAGED_LEDGERS, PARTITIONED_TOPICS, NAMESPACE_POLICIES)
"""Nodes below which lies one node per tenant, and below that one per namespace."""


async def check_namespace_exists(call: Call) -> None:
    """Refuses a namespace that nobody made and that has no topic."""
    name = call.namespace_name
    if name.namespace not in await _namespaces(call, name.tenant):
        raise RefusedError(404, "Namespace does not exist")


async def list_tenants(call: Call) -> Reply:
    """Names of tenants."""
    return json_reply(await _tenants(call))


async def get_tenant(call: Call) -> Reply:
    """A tenant; anybody may do everything, so there is little to tell."""
    await _check_tenant_exists(call)
    cluster = call.broker.parts.settings.broker.cluster_name
    return json_reply({"adminRoles": [], "allowedClusters": [cluster]})


async def create_tenant(call: Call) -> Reply:
    """Make a tenant."""
    tenant = _tenant(call)
    if tenant in await _tenants(call):
        raise RefusedError(409, "Tenant already exist")
    try:
        await call.broker.parts.metadata.create(_tenant_path(tenant), b"{}")
    except NodeExistsError:
        raise RefusedError(409, "Tenant already exist") from None
    return DONE


async def update_tenant(call: Call) -> Reply:
    """There is nothing to change."""
    await _check_tenant_exists(call)
    return DONE


async def delete_tenant(call: Call) -> Reply:
    """Forget a tenant without namespaces."""
    tenant = await _check_tenant_exists(call)
    if await _namespaces(call, tenant):
        raise RefusedError(409, "The tenant still has active namespaces")
    await _prune(call, f"/{node_of_name(tenant)}")
    return DONE


async def list_namespaces(call: Call) -> Reply:
    """Namespaces of a tenant, with it."""
    tenant = _tenant(call)
    if tenant not in await _tenants(call):
        raise RefusedError(404, "Tenant not found")
    return json_reply([f"{tenant}/{name}" for name in await _namespaces(call, tenant)])


async def get_namespace(call: Call) -> Reply:
    """The policies that are set for a namespace, in Pulsar's form."""
    await check_namespace_exists(call)
    stored = await call.broker.parts.policies.load(namespace_policy_path(call.namespace_name))
    told: dict[str, Any] = {
        "replication_clusters": [call.broker.parts.settings.broker.cluster_name],
        "bundles": (await call.broker.ownership.bundles(call.namespace_name)).told(),
        "deleted": False,
    }
    if RETENTION_MINUTES in stored:
        told["retention_policies"] = {
            RETENTION_MINUTES: stored[RETENTION_MINUTES],
            RETENTION_MB: stored[RETENTION_MB],
        }
    if MESSAGE_TTL_SECONDS in stored:
        told["message_ttl_in_seconds"] = stored[MESSAGE_TTL_SECONDS]
    if PAUSE_ON_ACK_STATE in stored:
        told[PAUSE_ON_ACK_STATE] = stored[PAUSE_ON_ACK_STATE]
    if DELAYED_DELIVERY in stored:
        told["delayed_delivery_policies"] = stored[DELAYED_DELIVERY]
    if REDELIVERY_BACKOFF in stored:
        told["redelivery_backoff"] = stored[REDELIVERY_BACKOFF]
    return json_reply(told)


async def create_namespace(call: Call) -> Reply:
    """Make a namespace."""
    name = call.namespace_name
    if name.tenant not in await _tenants(call):
        raise RefusedError(404, "Tenant does not exist")
    if name.namespace in await _namespaces(call, name.tenant):
        raise RefusedError(409, "Namespace already exists")
    try:
        await call.broker.parts.policies.create(namespace_policy_path(name))
    except NodeExistsError:
        raise RefusedError(409, "Namespace already exists") from None
    return DONE


async def delete_namespace(call: Call) -> Reply:
    """Forget an empty namespace and its policies."""
    name, broker = call.namespace_name, call.broker
    if name.namespace not in await _namespaces(call, name.tenant):
        raise RefusedError(404, f"Namespace {name} does not exist.")
    if await broker.registry.topic_names(name) or await broker.registry.partitioned_topic_names(
        name
    ):
        raise RefusedError(409, "Cannot delete non empty namespace")
    path = namespace_policy_path(name)
    if await broker.parts.metadata.get(path) is not None:
        await broker.parts.policies.remove(path)
    below = f"/{node_of_name(name.tenant)}/{node_of_name(name.namespace)}"
    await _prune(call, f"{below}/persistent")
    await _prune(call, below)
    return DONE


async def _tenants(call: Call) -> list[str]:
    return await _below(call, "", {_ALWAYS.tenant})


async def _namespaces(call: Call, tenant: str) -> list[str]:
    always = {_ALWAYS.namespace} if tenant == _ALWAYS.tenant else set()
    return await _below(call, f"/{node_of_name(tenant)}", always)


async def _below(call: Call, path: str, always: set[str]) -> list[str]:
    names = set(always)
    for root in _ROOTS:
        names.update(map(name_of_node, await call.broker.parts.metadata.children(root + path)))
    return sorted(names)


async def _prune(call: Call, path: str) -> None:
    """Remove nodes that hold nothing any more."""
    for root in _ROOTS:
        try:
            await call.broker.parts.metadata.delete(root + path)
        except CallerError:  # it is not there, or somebody has just put something below it
            continue


def _tenant(call: Call) -> str:
    tenant = call.parameters["tenant"]
    try:
        return NamespaceName.parse(f"{tenant}/x").tenant
    except ValueError:
        raise RefusedError(412, "Tenant name is not valid") from None


async def _check_tenant_exists(call: Call) -> str:
    tenant = _tenant(call)
    if tenant not in await _tenants(call):
        raise RefusedError(404, "Tenant does not exist")
    return tenant


def _tenant_path(tenant: str) -> str:
    return f"{NAMESPACE_POLICIES}/{node_of_name(tenant)}"


_TENANT: Final = "/admin/v2/tenants/{tenant}"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"

ROUTES: Final = (
    Route("GET", "/admin/v2/tenants", list_tenants),
    Route("GET", _TENANT, get_tenant),
    Route("PUT", _TENANT, create_tenant),
    Route("POST", _TENANT, update_tenant),
    Route("DELETE", _TENANT, delete_tenant),
    Route("GET", "/admin/v2/namespaces/{tenant}", list_namespaces),
    Route("GET", _NAMESPACE, get_namespace),
    Route("PUT", _NAMESPACE, create_namespace),
    Route("DELETE", _NAMESPACE, delete_namespace),
)
