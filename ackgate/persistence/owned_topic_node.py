"""The node of one topic, as its owner writes it. Edge: the metadata store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.persistence.epoch_node import EpochNode
from ackgate.persistence.topic_node import TopicNode, decode_topic_node, encode_topic_node

if TYPE_CHECKING:
    from ackgate.persistence.ports import MetadataStore


class OwnedTopicNode(EpochNode[TopicNode]):
    """One topic's node."""

    def __init__(self, metadata: MetadataStore, path: str) -> None:
        super().__init__(
            metadata, path, empty=TopicNode(), encode=encode_topic_node, decode=decode_topic_node
        )
