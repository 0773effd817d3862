"""Writes a data directory as a broker does: ledgers, topic nodes and cursors.

Edge: opens a metadata store and bookies in a directory that nobody else uses yet. Writes one topic
after the other, one ledger after the other; while a bookie writes one part of a ledger, the next
part is made. Message ledgers are closed. Cursors are left open, as a killed broker leaves them: a
closed cursor keeps only its last state, an open one keeps the ledger with its history.
"""

from __future__ import annotations

import random
from asyncio import Semaphore, TaskGroup, gather, to_thread
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.config.persistence import PersistenceSettings
from ackgate.cursor import MessageLedgers
from ackgate.errors import OwnershipError
from ackgate.persistence.bookies.settings import bookie_settings, ledger_client_settings
from ackgate.persistence.cursors.ledger import ledger_options
from ackgate.persistence.cursors.store import CursorStore
from ackgate.persistence.ledgers.client import BookieLedgerClient, open_bookies
from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
from ackgate.persistence.nodes.changes import count_up
from ackgate.persistence.nodes.paths import cursor_path, topic_path
from ackgate.persistence.nodes.topic_node import (
    TOPIC_PATH_KEY,
    MessageLedgerRecord,
    TopicNode,
    encode_topic_node,
)
from ackgate.persistence.nodes.unnamed_ledgers import RUN_COUNTER_PATH
from ackgate.persistence.ports.node_rules import MUST_NOT_EXIST
from ackgate.persistence.system.data_directory import DIRECTORY_MODE, metadata_path
from ackgate.pipeline.jobs.generate.entries import EntryMaker
from ackgate.pipeline.jobs.generate.plan import MESSAGES_PER_MS, NAMESPACE, TENANT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ackgate.persistence.ports import AppendTicket, LedgerWriter
    from ackgate.pipeline.jobs.generate.plan import GeneratePlan, TopicPlan

_BYTES_PER_APPEND: Final = 4 * 1024 * 1024
_ENTRIES_PER_APPEND_MAX: Final = 10_000
_PERSISTS: Final = 24
"""Times that a cursor's state is persisted, spread over its acks: enough for a forecast."""

_LEDGERS_AT_ONCE_MAX: Final = 64
"""Ledgers created, or closed, concurrently. Small ledgers mostly wait for the disk."""

_OWNER_EPOCH: Final = 1


@dataclass(frozen=True, slots=True)
class GeneratedData:
    """Counts of what has been written so far."""

    entries: int
    message_ledgers: int
    entry_bytes: int
    cursors: int


async def write_data(
    directory: Path, plan: GeneratePlan, report: Callable[[str], None]
) -> GeneratedData:
    """Write the planned data into an empty directory. Raises `StorageError`."""
    settings = PersistenceSettings()
    await to_thread(directory.chmod, DIRECTORY_MODE)
    clock = _Clock(plan.start_ms)
    random_bytes = random.Random(plan.seed).randbytes  # noqa: S311 - the same names every time
    async with AsyncExitStack() as stack:
        metadata = await SqliteMetadataStore.open(
            metadata_path(directory), node_bytes_max=settings.metadata_store_max_node_bytes
        )
        stack.push_async_callback(metadata.close)
        bookies = await open_bookies(
            settings.bookie_paths(directory),
            settings=bookie_settings(settings),
            random_bytes=random_bytes,
        )
        client = BookieLedgerClient(
            bookies,
            metadata,
            settings=ledger_client_settings(settings),
            clock_ms=clock,
            random_bytes=random_bytes,
        )
        stack.push_async_callback(client.close)
        await count_up(metadata, RUN_COUNTER_PATH, first=0)
        writing = _Writing(plan, client, metadata, settings, clock)
        done = 0
        for topic in plan.each_topic():
            await writing.topic(topic)
            done += topic.messages
            report(f"{done:,} of {plan.messages:,} messages on {topic.number + 1:,} topics")
        return writing.written


class _Clock:
    """A clock set by hand to the publish times, in ms; a task can have a time of its own."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._of_task: ContextVar[int | None] = ContextVar("now_ms", default=None)

    def set_for_task(self, now_ms: int) -> None:
        """Set the time for the calling task only."""
        self._of_task.set(now_ms)

    def __call__(self) -> int:
        of_task = self._of_task.get()
        return self.now_ms if of_task is None else of_task


class _Writing:
    """Writes the plan's data, one topic after the other."""

    def __init__(
        self,
        plan: GeneratePlan,
        client: BookieLedgerClient,
        metadata: SqliteMetadataStore,
        settings: PersistenceSettings,
        clock: _Clock,
    ) -> None:
        self.written = GeneratedData(0, 0, 0, 0)
        self._plan = plan
        self._client = client
        self._metadata = metadata
        self._settings = settings
        self._clock = clock

    async def topic(self, topic: TopicPlan) -> None:
        """Write the topic's ledgers, then the node that names them, then its cursors."""
        path = topic_path(TENANT, NAMESPACE, topic.name)
        self._clock.now_ms = self._plan.start_ms
        ledgers = MessageLedgers()
        records = await self._ledgers(path, topic)
        for record in records:
            ledgers.open_ledger(record.ledger_id)
            ledgers.close_ledger(record.ledger_id, record.entry_count or 0)
        node = TopicNode(ledgers=tuple(records), owner_epoch=_OWNER_EPOCH)
        await self._metadata.put(path, encode_topic_node(node), expected_version=MUST_NOT_EXIST)
        for number, name in enumerate(self._plan.subscription_names()):
            await self._cursor(cursor_path(path, name), topic, number, ledgers)
        self._count(
            entries=topic.entries,
            message_ledgers=len(records),
            entry_bytes=sum(record.size_bytes for record in records),
            cursors=self._plan.subscriptions,
        )

    async def _ledgers(self, path: str, topic: TopicPlan) -> list[MessageLedgerRecord]:
        """Write the topic's message ledgers and return their records.

        Ledgers are created and closed concurrently. They are filled one after the other, so that
        the same plan always produces the same entries.
        """
        maker, ends = EntryMaker(topic), Semaphore(_LEDGERS_AT_ONCE_MAX)
        ledgers = topic.ledgers()
        under_way = []
        async with TaskGroup() as group:
            while some := list(islice(ledgers, _LEDGERS_AT_ONCE_MAX)):
                writers = await gather(*(self._created(path, first) for first, _ in some))
                for writer, (first, count) in zip(writers, some, strict=True):
                    await ends.acquire()
                    last = await self._filled(writer, maker, first, count)
                    times = self._time_ms(first), self._time_ms(first + count)
                    ending = group.create_task(_ended(writer, last, count, times))
                    ending.add_done_callback(lambda _: ends.release())
                    under_way.append(ending)
        self._clock.now_ms = self._time_ms(topic.entries)
        return [ending.result() for ending in under_way]

    def _time_ms(self, entries: int) -> int:
        """Return the time, in ms, at which this many entries of a topic had been sent."""
        return self._plan.start_ms + entries * self._plan.batch_size // MESSAGES_PER_MS

    async def _created(self, path: str, first: int) -> LedgerWriter:
        self._clock.set_for_task(self._time_ms(first))
        options = ledger_options(path, self._settings)
        return await self._client.create(
            replace(options, custom_metadata={TOPIC_PATH_KEY: path.encode()})
        )

    async def _filled(
        self, writer: LedgerWriter, maker: EntryMaker, first: int, count: int
    ) -> AppendTicket | None:
        """Append a ledger's entries; return the ticket of the last append, not awaited yet."""
        step = self._entries_per_append()
        under_way: AppendTicket | None = None
        for at in range(first, first + count, step):
            entries = maker.make(at, min(step, first + count - at))
            ticket = writer.append(entries)
            if under_way is not None:
                await under_way.durable
            under_way = ticket
        return under_way

    def _entries_per_append(self) -> int:
        entry_bytes = self._plan.batch_size * (self._plan.payload_bytes + 32) + 64
        return max(1, min(_ENTRIES_PER_APPEND_MAX, _BYTES_PER_APPEND // entry_bytes))

    async def _cursor(
        self, path: str, topic: TopicPlan, number: int, ledgers: MessageLedgers
    ) -> None:
        store = await CursorStore.open(
            path=path,
            ledgers=ledgers,
            ledger_client=self._client,
            metadata=self._metadata,
            settings=self._settings,
            batch_index_acks=True,
            owner_epoch=_OWNER_EPOCH,
            clock_ms=self._clock,
            create_at=ledgers.first_position,
        )
        border = topic.entries_acked
        source = np.random.default_rng((self._plan.seed, topic.number, number))
        holes = np.unique(source.integers(0, border, self._plan.holes)) if border else np.empty(0)
        for part in range(_PERSISTS):
            start, stop = border * part // _PERSISTS, border * (part + 1) // _PERSISTS
            acked = np.setdiff1d(np.arange(start, stop), holes, assume_unique=True)
            self._clock.now_ms = self._time_ms(stop)
            _ack(store, topic, ledgers, acked)
            await store.flush()
        store.abandon(OwnershipError("the next broker on this data owns it"))

    def _count(self, **more: int) -> None:
        self.written = replace(
            self.written, **{name: getattr(self.written, name) + n for name, n in more.items()}
        )


async def _ended(
    writer: LedgerWriter, last: AppendTicket | None, count: int, times_ms: tuple[int, int]
) -> MessageLedgerRecord:
    if last is not None:
        await last.durable
    await writer.close()
    return MessageLedgerRecord(writer.ledger_id, count, writer.length_bytes, *times_ms)


def _ack(
    store: CursorStore, topic: TopicPlan, ledgers: MessageLedgers, entries: np.ndarray[Any, Any]
) -> None:
    """Ack these entries, which are numbered through the whole topic."""
    for ledger_id, (first, count) in zip(ledgers.ledger_ids, topic.ledgers(), strict=True):
        start, stop = np.searchsorted(entries, (first, first + count))
        if stop > start:
            store.cursor.ack_many(ledger_id, entries[start:stop] - first)
