"""What the delivery journal says of a topic's life, and what becomes of it when storage fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ackgate.broker.journal import writer
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.requests import KeySharedRequest, SubscriptionType
from ackgate.cursor import Position
from ackgate.errors import OwnershipError
from ackgate.persistence import MemoryMetadataStore, PersistOutcome
from ackgate.persistence.deliveries.columns import DeliveryEvent, EventKind
from ackgate.persistence.deliveries.details import (
    ConsumerAdded,
    Opened,
    PersistFailed,
    decode_detail,
    detail_of,
)
from ackgate.persistence.deliveries.node import decode_journal_node
from ackgate.testing import MemoryLedgerClient
from tests.support.faults import Fault, Rule
from tests.support.virtual_time import run_in_virtual_time
from tests.unit.broker.journal.journal_world import NAME, PATH, Client, JournalWorld, settle

GATE = {
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "managedLedgerMaxUnackedRangesToPersist": "2",
}


def in_world(test: Callable[[JournalWorld], Awaitable[None]], **keys: str) -> None:
    async def run() -> None:
        world = JournalWorld(**keys)
        await world.start()
        await test(world)

    run_in_virtual_time(run())


def of(events: list[DeliveryEvent], *kinds: EventKind) -> list[DeliveryEvent]:
    return [event for event in events if event.kind in kinds]


def places(events: list[DeliveryEvent]) -> list[Position]:
    return [Position(e.ledger_id or 0, e.entry_id or 0) for e in events]


def test_an_entrys_life_from_its_receipt_to_its_durable_ack() -> None:
    async def test(world: JournalWorld) -> None:
        client = await world.consumer()
        (position,) = await world.publish(key="k", batch_size=3)
        await settle()
        client.ack((position, 0b100), request_id=1)
        client.ack((position, None), request_id=2)
        await asyncio.sleep(1)
        events = await world.events()
        assert events[0].kind is EventKind.OPENED
        told = [
            event.kind
            for event in events
            if event.kind
            in {
                EventKind.PUBLISHED,
                EventKind.DISPATCHED,
                EventKind.ACKED,
                EventKind.PERSISTED,
                EventKind.RECEIPT,
            }
        ]
        assert told == [
            EventKind.PUBLISHED,
            EventKind.DISPATCHED,
            EventKind.ACKED,
            EventKind.ACKED,
            EventKind.PERSISTED,
            EventKind.RECEIPT,
            EventKind.RECEIPT,
        ]
        (published,) = of(events, EventKind.PUBLISHED)
        assert (published.producer, published.key, published.batch_size) == ("p", "k", 3)
        assert published.entry_bytes is not None
        assert published.deliver_at_ms is None
        (dispatched,) = of(events, EventKind.DISPATCHED)
        assert (dispatched.consumer, dispatched.reason, dispatched.redelivery_count) == (
            "c#0",
            "normal",
            0,
        )
        part, whole = of(events, EventKind.ACKED)
        assert (part.unacked_indexes, part.version) == (b"\x04", 1)
        assert (whole.unacked_indexes, whole.version) == (None, 2)
        (persisted,) = of(events, EventKind.PERSISTED)
        outcome = decode_detail(PersistOutcome, persisted.detail)
        assert (outcome.version, outcome.is_ledger_begun, outcome.is_last) == (2, True, False)
        assert [e.version for e in of(events, EventKind.RECEIPT)] == [1, 2]
        assert client.answered == [1, 2]

    in_world(test)


def test_a_consumer_that_lets_keys_go_elsewhere_is_told_of() -> None:
    async def test(world: JournalWorld) -> None:
        for name, allows in (("strict", False), ("loose", True)):
            await world.consumer(
                kind=SubscriptionType.KEY_SHARED,
                subscription=name,
                key_shared=KeySharedRequest(allows_out_of_order=allows),
            )
        added = of(await world.events(), EventKind.CONSUMER_ADDED)
        assert {(e.subscription, e.reason) for e in added} == {
            ("strict", "Key_Shared"),
            ("loose", "Key_Shared"),
        }
        details = {e.subscription: detail_of(e.kind, e.reason, e.detail) for e in added}
        assert details == {"strict": None, "loose": ConsumerAdded(is_out_of_order=True)}

    in_world(test)


def test_what_is_given_back_is_told_before_it_comes_again() -> None:
    async def test(world: JournalWorld) -> None:
        first = await world.consumer(name="a")
        positions = await world.publish(4)
        await settle()
        second = await world.consumer(name="b", permits=0)
        first.port.redeliver([positions[1]], None)
        await settle()
        second.port.flow(100)
        await first.port.close()
        await settle()
        events = await world.events()
        nacked = of(events, EventKind.NACKED)
        assert places(nacked[:1]) == [positions[1]]
        assert nacked[0].reason == "asked"
        assert places(nacked[1:]) == [*positions[:1], *positions[2:], positions[1]]
        assert {(e.reason, e.consumer) for e in nacked[1:]} == {("consumer_closed", "a#0")}
        again = [e for e in of(events, EventKind.DISPATCHED) if e.reason == "redelivery"]
        assert places(again[:1]) == [positions[1]]
        assert (again[0].consumer, again[0].redelivery_count) == ("a#0", 1)
        assert sorted(places(again[1:])) == positions
        assert {e.consumer for e in again[1:]} == {"b#1"}
        (left,) = of(events, EventKind.CONSUMER_REMOVED)
        assert events.index(left) > events.index(nacked[-1])

    in_world(test)


def test_an_exclusive_consumer_leaves_all_that_it_read_and_did_not_ack() -> None:
    async def test(world: JournalWorld) -> None:
        client = await world.consumer(kind=SubscriptionType.EXCLUSIVE, permits=5)
        positions = await world.publish(8)
        await settle()
        client.ack_through(positions[1])
        client.port.redeliver(None, None)
        nacked = of(await world.events(), EventKind.NACKED)
        assert places(nacked) == positions[2 : len(client.got)]

    in_world(test)


def test_a_delayed_entry_says_when_it_was_due_and_why_it_was_sent() -> None:
    async def test(world: JournalWorld) -> None:
        await world.consumer()
        await world.publish(delay_ms=10_000)
        await world.publish()
        await asyncio.sleep(20)
        events = await world.events()
        delayed, prompt = of(events, EventKind.PUBLISHED)
        assert prompt.deliver_at_ms is None
        assert delayed.deliver_at_ms is not None
        assert delayed.publish_time_ms == delayed.deliver_at_ms - 10_000
        assert [e.reason for e in of(events, EventKind.DISPATCHED)] == ["normal", "delayed"]

    in_world(test)


def test_the_gate_says_why_it_shuts_and_what_has_ended_when_it_opens() -> None:
    async def test(world: JournalWorld) -> None:
        client = await world.consumer()
        positions = await world.publish(9)
        await settle()
        client.ack(*((position, None) for position in positions[1::2]))
        await asyncio.sleep(1)
        client.ack(*((position, None) for position in positions[::2]))
        await asyncio.sleep(1)
        shut, opened = of(await world.events(), EventKind.GATE_SHUT, EventKind.GATE_OPENED)
        assert shut.kind is EventKind.GATE_SHUT
        assert shut.reason == "ranges-live"
        assert (opened.kind, opened.reason) == (EventKind.GATE_OPENED, "ranges-live")

    in_world(test, **GATE)


def test_settings_are_told_as_they_hold_and_what_changes_of_them() -> None:
    async def test(world: JournalWorld) -> None:
        services = world.topic.services
        changed = services.settings.with_dynamic({"dispatcherMaxReadBatchSize": "7"})
        world.registry.configure()  # of others' topics: nothing has changed here
        services.settings = changed
        world.registry.configure()
        events = await world.events()
        opened = decode_detail(Opened, events[0].detail)
        assert opened.settings["managedLedgerMaxUnackedRangesToPersist"] == "2"
        assert opened.settings["dispatcherPauseOnAckStatePersistentEnabled"] == "true"
        assert not any("assword" in key or "irector" in key for key in opened.settings)
        assert [(ledger.entries, ledger.is_open) for ledger in opened.ledgers] == [(0, True)]
        (configured,) = of(events, EventKind.CONFIGURED)
        assert configured.detail is not None
        assert '"settings":{"dispatcherMaxReadBatchSize":"7"}' in configured.detail

    in_world(test, **GATE)


def test_each_failed_write_of_a_cursor_is_told_with_its_store() -> None:
    async def test(world: JournalWorld) -> None:
        client = await world.consumer()
        positions = await world.publish(3)
        await settle()
        world.plan.rules.append(
            Rule(Fault.FAIL, "ledger.create", f"{world.topic.path}/s", times=None)
        )
        client.ack((positions[1], None))
        await asyncio.sleep(2)
        events = await world.events()
        failed = of(events, EventKind.PERSIST_FAILED)
        assert {event.reason for event in failed} == {"ledger"}
        detail = decode_detail(PersistFailed, failed[0].detail)
        assert detail.error
        assert detail.failing_since_ms is None  # the node takes the state
        (persisted,) = of(events, EventKind.PERSISTED)
        assert decode_detail(PersistOutcome, persisted.detail).where.value == "metadata-store"
        assert events.index(failed[0]) < events.index(persisted)

    in_world(test)


# -------------------------------------------------------------------------- when it fails


def _fails_journals(world: JournalWorld) -> Rule:
    return Rule(Fault.FAIL, "ledger.create", f"{PATH} *", times=None)


def test_a_journal_that_cannot_be_written_holds_nothing_up_and_counts_what_is_missing() -> None:
    async def test(world: JournalWorld) -> None:
        world.plan.rules.append(_fails_journals(world))
        client = await world.consumer()
        for _ in range(30):
            positions = await world.publish(10)
            await settle()
            client.ack(*((position, None) for position in positions))
            await asyncio.sleep(1)
        assert len(client.got) == 300
        assert world.subscription().cursor.backlog_entries == 0
        statistics = world.statistics
        assert statistics.events_written == 0
        assert statistics.failures > 3
        assert "injected" in (statistics.last_failure or "")
        assert statistics.events_dropped > 300  # the first blocks were given up
        world.plan.rules.clear()
        await asyncio.sleep(120)
        await world.publish()
        events = await world.events()
        assert events[0].kind is EventKind.DROPPED
        missing = sum(e.version or 0 for e in of(events, EventKind.DROPPED))
        assert missing == world.statistics.events_dropped

    in_world(test)


def test_a_queue_that_is_full_drops_and_says_where_and_how_many() -> None:
    async def test(world: JournalWorld) -> None:
        world.plan.rules.append(Rule(Fault.DELAY, "ledger.create", f"{PATH} *", seconds=3))
        await world.publish(100)
        assert world.statistics.events_pending <= 51
        await asyncio.sleep(4)
        await world.publish(3)
        events = await world.events()
        kinds = [event.kind for event in events]
        (dropped,) = of(events, EventKind.DROPPED)
        assert dropped.version == 100  # one note of one bulk
        assert kinds.index(EventKind.DROPPED) < kinds.index(EventKind.PUBLISHED)
        assert len(of(events, EventKind.PUBLISHED)) == 3
        assert world.statistics.events_dropped == 100
        assert world.statistics.events_pending == 0

    in_world(test, deliveryJournalMaxPendingEvents="50")


def test_a_journal_that_another_owner_has_is_written_no_more() -> None:
    async def test(world: JournalWorld) -> None:
        await world.events()
        other = JournalWorld()
        other.tree, other.ledgers = world.tree, world.ledgers
        await other.start()
        await other.events()
        await _note(world)
        assert world.statistics.is_stopped
        assert world.statistics.events_dropped > 0
        epochs = {e.kind for e in await other.events()}
        assert EventKind.DROPPED not in epochs

    async def _note(world: JournalWorld) -> None:
        assert world.topic.journal is not None
        world.topic.journal.note_unsubscribed("gone")
        await asyncio.sleep(writer.BLOCK_SECONDS_MAX + 5)

    in_world(test)


def test_a_topic_is_loaded_without_waiting_for_its_journal() -> None:
    async def run() -> None:
        world = JournalWorld()
        world.plan.rules.append(Rule(Fault.DELAY, "ledger.create", f"{PATH} *", seconds=60))
        began = asyncio.get_running_loop().time()
        await world.start()
        await world.consumer()
        await world.publish(5)
        assert asyncio.get_running_loop().time() - began < 1

    run_in_virtual_time(run())


# ------------------------------------------------------------------------------- its life


def test_closing_writes_the_rest_and_the_next_epoch_goes_on() -> None:
    async def test(world: JournalWorld) -> None:
        client = await world.consumer()
        positions = await world.publish(5)
        await settle()
        client.ack((positions[0], None))
        await world.registry.close()
        await world.start()
        events = await world.events()
        assert [e.kind for e in events].count(EventKind.OPENED) == 2
        (persisted,) = of(events, EventKind.PERSISTED)
        assert decode_detail(PersistOutcome, persisted.detail).is_last
        (closed,) = of(events, EventKind.LEDGER_CLOSED)
        assert places([closed]) == [positions[-1]]
        (recovered,) = of(events, EventKind.RECOVERED)
        assert recovered.state is not None
        assert recovered.version == persisted.version
        await world.check_replay()

    in_world(test)


def test_a_deleted_topics_journal_is_gone_with_its_ledgers() -> None:
    async def test(world: JournalWorld) -> None:
        await world.publish(5)
        await world.events()
        metadata = MemoryMetadataStore(world.tree)
        stored = await metadata.get(PATH)
        assert stored is not None
        (ledger,) = decode_journal_node(stored.value, path=PATH).ledgers
        await world.registry.delete(NAME, force=True)
        assert await metadata.get(PATH) is None
        assert ledger.ledger_id not in await MemoryLedgerClient(world.ledgers).ledger_ids()

    in_world(test)


def test_a_journal_of_earlier_times_goes_with_the_topic_though_it_is_off_now() -> None:
    async def test(world: JournalWorld) -> None:
        await world.publish(5)
        await world.registry.close()
        world.keys["deliveryJournalEnabled"] = "false"
        await world.start()
        await world.registry.delete(NAME, force=True)
        assert await MemoryMetadataStore(world.tree).get(PATH) is None
        assert not await MemoryLedgerClient(world.ledgers).ledger_ids()

    in_world(test)


def test_old_ledgers_are_trimmed_by_the_upkeep() -> None:
    async def test(world: JournalWorld) -> None:
        for _ in range(6):
            await world.publish(5)
            await asyncio.sleep(2)
        await world.topic.keep_ledgers()
        stored = await MemoryMetadataStore(world.tree).get(PATH)
        assert stored is not None
        ledgers = decode_journal_node(stored.value, path=PATH).ledgers
        assert len(ledgers) <= 3
        first = (await world.events())[0]
        assert first.kind is not EventKind.OPENED

    in_world(test, deliveryJournalMaxLedgerAgeSeconds="1", deliveryJournalRetentionSeconds="3")


def test_nothing_is_written_or_kept_while_it_is_off() -> None:
    async def test(world: JournalWorld) -> None:
        client = await world.consumer()
        positions = await world.publish(5)
        await settle()
        client.ack(*((position, None) for position in positions))
        await asyncio.sleep(5)
        assert world.topic.journal is None
        assert world.topic.journaling.statistics() is None
        assert await MemoryMetadataStore(world.tree).get(PATH) is None

    in_world(test, deliveryJournalEnabled="false")


def test_a_partition_has_a_journal_of_its_own() -> None:
    async def test(world: JournalWorld) -> None:
        name = TopicName.parse("persistent://public/default/t-partition-0")
        await world.registry.topic(name, create=True)
        await asyncio.sleep(1)
        metadata = MemoryMetadataStore(world.tree)
        assert await metadata.get(f"{PATH}-partition-0") is not None

    in_world(test)


def test_a_consumer_that_is_refused_leaves_no_events() -> None:
    async def test(world: JournalWorld) -> None:
        client: Client = await world.consumer()
        client.ack((Position(999, 0), None), request_id=1)
        assert client.refused
        assert not of(await world.events(), EventKind.ACKED)

    in_world(test)


def test_letting_go_of_a_topic_stops_its_journal_at_once() -> None:
    async def test(world: JournalWorld) -> None:
        await world.publish(5)
        topic = world.topic
        topic.abandon(OwnershipError("somebody else"))
        await asyncio.sleep(5)
        statistics = topic.journaling.statistics()
        assert statistics is not None
        assert statistics.is_stopped
        assert statistics.events_written == 0
        assert statistics.events_dropped == 6

    in_world(test)
