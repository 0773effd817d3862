"""How many partitions a partitioned topic has: a number in a node of its own.

Edge: the metadata store. If a write gets no answer, it reads the node; a number equal to the
one wanted then counts as written by us.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    CallerError,
    CorruptRecordError,
    NodeExistsError,
    OutcomeUnknownError,
)
from ackgate.persistence.nodes.changes import until_answered, until_won
from ackgate.persistence.nodes.paths import node_of_name

if TYPE_CHECKING:
    from ackgate.broker.wire import NamespaceName, TopicName
    from ackgate.persistence.ports import MetadataStore

PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"

WRITES_MAX: Final = 5
"""Attempts in a row, each because the one before had no answer, or met another write."""


def partitioned_topics_path(namespace: NamespaceName) -> str:
    """The node that has a child for each partitioned topic of a namespace."""
    names = (namespace.tenant, namespace.namespace, "persistent")
    return "/".join((PARTITIONED_TOPICS, *map(node_of_name, names)))


def partitioned_topic_path(name: TopicName) -> str:
    """The node of a partitioned topic."""
    return f"{partitioned_topics_path(name.namespace_name)}/{node_of_name(name.local_name)}"


def encode_partition_count(count: int) -> bytes:
    """The value of the node."""
    return json.dumps({"partitions": count}).encode()


async def read_partition_count(metadata: MetadataStore, name: TopicName) -> int:
    """Partitions of a partitioned topic; 0 when there is none of this name."""
    path = partitioned_topic_path(name)
    stored = await metadata.get(path)
    return _decode(stored.value, path) if stored is not None else 0


async def create_partition_count(metadata: MetadataStore, name: TopicName, count: int) -> None:
    """Make a partitioned topic. Raises `NodeExistsError` if it is one already."""
    path = partitioned_topic_path(name)

    async def attempt(is_doubtful: bool) -> None:  # noqa: FBT001
        try:
            await metadata.create(path, encode_partition_count(count))
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
        present = _decode(stored.value, path)
        if unanswered is not None and present == count:
            return unanswered
        if count <= present:
            raise CallerError(f"topic {name} has {present} partitions, cannot make it {count}")
        try:
            await metadata.put(path, encode_partition_count(count), expected_version=stored.version)
        except OutcomeUnknownError:
            unanswered = present
            raise
        return present

    return await until_won(attempt, of=path, attempts_max=WRITES_MAX)


def _decode(value: bytes, path: str) -> int:
    try:
        return int(json.loads(value)["partitions"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"node {path} cannot be read: {error!r}") from error
