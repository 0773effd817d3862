"""What happens to a topic while something else of it is under way: closing, losing, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ackgate.broker.cluster.policies import (
    MESSAGE_TTL_SECONDS,
    namespace_policy_path,
    topic_policy_path,
)
from ackgate.broker.schemas import SchemaRegistry
from ackgate.broker.security import AUTH_POLICIES, AuthPolicies
from ackgate.broker.topic import Topic
from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.wire.errors import ServiceNotReadyError
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import (
    AccessMode,
    InitialPosition,
    ProducerRequest,
    Schema,
    SchemaType,
    SubscribeRequest,
    SubscriptionType,
)
from ackgate.config.delayed import DELAYED_DELIVERY, DelayedDeliveryPolicy
from ackgate.cursor import Position
from ackgate.errors import MetadataStoreError, OwnershipError
from ackgate.network import NOWHERE, Urls
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker, bare_services
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

NAME = TopicName.parse("persistent://public/default/t")
SLOWLY = 5.0


class Session:
    """What a client's connection was told."""

    is_open = True
    is_writable = True

    def __init__(self) -> None:
        self.closed_producers: list[int] = []
        self.closed_consumers: list[int] = []

    def close_producer(self, producer_id: int, urls: Urls = NOWHERE) -> None:
        self.closed_producers.append(producer_id)

    def close_consumer(self, consumer_id: int, urls: Urls = NOWHERE) -> None:
        self.closed_consumers.append(consumer_id)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class World:
    """A registry, and storage that outlives it."""

    def __init__(self, *rules: Rule) -> None:
        self.tree = MemoryTree()
        self.ledgers = MemoryLedgers()
        self.plan = FaultPlan(rules)
        self.registry = self.broker(FaultyMetadataStore(MemoryMetadataStore(self.tree), self.plan))

    def broker(self, metadata: Any) -> TopicRegistry:
        return bare_broker(MemoryLedgerClient(self.ledgers), metadata)


async def is_trimming(topic: Topic) -> bool:
    trimmed = asyncio.ensure_future(topic.until_trimmed())
    await asyncio.sleep(0)
    is_under_way = not trimmed.done()
    trimmed.cancel()
    return is_under_way


def run(main: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(main)


def subscribe_request(subscription: str) -> SubscribeRequest:
    return SubscribeRequest(NAME, subscription, 7, SubscriptionType.SHARED, "c")


@pytest.mark.parametrize("how", ["close", "abandon"])
def test_a_subscription_that_opens_while_its_topic_closes_is_let_go_of(how: str) -> None:
    async def main() -> None:
        world = World(Rule(Fault.DELAY, "metadata.*", "*/t/s", seconds=SLOWLY))
        topic = await world.registry.topic(NAME, create=True)
        opening = asyncio.ensure_future(topic.subscription("s", InitialPosition.EARLIEST))
        await asyncio.sleep(1)
        if how == "close":
            await world.registry.unload(NAME)
        else:
            topic.abandon(OwnershipError("lost"))
        with pytest.raises(ServiceNotReadyError):
            await opening
        assert topic.subscriptions == {}
        again = await world.broker(MemoryMetadataStore(world.tree)).topic(NAME, create=False)
        await again.subscription("s", InitialPosition.EARLIEST)
        await asyncio.sleep(600)
        assert list(again.subscriptions) == ["s"]

    run(main())


@pytest.mark.parametrize(
    "request_",
    [
        ProducerRequest(NAME, 1, "p", access_mode=AccessMode.EXCLUSIVE),
        ProducerRequest(NAME, 1, "p", initial_subscription="s"),
    ],
    ids=["exclusive", "initial subscription"],
)
def test_no_producer_is_admitted_to_a_topic_that_was_closed_meanwhile(
    request_: ProducerRequest,
) -> None:
    """It would be told that all is well, and never hear of a message that it sends."""

    async def main() -> None:
        world = World(
            Rule(Fault.DELAY, "metadata.put", "*/t", nth=2, seconds=SLOWLY),
            Rule(Fault.DELAY, "metadata.*", "*/t/s", seconds=SLOWLY),
        )
        topic = await world.registry.topic(NAME, create=True)
        adding = asyncio.ensure_future(topic.add_producer(cast("Any", Session()), request_))
        await asyncio.sleep(1)
        topic.is_closing = True
        topic.send_away()
        with pytest.raises(ServiceNotReadyError):
            await adding
        assert len(topic.producers) == 0

    run(main())


def test_of_two_that_fence_each_other_at_once_one_holds_the_topic() -> None:
    async def main() -> None:
        world = World(Rule(Fault.DELAY, "metadata.put", "*/t", nth=2, seconds=SLOWLY))
        topic = await world.registry.topic(NAME, create=True)
        requests = [
            ProducerRequest(NAME, 1, name, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
            for name in ("first", "second")
        ]
        first, second = await asyncio.gather(
            *(topic.add_producer(cast("Any", Session()), request) for request in requests),
            return_exceptions=True,
        )
        assert isinstance(first, ServiceNotReadyError)
        assert not isinstance(second, BaseException)
        assert [producer.name for producer in topic.producers] == ["second"]

    run(main())


def test_an_heir_that_cannot_be_admitted_is_told() -> None:
    async def main() -> None:
        world = World(Rule(Fault.FAIL, "metadata.put", "*/t", nth=3))
        topic = await world.registry.topic(NAME, create=True)
        heir = Session()
        holder = await topic.add_producer(
            cast("Any", Session()),
            ProducerRequest(NAME, 1, "a", access_mode=AccessMode.EXCLUSIVE),
        )
        await topic.add_producer(
            cast("Any", heir),
            ProducerRequest(NAME, 2, "b", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE),
        )
        await holder.close()
        assert heir.closed_producers == [2]

    run(main())


def test_a_topic_whose_deletion_fails_sends_its_consumers_away() -> None:
    """They would wait for ever for a topic that nobody knows any more."""

    async def main() -> None:
        world = World(Rule(Fault.FAIL, "metadata.delete", "*/t/s1"))
        topic = await world.registry.topic(NAME, create=True)
        session = Session()
        for name in ("s1", "s2"):
            await topic.subscribe(cast("Any", session), subscribe_request(name))
        with pytest.raises(MetadataStoreError):
            await world.registry.delete(NAME, force=True)
        assert len(session.closed_consumers) == 2
        assert world.registry.loaded(NAME) is None
        await world.registry.delete(NAME, force=True)
        assert not await world.registry.exists(NAME)

    run(main())


def test_a_bundle_is_not_given_away_before_a_topic_of_it_that_is_being_unloaded_is_closed() -> None:
    """Its cursors would be fenced in the midst of their last write."""

    async def main() -> None:
        world = World(Rule(Fault.DELAY, "metadata.put", "*/t", nth=2, seconds=SLOWLY))
        await world.registry.topic(NAME, create=True)
        unloading = asyncio.ensure_future(world.registry.unload(NAME))
        await asyncio.sleep(1)
        assert not unloading.done()
        send_away = await world.registry.hand_over(lambda _: True)
        await asyncio.sleep(0)
        assert unloading.done()
        send_away("")

    run(main())


def test_who_gives_up_a_hand_over_ends_no_loading() -> None:
    async def main() -> None:
        world = World(Rule(Fault.DELAY, "metadata.children", "*/t", seconds=SLOWLY))
        loading = asyncio.ensure_future(world.registry.topic(NAME, create=True))
        await asyncio.sleep(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await world.registry.hand_over(lambda _: True)
        assert (await loading).name == NAME

    run(main())


def test_a_topic_that_was_lost_while_it_loaded_is_not_kept_by_a_later_owner() -> None:
    """Another broker may have had it in between: what was read is old."""

    async def main() -> None:
        world = World(Rule(Fault.DELAY, "metadata.children", "*/t", seconds=SLOWLY))
        loading = asyncio.ensure_future(world.registry.topic(NAME, create=True))
        await asyncio.sleep(1)
        world.registry.abandon(lambda _: True)
        other = world.broker(MemoryMetadataStore(world.tree))
        between = await other.topic(NAME, create=True)
        between.abandon(OwnershipError("died"))
        with pytest.raises(ServiceNotReadyError):
            await loading
        assert world.registry.loaded(NAME) is None
        topic = await world.registry.topic(NAME, create=False)
        assert topic.ledger.owner_epoch > between.ledger.owner_epoch

    run(main())


def test_a_seek_that_meets_trimming_goes_to_what_stays() -> None:
    async def main() -> None:
        world = World(Rule(Fault.DELAY, "metadata.put", "*/t", times=None, seconds=SLOWLY))
        topic = await world.registry.topic(NAME, create=True)
        subscription = await topic.subscription("s", InitialPosition.EARLIEST)
        producer = SimpleNamespace(session=Session(), producer_id=1)
        for number in range(4):
            topic.ledger.add(seal_entry(b"", b"%d" % number), 1, (producer, number, number, 0.0))
        while topic.ledger.pending_adds:
            await asyncio.sleep(0.01)
        first = topic.ledger.ledgers.last_confirmed.ledger_id
        await topic.ledger.roll()
        subscription.cursor.ack_cumulative(Position(first, 3))
        await subscription.flush()
        topic.trim_soon()
        assert await is_trimming(topic)
        await asyncio.sleep(SLOWLY / 2)
        assert first in topic.ledger.ledgers.ledger_ids, "that is still under way"
        await subscription.seek(Position(first, 1))
        assert first not in topic.ledger.ledgers.ledger_ids
        assert subscription.cursor.read_position.ledger_id > first
        assert subscription.cursor.backlog_entries == 0
        subscription.cursor.check()

    run(main())


@pytest.mark.parametrize("trims_first", [True, False])
def test_what_a_new_subscription_begins_with_is_not_trimmed(
    trims_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation, seed 70009637: another subscription is deleted, this one is made."""

    async def announced_slowly(*_: object) -> None:
        await asyncio.sleep(SLOWLY)

    async def main() -> None:
        monkeypatch.setattr(MemoryLedgerClient, "announce_deletion", announced_slowly)
        slowly = Rule(Fault.DELAY, "metadata.put", "*/t/new", times=None, seconds=2 * SLOWLY)
        world = World() if trims_first else World(slowly)
        topic = await world.registry.topic(NAME, create=True)
        old = await topic.subscription("old", InitialPosition.EARLIEST)
        producer = SimpleNamespace(session=Session(), producer_id=1)
        for number in range(4):
            topic.ledger.add(seal_entry(b"", b"%d" % number), 1, (producer, number, number, 0.0))
        while topic.ledger.pending_adds:
            await asyncio.sleep(0.01)
        first = topic.ledger.ledgers.last_confirmed.ledger_id
        await topic.ledger.roll()
        if trims_first:
            await old.delete()
            assert await is_trimming(topic)
        making = asyncio.ensure_future(topic.subscription("new", InitialPosition.EARLIEST))
        await asyncio.sleep(1)
        if not trims_first:
            await old.delete()
        subscription = await making
        begins_at = subscription.cursor.mark_delete
        backlog = subscription.cursor.backlog_entries
        await topic.until_trimmed()
        assert subscription.cursor.mark_delete == begins_at
        assert subscription.cursor.backlog_entries == backlog == (0 if trims_first else 4)
        assert (first in topic.ledger.ledgers.ledger_ids) is not trims_first

    run(main())


def test_what_a_subscription_moved_back_over_is_not_trimmed() -> None:
    async def main() -> None:
        world = World()
        topic = await world.registry.topic(NAME, create=True)
        subscription = await topic.subscription("s", InitialPosition.EARLIEST)
        producer = SimpleNamespace(session=Session(), producer_id=1)
        for number in range(4):
            topic.ledger.add(seal_entry(b"", b"%d" % number), 1, (producer, number, number, 0.0))
        while topic.ledger.pending_adds:
            await asyncio.sleep(0.01)
        last = topic.ledger.ledgers.last_confirmed
        subscription.cursor.ack_cumulative(last)
        await subscription.flush()
        assert topic.consumed_through() == last
        subscription.cursor.reset(Position(last.ledger_id, 1))
        assert subscription.store is not None
        assert subscription.store.is_dirty, "not durable yet"
        assert subscription.persisted_mark_delete == Position(last.ledger_id, 0)
        assert topic.consumed_through() == Position(last.ledger_id, 0)

    run(main())


def test_a_policy_that_changes_while_a_topic_is_loaded_applies_to_it() -> None:
    async def main() -> None:
        plan = FaultPlan([Rule(Fault.DELAY, "metadata.*", "/managed-ledgers/*", seconds=SLOWLY)])
        metadata = FaultyMetadataStore(MemoryMetadataStore(), plan)
        services = bare_services(MemoryLedgerClient(MemoryLedgers()), metadata)
        loading = asyncio.ensure_future(TopicRegistry(services).topic(NAME, create=True))
        await asyncio.sleep(1)
        assert not loading.done()
        policy = DelayedDeliveryPolicy(is_active=False, tick_ms=700)
        changes = {DELAYED_DELIVERY: policy.to_json()}
        await services.policies.change(topic_policy_path(NAME), changes)
        assert (await loading).delayed_delivery == policy

    run(main())


def test_a_topic_that_is_half_deleted_leaves_nothing_to_a_later_one() -> None:
    async def main() -> None:
        plan = FaultPlan([Rule(Fault.FAIL, "metadata.delete", "/schemas/*")])
        metadata = FaultyMetadataStore(MemoryMetadataStore(), plan)
        services = bare_services(MemoryLedgerClient(MemoryLedgers()), metadata)
        registry, schemas = TopicRegistry(services), SchemaRegistry(metadata)
        await registry.topic(NAME, create=True)
        await services.policies.change(topic_policy_path(NAME), {MESSAGE_TTL_SECONDS: 7})
        text = Schema("s", SchemaType.STRING, b"")
        await schemas.get_or_create(NAME, text, services.settings.broker)
        with pytest.raises(MetadataStoreError):
            await registry.delete(NAME, force=False)
        assert await registry.exists(NAME)  # or nobody could delete what is left
        await registry.delete(NAME, force=False)
        assert not await registry.exists(NAME)
        assert await schemas.get(NAME) is None
        assert await services.policies.load(topic_policy_path(NAME)) == {}

    run(main())


async def test_whoever_deletes_a_topic_revokes_its_grants() -> None:
    services = bare_services(MemoryLedgerClient(MemoryLedgers()), MemoryMetadataStore())
    registry, other = TopicRegistry(services), "persistent://public/default/other"
    granted = AuthPolicies().granted("app", ["produce"], str(NAME)).granted("app", [], other)
    path = namespace_policy_path(NAME.namespace_name)
    await services.policies.change(path, {AUTH_POLICIES: granted.to_json()})
    await registry.topic(NAME, create=True)
    await registry.delete(NAME, force=False)  # as for a topic that is inactive
    left = (await services.policies.load(path))[AUTH_POLICIES]
    assert left["destination_auth"] == {other: {"app": []}}
