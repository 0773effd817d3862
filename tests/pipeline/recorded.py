"""A run of a few seconds of a real broker with real clients, for every job to read.

Edge: one broker process and one client while it is recorded. It is made once in a test session::

    a first part of everything | some publishes on their way | kill -9 | restart | a second part | end

`RecordedRun.data_dir` is what a broker left that ended well; `killed_data_dir` is a copy of the same
directory as the kill left it, with cursors' ledgers and everything else in the middle of its life.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest

from ackgate.cursor import CursorSnapshot
from ackgate.persistence import cursor_path, read_cursor, topic_path
from ackgate.persistence.deliveries.columns import EventKind
from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.persistence.offline_storage import opened_storage, storage_places
from ackgate.testing import BrokerProcess
from tests.pipeline.recorded_clients import (
    HOUR_MS,
    Consuming,
    MessageAt,
    Publishing,
    Reaction,
    Sent,
    SubscriptionRecord,
    TopicRecord,
)
from tests.support.delivery_journals import read_events

RANGE_LIMIT = 40
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.05
WINDOW = 6
"""Messages that a consumer gathers before it acks them, in any order."""

SETTINGS = {
    "activeConsumerFailoverDelayTimeMillis": 0,
    "defaultRetentionSizeInMB": -1,
    "defaultRetentionTimeInMinutes": -1,
    "delayedDeliveryMaxIndexCountPerBucket": 12,
    "delayedDeliveryMinIndexCountPerBucket": 6,
    "delayedDeliveryTickTimeMillis": 64,
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "deliveryJournalEnabled": True,
    "dispatcherPauseOnAckStatePersistentEnabled": True,
    "managedLedgerMaxEntriesPerLedger": 40,
    "managedLedgerMaxUnackedRangesToPersist": RANGE_LIMIT,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What was recorded, and what its clients know of it."""

    data_dir: Path
    """After a clean end."""
    killed_data_dir: Path
    """As kill -9 left it, between the two parts."""
    topics: dict[str, TopicRecord]
    """By short name: orders, batched, keyed, ordered, delayed, gated."""
    confirmed_when_killed: dict[str, frozenset[MessageAt]]
    """By topic: messages whose confirmation a producer had when the broker was killed."""
    seed: int

    def topic_of(self, full_name: str) -> TopicRecord:
        """By the name that the tables have."""
        return self.topics[full_name.removeprefix("persistent://public/default/")]


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """A real broker's data, once a session. ``ACKGATE_SEED`` for another one."""
    seed = int(os.environ.get("ACKGATE_SEED", "7"))
    print(f"recorded run: seed {seed}")
    return record(tmp_path_factory.mktemp("recorded"), seed)


def record(directory: Path, seed: int) -> RecordedRun:
    """Have a broker and its clients run in this directory. Asserts that they come to rest."""
    topics = {topic.name: topic for topic in _topics()}
    data_dir, killed_data_dir = directory / "data", directory / "killed"
    with BrokerProcess(data_dir, settings=SETTINGS) as broker, ExitStack() as stack:
        run = _Run(broker, topics, seed, stack)
        run.publish(1)
        run.settle()
        run.send("orders", range(100, 140))
        run.producers["orders"].wait(120)
        broker.pause()
        run.send("orders", range(140, 160))
        broker.kill()
        known = {name: frozenset(topic.published) for name, topic in topics.items()}
        shutil.copytree(data_dir, killed_data_dir)
        broker.start()
        run.publish(2)
        run.settle()
        run.end()
        assert broker.stop() == 0, broker.log
    return RecordedRun(data_dir, killed_data_dir, topics, known, seed)


# -------------------------------------------------------------------------- what is done


def _topics() -> Iterator[TopicRecord]:
    shared, exclusive = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive
    yield _topic(
        "orders",
        SubscriptionRecord("billing", shared, _orders, consumers=2),
        SubscriptionRecord("all", shared, lambda _: Reaction.ACK),
    )
    yield _topic(
        "batched", SubscriptionRecord("billing", shared, _batched, consumers=2), batch_messages=10
    )
    yield _topic(
        "keyed", SubscriptionRecord("by-key", pulsar.ConsumerType.KeyShared, _keyed, consumers=2)
    )
    yield _topic(
        "ordered",
        SubscriptionRecord("main", pulsar.ConsumerType.Failover, _every(25), consumers=2),
        SubscriptionRecord("replica", exclusive, _every(10)),
    )
    yield _topic("delayed", SubscriptionRecord("later", shared, lambda _: Reaction.ACK))
    yield _topic("gated", SubscriptionRecord("tight", shared, _gated, receiver_queue=5))


def _topic(name: str, *subscriptions: SubscriptionRecord, batch_messages: int = 1) -> TopicRecord:
    return TopicRecord(name, {each.name: each for each in subscriptions}, batch_messages)


def _orders(sent: Sent) -> Reaction:
    if sent.number % 23 == 3:
        return Reaction.LEAVE
    return Reaction.NACK_ONCE if sent.number % 9 == 4 else Reaction.ACK


def _batched(sent: Sent) -> Reaction:
    """Of each third batch one message is left, of each fourth all but one."""
    batch, index = divmod(sent.number, 10)
    is_left = (batch % 3 == 1 and index == 4) or (batch % 4 == 2 and index != 7)
    return Reaction.LEAVE if is_left else Reaction.ACK


def _keyed(sent: Sent) -> Reaction:
    """One key leaves holes."""
    is_left = sent.key == "key-3" and sent.number > 20
    return Reaction.LEAVE if is_left else Reaction.ACK


def _gated(sent: Sent) -> Reaction:
    return Reaction.HOLD if sent.number % 2 else Reaction.ACK


def _every(count: int):
    return lambda sent: Reaction.ACK_UP_TO if sent.number % count == count - 1 else Reaction.PASS


def _messages(topic: str, numbers: range, now_ms: int) -> Iterator[Sent]:
    """Of one topic, by number."""
    for number in numbers:
        match topic:
            case "keyed":
                yield Sent(number, key=f"key-{number * 7 % 10}")
            case "delayed":
                wait_ms = HOUR_MS + number * 60_000 if number % 3 == 1 else 300 + number * 5
                yield Sent(number, deliver_at_ms=now_ms + wait_ms)
            case "orders":
                yield Sent(
                    number,
                    event_time_ms=1_700_000_000_000 + number,
                    properties={"customer": f"c{number % 4}", "number": str(number)},
                )
            case _:
                yield Sent(number)


PARTS = {
    "orders": (range(100), range(160, 220)),
    "batched": (range(120), range(120, 180)),
    "keyed": (range(80), range(80, 130)),
    "ordered": (range(110), range(110, 180)),
    "delayed": (range(60), range(60, 90)),
    "gated": (range(130), range(130, 260)),
}
"""Numbers of the messages, before the kill and after it."""


class _Run:
    """The clients of all topics, on one broker."""

    def __init__(
        self, broker: BrokerProcess, topics: dict[str, TopicRecord], seed: int, stack: ExitStack
    ) -> None:
        self._broker = broker
        self._topics = topics
        log = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(broker.data_directory) + ".client.log")
        client = pulsar.Client(broker.service_url, logger=log)
        stack.callback(client.shutdown)
        self.consumers = [
            Consuming(
                client,
                topic,
                subscription,
                number,
                window=WINDOW,
                seed=f"{seed}/{topic.name}/{subscription.name}/{number}",
                is_gate_shut=self._gate_of(topic.full_name, subscription.name),
            )
            for topic in topics.values()
            for subscription in topic.subscriptions.values()
            for number in range(subscription.consumers)
        ]
        self.producers = {name: Publishing(client, topic) for name, topic in topics.items()}

    def publish(self, part: int) -> None:
        """Publish one part of every topic; return when all is confirmed."""
        for name, numbers in PARTS.items():
            self.send(name, numbers[part - 1])
        for producer in self.producers.values():
            producer.flush()

    def send(self, topic: str, numbers: range) -> None:
        """Publish some messages of one topic, without waiting."""
        for message in _messages(topic, numbers, time.time_ns() // 1_000_000):
            self.producers[topic].send(message)

    def settle(self) -> None:
        """Until the clients have done what they do, and storage and journal say so.

        Some hold messages still.
        """
        self._until(lambda: not self._unfinished(), "the clients are not done")
        self._until(lambda: not self._not_stored(), "acks are not stored")
        self._until(
            lambda: not self._not_journaled(), "the journal does not tell of what is stored"
        )

    def end(self) -> None:
        """As `settle`, with nothing held, and all consumers closed."""
        for consumer in self.consumers:
            consumer.drain()
        self.settle()
        for consumer in self.consumers:
            consumer.close()
        assert not self._not_stored()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            for consumer in self.consumers:
                consumer.check()
            if time.monotonic() > deadline:
                unfinished, not_stored = self._unfinished(), self._not_stored()
                raise AssertionError(
                    f"{what}: {len(unfinished)} undone: {unfinished[:8]}; "
                    f"{len(not_stored)} stored otherwise: {not_stored[:8]}; "
                    f"not in the journal: {self._not_journaled()}"
                )
            time.sleep(POLL_SECONDS)

    def _unfinished(self) -> list[tuple[str, str, int]]:
        """Messages that a consumer has not got yet, or not acked although it will."""
        now_ms = time.time_ns() // 1_000_000
        is_draining = any(consumer.drains for consumer in self.consumers)
        found = []
        for topic in self._topics.values():
            for subscription in topic.subscriptions.values():
                for at, sent in list(topic.known.items()):
                    if sent.deliver_at_ms is not None and sent.deliver_at_ms > now_ms + HOUR_MS / 2:
                        continue
                    match subscription.rule(sent):
                        case Reaction.LEAVE | Reaction.PASS:
                            is_done = at in subscription.deliveries
                        case Reaction.HOLD:
                            is_done = subscription.is_acked(at) or (
                                not is_draining and at in subscription.deliveries
                            )
                        case _:
                            is_done = subscription.is_acked(at)
                    if not is_done:
                        found.append((topic.name, subscription.name, sent.number))
        return found

    def _not_stored(self) -> list[tuple[str, str, MessageAt]]:
        """Messages of which storage says something else than the clients."""
        return [
            (topic.name, subscription.name, at)
            for topic, subscription, snapshot in asyncio.run(self._stored())
            for at in list(topic.known)
            if subscription.is_acked(at) != _is_acked(snapshot, at)
        ]

    def _not_journaled(self) -> list[str]:
        """Subscriptions whose last write, or a shut gate, the journal does not tell of yet."""
        return asyncio.run(self._stored_before_journaled())

    async def _stored_before_journaled(self) -> list[str]:
        found = []
        for topic, subscription, snapshot in await self._stored():
            told = [
                event
                for event in await read_events(
                    self._broker.data_directory,
                    delivery_journal_path("public", "default", topic.name),
                )
                if event.subscription == subscription.name
            ]
            written = [each.version for each in told if each.kind is EventKind.PERSISTED]
            tells_of_gate = any(each.kind is EventKind.GATE_SHUT for each in told)
            if snapshot.version not in written or tells_of_gate < (subscription.gates_shut > 0):
                found.append(f"{topic.name}/{subscription.name}")
        return found

    async def _stored(self) -> list[tuple[TopicRecord, SubscriptionRecord, CursorSnapshot]]:
        """What storage has of every subscription."""
        places = storage_places(data_directory=self._broker.data_directory)
        async with opened_storage(places) as storage:
            return [
                (topic, subscription, view.snapshot)
                for topic in self._topics.values()
                for subscription in topic.subscriptions.values()
                for view in [
                    await read_cursor(
                        cursor_path(topic_path("public", "default", topic.name), subscription.name),
                        ledger_client=storage.client,
                        metadata=storage.metadata,
                    )
                ]
            ]

    def _gate_of(self, topic: str, subscription: str):
        def is_shut() -> bool:
            url = f"{self._broker.admin_url}/admin/v2/{topic.replace('://', '/')}/stats"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    stats = json.load(answer)
            except OSError:
                return False  # between kill and restart
            return bool(stats["subscriptions"][subscription]["isBlockedOnAckStatePersistent"])

        return is_shut


def _is_acked(snapshot, at: MessageAt) -> bool:
    """What a stored state says of a message."""
    if at[:2] <= tuple(snapshot.mark_delete):
        return True
    if at.entry_id in snapshot.acked.get(at.ledger_id, ()):
        return True
    unacked = snapshot.unacked_indexes.get(at[:2])
    return unacked is not None and not unacked >> at.batch_index & 1
