"""All topics of one broker: found, created, loaded once, unloaded, deleted.

Edge. A topic exists if its node does. The first request loads it, and requests during the load wait
for it. A partitioned topic is a number of partitions in a node elsewhere; each partition is a topic
of its own.

The registry loads only topics of bundles that this broker owns, according to `Owners`. If a bundle
is lost while one of its topics is loading, the topic is dropped again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ackgate.broker.cluster import (
    AUTO_TOPIC_CREATION,
    MAX_TOPICS,
    AutoTopicCreation,
    change_partitioned_properties,
    create_partition_count,
    namespace_policy_path,
    partitioned_topic_path,
    partitioned_topics_path,
    raise_partition_count,
    read_partition_count,
    read_partitioned_properties,
    topic_policy_path,
)
from ackgate.broker.schemas import SchemaRegistry
from ackgate.broker.security import AUTH_POLICIES, AuthPolicies
from ackgate.broker.topic.topic import Topic
from ackgate.broker.wire import (
    BrokerError,
    LimitReachedError,
    ServiceNotReadyError,
    TopicName,
    TopicNotFoundError,
    publish_buffer_bytes,
)
from ackgate.errors import (
    AckGateError,
    CallerError,
    NodeExistsError,
    NoSuchNodeError,
    OutcomeUnknownError,
    OwnershipError,
    SessionLostError,
    StorageError,
)
from ackgate.persistence.nodes.changes import delete_node
from ackgate.persistence.nodes.paths import (
    MANAGED_LEDGERS,
    name_of_node,
    node_of_name,
    tenant_path,
    topic_path,
)
from ackgate.persistence.nodes.topic_node import TopicNode, encode_topic_node
from ackgate.persistence.ports import SessionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from ackgate.broker.topic.services import OwnedTopic, SharedServices
    from ackgate.broker.wire import NamespaceName
    from ackgate.network import Urls

log = logging.getLogger(__name__)

CLOSES_AT_ONCE_MAX: Final = 200
"""Topics that are closed at the same time when the broker stops."""

CREATES_AT_ONCE_MAX: Final = 200
"""Partitions whose nodes are made at the same time."""


class TopicConflictError(BrokerError):
    """A topic or partitioned topic of this name exists already."""


class Owners(Protocol):
    """Knows which topics this broker serves."""

    async def require(self, topic: TopicName) -> None:
        """Return if the topic is served here. Raises `NotOwnedError`, `ServiceNotReadyError`."""

    def is_served_here(self, topic: TopicName) -> bool:
        """Whether this broker serves the topic, as far as is known without I/O."""


class _Alone:
    """For a single broker: it serves every topic."""

    async def require(self, topic: TopicName) -> None:
        """Return: every topic is served here."""

    def is_served_here(self, topic: TopicName) -> bool:  # noqa: ARG002
        return True


class TopicRegistry:
    """The topics of this broker."""

    def __init__(self, services: SharedServices) -> None:
        self.owners: Owners = _Alone()
        self._services = services
        self._topics: dict[str, Topic] = {}
        self._loading: dict[str, asyncio.Task[Topic]] = {}
        self._lost_loads: set[asyncio.Task[Any]] = set()
        """Loads that were given up, because they may have read old metadata."""
        self._changes = 0
        """How often settings or policies changed. A load may have begun before the last time."""
        self._outdated: set[asyncio.Task[None]] = set()
        """Topics that are being closed, to be loaded again."""
        self._is_closing = False
        services.policies.on_change(self.configure)
        services.policies.keep(self._policy_paths)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def loaded(self, name: TopicName) -> Topic | None:
        """The topic, or None if it is not loaded."""
        return self._topics.get(str(name))

    def _policy_paths(self) -> Iterator[str]:
        """The paths of all policies that apply to topics of this broker, or to their clients."""
        for text in (*self._topics, *self._loading):
            name = TopicName.parse(text)
            yield topic_policy_path(name)
            yield namespace_policy_path(name.namespace_name)
            yield tenant_path(name.tenant)

    async def topic(self, name: TopicName, *, create: bool) -> Topic:
        """Return a topic, loaded or created first if need be.

        Raises `TopicNotFoundError`, `LimitReachedError`, or a storage error.
        """
        present = self._present(name)
        if present is not None:
            return present
        loading = self._loading.get(str(name))
        if loading is None:
            await self.owners.require(name)
            may_create = create and (await self._auto_creation(name.namespace_name)).is_allowed
            if name.is_partition and not may_create:
                partitions = await self.stored_partition_count(name.partitioned)
                may_create = name.partition_index < partitions
            if may_create:
                await self._services.namespaces.require(name.namespace_name)
                await self._check_room(name)
            present = self._present(name)  # another call may have loaded it meanwhile
            if present is not None:
                return present
            loading = self._loading.get(str(name)) or self._begin_loading(name, create=may_create)
        return await asyncio.shield(loading)

    def _present(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded. Raises `ServiceNotReadyError` while it is being closed."""
        present = self._topics.get(str(name))
        if self._is_closing or (present is not None and present.is_closing):
            raise ServiceNotReadyError(f"topic {name} is being closed")
        return present

    def _begin_loading(
        self, name: TopicName, *, create: bool, properties: Mapping[str, str] | None = None
    ) -> asyncio.Task[Topic]:
        """Start a load. The caller has awaited nothing since it checked that there is none."""
        key = str(name)
        loading = asyncio.get_running_loop().create_task(
            self._load(name, create=create, properties=properties)
        )
        self._loading[key] = loading
        loading.add_done_callback(partial(self._end_loading, key))
        return loading

    def _end_loading(self, key: str, loading: asyncio.Task[Topic]) -> None:
        self._loading.pop(key, None)
        self._lost_loads.discard(loading)
        if not loading.cancelled():
            loading.exception()  # the caller may no longer wait for it

    async def _load(
        self, name: TopicName, *, create: bool, properties: Mapping[str, str] | None
    ) -> Topic:
        changes = self._changes
        topic = Topic(name, self._services)
        try:
            await topic.open(create=create, properties=properties)
        except NoSuchNodeError:
            raise TopicNotFoundError(f"topic {name} does not exist") from None
        except BaseException as error:
            topic.abandon(OwnershipError(f"topic {name} was not opened: {error!r}"))
            raise
        is_lost = asyncio.current_task() in self._lost_loads
        if is_lost or self._is_closing or not self.owners.is_served_here(name):
            if is_lost or self._services.metadata.session_state is SessionState.LOST:
                topic.abandon(SessionLostError(f"topic {name} was lost while it was opened"))
            else:
                await topic.close()
            raise ServiceNotReadyError(f"topic {name} is being closed")
        self._topics[str(name)] = topic
        if changes != self._changes:
            self._configure(topic)
        return topic

    async def exists(self, name: TopicName) -> bool:
        """Whether the topic has a node."""
        return await self._services.metadata.get(_node_path(name)) is not None

    async def create(self, name: TopicName, properties: Mapping[str, str] | None = None) -> None:
        """Create a topic that is not partitioned.

        Raises `TopicConflictError`, `NamespaceNotFoundError`, `LimitReachedError`.
        """
        await self._services.namespaces.require(name.namespace_name)
        if await self.exists(name) or await self.stored_partition_count(name):
            raise TopicConflictError(f"topic {name} exists already")
        await self._check_room(name)
        await self.owners.require(name)
        if self._present(name) is not None or str(name) in self._loading:
            raise TopicConflictError(f"topic {name} exists already")
        await asyncio.shield(self._begin_loading(name, create=True, properties=properties))

    async def _check_room(self, name: TopicName, partitions: int = 1) -> None:
        """Raise `LimitReachedError` if the namespace cannot have so many more topics.

        A topic that exists needs no room, nor does a partition: it has had it since its topic was made.
        """
        stored = await self._services.policies.load(namespace_policy_path(name.namespace_name))
        most = stored.get(MAX_TOPICS, self._services.settings.broker.max_topics_per_namespace)
        if not most or await self.exists(name):
            return
        if name.is_partition:
            parts = await self.stored_partition_count(name.partitioned)
            if name.partition_index < parts:
                return
        if len(await self.topic_names(name.namespace_name)) + partitions > most:
            raise LimitReachedError("Exceed maximum number of topics in namespace.")

    # ---------------------------------------------------------------- partitioned topics

    async def partition_count(self, name: TopicName, *, create: bool) -> int:
        """Partitions of a topic; 0 if it is not partitioned.

        With `create`, makes a partitioned topic if none exists and the namespace's policy, or else
        the settings, ask for one. Raises `TopicNotFoundError`.
        """
        count = await self.stored_partition_count(name)
        if count or name.is_partition or await self.exists(name):
            return count
        creation = await self._auto_creation(name.namespace_name)
        if not (create and creation.is_allowed):
            raise TopicNotFoundError(f"topic {name} does not exist")
        await self._services.namespaces.require(name.namespace_name)
        if creation.partitions is None:
            return 0
        try:
            await self.create_partitioned(name, creation.partitions)
        except TopicConflictError:
            return await self.stored_partition_count(name)
        return creation.partitions

    async def _auto_creation(self, namespace: NamespaceName) -> AutoTopicCreation:
        """Whether and how topics of a namespace are made by being asked for."""
        stored = await self._services.policies.load(namespace_policy_path(namespace))
        if AUTO_TOPIC_CREATION in stored:
            return AutoTopicCreation.from_json(stored[AUTO_TOPIC_CREATION])
        broker = self._services.settings.broker
        is_parted = broker.allow_auto_topic_creation_type == "partitioned"
        return AutoTopicCreation(
            broker.allow_auto_topic_creation, broker.default_num_partitions if is_parted else None
        )

    async def create_partitioned(
        self, name: TopicName, count: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a partitioned topic, which has the properties; its partitions have none.

        Raises `TopicConflictError`, `NamespaceNotFoundError`, `LimitReachedError`, `CallerError` for a
        bad count.
        """
        self._check_partition_count(name, count)
        await self._services.namespaces.require(name.namespace_name)
        await self._check_room(name, count)
        if await self.exists(name):
            raise TopicConflictError(f"topic {name} exists already")
        try:
            await create_partition_count(self._services.metadata, name, count, properties)
        except NodeExistsError:
            raise TopicConflictError(f"topic {name} exists already") from None
        await self._create_partitions(name, range(count))

    async def add_partitions(self, name: TopicName, count: int) -> None:
        """Increase the number of partitions. Raises `CallerError` if `count` is not larger."""
        self._check_partition_count(name, count)
        present = await raise_partition_count(self._services.metadata, name, count)
        if not present:
            raise TopicNotFoundError(f"partitioned topic {name} does not exist")
        await self._create_partitions(name, range(present, count))

    async def _create_partitions(self, name: TopicName, indexes: range) -> None:
        """Create the nodes of partitions; their owners load them on request."""
        value = encode_topic_node(TopicNode())

        async def create(index: int) -> None:
            # Needs no retry: a partition without a node gets one when it is loaded.
            with contextlib.suppress(NodeExistsError, OutcomeUnknownError):
                await self._services.metadata.create(_node_path(name.partition(index)), value)

        for start in range(0, len(indexes), CREATES_AT_ONCE_MAX):
            await asyncio.gather(*map(create, indexes[start : start + CREATES_AT_ONCE_MAX]))

    def _check_partition_count(self, name: TopicName, count: int) -> None:
        most = self._services.settings.broker.max_num_partitions_per_partitioned_topic
        if name.is_partition:
            raise CallerError(f"{name} is a partition itself")
        if count < 1 or (most and count > most):
            raise CallerError(f"number of partitions is {count}, allowed is 1..{most or 'any'}")

    async def stored_partition_count(self, name: TopicName) -> int:
        """Number of partitions of a partitioned topic; 0 if there is none of this name."""
        return await read_partition_count(self._services.metadata, name)

    async def partitioned_properties(self, name: TopicName) -> dict[str, str]:
        """The properties of a partitioned topic; none if there is none of this name."""
        return await read_partitioned_properties(self._services.metadata, name)

    async def change_partitioned_properties(
        self, name: TopicName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace them, durably. `change` may be called more than once. Raises `NoSuchNodeError`."""
        await change_partitioned_properties(self._services.metadata, name, change)

    async def delete_partition_count(self, name: TopicName) -> None:
        """Delete a partitioned topic, after all its partitions were deleted."""
        await self._delete_belongings(name)
        await delete_node(self._services.metadata, partitioned_topic_path(name))

    # ---------------------------------------------------------------- listing

    async def topic_names(self, namespace: NamespaceName) -> list[str]:
        """Full names of the topics (and partitions) of a namespace, loaded or not."""
        path = "/".join(
            (
                MANAGED_LEDGERS,
                node_of_name(namespace.tenant),
                node_of_name(namespace.namespace),
                "persistent",
            )
        )
        nodes = await self._services.metadata.children(path)
        return [str(TopicName(namespace, name_of_node(node))) for node in nodes]

    async def partitioned_topic_names(self, namespace: NamespaceName) -> list[str]:
        """Full names of the partitioned topics of a namespace."""
        nodes = await self._services.metadata.children(partitioned_topics_path(namespace))
        return [str(TopicName(namespace, name_of_node(node))) for node in nodes]

    # ---------------------------------------------------------------- ending

    async def unload(self, name: TopicName) -> None:
        """Close a loaded topic. The next request loads it again."""
        topic = self._topics.get(str(name))
        if topic is None:
            if not await self.exists(name):
                raise TopicNotFoundError(f"topic {name} does not exist")
            return
        await self._close(topic)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic. Raises `CallerError` if it is used and not forced."""
        topic = await self.topic(name, create=False)
        topic.begin_deleting(force=force)
        try:
            await self._delete_belongings(name)
            await topic.delete()
        except BaseException:
            self.forget(topic)  # half deleted: a retry loads what is left
            raise
        if self._topics.get(str(name)) is topic:
            del self._topics[str(name)]

    async def _delete_belongings(self, name: TopicName) -> None:
        """Delete grants, policies and schemas, so that a later topic of this name inherits none.

        Before the topic itself: after a failure a retry finds the topic, and what is left of these.
        Policies and schemas of a partition are those of its partitioned topic, and stay.
        """
        await self._revoke_grants(name)
        if name.is_partition:
            return
        path = topic_policy_path(name)
        if await self._services.metadata.get(path) is not None:
            await self._services.policies.remove(path)
        await SchemaRegistry(self._services.metadata).delete(name)

    async def _revoke_grants(self, name: TopicName) -> None:
        policies, path = self._services.policies, namespace_policy_path(name.namespace_name)

        def without_topic(stored: Mapping[str, Any]) -> dict[str, object]:
            return {AUTH_POLICIES: AuthPolicies.of(stored).without_topic(str(name)).to_json()}

        if str(name) in AuthPolicies.of(await policies.load(path)).topics:
            await policies.amend(path, without_topic)

    def forget(self, topic: OwnedTopic) -> None:
        """Drop a topic that may have another owner, at once and without a write."""
        topic.abandon(OwnershipError(f"topic {topic.name} was released"))
        if self._topics.get(str(topic.name)) is topic:
            del self._topics[str(topic.name)]

    async def _close(self, topic: Topic) -> None:
        try:
            await self._settle(topic)
        finally:
            topic.send_away()

    async def _settle(self, topic: Topic) -> None:
        try:
            await topic.settle()
        finally:
            if self._topics.get(str(topic.name)) is topic:
                del self._topics[str(topic.name)]

    async def hand_over(self, is_meant: Callable[[TopicName], bool]) -> Callable[[Urls], None]:
        """Close topics for another broker, persisting what is dirty.

        Returns a function that disconnects the clients, and sends them to the new owner's address
        if given.
        """
        loading = [task for key, task in self._loading.items() if is_meant(TopicName.parse(key))]
        if loading:
            await asyncio.wait(loading)
        topics = [
            topic
            for topic in self
            if is_meant(topic.name) and (topic.is_settling or not topic.is_closing)
        ]
        await self._on_all(topics, self._settle)

        def send_away(urls: Urls) -> None:
            for topic in topics:
                topic.send_away(urls)

        return send_away

    def abandon(self, is_meant: Callable[[TopicName], bool]) -> None:
        """Drop topics that may have another owner already, without a write."""
        for topic in self:
            if is_meant(topic.name):
                self.forget(topic)
        self._lost_loads.update(
            loading for key, loading in self._loading.items() if is_meant(TopicName.parse(key))
        )

    async def close(self) -> None:
        """Close all topics, persisting what is dirty."""
        self._is_closing = True
        if self._loading:
            await asyncio.wait(self._loading.values())
        if self._outdated:
            await asyncio.wait(self._outdated)
        await self._on_all(list(self), self._close)

    async def _on_all(self, topics: list[Topic], close: Callable[[Topic], Awaitable[None]]) -> None:
        for start in range(0, len(topics), CLOSES_AT_ONCE_MAX):
            results = await asyncio.gather(
                *(close(topic) for topic in topics[start : start + CLOSES_AT_ONCE_MAX]),
                return_exceptions=True,
            )
            for topic, result in zip(topics[start:], results, strict=False):
                if isinstance(result, BaseException):
                    log.error("topic %s was not closed cleanly: %r", topic.name, result)

    # ---------------------------------------------------------------- upkeep

    def configure(self) -> None:
        """Apply changed settings and policies to all topics."""
        self._changes += 1
        self._services.cache.bytes_max = (
            self._services.settings.broker.managed_ledger_cache_size_mb * 1024 * 1024
        )
        self._services.publish_buffer.configure(
            publish_buffer_bytes(self._services.settings.broker)
        )
        for topic in self:
            self._configure(topic)

    def _configure(self, topic: Topic) -> None:
        topic.configure()
        if topic.is_outdated and not topic.is_closing:
            closing = asyncio.get_running_loop().create_task(self._close_outdated(topic))
            self._outdated.add(closing)
            closing.add_done_callback(self._outdated.discard)

    async def _close_outdated(self, topic: Topic) -> None:
        log.info("topic %s is loaded again: its policies changed", topic.name)
        try:
            await self._close(topic)
        except AckGateError as error:
            log.warning("topic %s was not closed cleanly: %s", topic.name, error)

    async def for_each(self, work: Callable[[Topic], Awaitable[None]]) -> None:
        """Do periodic work on every loaded topic. A failure for one does not stop the others."""
        for topic in self:
            if not topic.is_closing:
                try:
                    await work(topic)
                except (StorageError, OwnershipError) as error:
                    log.warning("upkeep of topic %s is put off: %s", topic.name, error)
                except Exception:
                    log.exception("upkeep of topic %s failed", topic.name)

    async def delete_inactive(self) -> None:
        """Delete topics that were not used for a while (`brokerDeleteInactiveTopicsEnabled`)."""
        broker = self._services.settings.broker
        if not broker.broker_delete_inactive_topics_enabled:
            return
        idle_seconds_max = (
            broker.broker_delete_inactive_topics_max_inactive_duration_seconds
            or broker.broker_delete_inactive_topics_frequency_seconds
        )

        async def delete_if_inactive(topic: Topic) -> None:
            now = time.monotonic()
            if topic.is_used:
                topic.last_used = now
            elif now - topic.last_used >= idle_seconds_max and topic.is_deletable(
                broker.broker_delete_inactive_topics_mode
            ):
                log.info("topic %s is inactive and is deleted", topic.name)
                await self.delete(topic.name, force=False)

        await self.for_each(delete_if_inactive)


def _node_path(name: TopicName) -> str:
    return topic_path(name.tenant, name.namespace, name.local_name)
