"""Decides whether a client may do one thing, as Pulsar's `PulsarAuthorizationProvider` does.

Pure decisions on policies that a store has read. `check` is for callers that cannot wait: they
first call `unread`, and `read` what it returns. `authorize` does all three.

    superuser                       everything
    admin of the tenant             everything in it
    granted on namespace or topic   that; subscriptions may be reserved for some roles, or have to begin
                                    with the role's name

A proxy and its client must both be allowed. Policies that cannot be read allow nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ackgate.broker.security.actions import Scope
from ackgate.broker.security.grants import (
    AUTH_POLICIES,
    NO_GRANTS,
    SUBSCRIPTION_AUTH_MODE,
    AuthPolicies,
    SubscriptionAuthMode,
)
from ackgate.broker.security.identity import NotAuthorizedError
from ackgate.persistence.nodes.paths import namespace_policies_path, tenant_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.security.actions import Need
    from ackgate.broker.security.identity import ClientIdentity
    from ackgate.config.security import SecuritySettings

ADMIN_ROLES: Final = "adminRoles"
"""Member of a tenant's node: the roles of its admins."""

decisions = logging.getLogger("ackgate.broker.security.decisions")
"""Logs what each client was allowed (DEBUG), and what it was not (INFO)."""

PARSED_MAX: Final = 1_000
"""Namespaces whose parsed grants are cached."""

_NOTHING_ASKED: Final = frozenset(
    {Scope.NOTHING, Scope.METRICS, Scope.CLIENT, Scope.VISIBLE, Scope.ATTACHED}
)


class Resource(NamedTuple):
    """What a request is about. Empty: nothing of this kind."""

    tenant: str = ""
    namespace: str = ""
    """Name of the namespace, without its tenant."""
    topic: str = ""
    """Full name of the topic."""
    partitioned: str = ""
    """Full name of the partitioned topic; that of the topic itself if it is no partition."""
    subscription: str = ""

    def __str__(self) -> str:
        if self.subscription:
            return f"subscription {self.subscription!a} of {self.topic}"
        if self.topic:
            return f"topic {self.topic}"
        if self.namespace:
            return f"namespace {self.tenant}/{self.namespace}"
        return f"tenant {self.tenant}" if self.tenant else "the cluster"


CLUSTER_WIDE: Final = Resource()


class PolicyReader(Protocol):
    """Reads and caches the policies of namespaces and tenants."""

    def is_known(self, path: str) -> bool:
        """Whether the policies at `path` are cached."""

    def known(self, path: str) -> Mapping[str, Any]:
        """The cached policies at `path`."""

    async def load(self, path: str) -> Mapping[str, Any]:
        """Read and cache the policies at `path`."""


class Authorization:
    """Decides what a client may do."""

    def __init__(self, policies: PolicyReader, settings: Callable[[], SecuritySettings]) -> None:
        """`settings`: returns the current ones."""
        self._policies = policies
        self._settings = settings
        self._parsed: dict[int, tuple[object, AuthPolicies]] = {}

    async def authorize(self, identity: ClientIdentity, need: Need, resource: Resource) -> None:
        """Return if the client may do this.

        Raises `NotAuthorizedError`, `StorageError`, `CorruptRecordError`.
        """
        await self.read(self.unread(identity, need, resource))
        self.check(identity, need, resource)

    def unread(self, identity: ClientIdentity, need: Need, resource: Resource) -> tuple[str, ...]:
        """Paths of policies that `check` needs and that were not read yet."""
        if need.scope in _NOTHING_ASKED or self.are_superusers(identity):
            return ()
        return tuple(path for path in _paths(resource) if not self._policies.is_known(path))

    async def read(self, paths: tuple[str, ...]) -> None:
        """Read these policies. Raises `StorageError`, `CorruptRecordError`."""
        for path in paths:
            await self._policies.load(path)

    def check(self, identity: ClientIdentity, need: Need, resource: Resource) -> None:
        """Return if the client may do this, by the policies read so far.

        Raises `NotAuthorizedError`.
        """
        for role in identity.roles:
            if not self._allows(role, need, resource):
                raise NotAuthorizedError(
                    f"{role!a} is not authorized for {resource}: this is for {need}"
                )

    def allows(self, identity: ClientIdentity, need: Need, resource: Resource) -> bool:
        """Whether the client may do this, by the policies read so far."""
        return all(self._allows(role, need, resource) for role in identity.roles)

    def are_superusers(self, identity: ClientIdentity) -> bool:
        """Whether all roles of the client are superusers."""
        superusers = self._settings().super_user_roles
        return all(role in superusers for role in identity.roles)

    def _allows(self, role: str, need: Need, resource: Resource) -> bool:
        settings = self._settings()
        if need.scope in _NOTHING_ASKED or role in settings.super_user_roles:
            return True
        if need.scope is Scope.CLUSTER:
            return False
        tenant = self._policies.known(tenant_path(resource.tenant))
        if role in tenant.get(ADMIN_ROLES, ()):
            return True
        if need.scope is Scope.TENANT:
            return False
        stored = self._policies.known(namespace_policies_path(resource.tenant, resource.namespace))
        wildcards = settings.authorization_allow_wildcards_matching
        grants = self._grants(stored)
        if need.scope is Scope.NAMESPACE:
            return any(
                grants.allows_on_namespace(role, action, wildcards=wildcards)
                for action in need.actions
            )
        if resource.subscription:
            if not grants.takes(role, resource.subscription):
                return False
            is_prefixed = stored.get(SUBSCRIPTION_AUTH_MODE) == SubscriptionAuthMode.PREFIX
            if is_prefixed and not resource.subscription.startswith(role):
                return False
        topics = dict.fromkeys((resource.topic, resource.partitioned))
        return any(
            grants.allows_on_topic(role, action, topics, wildcards=wildcards)
            for action in need.actions
        )

    def _grants(self, stored: Mapping[str, Any]) -> AuthPolicies:
        """Grants of a namespace. Parses them again only after its policies were read again."""
        value = stored.get(AUTH_POLICIES)
        if value is None:
            return NO_GRANTS
        parsed = self._parsed.get(id(value))
        if parsed is None or parsed[0] is not value:
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.clear()
            parsed = self._parsed[id(value)] = value, AuthPolicies.from_json(value)
        return parsed[1]


def _paths(resource: Resource) -> tuple[str, ...]:
    if not resource.tenant:
        return ()
    tenant = tenant_path(resource.tenant)
    if not resource.namespace:
        return (tenant,)
    return tenant, namespace_policies_path(resource.tenant, resource.namespace)
