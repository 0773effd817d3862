"""A stream over ledgers that are being written: each entry once, over roll-over, restart, trimming."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ackgate import EmbeddedStorage, open_embedded
from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence import LedgerOptions, LedgerWriter, topic_path
from ackgate.persistence.deliveries.node import (
    DeliveryJournalNode,
    JournalLedgerRecord,
    encode_journal_node,
)
from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.persistence.nodes.topic_node import MessageLedgerRecord, TopicNode, encode_topic_node
from ackgate.pipeline.schema.options import parse_options
from ackgate.pipeline.source.data_source import AckgateStreamReader
from ackgate.pipeline.storage.reading import read_range

TOPIC = "persistent://public/default/orders"

Entries = list[tuple[int, int, bytes]]


class TopicWriter:
    """A topic's message ledgers, as a broker has them."""

    def __init__(self, storage: EmbeddedStorage) -> None:
        self._storage = storage
        self.writers: list[LedgerWriter] = []
        self.written: Entries = []

    async def roll(self) -> None:
        if self.writers:
            await self.writers[-1].close()
        self.writers.append(await self._storage.ledger_client.create(LedgerOptions()))
        await self._note()

    async def trim(self) -> None:
        gone = self.writers.pop(0)
        await self._note()
        await self._storage.ledger_client.delete(gone.ledger_id)

    async def add(self, count: int) -> None:
        """The newest of them is confirmed by none behind it yet."""
        for _ in range(count):
            payload = b"entry %d" % len(self.written)
            entry_id = await self.writers[-1].add_entry(payload)
            self.written.append((self.writers[-1].ledger_id, entry_id, payload))

    async def note_as_journal(self) -> None:
        """As if these were the ledgers of the topic's delivery journal."""
        records = [JournalLedgerRecord(w.ledger_id, 0, None, 0, None) for w in self.writers]
        value = encode_journal_node(DeliveryJournalNode(tuple(records), 1))
        path = delivery_journal_path("public", "default", "orders")
        await self._storage.metadata.put(path, value, expected_version=None)

    async def _note(self) -> None:
        records = tuple(MessageLedgerRecord(w.ledger_id, None, 0, 0, None) for w in self.writers)
        path = topic_path("public", "default", "orders")
        value = encode_topic_node(TopicNode(records))
        await self._storage.metadata.put(path, value, expected_version=None)


@pytest.fixture
async def topic(tmp_path: Path) -> AsyncIterator[TopicWriter]:
    async with open_embedded(tmp_path / "data") as storage:
        writer = TopicWriter(storage)
        await writer.roll()
        yield writer


class Stream:
    """What Spark does: it asks in threads of its own, and keeps the offsets in a checkpoint."""

    def __init__(self, root: Path, **options: str) -> None:
        self._given = {"path": str(root / "data"), **options}
        self.checkpoint: str | None = None
        self.restart()

    def restart(self) -> None:
        self.reader = AckgateStreamReader(parse_options(self._given))

    def batch(self) -> Entries:
        if self.checkpoint is None:
            self.checkpoint = json.dumps(self.reader.initialOffset())
        end = json.dumps(self.reader.latestOffset())
        found = self.between(self.checkpoint, end)
        self.checkpoint = end
        return found

    def between(self, start: str, end: str) -> Entries:
        found: Entries = []
        for partition in self.reader.partitions(json.loads(start), json.loads(end)):
            sent = pickle.loads(pickle.dumps(partition))
            for task in sent.tasks:
                assert task.topic == TOPIC
                for part in task.ranges:
                    for batch in read_range(sent.bookies, part):
                        ids = batch.entry_ids.tolist()
                        found += [
                            (part.ledger_id, *pair)
                            for pair in zip(ids, batch.payloads, strict=True)
                        ]
        return found


async def in_thread(stream: Stream) -> Entries:
    return await asyncio.to_thread(stream.batch)


async def test_each_entry_once_over_roll_over_and_restart(
    topic: TopicWriter, tmp_path: Path
) -> None:
    stream, read = Stream(tmp_path), []
    assert await in_thread(stream) == []
    for step in range(4):
        await topic.add(5)
        read += await in_thread(stream)
        # The live broker's last entry is nobody's yet: no later one says that it is confirmed.
        assert read == topic.written[:-1]
        await topic.roll()
        read += await in_thread(stream)
        assert read == topic.written
        if step % 2:
            stream.restart()
        assert await in_thread(stream) == []


async def test_a_batch_that_is_planned_again_is_the_same(
    topic: TopicWriter, tmp_path: Path
) -> None:
    stream = Stream(tmp_path)
    await topic.add(4)
    before = stream.checkpoint = json.dumps(await asyncio.to_thread(stream.reader.initialOffset))
    first = await in_thread(stream)
    after = stream.checkpoint
    await topic.add(7)
    await topic.roll()
    stream.restart()
    again = await asyncio.to_thread(stream.between, before, after)
    assert first == again == topic.written[:3]


async def test_a_limit_makes_small_batches_of_the_same_entries(
    topic: TopicWriter, tmp_path: Path
) -> None:
    stream = Stream(tmp_path, maxEntriesPerTrigger="4")
    await topic.add(10)
    await topic.roll()
    sizes, read = [], []
    for _ in range(4):
        found = await in_thread(stream)
        sizes.append(len(found))
        read += found
    assert sizes == [4, 4, 2, 0]
    assert read == topic.written


async def test_a_trimmed_range_is_named_or_reported(
    topic: TopicWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(tmp_path)
    gaps = tmp_path / "gaps"
    lenient = Stream(tmp_path, onTrimmed="report", gapsPath=str(gaps))
    for each in (stream, lenient):
        await in_thread(each)
    await topic.add(3)
    await topic.roll()
    await topic.add(3)
    await topic.roll()
    await topic.trim()
    gone = topic.written[0][0]
    with pytest.raises(CorruptRecordError, match=rf"{TOPIC}: entries after {gone}:-1 were trimmed"):
        await in_thread(stream)
    before = lenient.checkpoint
    assert await in_thread(lenient) == topic.written[3:]
    assert f"entries after {gone}:-1 were trimmed" in caplog.text
    # Planned again after a crash: told once all the same.
    lenient.restart()
    assert before is not None
    assert lenient.checkpoint is not None
    again = await asyncio.to_thread(lenient.between, before, lenient.checkpoint)
    assert again == topic.written[3:]
    (told,) = gaps.iterdir()
    assert json.loads(told.read_text()) == {
        "topic": TOPIC,
        "behind_ledger_id": gone,
        "behind_entry_id": -1,
        "up_to_ledger_id": topic.written[3][0],
        "up_to_entry_id": 0,
    }
    assert await in_thread(lenient) == []
    assert len(list(gaps.iterdir())) == 1


async def test_filters_hold_for_a_stream_too(topic: TopicWriter, tmp_path: Path) -> None:
    await topic.add(8)
    await topic.roll()
    await topic.add(8)
    await topic.roll()
    first, second = topic.written[0][0], topic.written[8][0]
    some = Stream(tmp_path, entryIds="1-2,6,100")
    assert await in_thread(some) == [topic.written[n] for n in (1, 2, 6, 9, 10, 14)]
    one = Stream(tmp_path, ledgerIds=f"{second},{second + 1000}")
    assert await in_thread(one) == topic.written[8:]
    none = Stream(tmp_path, ledgerIds=str(first), entryIds="8-9")
    assert await in_thread(none) == []
    assert none.checkpoint == one.checkpoint


async def test_a_journal_can_be_followed(topic: TopicWriter, tmp_path: Path) -> None:
    """Its ledgers are those that its own node names."""
    stream = Stream(tmp_path, table="delivery_journal")
    assert await in_thread(stream) == []
    await topic.add(3)
    await topic.note_as_journal()
    assert await in_thread(stream) == topic.written[:2]
    await topic.roll()
    await topic.note_as_journal()
    assert await in_thread(stream) == topic.written[2:]


async def test_what_was_read_may_be_trimmed(topic: TopicWriter, tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    await topic.add(3)
    await topic.roll()
    assert await in_thread(stream) == topic.written
    await topic.trim()
    await topic.add(2)
    assert await in_thread(stream) == topic.written[3:4]


async def test_where_it_begins(topic: TopicWriter, tmp_path: Path) -> None:
    await topic.add(5)
    await topic.roll()
    ledger_id = topic.written[0][0]
    latest = Stream(tmp_path, startingPosition="latest")
    third = Stream(tmp_path, startingPosition=f"{ledger_id}:2")
    assert await in_thread(latest) == []
    assert await in_thread(third) == topic.written[2:]
    await topic.add(2)
    assert await in_thread(latest) == await in_thread(third) == topic.written[5:6]


def test_only_what_grows_by_entries() -> None:
    with pytest.raises(CallerError, match="table ack_state cannot be streamed"):
        AckgateStreamReader(parse_options({"path": "d", "table": "ack_state"}))
