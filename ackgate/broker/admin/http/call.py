"""One request to the admin interface, and its answer, without the HTTP around it.

Pure. A handler takes a `Call` and returns a `Reply` or raises; what a client sent is read through
the methods here, which refuse what they cannot read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ackgate.broker.admin.http.refusals import (
    RefusedError,
    message_not_found,
    subscription_not_found,
    topic_not_found,
)
from ackgate.broker.wire import (
    NamespaceName,
    NotOwnedError,
    TopicName,
    TopicNotFoundError,
    check_subscription_name,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from ackgate.broker.cluster import DynamicConfiguration, Ownership
    from ackgate.broker.schemas import SchemaRegistry
    from ackgate.broker.security import Authentication, Authorization, ClientIdentity
    from ackgate.broker.stats import Overview, StatsSampler
    from ackgate.broker.topic import SharedServices, SubscriptionDriver, Topic, TopicRegistry
    from ackgate.broker.wire import Connection, Entry
    from ackgate.config.settings import Settings
    from ackgate.cursor import Position
    from ackgate.network import CertificateFile, ReloadedTls, Urls
    from ackgate.persistence.bookkeeper import BookKeeperClient

JSON_TYPE: Final = "application/json"

PROPERTIES_MAX: Final = 100
"""Properties of one subscription, topic or namespace; a metadata node stores them."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_EXACT_IN_DOUBLE: Final = 2**53
"""Below this every whole number has a double of its own."""


class Reply(NamedTuple):
    """A response, without the headers that every one has."""

    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    location: str = ""
    """In a redirect, the address to ask instead."""
    headers: Mapping[str, str | tuple[str, ...]] = MappingProxyType({})
    """Headers besides those that every response has; with a tuple, one for each of its texts."""
    events: AsyncIterator[bytes] | None = None
    """Sent one by one, as they come, instead of the body."""
    client: str = ""
    """The role to which an event stream counts; empty: clients do not authenticate."""


AUTHORITATIVE: Final = "authoritative"
"""Key in the query: another broker has decided that this one is to serve the topic."""

DONE: Final = Reply(204)
NOTHING: Final = Reply(200)
"""The answer for a value that is not set: in Pulsar it is an empty body."""


def json_reply(value: Any, status: int = 200) -> Reply:  # noqa: ANN401 - any JSON
    """A reply with a JSON body."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Reply(status, body.encode(errors="replace"))


class PeersPort(Protocol):
    """Asks other brokers by their admin interfaces."""

    async def ask(self, web: Urls, method: str, path: str, body: bytes = b"") -> Reply:
        """The answer of another broker, whatever its status.

        Raises `RefusedError` (503) without one.
        """


class ClusterStoragePort(Protocol):
    """A BookKeeper cluster and the broker's client of it."""

    @property
    def client(self) -> BookKeeperClient: ...

    @property
    def bookies_writable(self) -> int:
        """Writable bookies at the last look."""

    @property
    def bookies_known(self) -> int:
        """All bookies at the last look that were not decommissioned."""


class AdminBroker(Protocol):
    """The broker that the admin interface administers: `BrokerServer`, or a stand-in in a test."""

    @property
    def settings(self) -> Settings:
        """The settings at the start; `services.settings` are the current ones."""

    @property
    def services(self) -> SharedServices:
        """What all its topics share, including the current settings."""

    @property
    def registry(self) -> TopicRegistry: ...

    @property
    def ownership(self) -> Ownership:
        """Knows which broker serves which bundle."""

    @property
    def schemas(self) -> SchemaRegistry: ...

    @property
    def dynamic(self) -> DynamicConfiguration:
        """The settings that were changed while it runs."""

    @property
    def sampler(self) -> StatsSampler:
        """Counters of the last minute, for rates."""

    @property
    def overview(self) -> Overview:
        """All its subscriptions at a glance."""

    @property
    def authentication(self) -> Authentication | None:
        """Finds out who a client is. None: authentication is off."""

    @property
    def authorization(self) -> Authorization | None:
        """Decides what a client may do. None: authorization is off."""

    @property
    def tls_ports(self) -> Mapping[str, ReloadedTls]:
        """TLS contexts of the ports that have TLS, by scheme."""

    @property
    def client_certificates(self) -> Mapping[str, ReloadedTls | CertificateFile]:
        """Certificates that the broker shows to other servers, by the kind of those."""

    @property
    def peers(self) -> PeersPort:
        """Asks the other brokers."""

    @property
    def broker_id(self) -> str:
        """``host:port`` of the admin interface."""

    @property
    def service(self) -> Urls:
        """Addresses for clients of the binary protocol."""

    @property
    def web(self) -> Urls:
        """Addresses of the admin interface."""

    @property
    def worker(self) -> int | None:
        """Number of this worker on its machine. None: the broker is no worker."""

    @property
    def metadata_url(self) -> str:
        """Location of the metadata store, in the form of ``metadataStoreUrl``."""

    @property
    def cluster_storage(self) -> ClusterStoragePort | None:
        """The BookKeeper cluster. None: the bookies are directories."""

    @property
    def host_names(self) -> tuple[str, ...]:
        """Host names that lead to this broker."""

    @property
    def connections(self) -> Collection[Connection]:
        """Connected clients of the binary protocol."""

    @property
    def settings_without_effect(self) -> Mapping[str, str]:
        """Configured keys that nothing reads, each with its source.

        No values, since some are secrets.
        """

    @property
    def started_at(self) -> float:
        """Start time in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was routed: its parameters, query and body, and the broker."""

    broker: AdminBroker
    parameters: Mapping[str, str]
    """Parameters of the path, decoded."""
    query: Mapping[str, str]
    body: bytes
    method: str = "GET"
    raw_path: str = ""
    """The path as the client sent it, without the query."""
    identity: ClientIdentity | None = None
    """Who sent the request; None if it needs no authentication."""
    listener: str = ""
    """Listener name from Pulsar's header ``X-Pulsar-ListenerName``, else of the port; may be
    empty."""

    # -- names

    @property
    def tenant_name(self) -> str:
        """The tenant in the path. Raises `RefusedError` if its name is invalid."""
        try:
            return NamespaceName.parse(f"{self.parameters['tenant']}/x").tenant
        except ValueError:
            raise RefusedError(412, "Tenant name is not valid") from None

    @property
    def namespace_name(self) -> NamespaceName:
        """The namespace in the path. Raises `InvalidTopicNameError`."""
        tenant, namespace = self.parameters["tenant"], self.parameters["namespace"]
        try:
            return NamespaceName.parse(f"{tenant}/{namespace}")
        except ValueError:
            raise RefusedError(412, "Namespace name is not valid") from None

    @property
    def topic_name(self) -> TopicName:
        """The topic in the path. Raises `InvalidTopicNameError`."""
        return TopicName.parse(f"persistent://{self.namespace_name}/{self.parameters['topic']}")

    @property
    def subscription_name(self) -> str:
        """The subscription in the path. Raises `InvalidNameError`."""
        return check_subscription_name(self.parameters["subscription"])

    # -- what they name

    async def require_namespace(self) -> None:
        """Raise `RefusedError` unless the namespace was created or has a topic."""
        if not await self.broker.services.namespaces.exists(self.namespace_name):
            raise RefusedError(404, "Namespace does not exist")

    async def topic(self, *, create: bool = False) -> Topic:
        """The topic in the path, loaded. Raises as `loaded`."""
        return await self.loaded(self.topic_name, create=create)

    async def topic_here(self) -> Topic:
        """As `topic`, but refuse (421) a topic of another broker, with that broker's address.

        This is for the page. It may not ask another origin, so a redirect would not help.
        """
        try:
            return await self.topic()
        except NotOwnedError as error:
            raise RefusedError(421, f"broker {error.web.any} serves this topic") from None

    async def loaded(self, name: TopicName, *, create: bool = False) -> Topic:
        """A topic, loaded. Raises an error if it does not exist, or another broker serves it.

        `create`: make one that does not exist where topics may be made by being asked for.
        """
        await self.require_here(name)
        try:
            return await self.broker.registry.topic(name, create=create)
        except TopicNotFoundError:
            raise topic_not_found(name) from None

    async def require_here(self, name: TopicName) -> None:
        """Raise an error that redirects, unless this broker serves the topic."""
        ownership = self.broker.ownership
        await ownership.require(name, is_authoritative=self.is_asked(AUTHORITATIVE))

    async def subscription(self) -> SubscriptionDriver:
        """The subscription in the path."""
        return subscription_of(await self.topic(), self.subscription_name)

    async def partitions(self, *, create: bool = False) -> list[TopicName]:
        """The partitions of the topic in the path; empty if it is not partitioned.

        Raises `RefusedError` if the topic does not exist. `create`: as of `loaded`.
        """
        name = self.topic_name
        try:
            count = await self.broker.registry.partition_count(name, create=create)
        except TopicNotFoundError:
            raise topic_not_found(name) from None
        return [name.partition(index) for index in range(count)]

    async def refuse_partitioned(self, reason: str) -> None:
        """Raise `RefusedError` (405, with this reason) if the topic in the path is partitioned.

        Raises as `partitions`.
        """
        if await self.partitions():
            raise RefusedError(405, reason)

    @property
    def tail(self) -> str:
        """The rest of the request's path after the topic's name."""
        return "".join(f"/{piece}" for piece in self.raw_path.split("/")[7:] if piece)

    # -- values

    def integer(self, name: str, *, least: int = 0) -> int:
        """A whole number in the path.

        Raises `RefusedError` for anything else, or one below `least`.
        """
        return _integer(name, self.parameters[name], least)

    def integer_asked(self, name: str, default: int, *, least: int = 0) -> int:
        """A whole number in the query.

        Raises `RefusedError` for anything else, or one below `least`.
        """
        return _integer(name, self.query[name], least) if name in self.query else default

    def is_asked(self, name: str, *, default: bool = False) -> bool:
        """A switch in the query: on if it is ``true``, off for any other text."""
        return self.query[name].lower() == "true" if name in self.query else default

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body, parsed; None if it is empty. Raises `RefusedError` if it is not JSON."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from None

    def json_integer(self, what: str) -> int:
        """The body, which must be a whole number. Raises `RefusedError`."""
        value = self.json()
        if value is None:
            raise RefusedError(400, f"the body is empty; {what} was expected")
        return integer_in(value, what)

    def json_object(self) -> dict[str, Any]:
        """The body, which must be an object; an empty one if there is no body.

        Raises `RefusedError`.
        """
        value = self.json()
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RefusedError(400, f"the body is {shown(value)}, which is not an object")
        return value


def integer_in(value: Any, what: str) -> int:  # noqa: ANN401 - JSON
    """A whole number in JSON, or a text or fraction equal to one. Raises `RefusedError`.

    Pulsar's broker reads ``3``, ``"3"`` and ``3.0`` alike, so scripts send all of them.
    """
    match value:
        case str() if _INTEGER.fullmatch(value.strip()):
            return int(value)
        case float() if value.is_integer() and abs(value) < _EXACT_IN_DOUBLE:
            return int(value)
    if type(value) is not int:
        raise RefusedError(400, f"{what} is {shown(value)}, which is not an integer")
    return value


def properties_in(value: object) -> dict[str, str]:
    """Properties of a subscription, topic or namespace in JSON; none for None. Raises `RefusedError`."""
    if value is None:
        return {}
    if (
        not isinstance(value, dict)
        or len(value) > PROPERTIES_MAX
        or not all(isinstance(text, str) for text in value.values())
    ):
        raise RefusedError(400, f"properties must be at most {PROPERTIES_MAX} texts by name")
    return value


def subscription_of(topic: Topic, name: str) -> SubscriptionDriver:
    """A subscription of a loaded topic. Raises `RefusedError` if it does not exist."""
    subscription = topic.subscriptions.get(name)
    if subscription is None:
        raise subscription_not_found(name, topic.name)
    return subscription


async def entry_of(topic: Topic, position: Position) -> Entry:
    """An entry of a loaded topic, read. Raises `RefusedError` if it does not exist."""
    if not topic.ledger.ledgers.exists(position):
        raise message_not_found()
    return await topic.ledger.reads.read_one(position)


def _integer(name: str, text: str, least: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise RefusedError(400, f"{name} is {shown(text)}, which is not an integer")
    if len(digits) > 19:
        raise RefusedError(400, f"{name} is {shown(text)}, which has more than 19 digits")
    number = int(text)
    if number < least:
        raise RefusedError(400, f"{name} is {number}, at least {least} is expected")
    return number


def shown(value: object) -> str:
    """A value of a client's for a reason: at most 80 characters of it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
