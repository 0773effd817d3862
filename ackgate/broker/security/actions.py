"""What a client needs for each protocol command and admin path, in one table.

Pure. A command or path without a line is for superusers only, and a test fails. Needs are Pulsar's,
but for these: what changes all subscriptions of a topic needs a tenant's admin, since a role may be
allowed a single one; schemas need what their topic needs.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Action(enum.StrEnum):
    """What may be granted: Pulsar's `AuthAction`."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


class Scope(enum.Enum):
    """On what a client must have the right."""

    NOTHING = "everyone, without credentials"
    METRICS = "everyone; with authenticateMetricsEndpoint only who is known"
    CLIENT = "every client that is known"
    VISIBLE = "every client that is known; it sees the subscriptions that it may look at"
    ATTACHED = "whoever opened the producer or consumer, which needed a right"
    TOPIC = "who has the right on the topic, or its namespace"
    NAMESPACE = "who has the right on the namespace"
    TENANT = "the tenant's admins"
    CLUSTER = "superusers"


class Need(NamedTuple):
    """What a client needs. Superusers may do everything, and a tenant's admins everything in it."""

    scope: Scope
    actions: tuple[Action, ...] = ()
    """A right to any of these is enough."""

    @property
    def is_open(self) -> bool:
        """Whether clients without credentials may do it."""
        return self.scope is Scope.NOTHING

    def __str__(self) -> str:
        if not self.actions:
            return self.scope.value
        return f"{' or '.join(self.actions)} on the {self.scope.name.lower()}"


OPEN: Final = Need(Scope.NOTHING)
METRICS: Final = Need(Scope.METRICS)
CLIENT: Final = Need(Scope.CLIENT)
VISIBLE: Final = Need(Scope.VISIBLE)
ATTACHED: Final = Need(Scope.ATTACHED)
LOOK: Final = Need(Scope.TOPIC, (Action.PRODUCE, Action.CONSUME))
PRODUCE: Final = Need(Scope.TOPIC, (Action.PRODUCE,))
CONSUME: Final = Need(Scope.TOPIC, (Action.CONSUME,))
"""Also on the subscription, if one is named."""
LIST: Final = Need(Scope.NAMESPACE, (Action.PRODUCE, Action.CONSUME))
TENANT_ADMIN: Final = Need(Scope.TENANT)
SUPERUSER: Final = Need(Scope.CLUSTER)

COMMANDS: Final[Mapping[str, Need]] = {
    "CONNECT": OPEN,
    "PING": OPEN,
    "PONG": OPEN,
    "AUTH_RESPONSE": CLIENT,
    "PARTITIONED_METADATA": LOOK,
    "LOOKUP": LOOK,
    "GET_SCHEMA": LOOK,
    "GET_TOPICS_OF_NAMESPACE": LIST,
    "WATCH_TOPIC_LIST": LIST,
    "WATCH_TOPIC_LIST_CLOSE": CLIENT,
    "PRODUCER": PRODUCE,
    "GET_OR_CREATE_SCHEMA": PRODUCE,
    "SEND": ATTACHED,
    "CLOSE_PRODUCER": ATTACHED,
    "SUBSCRIBE": CONSUME,
    "ACK": ATTACHED,
    "FLOW": ATTACHED,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": ATTACHED,
    "SEEK": ATTACHED,
    "GET_LAST_MESSAGE_ID": ATTACHED,
    "CONSUMER_STATS": ATTACHED,
    "UNSUBSCRIBE": ATTACHED,
    "CLOSE_CONSUMER": ATTACHED,
    # rejected for everyone
    "TC_CLIENT_CONNECT_REQUEST": CLIENT,
    "NEW_TXN": CLIENT,
    "ADD_PARTITION_TO_TXN": CLIENT,
    "ADD_SUBSCRIPTION_TO_TXN": CLIENT,
    "END_TXN": CLIENT,
    "END_TXN_ON_PARTITION": CLIENT,
    "END_TXN_ON_SUBSCRIPTION": CLIENT,
}
"""What each command of the protocol needs, by its type."""


_ADMIN: Final = "/admin/v2"
_BROKERS: Final = f"{_ADMIN}/brokers"
_NAMESPACES: Final = f"{_ADMIN}/namespaces/{{tenant}}"
_NAMESPACE: Final = f"{_NAMESPACES}/{{namespace}}"
_TOPICS: Final = f"{_ADMIN}/persistent/{{tenant}}/{{namespace}}"
_TOPIC: Final = f"{_TOPICS}/{{topic}}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"
_SCHEMA: Final = f"{_ADMIN}/schemas/{{tenant}}/{{namespace}}/{{topic}}"
_VIEW: Final = "/ackgate/subscriptions/{tenant}/{namespace}/{topic}/{subscription}"
_LOOKUP: Final = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"

_LINES: Final = (
    # the page; its files hold no data
    ("GET", "/", OPEN),
    ("GET", "/page/{digest}/{file}", OPEN),
    ("GET", "/page/{digest}/vendor/{file}", OPEN),
    ("GET", "/ackgate/overview", VISIBLE),
    ("GET", "/ackgate/overview/events", VISIBLE),
    ("GET", _VIEW, LOOK),
    ("GET", f"{_VIEW}/events", LOOK),
    ("GET", f"{_VIEW}/holes/{{ledgerId}}", LOOK),
    ("GET", f"{_VIEW}/dueTimes", LOOK),
    ("GET", "/ackgate/messages/{tenant}/{namespace}/{topic}/{ledgerId}/{entryId}", CONSUME),
    ("GET", "/ackgate/ledgers/{tenant}/{namespace}/{topic}", LOOK),
    ("GET", "/ackgate/storage", SUPERUSER),
    ("GET", "/ackgate/broker", SUPERUSER),
    # the broker
    ("GET", f"{_BROKERS}/health", OPEN),
    ("GET", f"{_BROKERS}/ready", OPEN),
    ("GET", "/metrics", METRICS),
    ("GET", f"{_BROKERS}/version", CLIENT),
    ("GET", f"{_BROKERS}/leaderBroker", SUPERUSER),
    ("GET", f"{_BROKERS}/configuration", SUPERUSER),
    ("GET", f"{_BROKERS}/configuration/values", SUPERUSER),
    ("GET", f"{_BROKERS}/configuration/runtime", SUPERUSER),
    ("POST", f"{_BROKERS}/configuration/{{key}}/{{value}}", SUPERUSER),
    ("DELETE", f"{_BROKERS}/configuration/{{key}}", SUPERUSER),
    ("GET", f"{_BROKERS}/internal-configuration", SUPERUSER),
    ("GET", _BROKERS, SUPERUSER),
    ("GET", f"{_BROKERS}/{{cluster}}", SUPERUSER),
    ("GET", f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", SUPERUSER),
    ("GET", f"{_ADMIN}/clusters", CLIENT),
    ("GET", f"{_ADMIN}/clusters/{{cluster}}", CLIENT),
    # bundles and lookups
    ("GET", f"{_NAMESPACE}/bundles", TENANT_ADMIN),
    ("PUT", f"{_NAMESPACE}/unload", SUPERUSER),
    ("PUT", f"{_NAMESPACE}/{{bundle}}/unload", SUPERUSER),
    ("PUT", f"{_NAMESPACE}/{{bundle}}/acquire", SUPERUSER),
    ("GET", _LOOKUP, LOOK),
    ("GET", f"{_LOOKUP}/bundle", LOOK),
    # tenants and namespaces
    ("GET", f"{_ADMIN}/tenants", SUPERUSER),
    ("GET", f"{_ADMIN}/tenants/{{tenant}}", TENANT_ADMIN),
    ("PUT POST DELETE", f"{_ADMIN}/tenants/{{tenant}}", SUPERUSER),
    ("GET", _NAMESPACES, TENANT_ADMIN),
    ("GET PUT DELETE", _NAMESPACE, TENANT_ADMIN),
    ("GET PUT DELETE", f"{_NAMESPACE}/properties", TENANT_ADMIN),
    ("GET DELETE", f"{_NAMESPACE}/property/{{key}}", TENANT_ADMIN),
    ("PUT", f"{_NAMESPACE}/property/{{key}}/{{value}}", TENANT_ADMIN),
    # rights
    ("GET", f"{_NAMESPACE}/permissions", TENANT_ADMIN),
    ("GET", f"{_NAMESPACE}/permissions/subscription", TENANT_ADMIN),
    ("POST DELETE", f"{_NAMESPACE}/permissions/{{role}}", TENANT_ADMIN),
    ("POST", f"{_NAMESPACE}/permissions/subscription/{{subscription}}", TENANT_ADMIN),
    ("DELETE", f"{_NAMESPACE}/permissions/{{subscription}}/{{role}}", TENANT_ADMIN),
    ("GET POST", f"{_NAMESPACE}/subscriptionAuthMode", TENANT_ADMIN),
    ("GET", f"{_TOPIC}/permissions", TENANT_ADMIN),
    ("POST DELETE", f"{_TOPIC}/permissions/{{role}}", TENANT_ADMIN),
    # topics and schemas
    ("GET", _TOPICS, LIST),
    ("GET", f"{_TOPICS}/partitioned", LIST),
    ("GET", f"{_NAMESPACE}/topics", LIST),
    ("GET", f"{_ADMIN}/non-persistent/{{tenant}}/{{namespace}}", LIST),
    ("GET", f"{_ADMIN}/non-persistent/{{tenant}}/{{namespace}}/partitioned", LIST),
    ("PUT DELETE", _TOPIC, TENANT_ADMIN),
    ("GET", f"{_TOPIC}/properties", LOOK),
    ("PUT DELETE", f"{_TOPIC}/properties", TENANT_ADMIN),
    ("PUT", f"{_TOPIC}/unload", TENANT_ADMIN),
    ("POST", f"{_TOPIC}/terminate", TENANT_ADMIN),
    ("GET", f"{_TOPIC}/lastMessageId", CONSUME),
    ("GET", f"{_SCHEMA}/schema", LOOK),
    ("POST", f"{_SCHEMA}/schema", PRODUCE),
    ("DELETE", f"{_SCHEMA}/schema", TENANT_ADMIN),
    ("POST", f"{_SCHEMA}/compatibility", PRODUCE),
    ("GET", f"{_SCHEMA}/schema/{{version}}", LOOK),
    ("GET", f"{_SCHEMA}/schemas", LOOK),
    ("GET", f"{_TOPIC}/partitions", LOOK),
    ("PUT POST DELETE", f"{_TOPIC}/partitions", TENANT_ADMIN),
    # statistics
    ("GET", f"{_TOPIC}/stats", LOOK),
    ("GET", f"{_TOPIC}/internalStats", LOOK),
    ("GET", f"{_TOPIC}/partitioned-stats", LOOK),
    ("GET", f"{_TOPIC}/partitioned-internalStats", LOOK),
    ("GET", f"{_SUBSCRIPTION}/ackState", LOOK),
    # messages
    ("GET", f"{_SUBSCRIPTION}/position/{{messagePosition}}", CONSUME),
    ("GET", f"{_TOPIC}/ledger/{{ledgerId}}/entry/{{entryId}}", CONSUME),
    ("GET", f"{_TOPIC}/examinemessage", CONSUME),
    ("GET", f"{_TOPIC}/messageid/{{timestamp}}", CONSUME),
    # subscriptions
    ("GET", f"{_TOPIC}/subscriptions", CONSUME),
    ("PUT DELETE", _SUBSCRIPTION, CONSUME),
    ("GET PUT", f"{_SUBSCRIPTION}/properties", CONSUME),
    ("POST", f"{_NAMESPACE}/clearBacklog", TENANT_ADMIN),
    ("POST", f"{_NAMESPACE}/clearBacklog/{{subscription}}", TENANT_ADMIN),
    ("POST", f"{_NAMESPACE}/unsubscribe/{{subscription}}", TENANT_ADMIN),
    ("POST", f"{_NAMESPACE}/{{bundle}}/clearBacklog", TENANT_ADMIN),
    ("POST", f"{_NAMESPACE}/{{bundle}}/clearBacklog/{{subscription}}", TENANT_ADMIN),
    ("POST", f"{_NAMESPACE}/{{bundle}}/unsubscribe/{{subscription}}", TENANT_ADMIN),
    ("POST", f"{_SUBSCRIPTION}/skip/{{entries}}", CONSUME),
    ("POST", f"{_SUBSCRIPTION}/skip_all", CONSUME),
    ("POST", f"{_SUBSCRIPTION}/resetcursor", CONSUME),
    ("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}", CONSUME),
    ("POST", f"{_SUBSCRIPTION}/expireMessages", CONSUME),
    ("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}", CONSUME),
    ("POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", TENANT_ADMIN),
    # delayed messages
    ("GET", f"{_TOPIC}/delayed", LOOK),
    ("DELETE", f"{_TOPIC}/delayed/{{ledgerId}}/{{entryId}}", TENANT_ADMIN),
    ("POST", f"{_TOPIC}/delayed/cancel", TENANT_ADMIN),
    ("DELETE", f"{_TOPIC}/delayedBucketSnapshots", TENANT_ADMIN),
    ("DELETE", f"{_SUBSCRIPTION}/delayedBucketSnapshots", CONSUME),
    # policies
    ("GET POST DELETE", f"{_NAMESPACE}/retention", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/messageTTL", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/dispatcherPauseOnAckStatePersistent", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/delayedDelivery", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/redeliveryBackoff", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxUnackedMessagesPerConsumer", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxUnackedMessagesPerSubscription", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxProducersPerTopic", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxConsumersPerTopic", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxConsumersPerSubscription", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxSubscriptionsPerTopic", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/maxTopicsPerNamespace", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/autoSubscriptionCreation", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/autoTopicCreation", TENANT_ADMIN),
    ("GET POST DELETE", f"{_NAMESPACE}/deduplication", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/retention", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/messageTTL", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/dispatcherPauseOnAckStatePersistent", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/delayedDelivery", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/redeliveryBackoff", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxUnackedMessagesOnConsumer", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxUnackedMessagesOnSubscription", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxProducers", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxConsumers", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxConsumersPerSubscription", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxSubscriptionsPerTopic", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/maxMessageSize", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/autoSubscriptionCreation", TENANT_ADMIN),
    ("GET POST DELETE", f"{_TOPIC}/deduplicationEnabled", TENANT_ADMIN),
)


def _by_path() -> Iterator[tuple[tuple[str, str], Need]]:
    for methods, template, need in _LINES:
        for method in methods.split():
            yield (method, template), need


ADMIN_PATHS: Final[Mapping[tuple[str, str], Need]] = dict(_by_path())
"""What each path of the admin interface needs, by method and template."""


def need_of_command(name: str) -> Need:
    """What a command of the protocol needs."""
    return COMMANDS.get(name, SUPERUSER)


def need_of_path(method: str, template: str) -> Need:
    """What a request to the admin interface needs."""
    return ADMIN_PATHS.get((method, template), SUPERUSER)
