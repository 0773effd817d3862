"""How many partitions a partitioned topic has: a number in a node of its own.

Edge: reads the metadata store.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ackgate.errors import CorruptRecordError
from ackgate.persistence.paths import node_of_name

if TYPE_CHECKING:
    from ackgate.broker.names import NamespaceName, TopicName
    from ackgate.persistence.ports import MetadataStore

PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"


def partitioned_topics_path(namespace: NamespaceName) -> str:
    """The node below which lies one for each partitioned topic of a namespace."""
    names = (namespace.tenant, namespace.namespace, "persistent")
    return "/".join((PARTITIONED_TOPICS, *map(node_of_name, names)))


def partitioned_topic_path(name: TopicName) -> str:
    """The node of a partitioned topic."""
    return f"{partitioned_topics_path(name.namespace_name)}/{node_of_name(name.local_name)}"


def encode_partition_count(count: int) -> bytes:
    """What the node holds."""
    return json.dumps({"partitions": count}).encode()


async def read_partition_count(metadata: MetadataStore, name: TopicName) -> int:
    """Partitions of a partitioned topic; 0 when there is none of this name."""
    path = partitioned_topic_path(name)
    stored = await metadata.get(path)
    if stored is None:
        return 0
    try:
        return int(json.loads(stored.value)["partitions"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"node {path} cannot be read: {error!r}") from error
