"""Which namespaces there are, and that no topic is created in another."""

from __future__ import annotations

import pytest

from ackgate.broker.cluster.namespaces import Namespaces
from ackgate.broker.cluster.policies import PolicyStore, namespace_policy_path
from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.wire.errors import NamespaceNotFoundError
from ackgate.broker.wire.names import NamespaceName, TopicName
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.nodes.topic_node import TopicNode, encode_topic_node
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker

ACME = NamespaceName("acme", "shop")
TOPIC = TopicName(ACME, "orders")


def registry_on(metadata: MemoryMetadataStore) -> TopicRegistry:
    return bare_broker(MemoryLedgerClient(MemoryLedgers()), metadata)


async def test_public_default_exists_by_itself() -> None:
    metadata = MemoryMetadataStore()
    namespaces = Namespaces(metadata)
    assert await namespaces.exists(NamespaceName("public", "default"))
    assert await namespaces.tenants() == ["public"]
    assert await namespaces.of("public") == ["default"]
    assert await namespaces.of("acme") == []
    await registry_on(metadata).topic(TopicName.parse("orders"), create=True)


async def test_a_topic_is_created_in_a_namespace_that_exists_only() -> None:
    metadata = MemoryMetadataStore()
    registry = registry_on(metadata)
    for asking in (
        registry.topic(TOPIC, create=True),
        registry.create(TOPIC),
        registry.create_partitioned(TOPIC, 2),
        registry.partition_count(TOPIC, create=True),
    ):
        with pytest.raises(NamespaceNotFoundError, match="Namespace not found: acme/shop"):
            await asking
    assert await Namespaces(metadata).tenants() == ["public"]
    await PolicyStore(metadata).create(namespace_policy_path(ACME), {})
    await registry.topic(TOPIC, create=True)
    assert await Namespaces(metadata).of("acme") == ["shop"]


async def test_a_namespace_of_earlier_builds_that_only_has_topics_goes_on() -> None:
    metadata = MemoryMetadataStore()
    path = "/managed-ledgers/acme/shop/persistent/orders"
    await metadata.create(path, encode_topic_node(TopicNode()))
    registry = registry_on(metadata)
    await registry.topic(TOPIC, create=False)
    await registry.topic(TopicName(ACME, "bills"), create=True)


async def test_a_namespace_is_forgotten_with_its_last_node() -> None:
    metadata = MemoryMetadataStore()
    namespaces, policies = Namespaces(metadata), PolicyStore(metadata)
    await policies.create(namespace_policy_path(ACME), {})
    await namespaces.forget(ACME)
    assert not await namespaces.exists(ACME)
    assert await namespaces.tenants() == ["acme", "public"]
    await namespaces.forget_tenant("acme")
    assert await namespaces.tenants() == ["public"]
