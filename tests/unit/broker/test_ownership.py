"""Owning bundles on a metadata store that loses answers, calls and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ackgate.broker.cluster.bundles import BundleState, NamespaceBundles
from ackgate.broker.cluster.namespaces import Namespaces
from ackgate.broker.cluster.ownership import Ownership
from ackgate.broker.wire.errors import NotOwnedError, ServiceNotReadyError
from ackgate.broker.wire.names import TopicName
from ackgate.config.broker import BrokerSettings
from ackgate.errors import ConfigurationError, MetadataStoreError, StorageError
from ackgate.network import Urls
from ackgate.persistence import MemoryMetadataStore, MetadataStore
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.nodes.owner_nodes import (
    BROKERS,
    BrokerRecord,
    OwnerRecord,
    broker_path,
    decode_owner,
    encode_broker,
    encode_owner,
)
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore

TOPIC = TopicName.parse("t")


class Topics:
    """What a broker's registry would be asked to do."""

    def __init__(self) -> None:
        self.handed_over = 0
        self.abandoned = 0
        self.told: list[Urls] = []
        self.fails: StorageError | None = None
        self.may_end: asyncio.Event | None = None

    async def hand_over(self, is_meant: Callable[[TopicName], bool]) -> Callable[[Urls], None]:
        await asyncio.sleep(0)
        if self.may_end is not None:
            await self.may_end.wait()
        self.handed_over += is_meant(TOPIC)
        if self.fails is not None:
            raise self.fails
        return self.told.append

    def abandon(self, is_meant: Callable[[TopicName], bool]) -> None:
        self.abandoned += is_meant(TOPIC)


class Broker:
    """One broker's ownership, and no more of it."""

    def __init__(self, number: int, store: MetadataStore) -> None:
        self.store = store
        self.topics = Topics()
        settings = SimpleNamespace(broker=BrokerSettings())
        namespaces = Namespaces(store)
        services: Any = SimpleNamespace(metadata=store, settings=settings, namespaces=namespaces)
        self.ownership = Ownership(services, self.topics)
        self.record = BrokerRecord(
            *(f"h:{number}", f"pulsar://h:{number}", f"http://h:{number}", ""),
            service_url_tls=f"pulsar+ssl://h:{number}",
            web_url_tls=f"https://h:{number}",
        )

    async def join(self) -> None:
        await self.ownership.join(self.record)

    async def bundle(self) -> Any:
        return (await self.ownership.bundles(TOPIC.namespace_name)).of(TOPIC)

    def state(self, bundle: Any) -> BundleState:
        return self.ownership.state(bundle)


async def joined(tree: MemoryTree, count: int) -> list[Broker]:
    brokers = [Broker(number, MemoryMetadataStore(tree)) for number in range(count)]
    for broker in brokers:
        await broker.join()
    await turns()
    return brokers


async def turns(count: int = 20) -> None:
    """Let watches be told and followed."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until_member(broker: Broker) -> None:
    """Wait until a broker that lost its session has another."""
    async with asyncio.timeout(60):
        while not (broker.ownership.sessions_lost and broker.ownership.is_member):
            await asyncio.sleep(0)


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE, Fault.REPEAT])
@pytest.mark.parametrize("nth", range(1, 9))
async def test_whatever_answer_is_lost_a_bundle_has_one_owner_and_then_none(
    fault: Fault, nth: int
) -> None:
    tree = MemoryTree()
    plan = FaultPlan(
        [
            Rule(fault, operation, nth=nth)
            for operation in ("metadata.put", "metadata.create", "metadata.delete")
        ]
    )
    broker = Broker(0, FaultyMetadataStore(MemoryMetadataStore(tree), plan))
    watcher = MemoryMetadataStore(tree)
    await broker.join()
    bundle = await broker.bundle()
    for epoch in (1, 2, 3):
        assert (await broker.ownership.locate(TOPIC)).is_here, plan.story()
        found = await watcher.get(bundle.owner_path)
        assert found is not None, plan.story()
        owner = decode_owner(found.value, path=bundle.owner_path)
        assert owner.broker_id == "h:0"
        assert owner.epoch >= epoch
        await broker.ownership.release(bundle)
        assert await watcher.get(bundle.owner_path) is None, plan.story()
    assert len(broker.topics.told) == 3
    await broker.ownership.leave()
    assert await watcher.children(BROKERS) == [], plan.story()


async def test_of_two_that_want_a_bundle_one_gets_it() -> None:
    first, second = await joined(MemoryTree(), 2)
    found = await asyncio.gather(
        *(b.ownership.locate(TOPIC, is_authoritative=True) for b in (first, second))
    )
    assert {location.broker_id for location in found} <= {"h:0", "h:1"}
    assert len({location.broker_id for location in found}) == 1
    bundle = await first.bundle()
    assert {first.state(bundle), second.state(bundle)} == {
        BundleState.OWNED,
        BundleState.ELSEWHERE,
    }
    loser = first if first.state(bundle) is BundleState.ELSEWHERE else second
    with pytest.raises(NotOwnedError) as refused:
        await loser.ownership.require(TOPIC)
    assert refused.value.is_owner


async def test_who_is_told_that_it_is_its_turn_takes_even_what_it_knows_to_be_elsewhere() -> None:
    """What it knows may be old; and it is no plan of its own that counts."""
    first, second = await joined(MemoryTree(), 2)
    await first.ownership.locate(TOPIC, is_authoritative=True)
    bundle = await second.bundle()
    await turns()
    assert second.state(bundle) is BundleState.ELSEWHERE
    others = [each for each in await second.ownership.bundles(bundle.namespace) if each != bundle]
    for each in others:
        assert (await second.ownership.locate_bundle(each, is_authoritative=True)).is_here
    await first.store.delete(bundle.owner_path)
    assert second.state(bundle) is BundleState.ELSEWHERE
    assert (await second.ownership.locate_bundle(bundle, is_authoritative=True)).is_here


async def test_what_an_earlier_life_left_behind_is_taken_at_once() -> None:
    tree = MemoryTree()
    past, watcher = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    broker, other = Broker(0, MemoryMetadataStore(tree)), Broker(1, MemoryMetadataStore(tree))
    await other.join()
    bundle = await other.bundle()
    left = OwnerRecord("h:0", "pulsar://h:0", "http://h:0", "past", 7)
    await past.create(bundle.owner_path, encode_owner(left), ephemeral=True)
    await past.create(
        broker_path("h:0"), encode_broker(replace(broker.record, instance="past")), ephemeral=True
    )
    await turns()
    assert (await other.ownership.locate(TOPIC)).broker_id == "h:0"
    await broker.join()
    await broker.ownership.require(TOPIC)
    found = await watcher.get(bundle.owner_path)
    assert found is not None
    assert decode_owner(found.value, path=bundle.owner_path).instance != "past"
    past.expire()
    await turns()
    assert broker.state(bundle) is BundleState.OWNED
    assert sorted(await watcher.children(BROKERS)) == ["h%3A0", "h%3A1"]


async def test_of_two_living_brokers_at_one_address_the_later_one_ends() -> None:
    tree = MemoryTree()
    first, second = Broker(0, MemoryMetadataStore(tree)), Broker(0, MemoryMetadataStore(tree))
    first.record, second.record = replace(first.record, run=5), replace(second.record, run=6)
    ended: list[str] = []
    first.ownership.on_displaced = lambda: ended.append("first")
    second.ownership.on_displaced = lambda: ended.append("second")
    await first.join()
    await first.ownership.require(TOPIC)
    await second.join()
    await turns(100)
    assert ended == ["second"]
    assert first.ownership.displaced is None
    assert "advertisedAddress" in str(second.ownership.displaced)
    assert second.topics.abandoned == 1
    with pytest.raises(ServiceNotReadyError):
        await second.ownership.locate(TOPIC)
    await second.ownership.leave()
    await second.store.close()
    await turns()
    await first.ownership.require(TOPIC)
    assert await MemoryMetadataStore(tree).children(BROKERS) == ["h%3A0"]
    assert list(first.ownership.view.brokers) == ["h:0"]


async def test_an_earlier_broker_does_not_push_a_later_one_from_its_address() -> None:
    """It lost its session, or started more slowly; both must not delete each other's nodes."""
    tree = MemoryTree()
    first, second = Broker(0, MemoryMetadataStore(tree)), Broker(0, MemoryMetadataStore(tree))
    first.record, second.record = replace(first.record, run=5), replace(second.record, run=6)
    await second.join()
    with pytest.raises(ConfigurationError, match="advertisedAddress"):
        await first.join()
    await first.ownership.leave()
    await turns()
    assert second.ownership.displaced is None
    assert await MemoryMetadataStore(tree).children(BROKERS) == ["h%3A0"]
    await second.ownership.require(TOPIC)


async def test_a_broker_is_not_displaced_by_an_announcement_of_its_own_that_failed_half_way() -> (
    None
):
    tree = MemoryTree()
    broker = Broker(0, MemoryMetadataStore(tree))
    failures = [StorageError("first"), StorageError("second")]

    async def fail_at_first() -> None:
        await turns()
        if broker.ownership.sessions_lost and failures:
            raise failures.pop()

    broker.ownership.on_joined(fail_at_first)
    await broker.join()
    assert isinstance(broker.store, MemoryMetadataStore)
    broker.store.expire()
    await until_member(broker)
    await turns()
    assert broker.ownership.displaced is None
    await broker.ownership.require(TOPIC)


async def test_a_lost_session_lets_go_and_joins_again() -> None:
    tree = MemoryTree()
    first, second = await joined(tree, 2)
    await first.ownership.locate(TOPIC, is_authoritative=True)
    bundle = await first.bundle()
    assert isinstance(first.store, MemoryMetadataStore)
    first.store.expire()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (first.topics.abandoned, first.topics.handed_over) == (1, 0)
    assert (await second.ownership.locate(TOPIC, is_authoritative=True)).is_here
    await until_member(first)
    await turns()
    assert len(second.ownership.view.brokers) == 2
    assert (await first.ownership.locate(TOPIC)).broker_id == "h:1"
    assert first.state(bundle) is BundleState.ELSEWHERE
    assert first.ownership.sessions_lost == 1


async def test_a_session_lost_in_the_midst_of_acquiring_acquires_nothing() -> None:
    plan = FaultPlan([Rule(Fault.LOSE_SESSION, "metadata.create", "/namespace/*")])
    tree = MemoryTree()
    broker = Broker(0, FaultyMetadataStore(MemoryMetadataStore(tree), plan))
    await broker.join()
    with pytest.raises(ServiceNotReadyError):
        await broker.ownership.locate(TOPIC)
    await until_member(broker)
    await broker.ownership.require(TOPIC)
    assert broker.ownership.acquired == 1


async def test_topics_that_cannot_be_closed_do_not_keep_the_bundle() -> None:
    (broker,) = await joined(MemoryTree(), 1)
    await broker.ownership.locate(TOPIC)
    bundle = await broker.bundle()
    broker.topics.fails = StorageError("disk full")
    with pytest.raises(StorageError, match="disk full"):
        await broker.ownership.release(bundle)
    assert broker.state(bundle) is BundleState.FREE
    broker.topics.fails = None
    assert (await broker.ownership.locate(TOPIC)).is_here


async def test_a_bundle_whose_node_cannot_be_removed_is_still_ours_to_others_and_to_us() -> None:
    """Else each broker would send its clients to the other, for as long as the node is there."""
    tree = MemoryTree()
    bundles = list(NamespaceBundles.cut(TOPIC.namespace_name, 4))
    plan = FaultPlan([Rule(Fault.FAIL, "metadata.delete", b.owner_path) for b in bundles])
    first = Broker(0, FaultyMetadataStore(MemoryMetadataStore(tree), plan))
    second = Broker(1, MemoryMetadataStore(tree))
    for broker in (first, second):
        await broker.join()
    assert bundles == list(await first.ownership.bundles(TOPIC.namespace_name))
    for bundle in bundles:
        await first.ownership.locate_bundle(bundle, is_authoritative=True)
    await turns()
    for bundle in bundles:
        with pytest.raises(MetadataStoreError):
            await first.ownership.release(bundle)
        await turns()
        assert (await second.ownership.locate_bundle(bundle)).broker_id == "h:0"
        assert (await first.ownership.locate_bundle(bundle)).is_here


async def test_a_release_that_outlasts_its_session_leaves_the_next_owner_alone() -> None:
    tree = MemoryTree()
    first, second = await joined(tree, 2)
    await first.ownership.locate(TOPIC, is_authoritative=True)
    bundle = await first.bundle()
    first.topics.may_end = asyncio.Event()
    releasing = asyncio.ensure_future(first.ownership.release(bundle))
    await turns()
    assert isinstance(first.store, MemoryMetadataStore)
    first.store.expire()
    await until_member(first)
    assert (await second.ownership.locate(TOPIC, is_authoritative=True)).is_here
    first.topics.may_end.set()
    await releasing
    await turns()
    assert await MemoryMetadataStore(tree).get(bundle.owner_path) is not None
    assert second.state(bundle) is BundleState.OWNED
    assert second.topics.abandoned == 0
    assert (await first.ownership.locate(TOPIC)).broker_id == "h:1"


@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_bundle_that_was_taken_away_is_let_go_of_though_a_read_fails(
    nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackgate.broker.cluster.ownership.REJOIN_SECONDS_MIN", 0)
    monkeypatch.setattr("ackgate.broker.cluster.node_follower.RETRY_SECONDS", 0)
    tree = MemoryTree()
    plan = FaultPlan([Rule(Fault.FAIL, "metadata.get", "/namespace/*", nth=nth)])
    broker = Broker(0, FaultyMetadataStore(MemoryMetadataStore(tree), plan))
    await broker.join()
    await broker.ownership.require(TOPIC)
    bundle = await broker.bundle()
    await turns()
    await MemoryMetadataStore(tree).delete(bundle.owner_path)
    await turns(50)
    assert broker.state(bundle) is BundleState.FREE, plan.story()
    assert broker.topics.abandoned == 1


async def test_who_leaves_sends_others_on_and_takes_nothing() -> None:
    first, second = await joined(MemoryTree(), 2)
    await first.ownership.locate(TOPIC, is_authoritative=True)
    asked: list[Urls] = []

    async def ask(web: Urls, bundle: Any) -> bool:
        asked.append(web)
        return (await second.ownership.locate_bundle(bundle, is_authoritative=True)).is_here

    first.ownership.ask_to_acquire = ask
    await first.ownership.leave()
    assert asked == [Urls("http://h:1", "https://h:1")]
    assert first.topics.told == [Urls("pulsar://h:1", "pulsar+ssl://h:1")]
    assert (await second.ownership.locate(TOPIC)).is_here
    with pytest.raises(ServiceNotReadyError):
        await first.ownership.locate(TOPIC)


async def test_bookies_that_not_all_brokers_reach_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree = MemoryTree()
    for number, bookies in enumerate([("a", "b"), ("b", "c")]):
        broker = Broker(number, MemoryMetadataStore(tree))
        broker.record = replace(broker.record, bookies=bookies)
        await broker.join()
    said = caplog.text
    assert "broker h:1 cannot reach the bookies a of broker h:0" in said
    assert "broker h:0 cannot reach the bookies c of broker h:1" in said
    assert "bookieDirectories" in said


async def test_two_brokers_with_one_address_are_told_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree = MemoryTree()
    first, second = (Broker(0, MemoryMetadataStore(tree)) for _ in range(2))
    first.record, second.record = replace(first.record, run=0), replace(second.record, run=1)
    await first.join()
    assert "another broker" not in caplog.text
    await second.join()
    async with asyncio.timeout(60):
        while "another broker says that it is h:0" not in caplog.text:
            await asyncio.sleep(0)
    assert "advertisedAddress" in caplog.text


async def test_who_comes_and_who_goes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tree = MemoryTree()
    first, second = (Broker(number, MemoryMetadataStore(tree)) for number in range(2))
    await first.join()
    await second.join()
    await second.store.close()
    async with asyncio.timeout(60):
        while "broker h:1 is gone" not in caplog.text:
            await asyncio.sleep(0)
    assert caplog.text.index("broker h:1 is here: pulsar://h:1") < caplog.text.index("h:1 is gone")
