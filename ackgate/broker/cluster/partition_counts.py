"""The node of a partitioned topic: how many partitions it has, and its properties.

Edge: the metadata store. If a write of the number gets no answer, it reads the node; a number equal to
the one wanted then counts as written by us. Members of the node that are unknown here stay.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ackgate.errors import (
    CallerError,
    CorruptRecordError,
    NodeExistsError,
    NoSuchNodeError,
    OutcomeUnknownError,
)
from ackgate.persistence.nodes.changes import change_node, until_answered, until_won
from ackgate.persistence.nodes.paths import node_of_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.broker.wire import NamespaceName, TopicName
    from ackgate.persistence.ports import MetadataStore

PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"

_COUNT: Final = "partitions"
_PROPERTIES: Final = "properties"
"""Members of the node, as in Pulsar's."""

WRITES_MAX: Final = 5
"""Attempts in a row, each because the one before had no answer, or met another write."""


def partitioned_topics_path(namespace: NamespaceName) -> str:
    """The node that has a child for each partitioned topic of a namespace."""
    names = (namespace.tenant, namespace.namespace, "persistent")
    return "/".join((PARTITIONED_TOPICS, *map(node_of_name, names)))


def partitioned_topic_path(name: TopicName) -> str:
    """The node of a partitioned topic."""
    return f"{partitioned_topics_path(name.namespace_name)}/{node_of_name(name.local_name)}"


async def read_partition_count(metadata: MetadataStore, name: TopicName) -> int:
    """Partitions of a partitioned topic; 0 when there is none of this name."""
    path = partitioned_topic_path(name)
    stored = await metadata.get(path)
    return int(_decode(stored.value, path)[_COUNT]) if stored is not None else 0


async def read_partitioned_properties(metadata: MetadataStore, name: TopicName) -> dict[str, str]:
    """The properties of a partitioned topic; none when there is none of this name."""
    path = partitioned_topic_path(name)
    stored = await metadata.get(path)
    return _properties(_decode(stored.value, path)) if stored is not None else {}


async def change_partitioned_properties(
    metadata: MetadataStore,
    name: TopicName,
    change: Callable[[Mapping[str, str]], Mapping[str, str]],
) -> None:
    """Replace the properties. `change` may be called more than once.

    Raises what `change` raises, `NoSuchNodeError` when there is no partitioned topic of this name.
    """
    path = partitioned_topic_path(name)

    def lay_over(value: bytes | None) -> bytes:
        if value is None:
            raise NoSuchNodeError(f"Topic {name} not found")
        node = _decode(value, path)
        return _encode({**node, _PROPERTIES: dict(change(_properties(node)))})

    await change_node(metadata, path, lay_over)


async def create_partition_count(
    metadata: MetadataStore,
    name: TopicName,
    count: int,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Make a partitioned topic. Raises `NodeExistsError` if it is one already."""
    path = partitioned_topic_path(name)
    node = {_COUNT: count, **({_PROPERTIES: dict(properties)} if properties else {})}

    async def attempt(is_doubtful: bool) -> None:  # noqa: FBT001
        try:
            await metadata.create(path, _encode(node))
        except NodeExistsError:
            if not is_doubtful or await read_partition_count(metadata, name) != count:
                raise

    await until_answered(attempt, of=path, attempts_max=WRITES_MAX)


async def raise_partition_count(metadata: MetadataStore, name: TopicName, count: int) -> int:
    """Increase the number of partitions. Returns the number before;

    0: the topic is not partitioned.

    Raises `CallerError` if `count` is not larger, also because of another write meanwhile.
    """
    path = partitioned_topic_path(name)
    unanswered: int | None = None

    async def attempt() -> int:
        nonlocal unanswered
        stored = await metadata.get(path)
        if stored is None:
            return 0
        node = _decode(stored.value, path)
        present = int(node[_COUNT])
        if unanswered is not None and present == count:
            return unanswered
        if count <= present:
            raise CallerError(f"topic {name} has {present} partitions, cannot make it {count}")
        try:
            raised = _encode({**node, _COUNT: count})
            await metadata.put(path, raised, expected_version=stored.version)
        except OutcomeUnknownError:
            unanswered = present
            raise
        return present

    return await until_won(attempt, of=path, attempts_max=WRITES_MAX)


async def restore_partition_count(metadata: MetadataStore, name: TopicName, count: int) -> None:
    """Write the number, whether or not there is a node. Its other members stay."""
    path = partitioned_topic_path(name)

    def lay_over(value: bytes | None) -> bytes:
        return _encode({**({} if value is None else _decode(value, path)), _COUNT: count})

    await change_node(metadata, path, lay_over)


def _encode(node: Mapping[str, Any]) -> bytes:
    return json.dumps(node).encode()


def _decode(value: bytes, path: str) -> dict[str, Any]:
    try:
        node: dict[str, Any] = json.loads(value)
        int(node[_COUNT])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"node {path} cannot be read: {error!r}") from error
    return node


def _properties(node: Mapping[str, Any]) -> dict[str, str]:
    return dict(node.get(_PROPERTIES) or {})
