"""A topic whose adds fail: nothing overtakes what failed, and nothing is stored twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from ackgate.broker.topic.registry import TopicRegistry
from ackgate.broker.wire.names import TopicName
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.requests import ProducerRequest, SentEntry
from ackgate.config.settings import Given, Settings
from ackgate.cursor import Span
from ackgate.errors import LedgerWriteError, StorageError
from ackgate.persistence import AppendTicket, LedgerOptions, MemoryMetadataStore
from ackgate.persistence.messages.frame import seal_entry
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.bare_broker import bare_broker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.broker.topic import Producer
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.ports import SessionPort
    from ackgate.persistence import LedgerClient, LedgerReader, LedgerWriter

NAME = TopicName.parse("persistent://public/default/t")


class Peer:
    """A client's connection: what it is told."""

    is_open = True
    peer = "test"
    received_at = 0.0

    def __init__(self) -> None:
        self.receipts: list[int] = []
        self.errors: list[int] = []
        self.closed: list[int] = []

    def send_receipts(self, _: int, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        self.receipts += [receipt[0] for receipt in receipts]

    def send_error(self, _: int, sequence_id: int, __: int, ___: str) -> None:
        self.errors.append(sequence_id)

    def close_producer(self, producer_id: int, *_: object) -> None:
        self.closed.append(producer_id)


class Disk:
    """Adds that fail, though stored, and ledgers that cannot be opened then."""

    is_failing = False


class FailingWriter:
    def __init__(self, writer: LedgerWriter, disk: Disk) -> None:
        self._writer = writer
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)

    def append(self, payloads: Sequence[bytes]) -> AppendTicket:
        stored = self._writer.append(payloads)
        if not self._disk.is_failing:
            return stored
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(LedgerWriteError("written, and not synced"))
        return AppendTicket(stored.first_entry_id, failed)


class FailingClient:
    def __init__(self, client: MemoryLedgerClient, disk: Disk) -> None:
        self._client = client
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    async def create(self, options: LedgerOptions) -> FailingWriter:
        self._check()
        return FailingWriter(await self._client.create(options), self._disk)

    async def open(self, ledger_id: int, *, password: bytes = b"") -> LedgerReader:
        self._check()
        return await self._client.open(ledger_id, password=password)

    def _check(self) -> None:
        if self._disk.is_failing:
            raise StorageError("nothing answers")


def publish(producer: Producer, sequence_id: int) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    entry = seal_entry(metadata.SerializeToString(), b"x")
    producer.publish(SentEntry(sequence_id, sequence_id, 1, entry, metadata))


async def attach(topic: Topic, peer: Peer, producer_id: int) -> Producer:
    request = ProducerRequest(NAME, producer_id, "p")
    return await topic.add_producer(cast("SessionPort", peer), request)


async def until(peer: Peer, answers: int) -> None:
    async with asyncio.timeout(60):
        while len(peer.receipts) + len(peer.errors) < answers:
            await asyncio.sleep(0)


def broker(disk: Disk, metadata: MemoryMetadataStore) -> TopicRegistry:
    given = {"brokerDeduplicationEnabled": Given("true", "test")}
    client = FailingClient(MemoryLedgerClient(MemoryLedgers()), disk)
    return bare_broker(
        cast("LedgerClient", client), metadata, settings=Settings().with_given(given)
    )


async def test_what_failed_is_stored_once_and_in_order_when_it_is_sent_again() -> None:
    disk = Disk()
    registry = broker(disk, MemoryMetadataStore())
    topic = await registry.topic(NAME, create=True)
    first = Peer()
    producer = await attach(topic, first, 1)
    disk.is_failing = True
    publish(producer, 0)
    await until(first, 1)
    assert first.errors == [0]
    disk.is_failing = False
    # On its way before the client has heard of the failure: it must not overtake what failed.
    assert first.closed == [1]
    publish(producer, 1)

    # Entry 0 turns out to be stored. A producer that sends it again must not have it stored twice.
    second = Peer()
    producer = await attach(topic, second, 2)
    publish(producer, 0)
    async with asyncio.timeout(60):
        while not second.closed:
            await asyncio.sleep(0)
    topic = await registry.topic(NAME, create=False)
    third = Peer()
    producer = await attach(topic, third, 3)
    publish(producer, 0)
    publish(producer, 1)
    await until(third, 2)
    assert third.receipts == [0, 1]
    assert await stored(topic) == [0, 1]
    await registry.close()


async def stored(topic: Topic) -> list[int]:
    """Sequence ids of everything that the topic holds."""
    ledgers = topic.ledger.ledgers
    spans = [Span(each, 0, ledgers.entry_count(each) or 0) for each in ledgers.ledger_ids]
    return [found.metadata.sequence_id for found in await topic.ledger.reads.read(spans)]
