"""Grants against a dumb model, and decisions one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.broker.security import (
    Authorization,
    AuthPolicies,
    ClientIdentity,
    NotAuthorizedError,
    Principal,
    Resource,
    actions_in,
    need_of_command,
)
from ackgate.broker.security.actions import (
    CLIENT,
    CONSUME,
    LIST,
    LOOK,
    PRODUCE,
    SUPERUSER,
    TENANT_ADMIN,
    Action,
    Need,
)
from ackgate.config.load import load_settings
from ackgate.errors import CallerError
from ackgate.persistence.nodes.paths import namespace_policies_path, tenant_path

ROLES = ["app", "app-2", "audit"]
TOPICS = [None, "persistent://t/n/a", "persistent://t/n/b"]
TOPIC = Resource("t", "n", "persistent://t/n/a-partition-1", "persistent://t/n/a")
TENANT, NAMESPACE = tenant_path("t"), namespace_policies_path("t", "n")

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["grant", "revoke"]),
        st.sampled_from(ROLES),
        st.sampled_from(TOPICS),
        st.sets(st.sampled_from([Action.PRODUCE, Action.CONSUME])),
    ),
    max_size=20,
)


@given(CHANGES)
def test_grants_are_what_a_set_of_triples_says(changes: Any) -> None:
    grants = AuthPolicies()
    triples: set[tuple[str, str | None, Action]] = set()
    for what, role, topic, actions in changes:
        triples = {each for each in triples if each[:2] != (role, topic)}
        if what == "grant":
            grants = grants.granted(role, sorted(actions), topic)
            triples |= {(role, topic, action) for action in actions}
        else:
            grants = grants.revoked(role, topic)
        grants = AuthPolicies.from_json(grants.to_json())
        for each_role in ROLES:
            for action in (Action.PRODUCE, Action.CONSUME):
                anywhere = (each_role, None, action) in triples
                assert grants.allows_on_namespace(each_role, action, wildcards=False) == anywhere
                for name in TOPICS[1:]:
                    assert name is not None
                    wanted = anywhere or (each_role, name, action) in triples
                    asked = grants.allows_on_topic(each_role, action, [name], wildcards=False)
                    assert asked == wanted
    assert not grants.without_topic(str(TOPICS[1])).topics.keys() & {TOPICS[1]}


class Policies:
    """A store that has read what it was given."""

    def __init__(self, **stored: Mapping[str, Any]) -> None:
        self.stored = stored
        self.read: set[str] = set()

    def is_known(self, path: str) -> bool:
        return path in self.read

    def known(self, path: str) -> Mapping[str, Any]:
        assert path in self.read
        return self.stored.get(path, {})

    async def load(self, path: str) -> Mapping[str, Any]:
        self.read.add(path)
        return self.known(path)


def allows(
    role: str,
    need: Need,
    resource: Resource = TOPIC,
    *,
    original: str | None = None,
    admins: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
    **policies: Any,
) -> bool:
    """Whether a role may, in a namespace with these policies."""
    security = load_settings(None, ["superUserRoles=root, second", *settings], {}).settings.security
    store = Policies(**{TENANT: {"adminRoles": list(admins)}, NAMESPACE: policies})
    identity = ClientIdentity(
        Principal(role), Principal(original) if original is not None else None
    )
    try:
        asyncio.run(Authorization(store, lambda: security).authorize(identity, need, resource))
    except NotAuthorizedError:
        return False
    return True


def granted(**roles: list[str]) -> dict[str, Any]:
    return {"namespace_auth": roles}


EVERY = [CLIENT, LOOK, PRODUCE, CONSUME, LIST, TENANT_ADMIN, SUPERUSER]


def allowed(role: str, **how: Any) -> list[Need]:
    return [need for need in EVERY if allows(role, need, **how)]


def test_who_may_what() -> None:
    assert allowed("root") == allowed("second") == EVERY
    assert allowed("boss", admins=("boss",)) == EVERY[:-1]
    assert allowed("boss", admins=("boss",), resource=Resource("other", "n", "x", "x")) == [CLIENT]
    assert allowed("app") == [CLIENT]
    assert allowed("app", auth_policies=granted(app=["produce"])) == [CLIENT, LOOK, PRODUCE, LIST]
    assert allowed("app", auth_policies=granted(app=["consume"])) == [CLIENT, LOOK, CONSUME, LIST]
    assert allowed("app", auth_policies=granted(app=["functions", "sinks"])) == [CLIENT]
    assert allowed("app", auth_policies=granted(ap=["produce"])) == [CLIENT]


@pytest.mark.parametrize("topic", [TOPIC.topic, TOPIC.partitioned])
def test_a_grant_on_a_topic_holds_for_its_partitions(topic: str) -> None:
    grants = {"destination_auth": {topic: {"app": ["produce"]}}}
    assert allowed("app", auth_policies=grants) == [CLIENT, LOOK, PRODUCE]
    other = Resource("t", "n", "persistent://t/n/b", "persistent://t/n/b")
    assert allowed("app", auth_policies=grants, resource=other) == [CLIENT]


def test_a_subscription_is_reserved() -> None:
    policies = {
        "auth_policies": {
            **granted(app=["consume"], audit=["consume"]),
            "subscription_auth_roles": {"billing": ["app"], "free": []},
        }
    }
    for subscription, roles in (
        ("billing", {"app"}),
        ("free", {"app", "audit"}),
        ("x", {"app", "audit"}),
    ):
        resource = TOPIC._replace(subscription=subscription)
        assert {r for r in ROLES if allows(r, CONSUME, resource, **policies)} == roles
    assert not allows(
        "app",
        CONSUME,
        TOPIC._replace(subscription="s"),
        auth_policies={"subscription_auth_roles": {"s": ["app"]}},
    ), "reserved is not granted"


def test_subscriptions_begin_with_the_role() -> None:
    policies = {"auth_policies": granted(app=["consume"]), "subscription_auth_mode": "Prefix"}
    assert allows("app", CONSUME, TOPIC._replace(subscription="app-1"), **policies)
    assert not allows("app", CONSUME, TOPIC._replace(subscription="1-app"), **policies)
    assert allows("root", CONSUME, TOPIC._replace(subscription="1"), **policies)


def test_wildcards_match_when_they_are_allowed() -> None:
    grants = granted(**{"app*": ["produce"], "*audit": ["consume"]})
    on = ("authorizationAllowWildcardsMatching=true",)
    for role, need, is_allowed in (
        ("app-2", PRODUCE, True),
        ("my-app", PRODUCE, False),
        ("my-audit", CONSUME, True),
        ("my-audit", PRODUCE, False),
    ):
        assert allows(role, need, settings=on, auth_policies=grants) == is_allowed
        assert not allows(role, need, auth_policies=grants)


def test_a_proxy_and_its_client_must_both_be_allowed() -> None:
    policies = {"auth_policies": granted(app=["produce"], proxy=["produce"])}
    assert allows("proxy", PRODUCE, original="app", **policies)
    assert not allows("proxy", PRODUCE, original="audit", **policies)
    assert not allows("audit", PRODUCE, original="app", **policies)
    assert not allows("root", PRODUCE, original="audit", **policies)
    assert allows("root", PRODUCE, original="app", **policies)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"namespace_auth": []},
        {"namespace_auth": {"app": "produce"}},
        {"namespace_auth": {"app": ["fly"]}},
        {"namespace_auth": {"": ["produce"]}},
        {"namespace_auth": {"a\nb": ["produce"]}},
        {"destination_auth": {"t": ["produce"]}},
        {"subscription_auth_roles": {"s": "app"}},
        {"subscription_auth_roles": {"s": [1]}},
    ],
)
def test_what_cannot_be_grants_is_refused(value: Any) -> None:
    with pytest.raises(CallerError):
        AuthPolicies.from_json(value)


def test_publishing_and_subscribing_need_what_they_say() -> None:
    assert need_of_command("PRODUCER") == PRODUCE
    assert need_of_command("SUBSCRIBE") == CONSUME


@pytest.mark.parametrize("value", [[["produce"]], [{}], [None], [1], "produce", {"produce": 1}])
def test_what_are_no_actions_is_refused(value: object) -> None:
    with pytest.raises(CallerError, match="actions must be a list of produce, consume"):
        actions_in(value)
    with pytest.raises(CallerError, match="actions must be a list"):
        AuthPolicies.from_json({"namespace_auth": {"app": value}})
