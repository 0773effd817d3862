"""Tenants and namespaces: list, create, describe, delete; the properties that users attach to a namespace.

Edge. Replication is not stored. The bundles of a deleted namespace stay stored, since
brokers that have read them would not read them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.admin.http.call import (
    DONE,
    NOTHING,
    Reply,
    integer_in,
    json_reply,
    properties_in,
)
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import BODY_BYTES_MAX, Route
from ackgate.broker.admin.permissions import permissions_in, permissions_json
from ackgate.broker.admin.policies import namespace_json, namespace_policies_in
from ackgate.broker.cluster import (
    NAMESPACE_PROPERTIES,
    BadBundleError,
    NamespaceBundles,
    namespace_policy_path,
)
from ackgate.broker.security import (
    ADMIN_ROLES,
    AUTH_POLICIES,
    SUBSCRIPTION_AUTH_MODE,
    SubscriptionAuthMode,
    roles_in,
)
from ackgate.errors import CallerError, NodeExistsError
from ackgate.persistence.nodes.paths import tenant_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.admin.http.call import Call
    from ackgate.broker.cluster import Namespaces
    from ackgate.broker.wire import NamespaceName


_GLOBAL_CLUSTER: Final = "global"
"""Pulsar has it beside the others."""


async def list_tenants(call: Call) -> Reply:
    """The names of all tenants."""
    return json_reply(await _known(call).tenants())


async def get_tenant(call: Call) -> Reply:
    """A tenant: the roles of its admins, this cluster."""
    tenant = await _check_tenant_exists(call)
    stored = await call.broker.services.policies.load(tenant_path(tenant))
    cluster = call.broker.services.settings.broker.cluster_name
    return json_reply({ADMIN_ROLES: stored.get(ADMIN_ROLES, []), "allowedClusters": [cluster]})


async def create_tenant(call: Call) -> Reply:
    """Make a tenant; `adminRoles` of the body may administer it, its `allowedClusters` must exist."""
    tenant = call.tenant_name
    roles = _admin_roles(call)
    _check_allowed_clusters(call)
    if tenant in await _known(call).tenants():
        raise RefusedError(409, "Tenant already exist")
    try:
        await call.broker.services.policies.create(tenant_path(tenant), {ADMIN_ROLES: roles})
    except NodeExistsError:
        raise RefusedError(409, "Tenant already exist") from None
    return DONE


async def update_tenant(call: Call) -> Reply:
    """Set `adminRoles`."""
    _check_allowed_clusters(call)
    tenant, roles = await _check_tenant_exists(call), _admin_roles(call)
    await call.broker.services.policies.change(tenant_path(tenant), {ADMIN_ROLES: roles})
    return DONE


def _admin_roles(call: Call) -> list[str]:
    try:
        roles = call.json_object().get(ADMIN_ROLES)
        return [] if roles is None else roles_in(roles)
    except RefusedError:
        raise
    except CallerError as error:
        raise RefusedError(412, f"{ADMIN_ROLES}: {error}") from None


def _check_allowed_clusters(call: Call) -> None:
    """Refuse clusters that are not this one, in Pulsar's words. A body without any means this one."""
    clusters = call.json_object().get("allowedClusters")
    if clusters is None:
        return
    if not isinstance(clusters, list):
        raise RefusedError(400, "allowedClusters is not a list")
    if not all(clusters) or not clusters:
        raise RefusedError(412, "Clusters cannot be empty or blank")
    known = (call.broker.services.settings.broker.cluster_name, _GLOBAL_CLUSTER)
    if any(cluster not in known for cluster in clusters):
        raise RefusedError(412, "Clusters do not exist")


async def delete_tenant(call: Call) -> Reply:
    """Delete a tenant without namespaces."""
    _refuse_force(call, "tenants")
    tenant = await _check_tenant_exists(call)
    if await _known(call).of(tenant):
        raise RefusedError(409, "The tenant still has active namespaces")
    await _known(call).forget_tenant(tenant)
    await call.broker.services.policies.refresh(tenant_path(tenant))
    if tenant in await _known(call).tenants():  # it has just got a namespace
        raise RefusedError(409, "The tenant still has active namespaces")
    return DONE


def _refuse_force(call: Call, what: str) -> None:
    if call.is_asked("force"):
        raise RefusedError(405, f"Broker doesn't allow forced deletion of {what}")  # Pulsar's words


async def list_namespaces(call: Call) -> Reply:
    """The namespaces of a tenant, as `tenant/namespace`."""
    tenant = call.tenant_name
    if tenant not in await _known(call).tenants():
        raise RefusedError(404, "Tenant not found")
    return json_reply([f"{tenant}/{name}" for name in await _known(call).of(tenant)])


async def get_namespace(call: Call) -> Reply:
    """A namespace's description: bundles and policies, in Pulsar's form."""
    await call.require_namespace()
    stored = await call.broker.services.policies.load(namespace_policy_path(call.namespace_name))
    described: dict[str, Any] = {
        "replication_clusters": [call.broker.services.settings.broker.cluster_name],
        "bundles": (await call.broker.ownership.bundles(call.namespace_name)).to_json(),
        "deleted": False,
    }
    described |= namespace_json(stored) | permissions_json(stored)
    return json_reply(described)


async def create_namespace(call: Call) -> Reply:
    """Make a namespace, with the bundles and policies of the body if there is one."""
    name = call.namespace_name
    wanted = call.json_object()
    policies = namespace_policies_in(wanted) | permissions_in(wanted)
    if call.broker.authorization is None:
        _refuse_rights(policies)
    bundles = _bundles_wanted(name, wanted.get("bundles"))
    if name.tenant not in await _known(call).tenants():
        raise RefusedError(404, "Tenant does not exist")
    if await _known(call).exists(name):
        raise RefusedError(409, "Namespace already exists")
    _check_clusters(call, wanted.get("replication_clusters"))
    if bundles is not None:
        present = await call.broker.ownership.cut(bundles)
        if present != bundles:
            raise RefusedError(
                409,
                f"Namespace {name} was used before and keeps its {present.count} bundles: "
                "leave the bundles out",
            )
    try:
        await call.broker.services.policies.create(namespace_policy_path(name), policies)
    except NodeExistsError:
        raise RefusedError(409, "Namespace already exists") from None
    return DONE


def _refuse_rights(policies: Mapping[str, Any]) -> None:
    """Reject rights that would not be enforced because authorization is off."""
    rights = permissions_json(policies)
    asked = {
        AUTH_POLICIES: any(rights[AUTH_POLICIES].values()),
        SUBSCRIPTION_AUTH_MODE: rights[SUBSCRIPTION_AUTH_MODE] != SubscriptionAuthMode.NONE,
    }
    for member, is_asked in asked.items():
        if is_asked:
            raise RefusedError(412, f"{member} protects nothing here: authorizationEnabled is off")


def _bundles_wanted(name: NamespaceName, value: object) -> NamespaceBundles | None:
    """Read Pulsar's ``BundlesData``. None if it gives no number, as in Pulsar."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RefusedError(400, 'bundles must be an object: {"numBundles": ...}')
    count = integer_in(value.get("numBundles", 0), "numBundles")
    if count <= 0:
        return None
    try:
        if boundaries := value.get("boundaries"):
            return NamespaceBundles.of_boundaries(name, boundaries)
        return NamespaceBundles.cut(name, count)
    except (BadBundleError, TypeError) as error:
        raise RefusedError(400, str(error)) from None


def _check_clusters(call: Call, value: object) -> None:
    clusters = value if isinstance(value, list) else []
    own = call.broker.services.settings.broker.cluster_name
    for cluster in clusters:
        if cluster != own:
            raise RefusedError(
                403,
                f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant "
                f"[{call.namespace_name.tenant}]",
            )


async def delete_namespace(call: Call) -> Reply:
    """Delete an empty namespace with its policies."""
    name, broker = call.namespace_name, call.broker
    _refuse_force(call, "namespaces")
    if not await _known(call).exists(name):
        raise RefusedError(404, f"Namespace {name} does not exist.")
    if await broker.registry.topic_names(name) or await broker.registry.partitioned_topic_names(
        name
    ):
        raise RefusedError(409, "Cannot delete non empty namespace")
    path = namespace_policy_path(name)
    if await broker.services.metadata.get(path) is not None:
        await broker.services.policies.remove(path)
    await _known(call).forget(name)
    return DONE


def _known(call: Call) -> Namespaces:
    return call.broker.services.namespaces


async def _check_tenant_exists(call: Call) -> str:
    tenant = call.tenant_name
    if tenant not in await _known(call).tenants():
        raise RefusedError(404, "Tenant does not exist")
    return tenant


# ---- properties, which stand beside a namespace's policies


async def get_properties(call: Call) -> Reply:
    """The properties of a namespace."""
    return json_reply(await _stored(call))


async def add_properties(call: Call) -> Reply:
    """Set these properties; others stay."""
    added = properties_in(call.json())
    await _change(call, lambda present: {**present, **added})
    return DONE


async def clear_properties(call: Call) -> Reply:
    """Remove all properties of a namespace."""
    await _change(call, lambda _: {})
    return DONE


async def get_property(call: Call) -> Reply:
    """The value of a property, as plain text; an empty body if it is not set."""
    return _text((await _stored(call)).get(call.parameters["key"]))


async def set_property(call: Call) -> Reply:
    """Set one property."""
    key, value = call.parameters["key"], call.parameters["value"]
    await _change(call, lambda present: {**present, key: value})
    return DONE


async def remove_property(call: Call) -> Reply:
    """Remove one property. Returns the value that it had, as `GET`."""
    key = call.parameters["key"]
    value = (await _stored(call)).get(key)
    await _change(call, lambda present: {k: v for k, v in present.items() if k != key})
    return _text(value)


async def _stored(call: Call) -> Mapping[str, str]:
    await call.require_namespace()
    stored = await call.broker.services.policies.load(namespace_policy_path(call.namespace_name))
    properties: Mapping[str, str] = stored.get(NAMESPACE_PROPERTIES, {})
    return properties


async def _change(call: Call, changed: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
    await call.require_namespace()

    def changes(stored: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
        properties = properties_in(changed(stored.get(NAMESPACE_PROPERTIES, {})))
        if sum(map(len, (*properties, *properties.values()))) > BODY_BYTES_MAX:
            raise RefusedError(
                412, f"properties of a namespace have at most {BODY_BYTES_MAX} characters"
            )
        return {NAMESPACE_PROPERTIES: properties or None}

    policies = call.broker.services.policies
    await policies.amend(namespace_policy_path(call.namespace_name), changes)


def _text(value: str | None) -> Reply:
    return NOTHING if value is None else Reply(200, value.encode(errors="replace"))


_TENANT: Final = "/admin/v2/tenants/{tenant}"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_PROPERTY: Final = f"{_NAMESPACE}/property/{{key}}"

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
    Route("GET", f"{_NAMESPACE}/properties", get_properties),
    Route("PUT", f"{_NAMESPACE}/properties", add_properties),
    Route("DELETE", f"{_NAMESPACE}/properties", clear_properties),
    Route("GET", _PROPERTY, get_property),
    Route("PUT", f"{_PROPERTY}/{{value}}", set_property),
    Route("DELETE", _PROPERTY, remove_property),
)
