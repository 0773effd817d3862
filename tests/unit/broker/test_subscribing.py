"""Consumers and readers of a topic: limits, seeks, and what a refusal or a failure leaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ackgate.broker.topic.subscription import READER_RETURN_MS
from ackgate.broker.wire.errors import NotAllowedError, PersistenceFailedError
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import (
    InitialPosition,
    KeySharedRequest,
    SubscribeRequest,
    SubscriptionType,
)
from ackgate.config.broker import BrokerSettings
from ackgate.config.settings import Settings
from ackgate.cursor import EARLIEST, Position
from ackgate.dispatcher import KeySharedMode
from ackgate.errors import (
    ConsumerAssignError,
    ConsumerBusyError,
    CorruptRecordError,
    MetadataStoreError,
)
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.messages.frame import seal_entry
from ackgate.subscription import EntryRead
from ackgate.testing import MemoryLedgerClient
from tests.support.bare_broker import bare_broker
from tests.support.faults import Fault, Rule
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.unit.broker.test_topic_races import (
    NAME,
    SLOWLY,
    Session,
    World,
    run,
    subscribe_request,
)

if TYPE_CHECKING:
    from ackgate.broker.topic import Topic
    from ackgate.broker.topic.subscription import Consumer

READER = SubscribeRequest(
    NAME, "r", 7, SubscriptionType.EXCLUSIVE, "c", is_durable=False, start_position=EARLIEST
)


async def attach(topic: Topic, request: SubscribeRequest) -> tuple[Consumer, Session]:
    session = Session()
    return await topic.subscribe(cast("Any", session), request), session


async def publish(topic: Topic, count: int) -> Position:
    """Store entries. Returns the position of the last."""
    producer = SimpleNamespace(session=Session(), producer_id=1)
    for number in range(count):
        topic.ledger.add(seal_entry(b"", b"%d" % number), 1, (producer, number, number, 0.0))
    while topic.ledger.pending_adds:
        await asyncio.sleep(0.01)
    return topic.ledger.ledgers.last_confirmed


def test_a_reader_that_comes_back_after_its_seek_reads_on_from_there() -> None:
    """Clients name the earliest position then, and rely on the broker."""

    async def main() -> None:
        topic = await World().registry.topic(NAME, create=True)
        last = await publish(topic, 4)
        reader, session = await attach(topic, READER)
        target = Position(last.ledger_id, 2)
        await reader.seek(target, None)
        assert session.closed_consumers == [7]
        await attach(topic, READER)
        assert topic.subscriptions["r"].cursor.read_position == target
        await asyncio.sleep(READER_RETURN_MS / 1000 + 1)
        assert "r" in topic.subscriptions, "it is read"

    run(main())


def test_a_reader_that_does_not_come_back_after_its_seek_leaves_nothing() -> None:
    async def main() -> None:
        topic = await World().registry.topic(NAME, create=True)
        await publish(topic, 4)
        reader, _ = await attach(topic, READER)
        await reader.seek(EARLIEST, None)
        assert "r" in topic.subscriptions
        await asyncio.sleep(READER_RETURN_MS / 1000 + 1)
        assert topic.subscriptions == {}
        assert topic.services.waits.deadline_count == 0

    run(main())


def test_a_reader_that_is_refused_leaves_nothing() -> None:
    """Its name would be taken for as long as the topic is loaded."""

    async def main() -> None:
        topic = await World().registry.topic(NAME, create=True)
        without_ranges = SubscribeRequest(
            NAME, "r", 7, SubscriptionType.KEY_SHARED, "c",
            is_durable=False, key_shared=KeySharedRequest(KeySharedMode.STICKY),
        )  # fmt: skip
        with pytest.raises(ConsumerAssignError):
            await attach(topic, without_ranges)
        assert topic.subscriptions == {}

    run(main())


def test_consumers_that_come_at_once_to_a_new_subscription_are_limited_too() -> None:
    async def main() -> None:
        slowly = Rule(Fault.DELAY, "metadata.*", "*/t/s", seconds=SLOWLY)
        registry = bare_broker(
            MemoryLedgerClient(),
            FaultyMetadataStore(MemoryMetadataStore(), World(slowly).plan),
            settings=Settings(broker=BrokerSettings(max_consumers_per_subscription=2)),
        )
        topic = await registry.topic(NAME, create=True)
        results = await asyncio.gather(
            *(attach(topic, subscribe_request("s")) for _ in range(4)), return_exceptions=True
        )
        assert len(topic.subscriptions["s"].consumers) == 2
        assert [isinstance(each, ConsumerBusyError) for each in results].count(True) == 2

    run(main())


def test_subscriptions_that_are_made_at_once_are_limited_too() -> None:
    async def main() -> None:
        registry = bare_broker(
            MemoryLedgerClient(),
            MemoryMetadataStore(),
            settings=Settings(broker=BrokerSettings(max_subscriptions_per_topic=2)),
        )
        topic = await registry.topic(NAME, create=True)
        results = await asyncio.gather(
            *(attach(topic, subscribe_request(name)) for name in "abcd"), return_exceptions=True
        )
        assert len(topic.subscriptions) == 2
        assert [isinstance(each, NotAllowedError) for each in results].count(True) == 2

    run(main())


def test_an_inactive_topic_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    async def main() -> None:
        never = Rule(Fault.FAIL, "metadata.delete", "*/t", times=None)
        registry = bare_broker(
            MemoryLedgerClient(),
            FaultyMetadataStore(MemoryMetadataStore(), World(never).plan),
            settings=Settings(broker=BrokerSettings(broker_delete_inactive_topics_enabled=True)),
        )
        other = TopicName.parse("persistent://public/default/u")
        for name in (NAME, other):
            (await registry.topic(name, create=True)).last_used -= 3_600
        await registry.delete_inactive()
        assert await registry.exists(NAME)
        assert not await registry.exists(other)

    run(main())


def test_a_subscription_that_cannot_be_persisted_does_not_keep_others_from_expiring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        registry = bare_broker(
            MemoryLedgerClient(),
            MemoryMetadataStore(),
            settings=Settings(broker=BrokerSettings(ttl_duration_default_in_seconds=1)),
        )
        topic = await registry.topic(NAME, create=True)
        first, second = [
            await topic.subscription(name, InitialPosition.EARLIEST) for name in ("a", "b")
        ]
        await publish(topic, 4)
        await asyncio.sleep(3_600)

        async def fail(_: int) -> int:
            raise PersistenceFailedError("not durable yet")

        monkeypatch.setattr(first, "expire_older_than", fail)
        await topic.expire_messages()
        assert second.cursor.backlog_entries == 0

    run(main())


def test_a_subscription_whose_deletion_fails_can_be_used_again() -> None:
    """Its cursor is closed by then, so the topic has to load it anew."""

    async def main() -> None:
        world = World(Rule(Fault.FAIL, "metadata.delete", "*/t/s"))
        topic = await world.registry.topic(NAME, create=True)
        consumer, session = await attach(topic, subscribe_request("s"))
        other, other_session = await attach(topic, subscribe_request("other"))
        with pytest.raises(MetadataStoreError):
            await consumer.unsubscribe(force=False)
        assert session.closed_consumers == other_session.closed_consumers == [7]
        assert other.is_closed
        again = await world.registry.topic(NAME, create=False)
        assert again is not topic
        consumer, _ = await attach(again, subscribe_request("s"))
        await consumer.unsubscribe(force=False)
        assert list(again.subscriptions) == ["other"]

    run(main())


def test_a_bug_in_a_read_does_not_end_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        topic = await World().registry.topic(NAME, create=True)
        await publish(topic, 4)
        reads = topic.ledger.reads
        read = reads.read
        failures = [RuntimeError("a bug")]

        async def fail_first(spans: Any) -> Any:
            if failures:
                raise failures.pop()
            return await read(spans)

        monkeypatch.setattr(type(reads), "cached", lambda *_: None)
        monkeypatch.setattr(reads, "read", fail_first)
        consumer, _ = await attach(topic, READER)
        consumer.flow(10)
        await asyncio.sleep(0.1)
        subscription = topic.subscriptions["r"]
        assert subscription.runtime.why_unread == "RuntimeError('a bug')"
        await asyncio.sleep(10)
        assert subscription.bytes_out > 0
        assert not subscription.runtime.why_unread

    run(main())


def test_an_entry_that_cannot_be_parsed_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Damaged(EntryRead):
        @property
        def message_count(self) -> int:
            raise CorruptRecordError("no metadata")

    async def main() -> None:
        topic = await World().registry.topic(NAME, create=True)
        last = await publish(topic, 1)
        reads = topic.ledger.reads

        async def read(_: Any) -> Any:
            return [Damaged(last)]

        monkeypatch.setattr(type(reads), "cached", lambda *_: None)
        monkeypatch.setattr(reads, "read", read)
        consumer, _ = await attach(topic, READER)
        consumer.flow(10)
        await asyncio.sleep(5)
        assert topic.subscriptions["r"].runtime.why_unread == "no metadata"
        assert caplog.text.count("read failed: no metadata") == 1

    run(main())


def test_the_last_message_of_a_topic_that_was_trimmed_is_none() -> None:
    async def main() -> None:
        topic = await World().registry.topic(NAME, create=True)
        consumer, _ = await attach(topic, subscribe_request("s"))
        last = await publish(topic, 4)
        assert (await consumer.last_message_id()).position == last
        await topic.ledger.roll()
        subscription = topic.subscriptions["s"]
        subscription.cursor.ack_cumulative(last)
        await subscription.flush()
        topic.trim_soon()
        await topic.until_trimmed()
        assert (await consumer.last_message_id())[:2] == (EARLIEST, -1)

    run(main())
