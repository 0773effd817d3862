"""Policies of namespaces and topics: one table of how each is named, read, shown and applied.

Edge. Every policy has GET, POST and DELETE at its namespace and at its topic. The table makes the
handlers, the routes, the members of a namespace's description and the reference page. Values are
stored under the keys of `cluster.policies`, where broker and topics read them.

A topic's policies apply to all of its partitions. With ``applied=true`` a topic answers with the
value in force, from whichever level it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackgate.broker.admin.http.call import (
    DONE,
    NOTHING,
    Call,
    integer_in,
    json_reply,
    properties_in,
)
from ackgate.broker.admin.http.refusals import RefusedError, topic_not_found
from ackgate.broker.admin.http.router import Route
from ackgate.broker.cluster import (
    AUTO_SUBSCRIPTION_CREATION,
    AUTO_TOPIC_CREATION,
    DEDUPLICATION,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_MESSAGE_BYTES,
    MAX_PRODUCERS,
    MAX_SUBSCRIPTIONS,
    MAX_TOPICS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MESSAGE_TTL_SECONDS,
    NAMESPACE_PROPERTIES,
    PAUSE_ON_ACK_STATE,
    POLICY_FORMS,
    REDELIVERY_BACKOFF,
    RETENTION_MB,
    RETENTION_MINUTES,
    EffectivePolicies,
    namespace_policy_path,
    topic_policy_path,
)
from ackgate.config.delayed import DELAYED_DELIVERY
from ackgate.config.field import INT_MAX
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ackgate.broker.admin.http.call import Reply
    from ackgate.config.settings import Settings

Stored = dict[str, object]
"""Keys of `cluster.policies` and their values; None removes one."""


SAME_PATH: Final = ""
"""A policy's path at topics is that at namespaces."""


class Policy(NamedTuple):
    """One row of the table: a policy's names, and how to convert its JSON to stored values."""

    path: str | None
    """Last piece of its path in the admin interface, at namespaces. None: they do not have it."""
    member: str
    """Its name in a namespace's description; empty if namespaces do not have it."""
    keys: tuple[str, ...]
    """Keys of its stored values. If any is stored, the first one is."""
    meaning: str
    """What it does, for the reference page."""
    value: str
    """The form of its value, for the reference page."""
    read: Callable[[Any], Stored]
    """Converts a body to changes; None is an empty body. Raises `RefusedError` for an invalid
    value."""
    show: Callable[[Mapping[str, Any]], object]
    """Converts what is stored to JSON. Called only if it is stored."""
    applied: Callable[[EffectivePolicies, Settings], object]
    """The value in effect, as JSON; None if there is none."""
    read_member: Callable[[Any], Stored]
    """As `read`, for the member of a namespace's description, which is not null."""
    absent: object = None
    """The answer if nothing is set. None: an empty body."""
    of_namespace: Callable[[Call], Any] = Call.json
    """Reads the value from a request to a namespace."""
    of_topic: Callable[[Call], Any] = Call.json
    """Reads the value from a request to a topic."""
    path_at_topics: str | None = SAME_PATH
    """Last piece of its path at topics. None: topics do not have it."""


# ---- reading values


def _pause_in(value: object) -> Stored:
    if value is not None and type(value) is not bool:
        raise RefusedError(400, "the body must be true, false or nothing")
    return {PAUSE_ON_ACK_STATE: value is not False}


def _pause_member(value: object) -> Stored:
    if type(value) is not bool:
        raise RefusedError(400, f"{PAUSE_ON_ACK_STATE} must be true, false or null")
    return {PAUSE_ON_ACK_STATE: value}


def _retention_in(value: object) -> Stored:
    limits = (
        [value.get(key) for key in (RETENTION_MINUTES, RETENTION_MB)]
        if isinstance(value, dict)
        else []
    )
    minutes, megabytes = limits if len(limits) == 2 else (None, None)
    if (
        type(minutes) is not int
        or type(megabytes) is not int
        or not all(-1 <= limit <= INT_MAX for limit in (minutes, megabytes))
    ):
        raise RefusedError(
            400,
            f"expected {RETENTION_MINUTES} and {RETENTION_MB}, integers from -1 (no limit)",
        )
    if (minutes == 0) != (megabytes == 0):
        raise RefusedError(
            400,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid "
            "when one of the limits has a non-zero value. Use the value of -1 instead of 0 to "
            "ignore a specific limit. To disable retention both limits must be set to 0.",
        )
    return {RETENTION_MINUTES: minutes, RETENTION_MB: megabytes}


def _ttl_in(seconds: int | None) -> Stored:
    if seconds is not None and not 0 <= seconds <= INT_MAX:
        raise RefusedError(412, f"message TTL is {seconds}, possible is 0 to {INT_MAX}")
    return {MESSAGE_TTL_SECONDS: seconds}


def _ttl_of_namespace(call: Call) -> int:
    seconds = call.json_integer("message TTL")
    if seconds < 0:
        raise RefusedError(412, "Invalid value for message TTL, message TTL must >= 0")
    return seconds


def _ttl_of_topic(call: Call) -> int | None:
    if "messageTTL" not in call.query:
        return None
    seconds = call.integer_asked("messageTTL", 0, least=-(2**63))
    if seconds < 0:
        raise RefusedError(412, "Invalid value for message TTL")
    return seconds


def _limit_in(key: str) -> Callable[[int | None], Stored]:
    def read(limit: int | None) -> Stored:
        if limit is not None and not 0 <= limit <= INT_MAX:
            raise RefusedError(412, f"{key} must be 0 or more, at most {INT_MAX}")
        return {key: limit}

    return read


def _unacked_of_topic(call: Call) -> int | None:
    value = call.json()
    limit = None if value is None else integer_in(value, "maxUnackedNum")
    if limit is not None and limit < 0:
        raise RefusedError(412, "maxUnackedNum must be 0 or more")
    return limit


def _limit_of(what: str, refusal: str = "") -> Callable[[Call], int]:
    """Read a limit from a body. `refusal`: Pulsar's words for a negative one, if not the usual ones."""

    def read(call: Call) -> int:
        value = _in_body(call, what)
        limit = 0 if value is None else integer_in(value, what)  # as Pulsar reads a null
        if limit < 0:
            raise RefusedError(412, refusal or f"{what} must be 0 or more")
        return limit

    return read


def _message_size_of_topic(call: Call) -> int:
    why = (
        "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that "
        "in the broker-level"
    )
    limit = _limit_of(MAX_MESSAGE_BYTES, why)(call)
    if limit > call.broker.services.settings.broker.max_message_size:
        raise RefusedError(412, why)
    return limit


def _deduplication_in(value: object) -> Stored:
    if value is not None and type(value) is not bool:
        raise RefusedError(400, f"{DEDUPLICATION} must be true or false")
    return {DEDUPLICATION: value}


def _in_body(call: Call, expected: str) -> object:
    if not call.body.strip():
        raise RefusedError(400, f"the body is empty; {expected} was expected")
    return call.json()


def _deduplication_of_namespace(call: Call) -> object:
    value = _in_body(call, "true or false")
    return False if value is None else value  # as Pulsar reads a null


def _auto_subscription_in(value: object) -> Stored:
    """Read an object, or a boolean, as Pulsar does; an object without the member is false."""
    if isinstance(value, dict):
        value = value.get(AUTO_SUBSCRIPTION_CREATION) or False
    if value is not None and type(value) is not bool:
        raise RefusedError(400, f'expected {{"{AUTO_SUBSCRIPTION_CREATION}": true or false}}')
    return {AUTO_SUBSCRIPTION_CREATION: value}


def _auto_topic_in(value: object) -> Stored:
    if isinstance(value, dict):
        try:
            value = POLICY_FORMS[AUTO_TOPIC_CREATION].complete(value)
        except CallerError as error:
            raise RefusedError(412, str(error)) from None
    elif value is not None:
        raise RefusedError(400, "autoTopicCreation must be an object or nothing")
    return {AUTO_TOPIC_CREATION: value}


def _object_in(key: str) -> Callable[[object], Stored]:
    form = POLICY_FORMS[key]

    def read(value: object) -> Stored:
        if value is None:
            return {key: None}
        try:
            return {key: form.complete(value)}
        except CallerError as error:
            raise RefusedError(400, str(error)) from None

    return read


def _retention_applied(policies: EffectivePolicies, settings: Settings) -> object:
    broker = settings.broker
    return {
        RETENTION_MINUTES: policies.value(
            RETENTION_MINUTES, broker.default_retention_time_in_minutes
        ),
        RETENTION_MB: policies.value(RETENTION_MB, broker.default_retention_size_in_mb),
    }


def _backoff_applied(policies: EffectivePolicies, _: Settings) -> object:
    backoff = policies.redelivery_backoff()
    return None if backoff is None else backoff.to_json()


def _limit(
    key: str,
    member: str,
    meaning: str,
    of_broker: Callable[[Settings], int],
    *,
    of_topic: Callable[[Call], int | None] | None = None,
    path_at_topics: str | None = SAME_PATH,
    value: str = "a number; 0 is no limit",
    absent: object = None,
) -> Policy:
    """A row of a policy that is a number. Without a `member`, namespaces do not have it."""
    read = _limit_in(key)
    return Policy(
        key if member else None,
        member,
        (key,),
        meaning,
        value,
        read,
        lambda stored: stored[key],
        lambda policies, settings: policies.value(key, of_broker(settings)),
        lambda value: read(integer_in(value, member)),
        absent=absent,
        of_namespace=_limit_of(key),
        of_topic=of_topic or _limit_of(path_at_topics or key),
        path_at_topics=path_at_topics if member else key,
    )


_CLEARS_AT_TOPICS: Final = "a number, at a topic also nothing, which clears it; 0 is no limit"


# ---- the table

POLICIES: Final = (
    Policy(
        "retention",
        "retention_policies",
        (RETENTION_MINUTES, RETENTION_MB),
        "how long fully acked messages are kept",
        f'`{{"{RETENTION_MINUTES}": 60, "{RETENTION_MB}": -1}}`; -1 is no limit',
        _retention_in,
        lambda stored: {key: stored[key] for key in (RETENTION_MINUTES, RETENTION_MB)},
        _retention_applied,
        _retention_in,
    ),
    Policy(
        "messageTTL",
        "message_ttl_in_seconds",
        (MESSAGE_TTL_SECONDS,),
        "after how many seconds a message counts as acked; 0 is never",
        "seconds: the body at a namespace, `?messageTTL=` at a topic",
        _ttl_in,
        lambda stored: stored[MESSAGE_TTL_SECONDS],
        lambda policies, settings: policies.value(
            MESSAGE_TTL_SECONDS, settings.broker.ttl_duration_default_in_seconds
        ),
        lambda value: _ttl_in(integer_in(value, "message_ttl_in_seconds")),
        of_namespace=_ttl_of_namespace,
        of_topic=_ttl_of_topic,
    ),
    Policy(
        "dispatcherPauseOnAckStatePersistent",
        PAUSE_ON_ACK_STATE,
        (PAUSE_ON_ACK_STATE,),
        "the gate: deliveries pause while the ack state cannot be persisted whole",
        "`true`, also for an empty body; `false` (ours)",
        _pause_in,
        lambda stored: stored[PAUSE_ON_ACK_STATE],
        lambda policies, settings: policies.value(
            PAUSE_ON_ACK_STATE,
            settings.dispatcher.dispatcher_pause_on_ack_state_persistent_enabled,
        ),
        _pause_member,
        absent=False,
    ),
    Policy(
        "delayedDelivery",
        "delayed_delivery_policies",
        (DELAYED_DELIVERY,),
        "delayed delivery: whether, how exact, and the longest delay",
        '`{"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}`; an empty body clears it',
        _object_in(DELAYED_DELIVERY),
        lambda stored: stored[DELAYED_DELIVERY],
        lambda policies, settings: policies.delayed_delivery(settings.delayed).to_json(),
        _object_in(DELAYED_DELIVERY),
    ),
    Policy(
        "redeliveryBackoff",
        "redelivery_backoff",
        (REDELIVERY_BACKOFF,),
        "how long the broker holds back what a consumer gave back (ours)",
        '`{"minDelayMs": 1000, "maxDelayMs": 60000, "multiplier": 2, "jitter": 0.1}`; an empty body '
        "clears it",
        _object_in(REDELIVERY_BACKOFF),
        lambda stored: stored[REDELIVERY_BACKOFF],
        _backoff_applied,
        _object_in(REDELIVERY_BACKOFF),
    ),
    _limit(
        MAX_UNACKED_PER_CONSUMER,
        "max_unacked_messages_per_consumer",
        "a consumer with this many unacked messages gets no more",
        lambda settings: settings.dispatcher.max_unacked_messages_per_consumer,
        of_topic=_unacked_of_topic,
        path_at_topics="maxUnackedMessagesOnConsumer",
        value=_CLEARS_AT_TOPICS,
    ),
    _limit(
        MAX_UNACKED_PER_SUBSCRIPTION,
        "max_unacked_messages_per_subscription",
        "a shared subscription with this many unacked messages pauses until half of them are acked",
        lambda settings: settings.dispatcher.max_unacked_messages_per_subscription,
        of_topic=_unacked_of_topic,
        path_at_topics="maxUnackedMessagesOnSubscription",
        value=_CLEARS_AT_TOPICS,
    ),
    _limit(
        MAX_PRODUCERS,
        "max_producers_per_topic",
        "a topic with this many producers takes no more",
        lambda settings: settings.broker.max_producers_per_topic,
        path_at_topics="maxProducers",
    ),
    _limit(
        MAX_CONSUMERS,
        "max_consumers_per_topic",
        "a topic with this many consumers takes no more",
        lambda settings: settings.broker.max_consumers_per_topic,
        path_at_topics="maxConsumers",
    ),
    _limit(
        MAX_CONSUMERS_PER_SUBSCRIPTION,
        "max_consumers_per_subscription",
        "a subscription with this many consumers takes no more",
        lambda settings: settings.broker.max_consumers_per_subscription,
        of_topic=_limit_of(
            MAX_CONSUMERS_PER_SUBSCRIPTION, f"Invalid value for {MAX_CONSUMERS_PER_SUBSCRIPTION}"
        ),
    ),
    _limit(
        MAX_SUBSCRIPTIONS,
        "max_subscriptions_per_topic",
        "a topic with this many subscriptions gets no more",
        lambda settings: settings.broker.max_subscriptions_per_topic,
    ),
    _limit(
        MAX_TOPICS,
        "max_topics_per_namespace",
        "a namespace with this many topics and partitions gets no more; of namespaces only",
        lambda settings: settings.broker.max_topics_per_namespace,
        path_at_topics=None,
        absent=0,
    ),
    _limit(
        MAX_MESSAGE_BYTES,
        "",
        "messages (or batches) of more bytes are refused, but not chunks of larger ones; of topics only",
        lambda settings: settings.broker.max_message_size,
        of_topic=_message_size_of_topic,
        value="bytes, at most the broker's `maxMessageSize`; 0 is no limit but that one",
    ),
    Policy(
        "autoSubscriptionCreation",
        "autoSubscriptionCreationOverride",
        (AUTO_SUBSCRIPTION_CREATION,),
        "whether consumers create subscriptions by asking for them",
        f'`{{"{AUTO_SUBSCRIPTION_CREATION}": false}}`; an empty body clears it',
        _auto_subscription_in,
        lambda stored: {AUTO_SUBSCRIPTION_CREATION: stored[AUTO_SUBSCRIPTION_CREATION]},
        lambda policies, settings: {
            AUTO_SUBSCRIPTION_CREATION: policies.value(
                AUTO_SUBSCRIPTION_CREATION, settings.broker.allow_auto_subscription_creation
            )
        },
        _auto_subscription_in,
    ),
    Policy(
        "autoTopicCreation",
        "autoTopicCreationOverride",
        (AUTO_TOPIC_CREATION,),
        "whether producers and consumers create topics by asking for them, and of which kind; "
        "of namespaces only",
        '`{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 4}`; '
        "an empty body clears it",
        _auto_topic_in,
        lambda stored: stored[AUTO_TOPIC_CREATION],
        lambda *_: None,
        _auto_topic_in,
        path_at_topics=None,
    ),
    Policy(
        "deduplication",
        "deduplicationEnabled",
        (DEDUPLICATION,),
        "whether messages that a producer sends a second time are discarded, by sequence id; a "
        "change loads the topic again",
        "`true` or `false`, at a topic also nothing, which clears it",
        _deduplication_in,
        lambda stored: stored[DEDUPLICATION],
        lambda policies, settings: policies.value(
            DEDUPLICATION, settings.broker.broker_deduplication_enabled
        ),
        _deduplication_in,
        of_namespace=_deduplication_of_namespace,
        path_at_topics="deduplicationEnabled",
    ),
)

_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


class _Level(NamedTuple):
    """A level at which policies are set: namespace or topic."""

    template: str
    node: Callable[[Call], Awaitable[str]]
    """Path of the metadata node for the request's namespace or topic, which must exist."""
    path: Callable[[Policy], str | None]
    """Last piece of a policy's path; None: the level does not have it."""
    value: Callable[[Policy], Callable[[Call], Any]]
    applies: bool
    """Whether the level accepts ``applied=true``."""


async def _node_of_namespace(call: Call) -> str:
    await call.require_namespace()
    return namespace_policy_path(call.namespace_name)


async def _node_of_topic(call: Call) -> str:
    name = call.topic_name
    if name.is_partition:
        raise RefusedError(412, "Not allowed to set/get topic policy for a partition")
    if not await call.partitions() and not await call.broker.registry.exists(name):
        raise topic_not_found(name)
    return topic_policy_path(name)


_LEVELS: Final = (
    _Level(
        _NAMESPACE,
        _node_of_namespace,
        lambda policy: policy.path,
        lambda policy: policy.of_namespace,
        applies=False,
    ),
    _Level(
        _TOPIC,
        _node_of_topic,
        lambda policy: policy.path if policy.path_at_topics == SAME_PATH else policy.path_at_topics,
        lambda policy: policy.of_topic,
        applies=True,
    ),
)


def _routes(policy: Policy, level: _Level) -> tuple[Route, ...]:
    path = level.path(policy)
    if path is None:
        return ()
    template = f"{level.template}/{path}"
    value_of = level.value(policy)

    async def get(call: Call) -> Reply:
        node = await level.node(call)
        if level.applies and call.is_asked("applied"):
            policies = EffectivePolicies(call.broker.services.policies, call.topic_name)
            await policies.load()
            return _json_or_nothing(policy.applied(policies, call.broker.services.settings))
        stored = await call.broker.services.policies.load(node)
        shown = policy.show(stored) if policy.keys[0] in stored else policy.absent
        return _json_or_nothing(shown)

    async def post(call: Call) -> Reply:
        node = await level.node(call)
        await call.broker.services.policies.change(node, policy.read(value_of(call)))
        return DONE

    async def delete(call: Call) -> Reply:
        node = await level.node(call)
        await call.broker.services.policies.change(node, dict.fromkeys(policy.keys))
        return DONE

    asked = "; `?applied=true`: the value in force" if level.applies else ""
    return (
        Route("GET", template, get, f"The value that is set here{asked}"),
        Route("POST", template, post, "Set it"),
        Route("DELETE", template, delete, "Clear it: the level above takes effect"),
    )


def _json_or_nothing(value: object) -> Reply:
    return NOTHING if value is None else json_reply(value)


ROUTES: Final = tuple(
    route for level in _LEVELS for policy in POLICIES for route in _routes(policy, level)
)


# ---- a namespace's description


def namespace_policies_in(body: Mapping[str, Any]) -> Stored:
    """Read the policies in a namespace's description, in the form of Pulsar's ``Policies``.

    Ignores null members, and those of policies that we do not have. Raises `RefusedError` for an
    invalid value, and for security that we do not have.
    """
    given = {key: value for key, value in body.items() if value is not None}
    _refuse_security(given)
    found: Stored = {}
    if properties := properties_in(given.get(NAMESPACE_PROPERTIES)):
        found[NAMESPACE_PROPERTIES] = properties
    for policy in POLICIES:
        if policy.path is not None and policy.member in given:
            found |= policy.read_member(given[policy.member])
    return found


def namespace_json(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A namespace's policies as members of Pulsar's ``Policies``."""
    members = {p.member: p.show(stored) for p in POLICIES if p.keys[0] in stored}
    if NAMESPACE_PROPERTIES in stored:
        members[NAMESPACE_PROPERTIES] = stored[NAMESPACE_PROPERTIES]
    return members


def _refuse_security(given: Mapping[str, Any]) -> None:
    """Reject a member that asks for a protection which this broker does not have."""
    member = "encryption_required"
    if type(given.get(member, False)) is not bool:
        raise RefusedError(400, f"{member} must be true, false or null")
    if given.get(member):
        raise RefusedError(412, f"{member} protects nothing here: this broker does not have it")
