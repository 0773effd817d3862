"""What decides how long a topic's ledgers and messages stay, and whether its gate is on.

Pure. The most specific value wins, as in Pulsar 4.0::

    topic      the topic's newest event in its namespace's topic __change_events: first one of this
               cluster, then one of all clusters (global)
    namespace  /admin/policies/TENANT/NAMESPACE
    broker     what a live one answers; else /admin/configuration, else broker.conf, else its default

The caps are the brokers' alone: no namespace and no topic has its own. Source: Pulsar's
``BrokerService.getManagedLedgerConfig`` and ``SystemTopicBasedTopicPoliciesService``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from ackgate.errors import CallerError, ConfigurationError, CorruptRecordError
from ackgate.pulsar.nodes import PulsarTopic
from ackgate.pulsar.restarts import AckForm, PersistCaps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

DEFAULTS: Final[Mapping[str, str]] = {
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "ttlDurationDefaultInSeconds": "0",
    "delayedDeliveryEnabled": "true",
    "dispatcherPauseOnAckStatePersistentEnabled": "false",
    "managedLedgerDefaultMarkDeleteRateLimit": "1.0",
    "managedLedgerMaxUnackedRangesToPersist": "10000",
    "managedLedgerMaxBatchDeletedIndexToPersist": "10000",
    "managedLedgerPersistIndividualAckAsLongArray": "false",
}
"""The keys of broker.conf that are used here, with the defaults of 4.0."""

_SYSTEM_TOPIC: Final = re.compile(
    r"__change_events|__transaction_buffer_snapshot(_segments|_indexes)?|transaction_coordinator_assign"
    r"|__transaction_log_.*|.*__transaction_pending_ack"
)
_MEGABYTE: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000

FOREVER: Final = 2**63 - 1
"""A time in ms that never comes."""


class PulsarPolicy(NamedTuple, Generic[T]):
    """A value, and who has set it."""

    value: T
    origin: str
    """``topic``, ``namespace``, ``broker``, ``dynamic configuration``, ``broker.conf:12``, ``default``."""


class PulsarRetention(NamedTuple):
    """How long the ledgers stay that every subscription has acked: as long as both limits allow."""

    minutes: int
    """Minutes since the ledger was closed. -1: no limit."""
    megabytes: int
    """Megabytes of the whole topic. -1: no limit."""

    def until_ms(self, closed_ms: int | None, bytes_after: int) -> int | None:
        """When the retention of a ledger ends, or `FOREVER`. None: it has none, or none any more.

        `bytes_after`: of the later ledgers. They count against the size. None of `closed_ms`: not known.
        """
        if closed_ms is None or self.minutes == 0:
            return None
        if 0 <= self.megabytes * _MEGABYTE <= bytes_after:
            return None
        return FOREVER if self.minutes < 0 else closed_ms + self.minutes * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class PulsarPolicies:
    """The policies in force for a topic."""

    retention: PulsarPolicy[PulsarRetention]
    ttl_seconds: PulsarPolicy[int]
    """After which a message counts as acked. 0: never."""
    delayed_delivery: PulsarPolicy[bool]
    gate: PulsarPolicy[bool]
    """[dispatcherPauseOnAckStatePersistentEnabled]"""
    cursor_writes_per_second: PulsarPolicy[float]
    """[managedLedgerMaxMarkDeleteRate] Of each cursor; what is acked between two is in memory only.
    0: no limit."""


@dataclass(frozen=True, slots=True)
class BrokerKeys:
    """Keys of the brokers' configuration, as far as they are known."""

    given: Mapping[str, PulsarPolicy[str]] = field(default_factory=dict)
    version: tuple[int, int] | None = None
    """None: not known."""

    def updated(
        self, texts: Mapping[str, str], origin: str, version: tuple[int, int] | None = None
    ) -> BrokerKeys:
        """The keys with these texts in place of what they had.

        Keys that are not used here are dropped.
        """
        known = {key: PulsarPolicy(text, origin) for key, text in texts.items() if key in DEFAULTS}
        return BrokerKeys({**self.given, **known}, version or self.version)

    def integer(self, key: str) -> PulsarPolicy[int]:
        """The key's value as an integer. Raises `ConfigurationError`, as the next two do."""
        return self._parsed(key, int)

    def number(self, key: str) -> PulsarPolicy[float]:
        return self._parsed(key, float)

    def boolean(self, key: str) -> PulsarPolicy[bool]:
        return self._parsed(key, lambda text: {"true": True, "false": False}[text.lower()])

    def _parsed(self, key: str, parse: Callable[[str], T]) -> PulsarPolicy[T]:
        text, origin = self.given.get(key, PulsarPolicy(DEFAULTS[key], "default"))
        try:
            return PulsarPolicy(parse(text.strip()), origin)
        except (ValueError, KeyError):
            raise ConfigurationError(f"{origin}: {key}={text!r} is not read") from None

    @property
    def ack_form(self) -> AckForm:
        """How these brokers write acks, as far as it is known."""
        is_5 = self.version is not None and self.version >= (5, 0)
        if self.boolean("managedLedgerPersistIndividualAckAsLongArray").value:
            return AckForm.WORDS_5 if is_5 else AckForm.WORDS
        return AckForm.RANGES_5 if is_5 else AckForm.RANGES

    @property
    def caps(self) -> PersistCaps:
        """The brokers' caps on persisted acks. Raises `ConfigurationError`."""
        ranges = self.integer("managedLedgerMaxUnackedRangesToPersist")
        batches = self.integer("managedLedgerMaxBatchDeletedIndexToPersist")
        return PersistCaps(ranges.value, batches.value, self.ack_form, ranges.origin)


class PolicyEvents:
    """The policies of a namespace's topics, by the events of ``__change_events`` in their order."""

    def __init__(self) -> None:
        self._of_topics: dict[tuple[PulsarTopic, bool], Mapping[str, Any]] = {}

    def apply(self, key: str, event: Mapping[str, Any] | None, *, clusters: int = 0) -> None:
        """One message. `event`: None deletes. `clusters`: to how many the message is replicated.

        Deletes a global policy if it is replicated to several, as brokers do where they are in one of
        them. Raises `CorruptRecordError`.
        """
        try:
            if event is None:
                self._of_topics.pop((PulsarTopic.parse(key).partitioned, clusters > 1), None)
                return
            about = event["topicPoliciesEvent"]
            if event["eventType"] != "TOPIC_POLICY" or about["domain"] != "persistent":
                return
            topic = PulsarTopic(about["tenant"], about["namespace"], about["topic"])
            policies = about["policies"] or {}
            place = topic, bool(policies.get("isGlobal"))
            match event["actionType"]:
                case "UPDATE":
                    self._of_topics[place] = policies
                case "INSERT":
                    self._of_topics.setdefault(place, policies)
                case "DELETE":
                    self._of_topics.pop(place, None)
        except (KeyError, TypeError, AttributeError, CallerError) as error:
            raise CorruptRecordError(f"the event of {key!r}: {error!r}") from error

    def of(self, topic: PulsarTopic) -> list[Mapping[str, Any]]:
        """The topic's own policies, and those of all clusters, where they are set."""
        whole = topic.partitioned
        found = (self._of_topics.get((whole, is_global)) for is_global in (False, True))
        return [policies for policies in found if policies is not None]


def policies_in_force(
    topic: PulsarTopic,
    of_topic: list[Mapping[str, Any]],
    of_namespace: Mapping[str, Any],
    broker: BrokerKeys,
) -> PulsarPolicies:
    """Choose the most specific value of each policy.

    `of_topic`: the topic's own first. `of_namespace`: as stored, in JSON. Raises
    `CorruptRecordError` for a policy that is of no use, `ConfigurationError` for a key.
    """

    def found(
        name: str, in_namespace: str, of: Callable[[Any], T], default: Callable[[], PulsarPolicy[T]]
    ) -> PulsarPolicy[T]:
        levels = [("topic", own.get(name)) for own in of_topic]
        if name != "retentionPolicies" or not is_system_topic(topic):
            levels.append(("namespace", of_namespace.get(in_namespace)))
        for origin, value in levels:
            if value is not None:
                try:
                    return PulsarPolicy(of(value), origin)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise CorruptRecordError(
                        f"{topic}: the {origin}'s policy {name}: {error!r}"
                    ) from error
        return default()

    def retention() -> PulsarPolicy[PulsarRetention]:
        if is_system_topic(topic):
            return PulsarPolicy(PulsarRetention(0, 0), "system topic")
        minutes = broker.integer("defaultRetentionTimeInMinutes")
        size = broker.integer("defaultRetentionSizeInMB")
        return PulsarPolicy(PulsarRetention(minutes.value, size.value), minutes.origin)

    gate = "dispatcherPauseOnAckStatePersistentEnabled"
    return PulsarPolicies(
        found(
            "retentionPolicies",
            "retention_policies",
            lambda of: PulsarRetention(
                int(of["retentionTimeInMinutes"]), int(of["retentionSizeInMB"])
            ),
            retention,
        ),
        found(
            "messageTTLInSeconds",
            "message_ttl_in_seconds",
            int,
            lambda: broker.integer("ttlDurationDefaultInSeconds"),
        ),
        found(
            "delayedDeliveryEnabled",
            "delayed_delivery_policies",
            lambda of: bool(of["active"] if isinstance(of, dict) else of),
            lambda: broker.boolean("delayedDeliveryEnabled"),
        ),
        found(gate, gate, bool, lambda: broker.boolean(gate)),
        found(
            "persistence",
            "persistence",
            lambda of: float(of["managedLedgerMaxMarkDeleteRate"]),
            lambda: broker.number("managedLedgerDefaultMarkDeleteRateLimit"),
        ),
    )


def is_system_topic(topic: PulsarTopic) -> bool:
    """Whether brokers keep it for themselves: a namespace's retention does not concern it."""
    return _SYSTEM_TOPIC.fullmatch(topic.partitioned.local_name) is not None
