"""An admin client for tests: what Pulsar's admin tools do, as typed calls.

Edge: HTTP, through the client of the command line. It works with a real Pulsar, too::

    admin = BrokerAdmin(broker.admin_url)
    admin.create_tenant("acme")
    admin.create_namespace("acme/orders", messageTTL=60)
    admin.create_topic("acme/orders/paid", partitions=4)
    assert admin.backlog("acme/orders/paid", "billing") == 0
    admin.delete_tenant("acme")                       # with everything in it

Topics are named in full or short (``orders``, ``acme/orders/paid``), namespaces ``tenant/namespace``.
What has no call here goes through `ask`, with a path below ``/admin/v2``. Every call raises
`AdminRefusedError` (the broker's words, with `status`), `StorageError` (no answer, or 500 and above) or
`CorruptRecordError` (a strange answer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ackgate.broker.wire import NamespaceName, TopicName
from ackgate.commands.terminal.admin_client import (
    TIMEOUT_SECONDS,
    AdminAccess,
    AdminClient,
    AdminRefusedError,
    path_of,
)
from ackgate.errors import CorruptRecordError
from ackgate.network import ClientTls, PemFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_NOT_THERE: Final = 404


class BrokerAdmin(AdminClient):
    """The admin interface of a broker, and of those that it redirects to."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        authority: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Describe how to reach it; nothing is sent.

        `url`: of the admin port, ``http://HOST:PORT`` or ``https://``. `token`: shown with every request.
        `authority`: the certificate of whoever signed the broker's. `certificate`: this client's own, and
        its key. All files are PEM. Raises `ConfigurationError` for files that cannot be used.
        """
        own, key = certificate or ("", "")
        tls = ClientTls(
            trust=PemFile("authority", str(authority or "")),
            certificate=PemFile("certificate", str(own)),
            key=PemFile("key", str(key)),
        )
        plugin = "" if token is None else "token"
        super().__init__(url, timeout_seconds, AdminAccess(tls, plugin, token or ""))

    # ---------------------------------------------------------------- tenants and namespaces

    def tenants(self) -> list[str]:
        return _texts(self.get("tenants"))

    def create_tenant(self, tenant: str, *, admin_roles: tuple[str, ...] = ()) -> None:
        """Create a tenant of every cluster. `admin_roles` may do everything in it."""
        described = {"adminRoles": list(admin_roles), "allowedClusters": self.clusters()}
        self.ask("PUT", "tenants", _quoted(tenant), body=described)

    def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant with its namespaces and topics, clients connected or not. Fine if it is gone."""
        try:
            for namespace in self.namespaces(tenant):
                self.delete_namespace(namespace)
            self.ask("DELETE", "tenants", _quoted(tenant))
        except AdminRefusedError as refused:
            if refused.status != _NOT_THERE:
                raise

    def namespaces(self, tenant: str) -> list[str]:
        """Names of a tenant's namespaces, as ``tenant/namespace``."""
        return _texts(self.get("namespaces", _quoted(tenant)))

    def create_namespace(self, namespace: str, **policies: object) -> None:
        """`policies` by the names of their paths: ``retention={...}``, ``messageTTL=60``."""
        self.ask("PUT", *_namespace(namespace))
        for policy, value in policies.items():
            self.ask("POST", *_namespace(namespace), policy, body=value)

    def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace with its topics, clients connected or not. Fine if it is gone already."""
        try:
            for topic in self.partitioned_topics(namespace) + self.topics(namespace):
                self.delete_topic(topic)
            self.ask("DELETE", *_namespace(namespace))
        except AdminRefusedError as refused:
            if refused.status != _NOT_THERE:
                raise

    def grant(self, namespace: str, role: str, actions: Iterable[str]) -> None:
        """What a role may do in a namespace: ``produce``, ``consume``, ... Replaces an earlier grant."""
        self.ask("POST", *_namespace(namespace), "permissions", _quoted(role), body=list(actions))

    # ---------------------------------------------------------------- topics

    def topics(self, namespace: str = "public/default") -> list[str]:
        """Full names of a namespace's partitions and of its topics without partitions."""
        return _texts(self.get("persistent", *_namespace(namespace)[1:]))

    def partitioned_topics(self, namespace: str = "public/default") -> list[str]:
        """Full names of a namespace's partitioned topics, without their partitions."""
        return _texts(self.get("persistent", *_namespace(namespace)[1:], "partitioned"))

    def create_topic(self, topic: str, *, partitions: int = 0) -> None:
        """Create a topic; `partitions` 0: it is not partitioned."""
        if partitions:
            self.ask("PUT", _topic(topic), "partitions", body=partitions)
        else:
            self.ask("PUT", _topic(topic))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its partitions, clients connected or not. Fine if it is gone already."""
        path = _topic(topic)
        try:
            partitions = "/partitions" if self.partitions(topic) else ""
            self.ask("DELETE", f"{path}{partitions}?force=true")
        except AdminRefusedError as refused:
            if refused.status != _NOT_THERE:
                raise

    def partitions(self, topic: str) -> int:
        """Number of partitions; 0 for a topic that is not partitioned."""
        return _integer(self.get(_topic(topic), "partitions"), "partitions")

    def unload_topic(self, topic: str) -> None:
        """Close a topic; the next use loads it again from storage."""
        self.ask("PUT", _topic(topic), "unload")

    # ---------------------------------------------------------------- schemas

    def schema(self, topic: str) -> Mapping[str, Any]:
        """The topic's latest schema: members ``type``, ``data``, ``version``, ``properties``."""
        return _object(self.get(*_schema(topic), "schema"))

    def create_schema(self, topic: str, schema_type: str, definition: str = "") -> int:
        """The version of this schema; the topic gets it if it has not got it. `schema_type`: as ``AVRO``."""
        body = {"type": schema_type, "schema": definition, "properties": {}}
        answered = _object(self.ask("POST", *_schema(topic), "schema", body=body))
        return _integer(answered.get("version"), "version")

    # ---------------------------------------------------------------- subscriptions, statistics

    def subscriptions(self, topic: str) -> list[str]:
        return _texts(self.get(_topic(topic), "subscriptions"))

    def create_subscription(self, topic: str, subscription: str) -> None:
        """Create a subscription that begins after the last message."""
        self.ask("PUT", _topic(topic), "subscription", _quoted(subscription))

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription, with consumers connected or not."""
        self.ask("DELETE", _topic(topic), "subscription", f"{_quoted(subscription)}?force=true")

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Pulsar's statistics of a topic or partition."""
        return _object(self.get(_topic(topic), "stats"))

    def subscription_stats(self, topic: str, subscription: str) -> Mapping[str, Any]:
        """Statistics of one subscription. Raises `KeyError` if there is none."""
        found: Mapping[str, Any] = _object(self.stats(topic).get("subscriptions"))[subscription]
        return found

    def backlog(self, topic: str, subscription: str) -> int:
        """Messages not yet acked, of a topic or partition."""
        return _integer(self.subscription_stats(topic, subscription), "msgBacklog")

    # ---------------------------------------------------------------- brokers

    def clusters(self) -> list[str]:
        return _texts(self.get("clusters"))

    def owner_url(self, topic: str) -> str:
        """The service URL of the broker that serves a topic, in clear if it has one.

        A topic that no broker serves gets one.
        """
        answered = self.ask("GET", "topic", _topic(topic), root="lookup/v2")
        owner = _object(answered).get("brokerUrl") or _object(answered).get("brokerUrlTls")
        if not isinstance(owner, str):
            raise CorruptRecordError(f"the broker's answer to a lookup of {topic} has no brokerUrl")
        return owner


def _topic(topic: str) -> str:
    return path_of(TopicName.parse(topic).require_persistent())


def _namespace(namespace: str) -> tuple[str, str, str]:
    name = NamespaceName.parse(namespace)
    return "namespaces", _quoted(name.tenant), _quoted(name.namespace)


def _schema(topic: str) -> tuple[str, str]:
    return "schemas", _topic(topic).partition("/")[2]


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CorruptRecordError(f"the broker answers {value!r:.80} instead of a list of names")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptRecordError(f"the broker answers {value!r:.80} instead of an object")
    return value


def _integer(value: object, key: str) -> int:
    found = _object(value).get(key)
    if type(found) is not int:
        raise CorruptRecordError(f"the broker's answer has no {key}")
    return found
