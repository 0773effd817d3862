"""Namespace and topic policies: what is set above the broker's configuration.

Edge. The most specific value wins (topic, then namespace, then broker), a stored ``False``
included. Policies are JSON nodes; unknown keys in a node are kept, so that a later build's policies
survive.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.delayed.nack_policy import RedeliveryBackoffPolicy
from ackgate.broker.ledger_rules import Retention
from ackgate.broker.node_follower import NodeFollower
from ackgate.config.delayed_policy import DelayedDeliveryPolicy
from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.metadata.changes import change_node
from ackgate.persistence.paths import (
    NAMESPACE_POLICIES,
    TOPIC_POLICIES,
    namespace_policies_path,
    topic_policies_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.names import NamespaceName, TopicName
    from ackgate.config.delayed import DelayedSettings
    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)

PAUSE_ON_ACK_STATE: Final = "dispatcherPauseOnAckStatePersistentEnabled"
RETENTION_MINUTES: Final = "retentionTimeInMinutes"
RETENTION_MB: Final = "retentionSizeInMB"
MESSAGE_TTL_SECONDS: Final = "messageTTLInSeconds"
DELAYED_DELIVERY: Final = "delayedDelivery"
REDELIVERY_BACKOFF: Final = "redeliveryBackoff"

POLICY_TYPES: Final[Mapping[str, type]] = {
    PAUSE_ON_ACK_STATE: bool,
    RETENTION_MINUTES: int,
    RETENTION_MB: int,
    MESSAGE_TTL_SECONDS: int,
    DELAYED_DELIVERY: dict,
    REDELIVERY_BACKOFF: dict,
}

_OBJECTS: Final[Mapping[str, Callable[[object], object]]] = {
    DELAYED_DELIVERY: DelayedDeliveryPolicy.from_json,
    REDELIVERY_BACKOFF: RedeliveryBackoffPolicy.from_json,
}
"""Policies that are objects: what reads one, and raises `CallerError` if it cannot be."""


class PolicyStore:
    """Policies by path, read once and kept; every change goes through here.

    With `follow`, what another broker changes is taken over, too.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._follower = NodeFollower(
            metadata, (NAMESPACE_POLICIES, TOPIC_POLICIES), self._read_again
        )
        self._known: dict[str, dict[str, Any]] = {}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of any policy."""
        self._listeners.append(listener)

    async def load(self, path: str) -> Mapping[str, Any]:
        """The policies stored at `path`; empty when there are none. Raises `CorruptRecordError`."""
        if path not in self._known:
            stored = await self._metadata.get(path)
            self._known[path] = _decode(path, stored.value) if stored else {}
        return self._known[path]

    async def follow(self) -> None:
        """Watch for changes in this session, and read what may have changed before it began."""
        self._follower.start()
        await self._read_again(set(self._known))

    def stop(self) -> None:
        """Follow no more."""
        self._follower.stop()

    async def _read_again(self, paths: set[str]) -> None:
        is_changed = False
        for path in paths & self._known.keys():
            stored = await self._metadata.get(path)
            try:
                policies = _decode(path, stored.value) if stored else {}
            except CorruptRecordError as error:
                log.error("what was known before still holds: %s", error)  # noqa: TRY400
                continue
            is_changed = is_changed or policies != self._known[path]
            self._known[path] = policies
        if is_changed:
            self._tell()

    def known(self, path: str) -> Mapping[str, Any]:
        """What `load` found at `path`, without I/O."""
        return self._known.get(path, {})

    async def change(self, path: str, changes: Mapping[str, object]) -> None:
        """Set policies, or remove them with None; all of them or none."""
        policies: dict[str, Any] = {}

        def lay_over(value: bytes | None) -> bytes:
            nonlocal policies
            policies = _changed(_decode(path, value) if value is not None else {}, changes)
            return json.dumps(policies).encode()

        await change_node(self._metadata, path, lay_over)
        self._known[path] = policies
        self._tell()

    async def create(self, path: str) -> None:
        """Make an empty set of policies. Raises `NodeExistsError`."""
        await self._metadata.create(path, b"{}")
        self._known[path] = {}

    async def remove(self, path: str) -> None:
        """Remove the set of policies with its node. Raises `NoSuchNodeError`."""
        await self._metadata.delete(path)
        self._known[path] = {}
        self._tell()

    def _tell(self) -> None:
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
    expected = POLICY_TYPES[key]
    if type(value) is not expected:
        raise CallerError(f"policy {key} takes a {expected.__name__}, not {value!r}")
    if key in _OBJECTS:
        _OBJECTS[key](value)


def namespace_policy_path(namespace: NamespaceName) -> str:
    """Node of a namespace's policies."""
    return namespace_policies_path(namespace.tenant, namespace.namespace)


def topic_policy_path(topic: TopicName) -> str:
    """Node of a topic's policies; all partitions of a topic share one."""
    return topic_policies_path(topic.tenant, topic.namespace, topic.partitioned.local_name)


class EffectivePolicies:
    """What holds for one topic: its own value, else its namespace's, else the broker's."""

    def __init__(self, store: PolicyStore, topic: TopicName) -> None:
        self._store = store
        self._paths = (topic_policy_path(topic), namespace_policy_path(topic.namespace_name))

    async def load(self) -> None:
        """Read both levels."""
        await asyncio.gather(*map(self._store.load, self._paths))

    def value(self, key: str, broker_value: Any) -> Any:  # noqa: ANN401 - typed by POLICY_TYPES
        """The most specific value."""
        for path in self._paths:
            policies = self._store.known(path)
            if key in policies:
                return policies[key]
        return broker_value

    def delayed_delivery(self, settings: DelayedSettings) -> DelayedDeliveryPolicy:
        """Delayed delivery as it holds for the topic."""
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
        """How long entries that were given back are held back; None: not at all."""
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
    try:
        policies = json.loads(value)
    except ValueError as error:
        raise CorruptRecordError(f"policies at {path} cannot be read: {error}") from error
    if not isinstance(policies, dict):
        raise CorruptRecordError(f"policies at {path} are not a JSON object")
    for key in POLICY_TYPES.keys() & policies.keys():
        try:
            _check(key, policies[key])
        except CallerError as error:
            raise CorruptRecordError(f"policies at {path}: {error}") from error
    return policies
