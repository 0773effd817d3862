"""What roles were granted in a namespace: Pulsar's `AuthPolicies`, in JSON and as decisions.

Pure. The JSON is a member of the namespace's policies, in Pulsar's form::

    "auth_policies": {
      "namespace_auth": {"app": ["produce", "consume"]},
      "destination_auth": {"persistent://t/n/orders": {"audit": ["consume"]}},
      "subscription_auth_roles": {"billing": ["app"]}
    }

A grant on a partitioned topic holds for its partitions. A subscription that lists roles takes no others; one
that lists none takes everyone who may consume. All changes return new values.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.security.actions import Action
from ackgate.broker.security.identity import ROLE_CHARACTERS_MAX
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AUTH_POLICIES: Final = "auth_policies"
SUBSCRIPTION_AUTH_MODE: Final = "subscription_auth_mode"
NAMESPACE_AUTH: Final = "namespace_auth"
TOPIC_AUTH: Final = "destination_auth"
SUBSCRIPTION_ROLES: Final = "subscription_auth_roles"

Grants = dict[str, list[str]]
"""Actions by role."""


class SubscriptionAuthMode(enum.StrEnum):
    """Which names a role's subscriptions must have."""

    NONE = "None"
    PREFIX = "Prefix"
    """Names begin with the consumer's role."""


class AuthPolicies(NamedTuple):
    """The grants of a namespace."""

    namespace: Mapping[str, list[str]] = MappingProxyType({})
    """Actions by role."""
    topics: Mapping[str, Grants] = MappingProxyType({})
    """The same by topic."""
    subscriptions: Mapping[str, list[str]] = MappingProxyType({})
    """Roles by subscription."""

    # ---- JSON

    @classmethod
    def from_json(cls, value: object) -> AuthPolicies:
        """Read the JSON. Drops unknown members. Raises `CallerError` naming what is wrong."""
        given = _object(value, AUTH_POLICIES)
        members = {name: each for name, each in given.items() if each is not None}
        topics = _object(members.get(TOPIC_AUTH, {}), TOPIC_AUTH)
        roles = _object(members.get(SUBSCRIPTION_ROLES, {}), SUBSCRIPTION_ROLES)
        return cls(
            _grants(members.get(NAMESPACE_AUTH, {}), NAMESPACE_AUTH),
            {topic: _grants(grants, TOPIC_AUTH) for topic, grants in topics.items()},
            {name: roles_in(listed) for name, listed in roles.items()},
        )

    @classmethod
    def of(cls, policies: Mapping[str, Any]) -> AuthPolicies:
        """The grants among a namespace's stored policies. Raises `CallerError`."""
        return cls.from_json(policies.get(AUTH_POLICIES, {}))

    def to_json(self) -> dict[str, Any]:
        return {
            NAMESPACE_AUTH: dict(self.namespace),
            TOPIC_AUTH: dict(self.topics),
            SUBSCRIPTION_ROLES: dict(self.subscriptions),
        }

    # ---- changes

    def granted(self, role: str, actions: list[str], topic: str | None = None) -> AuthPolicies:
        """A copy in which a role has exactly these actions on the namespace, or on a topic."""
        if topic is None:
            return self._replace(namespace={**self.namespace, role: actions})
        grants = {**self.topics.get(topic, {}), role: actions}
        return self._replace(topics={**self.topics, topic: grants})

    def revoked(self, role: str, topic: str | None = None) -> AuthPolicies:
        """A copy in which a role has no actions on the namespace, or on a topic."""
        if topic is None:
            return self._replace(namespace=_without(self.namespace, role))
        topics = _without(self.topics, topic)
        if left := _without(self.topics.get(topic, {}), role):
            topics[topic] = left
        return self._replace(topics=topics)

    def without_topic(self, topic: str) -> AuthPolicies:
        """A copy without a deleted topic's grants, which a new topic must not inherit."""
        return self._replace(topics=_without(self.topics, topic))

    def reserved(self, subscription: str, roles: list[str]) -> AuthPolicies:
        """A copy in which only these roles may use a subscription; none: all that may consume."""
        subscriptions = _without(self.subscriptions, subscription)
        if roles:
            subscriptions[subscription] = roles
        return self._replace(subscriptions=subscriptions)

    # ---- decisions

    def allows_on_namespace(self, role: str, action: Action, *, wildcards: bool) -> bool:
        return _is_granted(self.namespace, role, action, wildcards=wildcards)

    def allows_on_topic(
        self, role: str, action: Action, topics: Iterable[str], *, wildcards: bool
    ) -> bool:
        """Whether the role may do this on a topic.

        `topics`: the topic's full name, and that of its partitioned topic.
        """
        return _is_granted(self.namespace, role, action, wildcards=wildcards) or any(
            _is_granted(self.topics[topic], role, action, wildcards=wildcards)
            for topic in topics
            if topic in self.topics
        )

    def takes(self, role: str, subscription: str) -> bool:
        """Whether a role that may consume may use the subscription."""
        roles = self.subscriptions.get(subscription)
        return not roles or role in roles


NO_GRANTS: Final = AuthPolicies()


def _is_granted(
    grants: Mapping[str, list[str]], role: str, action: Action, *, wildcards: bool
) -> bool:
    if action in grants.get(role, ()):
        return True
    return wildcards and any(
        action in actions and _matches(pattern, role) for pattern, actions in grants.items()
    )


def _matches(pattern: str, role: str) -> bool:
    """Whether a role matches ``name*`` or ``*name``, as in Pulsar."""
    return (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
        pattern.startswith("*") and role.endswith(pattern[1:])
    )


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {each: value for each, value in mapping.items() if each != key}


# ---- reading


def actions_in(value: object) -> list[str]:
    """Read actions from JSON, each once. Raises `CallerError`."""
    if not isinstance(value, list) or not all(each in tuple(Action) for each in value):
        raise CallerError(f"actions must be a list of {', '.join(Action)}")
    return sorted(set(value))


def roles_in(value: object) -> list[str]:
    """Read roles from JSON, each once. Raises `CallerError`."""
    if not isinstance(value, list):
        raise CallerError("roles must be a list of texts")
    return sorted({check_role(each) for each in value})


def check_role(role: object) -> str:
    """Return the role if its name is valid. Raises `CallerError`."""
    if (
        not isinstance(role, str)
        or not role.strip()
        or len(role) > ROLE_CHARACTERS_MAX
        or not role.isprintable()
    ):
        raise CallerError(
            f"a role is a text of 1 to {ROLE_CHARACTERS_MAX} printable characters, not {role!a:.80}"
        )
    return role


def mode_in(value: Any) -> SubscriptionAuthMode:  # noqa: ANN401 - any JSON
    """Read the mode from JSON. Raises `CallerError`."""
    try:
        return SubscriptionAuthMode(value)
    except ValueError:
        raise CallerError(f"{SUBSCRIPTION_AUTH_MODE} is None or Prefix") from None


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CallerError(f"{what} must be an object")
    return value


def _grants(value: object, what: str) -> Grants:
    return {check_role(role): actions_in(actions) for role, actions in _object(value, what).items()}
