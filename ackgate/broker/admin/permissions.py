"""Rights: what roles were granted on a namespace, its topics and subscriptions.

Edge. They are stored among the namespace's policies, in Pulsar's form. Without
`authorizationEnabled` they can be read but not set, since nothing would enforce them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from ackgate.broker.admin.http.call import DONE, json_reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route
from ackgate.broker.cluster import namespace_policy_path
from ackgate.broker.security import (
    AUTH_POLICIES,
    SUBSCRIPTION_AUTH_MODE,
    AuthPolicies,
    SubscriptionAuthMode,
    actions_in,
    check_role,
    mode_in,
    roles_in,
)
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.admin.http.call import Call, Reply


T = TypeVar("T")


async def namespace_permissions(call: Call) -> Reply:
    """Roles and what they were granted on the namespace."""
    return json_reply(dict((await _granted(call)).namespace))


async def grant_on_namespace(call: Call) -> Reply:
    """Grant a role the actions of the body, and no others: `["produce", "consume"]`."""
    role, actions = _role(call), _read(actions_in, call.json())
    return await _change(call, lambda granted: granted.granted(role, actions))


async def revoke_on_namespace(call: Call) -> Reply:
    """Take from a role what it was granted on the namespace."""
    role = _role(call)
    return await _change(call, lambda granted: granted.revoked(role))


async def topic_permissions(call: Call) -> Reply:
    """Roles and what they may do with the topic: granted on it, or on its namespace."""
    granted = await _granted(call)
    found = {role: set(actions) for role, actions in granted.namespace.items()}
    name = call.topic_name
    for topic in {str(name), str(name.partitioned)}:
        for role, actions in granted.topics.get(topic, {}).items():
            found.setdefault(role, set()).update(actions)
    return json_reply({role: sorted(actions) for role, actions in found.items()})


async def grant_on_topic(call: Call) -> Reply:
    """Grant a role the actions of the body on a topic and its partitions."""
    role, actions, topic = _role(call), _read(actions_in, call.json()), str(call.topic_name)
    return await _change(call, lambda granted: granted.granted(role, actions, topic))


async def revoke_on_topic(call: Call) -> Reply:
    """Take from a role what it was granted on the topic."""
    role, topic = _role(call), str(call.topic_name)
    if role not in (await _granted(call)).topics.get(topic, {}):
        raise RefusedError(412, "Permissions are not set at the topic level")  # Pulsar's words
    return await _change(call, lambda granted: granted.revoked(role, topic))


async def subscription_permissions(call: Call) -> Reply:
    """Subscriptions that are reserved for some roles."""
    return json_reply(dict((await _granted(call)).subscriptions))


async def reserve_subscription(call: Call) -> Reply:
    """Reserve subscriptions of this name for the roles of the body: `["billing"]`."""
    subscription, roles = call.subscription_name, _read(roles_in, call.json())
    return await _change(call, lambda granted: granted.reserved(subscription, roles))


async def revoke_on_subscription(call: Call) -> Reply:
    """Take a role off those for which a subscription is reserved."""
    subscription, role = call.subscription_name, _role(call)
    was_reserved = False

    def without(granted: AuthPolicies) -> AuthPolicies:
        nonlocal was_reserved
        roles = granted.subscriptions.get(subscription, ())
        was_reserved = was_reserved or bool(roles)
        if not was_reserved:  # after a write that was not answered it may be so by us
            raise RefusedError(404, f"Subscription {subscription} is not reserved")
        return granted.reserved(subscription, [each for each in roles if each != role])

    return await _change(call, without)


async def subscription_auth_mode(call: Call) -> Reply:
    """Whether names of subscriptions have to begin with the role: `"Prefix"` or `"None"`."""
    stored = await _stored(call)
    return json_reply(stored.get(SUBSCRIPTION_AUTH_MODE, SubscriptionAuthMode.NONE))


async def set_subscription_auth_mode(call: Call) -> Reply:
    """Set that: `"Prefix"` or `"None"`."""
    _require_authorization(call)
    mode = _read(mode_in, call.json())
    await call.require_namespace()
    await call.broker.services.policies.change(_node(call), {SUBSCRIPTION_AUTH_MODE: str(mode)})
    return DONE


# ---- a namespace's description


def permissions_in(given: Mapping[str, Any]) -> dict[str, object]:
    """Read the rights in a namespace's description. Raises `RefusedError` for invalid ones."""
    found: dict[str, object] = {}
    if (grants := given.get(AUTH_POLICIES)) is not None:
        found[AUTH_POLICIES] = _read(AuthPolicies.from_json, grants).to_json()
    if (mode := given.get(SUBSCRIPTION_AUTH_MODE)) is not None:
        found[SUBSCRIPTION_AUTH_MODE] = str(_read(mode_in, mode))
    return found


def permissions_json(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The rights as members of Pulsar's ``Policies``."""
    return {
        AUTH_POLICIES: AuthPolicies.of(stored).to_json(),
        SUBSCRIPTION_AUTH_MODE: stored.get(SUBSCRIPTION_AUTH_MODE, SubscriptionAuthMode.NONE),
    }


# ---- what the handlers share


async def _change(call: Call, change: Callable[[AuthPolicies], AuthPolicies]) -> Reply:
    _require_authorization(call)
    await call.require_namespace()
    await call.broker.services.policies.amend(_node(call), lambda stored: _amended(stored, change))
    return DONE


def _amended(
    stored: Mapping[str, Any], change: Callable[[AuthPolicies], AuthPolicies]
) -> dict[str, object]:
    return {AUTH_POLICIES: change(AuthPolicies.of(stored)).to_json()}


def _require_authorization(call: Call) -> None:
    if call.broker.authorization is None:
        raise RefusedError(501, "Authorization is not enabled")  # Pulsar's words


async def _granted(call: Call) -> AuthPolicies:
    return AuthPolicies.of(await _stored(call))


async def _stored(call: Call) -> Mapping[str, Any]:
    await call.require_namespace()
    return await call.broker.services.policies.load(_node(call))


def _node(call: Call) -> str:
    return namespace_policy_path(call.namespace_name)


def _role(call: Call) -> str:
    return _read(check_role, call.parameters["role"])


def _read(read: Callable[[Any], T], value: object) -> T:
    try:
        return read(value)
    except CallerError as error:
        raise RefusedError(400, str(error)) from None


_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_PERMISSIONS: Final = f"{_NAMESPACE}/permissions"
_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"

ROUTES: Final = (
    Route("GET", _PERMISSIONS, namespace_permissions),
    Route("GET", f"{_PERMISSIONS}/subscription", subscription_permissions),
    Route("POST", f"{_PERMISSIONS}/{{role}}", grant_on_namespace),
    Route("DELETE", f"{_PERMISSIONS}/{{role}}", revoke_on_namespace),
    Route("POST", f"{_PERMISSIONS}/subscription/{{subscription}}", reserve_subscription),
    Route("DELETE", f"{_PERMISSIONS}/{{subscription}}/{{role}}", revoke_on_subscription),
    Route("GET", f"{_NAMESPACE}/subscriptionAuthMode", subscription_auth_mode),
    Route("POST", f"{_NAMESPACE}/subscriptionAuthMode", set_subscription_auth_mode),
    Route("GET", _TOPIC, topic_permissions),
    Route("POST", f"{_TOPIC}/{{role}}", grant_on_topic),
    Route("DELETE", f"{_TOPIC}/{{role}}", revoke_on_topic),
)
