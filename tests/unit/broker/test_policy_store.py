"""What is known of policies: not older than what is stored, and no more than is needed."""

from __future__ import annotations

import asyncio

from ackgate.broker.cluster.namespaces import Namespaces
from ackgate.broker.cluster.policies import (
    KNOWN_MIN,
    MESSAGE_TTL_SECONDS,
    PolicyStore,
    namespace_policy_path,
    topic_policy_path,
)
from ackgate.broker.security import ADMIN_ROLES
from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.wire.names import TopicName
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.nodes.paths import namespace_policies_path, tenant_path
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_services
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

NAME = TopicName.parse("persistent://public/default/t")
SHOP = namespace_policies_path("acme", "shop")
SLOWLY = 5.0


def test_an_answer_that_comes_late_does_not_hide_what_another_broker_has_changed() -> None:
    async def main() -> None:
        tree = MemoryTree()
        plan = FaultPlan([Rule(Fault.LATE_ANSWER, "metadata.get", SHOP, seconds=SLOWLY)])
        store = PolicyStore(FaultyMetadataStore(MemoryMetadataStore(tree), plan))
        other = PolicyStore(MemoryMetadataStore(tree))
        await other.create(SHOP, {MESSAGE_TTL_SECONDS: 1})
        await store.follow()
        loading = asyncio.ensure_future(store.load(SHOP))
        await asyncio.sleep(1)
        await other.change(SHOP, {MESSAGE_TTL_SECONDS: 2})
        await loading
        await asyncio.sleep(1)
        assert store.known(SHOP) == {MESSAGE_TTL_SECONDS: 2}
        store.stop()

    run_in_virtual_time(main())


async def fill(store: PolicyStore) -> None:
    """As clients do that name namespaces which do not exist."""
    for number in range(KNOWN_MIN):
        await store.load(namespace_policies_path("acme", f"missing-{number}"))


async def test_paths_without_policies_are_not_known_for_ever() -> None:
    store = PolicyStore(MemoryMetadataStore())
    await store.create(SHOP, {MESSAGE_TTL_SECONDS: 1})
    await fill(store)
    missing = namespace_policies_path("acme", "missing-0")
    assert not store.is_known(missing)
    assert await store.load(missing) == {}
    assert store.known(SHOP) == {MESSAGE_TTL_SECONDS: 1}


async def test_a_loaded_topic_gets_the_first_policies_of_its_namespace_at_any_time() -> None:
    metadata = MemoryMetadataStore()
    services = bare_services(MemoryLedgerClient(MemoryLedgers()), metadata)
    store, registry = services.policies, TopicRegistry(services)
    topic = await registry.topic(NAME, create=True)
    await store.load(tenant_path(NAME.tenant))
    await store.follow()
    await fill(store)
    assert store.is_known(topic_policy_path(NAME))
    assert store.is_known(tenant_path(NAME.tenant))
    path = namespace_policy_path(NAME.namespace_name)
    await PolicyStore(MemoryMetadataStore(metadata.tree)).create(path, {MESSAGE_TTL_SECONDS: 3})
    for _ in range(20):
        await asyncio.sleep(0)
    assert topic.policies.value(MESSAGE_TTL_SECONDS, 0) == 3
    store.stop()
    await registry.close()


async def test_a_tenant_that_gets_a_namespace_while_it_is_deleted_keeps_its_admins() -> None:
    metadata = MemoryMetadataStore()
    store, acme = PolicyStore(metadata), tenant_path("acme")
    await store.create(acme, {ADMIN_ROLES: ["boss"]})
    await store.create(SHOP, {})
    await Namespaces(metadata).forget_tenant("acme")
    await store.refresh(acme)
    assert store.known(acme) == {ADMIN_ROLES: ["boss"]}
    await store.remove(SHOP)
    await Namespaces(metadata).forget_tenant("acme")
    await store.refresh(acme)
    assert store.known(acme) == {}
