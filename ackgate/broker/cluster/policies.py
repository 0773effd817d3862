"""Namespace and topic policies: values that override the broker's configuration.

Edge. The most specific value wins (topic, then namespace, then broker), also a stored ``False``.
Policies are JSON nodes; unknown keys in a node are kept, so that a later build's policies
survive.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from ackgate.broker.cluster.node_follower import NodeFollower
from ackgate.broker.security import (
    ADMIN_ROLES,
    AUTH_POLICIES,
    SUBSCRIPTION_AUTH_MODE,
    AuthPolicies,
    mode_in,
    roles_in,
)
from ackgate.config.delayed import DELAYED_DELIVERY, DelayedDeliveryPolicy
from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff
from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.messages.rules import Retention
from ackgate.persistence.nodes.changes import change_node, create_node, delete_node
from ackgate.persistence.nodes.paths import (
    NAMESPACE_POLICIES,
    TOPIC_POLICIES,
    namespace_policies_path,
    topic_policies_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ackgate.broker.wire import NamespaceName, TopicName
    from ackgate.config.delayed import DelayedSettings
    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)

DELAY_MS_MAX: Final = 10 * 366 * 86_400_000
"""Ten years. More than that is a mistake, or an attempt at an overflow."""

MULTIPLIER_MAX: Final = 1_000.0

AUTO_PARTITIONS_MAX: Final = 100_000
"""Partitions of a topic that is made by being asked for: as many as `defaultNumPartitions` may be."""

KNOWN_MIN: Final = 10_000
"""Paths that are cached before those without policies are dropped. Clients may name any number of
namespaces that do not exist, and topics come and go."""

_BACKOFF_FIELDS: Final = {
    "minDelayMs": "min_delay_ms",
    "maxDelayMs": "max_delay_ms",
    "multiplier": "multiplier",
    "jitter": "jitter",
}
"""Field names in JSON, and ours."""

_DEFAULT: Final = MultiplierRedeliveryBackoff()


@dataclass(frozen=True, slots=True)
class RedeliveryBackoffPolicy:
    """The policy `redeliveryBackoff`: how long the broker holds negatively acked messages.

    It is set on a namespace or a topic. Without it messages are redelivered at once, as in
    Pulsar. The delay grows with the entry's redelivery count, as that of Pulsar's
    ``MultiplierRedeliveryBackoff`` in its clients::

        {"minDelayMs": 1000, "maxDelayMs": 60000, "multiplier": 2, "jitter": 0.1}

        1st time 1 s, 2nd 2 s, 3rd 4 s ... at most 60 s, each less a random share of up to a tenth

    Default: 10 s, 20 s, 40 s, ... 10 min.
    """

    min_delay_ms: int = _DEFAULT.min_delay_ms
    """Delay before the first redelivery."""

    max_delay_ms: int = _DEFAULT.max_delay_ms
    """Longest delay, however often an entry is redelivered."""

    multiplier: float = _DEFAULT.multiplier
    """Factor from one delay to the next; above 1."""

    jitter: float = _DEFAULT.jitter
    """Largest share of a delay, 0 to 1, that is taken off at random."""

    def __post_init__(self) -> None:
        """Raises `CallerError` naming the field that has a wrong type or value."""
        _check_delay("minDelayMs", self.min_delay_ms, 0)
        _check_delay("maxDelayMs", self.max_delay_ms, self.min_delay_ms)
        if not 1 < _number("multiplier", self.multiplier) <= MULTIPLIER_MAX:
            raise CallerError(
                f"redeliveryBackoff: multiplier must be above 1 and at most {MULTIPLIER_MAX:g}, "
                f"not {self.multiplier!r:.80}"
            )
        if not 0 <= _number("jitter", self.jitter) <= 1:
            raise CallerError(f"redeliveryBackoff: jitter must be 0 to 1, not {self.jitter!r:.80}")

    @classmethod
    def from_json(cls, value: object) -> RedeliveryBackoffPolicy:
        """Read the policy from its JSON. Raises `CallerError` naming what is wrong with it."""
        if not isinstance(value, dict):
            raise CallerError(f"redeliveryBackoff must be an object, not {value!r:.80}")
        unknown = sorted(map(str, value.keys() - _BACKOFF_FIELDS.keys()))
        if unknown:
            raise CallerError(
                f"redeliveryBackoff: no field {', '.join(unknown)}; there are {', '.join(_BACKOFF_FIELDS)}"
            )
        return cls(**{_BACKOFF_FIELDS[name]: field for name, field in value.items()})

    def to_json(self) -> dict[str, int | float]:
        """The policy as JSON with all fields."""
        return {name: getattr(self, field) for name, field in _BACKOFF_FIELDS.items()}


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """The policy `autoTopicCreation` of a namespace: topics that are made by being asked for."""

    is_allowed: bool

    partitions: int | None = None
    """Partitions of such a topic; None: it is not partitioned."""

    topic_type: str | None = None
    """``partitioned`` or ``non-partitioned``; anything where no topic is made."""

    @classmethod
    def from_json(cls, value: object) -> AutoTopicCreation:
        """Read the policy from its JSON. Raises `CallerError`, in Pulsar's words where it has some."""
        if not isinstance(value, dict):
            raise CallerError(f"autoTopicCreation must be an object, not {value!r:.80}")
        is_allowed = value.get("allowAutoTopicCreation") or False
        topic_type, partitions = value.get("topicType"), value.get("defaultNumPartitions")
        if type(is_allowed) is not bool:
            raise CallerError(
                f"allowAutoTopicCreation must be true or false, not {is_allowed!r:.80}"
            )
        if partitions is not None and type(partitions) is not int:
            raise CallerError(
                f"defaultNumPartitions must be a whole number, not {partitions!r:.80}"
            )
        if partitions is not None and partitions > AUTO_PARTITIONS_MAX:
            raise CallerError(
                f"defaultNumPartitions must be at most {AUTO_PARTITIONS_MAX}, not {partitions!r:.80}"
            )
        if topic_type is not None and type(topic_type) is not str:
            raise CallerError(f"topicType must be a text, not {topic_type!r:.80}")
        if is_allowed and (why := _wrong_creation(topic_type, partitions)):
            raise CallerError(
                f"Invalid configuration for autoTopicCreationOverride. the detail is {why}"
            )
        return cls(is_allowed, partitions, topic_type)

    def to_json(self) -> dict[str, bool | int | str]:
        """The policy as JSON, without what is absent."""
        told = {"topicType": self.topic_type, "defaultNumPartitions": self.partitions}
        return {
            "allowAutoTopicCreation": self.is_allowed,
            **{key: value for key, value in told.items() if value is not None},
        }


def _wrong_creation(topic_type: str | None, partitions: int | None) -> str | None:
    """What is wrong with a kind of topics that are to be made, in Pulsar's words."""
    match topic_type, partitions:
        case "partitioned", None:
            return "[defaultNumPartitions] cannot be null when the type is partitioned."
        case "partitioned", int() if partitions < 1:
            return "[defaultNumPartitions] cannot be less than 1 for partition type."
        case ("partitioned", _) | ("non-partitioned", None):
            return None
        case "non-partitioned", _:
            return "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
        case _:
            return f"Unknown topic type [{'null' if topic_type is None else topic_type[:80]}]"


def _check_delay(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CallerError(f"redeliveryBackoff: {field} must be a whole number, not {value!r:.80}")
    if not least <= value <= DELAY_MS_MAX:
        raise CallerError(
            f"redeliveryBackoff: {field} must be {least} to {DELAY_MS_MAX} ms, not {value!r:.80}"
        )


def _number(field: str, value: object) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise CallerError(f"redeliveryBackoff: {field} must be a finite number, not {value!r:.80}")


PAUSE_ON_ACK_STATE: Final = "dispatcherPauseOnAckStatePersistentEnabled"
RETENTION_MINUTES: Final = "retentionTimeInMinutes"
RETENTION_MB: Final = "retentionSizeInMB"
MESSAGE_TTL_SECONDS: Final = "messageTTLInSeconds"
REDELIVERY_BACKOFF: Final = "redeliveryBackoff"
MAX_CONSUMERS: Final = "maxConsumersPerTopic"
MAX_CONSUMERS_PER_SUBSCRIPTION: Final = "maxConsumersPerSubscription"
MAX_MESSAGE_BYTES: Final = "maxMessageSize"
MAX_PRODUCERS: Final = "maxProducersPerTopic"
MAX_SUBSCRIPTIONS: Final = "maxSubscriptionsPerTopic"
MAX_TOPICS: Final = "maxTopicsPerNamespace"
MAX_UNACKED_PER_CONSUMER: Final = "maxUnackedMessagesPerConsumer"
MAX_UNACKED_PER_SUBSCRIPTION: Final = "maxUnackedMessagesPerSubscription"
AUTO_SUBSCRIPTION_CREATION: Final = "allowAutoSubscriptionCreation"
AUTO_TOPIC_CREATION: Final = "autoTopicCreation"
DEDUPLICATION: Final = "deduplicationEnabled"
NAMESPACE_PROPERTIES: Final = "properties"


class JsonPolicy(Protocol):
    """A policy whose value is a JSON object."""

    def to_json(self) -> Mapping[str, Any]:
        """The policy as JSON with all fields."""


class PolicyForm(NamedTuple):
    """The type and the checks of a policy's value."""

    type: type
    read: Callable[[object], JsonPolicy] | None = None
    """For an object: reads its JSON. Raises `CallerError` naming what is wrong with it."""
    check: Callable[[Any], object] | None = None
    """Raises `CallerError` naming what is wrong with the value."""

    def complete(self, value: object) -> dict[str, Any]:
        """An object's JSON with every field. Raises `CallerError`."""
        assert self.read is not None
        return dict(self.read(value).to_json())


POLICY_FORMS: Final[Mapping[str, PolicyForm]] = {
    PAUSE_ON_ACK_STATE: PolicyForm(bool),
    RETENTION_MINUTES: PolicyForm(int),
    RETENTION_MB: PolicyForm(int),
    MESSAGE_TTL_SECONDS: PolicyForm(int),
    DELAYED_DELIVERY: PolicyForm(dict, DelayedDeliveryPolicy.from_json),
    REDELIVERY_BACKOFF: PolicyForm(dict, RedeliveryBackoffPolicy.from_json),
    MAX_CONSUMERS: PolicyForm(int),
    MAX_CONSUMERS_PER_SUBSCRIPTION: PolicyForm(int),
    MAX_MESSAGE_BYTES: PolicyForm(int),
    MAX_PRODUCERS: PolicyForm(int),
    MAX_SUBSCRIPTIONS: PolicyForm(int),
    MAX_TOPICS: PolicyForm(int),
    MAX_UNACKED_PER_CONSUMER: PolicyForm(int),
    MAX_UNACKED_PER_SUBSCRIPTION: PolicyForm(int),
    AUTO_SUBSCRIPTION_CREATION: PolicyForm(bool),
    AUTO_TOPIC_CREATION: PolicyForm(dict, AutoTopicCreation.from_json),
    DEDUPLICATION: PolicyForm(bool),
    NAMESPACE_PROPERTIES: PolicyForm(dict),
    AUTH_POLICIES: PolicyForm(dict, AuthPolicies.from_json),
    SUBSCRIPTION_AUTH_MODE: PolicyForm(str, check=mode_in),
    ADMIN_ROLES: PolicyForm(list, check=roles_in),
}
"""The form of every stored policy, by its key; including a tenant's admin roles."""


class PolicyStore:
    """Caches the policies of each path, and makes all changes.

    After `follow` it also takes over what another broker changes.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._follower = NodeFollower(
            metadata, (NAMESPACE_POLICIES, TOPIC_POLICIES), self._read_again
        )
        self._known: dict[str, dict[str, Any]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By path, held by whoever reads or changes it: what was read last is known last."""
        self._listeners: list[Callable[[], None]] = []
        self._needs: list[Callable[[], Iterable[str]]] = []
        self._trim_at = KNOWN_MIN

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of any policy."""
        self._listeners.append(listener)

    def keep(self, needed: Callable[[], Iterable[str]]) -> None:
        """Follow the paths that `needed` returns even while there are no policies at them."""
        self._needs.append(needed)

    async def load(self, path: str) -> Mapping[str, Any]:
        """The policies stored at `path`; empty when there are none. Raises `CorruptRecordError`."""
        if path not in self._known:
            async with self._alone(path):
                if path not in self._known:
                    self._remember(path, await self._read(path))
        return self.known(path)

    def is_known(self, path: str) -> bool:
        """Whether the policies at `path` are cached."""
        return path in self._known

    async def follow(self) -> None:
        """Watch for changes in this session, and read what may have changed before it began."""
        self._follower.start()
        await self._read_again({*self._known, *self._locks})

    def stop(self) -> None:
        self._follower.stop()

    async def _read_again(self, paths: set[str]) -> None:
        is_changed = False
        for path in paths:
            async with self._alone(path):
                if path not in self._known:
                    continue
                try:
                    policies = await self._read(path)
                except CorruptRecordError as error:
                    log.error("what was known before still holds: %s", error)  # noqa: TRY400
                    continue
                is_changed = is_changed or policies != self.known(path)
                self._known[path] = policies
        if is_changed:
            self._notify()

    def known(self, path: str) -> Mapping[str, Any]:
        """The cached policies at `path`; empty if there are none or they were not loaded."""
        return self._known.get(path, {})

    async def change(self, path: str, changes: Mapping[str, object]) -> None:
        """Set policies, or remove them with None: all changes or none. Raises `CallerError`."""
        await self.amend(path, lambda _: changes)

    async def amend(
        self, path: str, changes_of: Callable[[Mapping[str, Any]], Mapping[str, object]]
    ) -> None:
        """As `change`, with changes that depend on the stored policies.

        `changes_of` may be called more than once.
        """
        policies: dict[str, Any] = {}

        def lay_over(value: bytes | None) -> bytes:
            nonlocal policies
            stored = _decode(path, value) if value is not None else {}
            policies = _changed(dict(stored), changes_of(stored))
            return json.dumps(policies).encode()

        async with self._alone(path):
            await change_node(self._metadata, path, lay_over)
            self._remember(path, policies)
        self._notify()

    async def create(self, path: str, policies: Mapping[str, object]) -> None:
        """Store a new set of policies, which may be empty. Raises `NodeExistsError`."""
        value = _changed({}, policies)
        async with self._alone(path):
            await create_node(self._metadata, path, json.dumps(value).encode())
            self._remember(path, value)
        self._notify()

    async def remove(self, path: str) -> None:
        """Delete the policies at `path` with their node. Raises `NoSuchNodeError`."""
        async with self._alone(path):
            await delete_node(self._metadata, path)
            self._remember(path, {})
        self._notify()

    async def refresh(self, path: str) -> None:
        """Read the policies at `path` again, whose node was removed in another way."""
        await self._read_again({path})

    def _alone(self, path: str) -> asyncio.Lock:
        return self._locks.setdefault(path, asyncio.Lock())

    async def _read(self, path: str) -> dict[str, Any]:
        stored = await self._metadata.get(path)
        return _decode(path, stored.value) if stored else {}

    def _remember(self, path: str, policies: dict[str, Any]) -> None:
        self._known[path] = policies
        if len(self._known) >= self._trim_at:
            needed = set(chain.from_iterable(paths() for paths in self._needs))
            self._known = {
                each: stored for each, stored in self._known.items() if stored or each in needed
            }
            self._trim_at = max(KNOWN_MIN, 2 * len(self._known))

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _changed(policies: dict[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    for key, value in changes.items():
        if value is None:
            policies.pop(key, None)
        else:
            _check(key, value)
            policies[key] = value
    return policies


def _check(key: str, value: object) -> None:
    form = POLICY_FORMS[key]
    if type(value) is not form.type:
        raise CallerError(f"policy {key} takes a {form.type.__name__}, not {value!r}")
    if form.read is not None:
        form.read(value)
    if form.check is not None:
        form.check(value)


def namespace_policy_path(namespace: NamespaceName) -> str:
    """Path of the node with a namespace's policies."""
    return namespace_policies_path(namespace.tenant, namespace.namespace)


def topic_policy_path(topic: TopicName) -> str:
    """Path of the node with a topic's policies; all its partitions share it."""
    return topic_policies_path(topic.tenant, topic.namespace, topic.partitioned.local_name)


class EffectivePolicies:
    """The values in effect for one topic: its own, else its namespace's, else the broker's."""

    def __init__(self, store: PolicyStore, topic: TopicName) -> None:
        self._store = store
        self._paths = (topic_policy_path(topic), namespace_policy_path(topic.namespace_name))

    async def load(self) -> None:
        await asyncio.gather(*map(self._store.load, self._paths))

    def value(self, key: str, broker_value: Any) -> Any:  # noqa: ANN401 - typed by POLICY_FORMS
        """The value at the most specific level that has one."""
        for path in self._paths:
            policies = self._store.known(path)
            if key in policies:
                return policies[key]
        return broker_value

    def delayed_delivery(self, settings: DelayedSettings) -> DelayedDeliveryPolicy:
        """The delayed delivery policy in effect."""
        return DelayedDeliveryPolicy.effective(
            (
                DelayedDeliveryPolicy.from_json(policies[DELAYED_DELIVERY])
                if DELAYED_DELIVERY in policies
                else None
                for policies in map(self._store.known, self._paths)
            ),
            settings,
        )

    def redelivery_backoff(self) -> RedeliveryBackoffPolicy | None:
        """How long negatively acked entries are held; None: they are redelivered at once."""
        value = self.value(REDELIVERY_BACKOFF, None)
        return None if value is None else RedeliveryBackoffPolicy.from_json(value)

    def retention(self, broker_minutes: int, broker_mb: int) -> Retention:
        """The topic's retention in milliseconds and bytes."""
        minutes = self.value(RETENTION_MINUTES, broker_minutes)
        megabytes = self.value(RETENTION_MB, broker_mb)
        return Retention(
            minutes * 60_000 if minutes >= 0 else -1,
            megabytes * 1024 * 1024 if megabytes >= 0 else -1,
        )


def _decode(path: str, value: bytes) -> dict[str, Any]:
    if not value:  # a tenant's node may be empty if it was made only to hold a namespace
        return {}
    try:
        policies = json.loads(value)
    except ValueError as error:
        raise CorruptRecordError(f"policies at {path} cannot be read: {error}") from error
    if not isinstance(policies, dict):
        raise CorruptRecordError(f"policies at {path} are not a JSON object")
    for key in POLICY_FORMS.keys() & policies.keys():
        try:
            _check(key, policies[key])
        except CallerError as error:
            raise CorruptRecordError(f"policies at {path}: {error}") from error
    return policies
