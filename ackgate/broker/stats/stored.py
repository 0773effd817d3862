"""The statistics of a topic's subscriptions, read from a data directory, broker or not.

Edge. Everything is opened read-only: no lock is taken, nothing is fenced, and a running broker does
not notice. What is told is what a broker that starts now would find; acks that a running one has in
memory only are not in it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from ackgate.broker.names import TopicName
from ackgate.broker.partition_counts import read_partition_count
from ackgate.broker.stats.ack_state import AckState
from ackgate.broker.stats.answer import StatsAnswer, SubscriptionAnswer
from ackgate.broker.stats.ledger_acks import ack_picture
from ackgate.cursor.managed_cursor import ManagedCursor
from ackgate.cursor.message_ledgers import MessageLedgers
from ackgate.errors import CallerError, NoSuchLedgerError, NoSuchNodeError
from ackgate.persistence.hidden_cursors import HIDDEN_CURSORS
from ackgate.persistence.offline import read_cursor
from ackgate.persistence.offline_storage import opened_storage, storage_places
from ackgate.persistence.outcome import RecoveryReport
from ackgate.persistence.paths import cursor_path, name_of_node, topic_path
from ackgate.persistence.topic_node import decode_topic_node

if TYPE_CHECKING:
    from pathlib import Path

    from ackgate.persistence.offline import StoredCursorView
    from ackgate.persistence.ports import LedgerClient, MetadataStore
    from ackgate.persistence.topic_node import TopicNode


def stored_stats(
    topic: str,
    *,
    data_directory: Path | None = None,
    subscription: str | None = None,
    cells: int = 64,
    config: Path | None = None,
    metadata_url: str | None = None,
    bookies: str | None = None,
) -> StatsAnswer:
    """Read the subscriptions of a topic, or one; from Python as from the command line.

    `config`: the broker's broker.conf, where it says where bookies and metadata are; `metadata_url`
    and `bookies` (directories with commas between) say so themselves. Raises `CallerError` (no such
    topic or subscription), `ConfigurationError` (nothing there), `StorageError`, `CorruptRecordError`.
    """
    return asyncio.run(
        read_stored_stats(
            topic,
            data_directory=data_directory,
            subscription=subscription,
            cells=cells,
            config=config,
            metadata_url=metadata_url,
            bookies=bookies,
        )
    )


async def read_stored_stats(
    topic: str,
    *,
    data_directory: Path | None = None,
    subscription: str | None = None,
    cells: int = 64,
    config: Path | None = None,
    metadata_url: str | None = None,
    bookies: str | None = None,
) -> StatsAnswer:
    """The same where a loop runs already."""
    name = TopicName.parse(topic).require_persistent()
    places = storage_places(
        data_directory=data_directory, config=config, metadata_url=metadata_url, bookies=bookies
    )
    async with opened_storage(places) as opened:
        storage = _Storage(opened.metadata, opened.client, places.password)
        answers = [
            answer
            for part in await storage.parts(name)
            for answer in await storage.subscriptions(part, subscription, cells)
        ]
    return StatsAnswer(
        topic=str(name),
        source=metadata_url or (places.metadata_url if places.is_shared else str(data_directory)),
        is_live=False,
        taken_ms=time.time_ns() // 1_000_000,
        subscriptions=tuple(answers),
    )


class _Read(NamedTuple):
    """A cursor as it is stored, and how long reading it took."""

    view: StoredCursorView
    duration_ms: float


class _Storage:
    """Metadata and ledgers, open for reading."""

    def __init__(self, metadata: MetadataStore, client: LedgerClient, password: bytes) -> None:
        self._metadata = metadata
        self._client = client
        self._password = password

    async def parts(self, name: TopicName) -> list[TopicName]:
        """The topic, or its partitions."""
        count = await read_partition_count(self._metadata, name)
        return [name.partition(index) for index in range(count)] or [name]

    async def subscriptions(
        self, name: TopicName, wanted: str | None, cells: int
    ) -> list[SubscriptionAnswer]:
        """Subscriptions of one topic or partition."""
        path = topic_path(name.tenant, name.namespace, name.local_name)
        stored = await self._metadata.get(path)
        if stored is None:
            raise CallerError(f"Topic {name} not found")
        present = map(name_of_node, await self._metadata.children(path))
        names = [wanted] if wanted is not None else [s for s in present if s not in HIDDEN_CURSORS]
        reads = [await self._read(name, path, subscription) for subscription in names]
        # After the cursors: what they have acked was written before.
        node = decode_topic_node(stored.value, path=path)
        ledgers = await self._message_ledgers(node, [read.view for read in reads])
        return [
            _answer(name, subscription, read, ledgers, cells)
            for subscription, read in zip(names, reads, strict=True)
        ]

    async def _read(self, topic: TopicName, path: str, subscription: str) -> _Read:
        began = time.perf_counter()
        try:
            view = await read_cursor(
                cursor_path(path, subscription),
                ledger_client=self._client,
                metadata=self._metadata,
                password=self._password,
            )
        except NoSuchNodeError:
            raise CallerError(f"Subscription {subscription} not found for topic {topic}") from None
        return _Read(view, (time.perf_counter() - began) * 1000)

    async def _message_ledgers(
        self, node: TopicNode, views: list[StoredCursorView]
    ) -> MessageLedgers:
        """The topic's ledgers; of the open one at least what a cursor has acked."""
        ledgers = MessageLedgers()
        for record in node.ledgers:
            ledgers.open_ledger(record.ledger_id)
            entries = record.entry_count
            if entries is None:
                entries = await self._entries_found(record.ledger_id)
                entries = max([entries, *(_entries_acked(v, record.ledger_id) for v in views)])
            ledgers.close_ledger(record.ledger_id, entries)
        return ledgers

    async def _entries_found(self, ledger_id: int) -> int:
        try:
            reader = await self._client.open_without_recovery(ledger_id, password=self._password)
        except NoSuchLedgerError:
            return 0
        last_found = await reader.last_entry_found()
        await reader.close()
        return last_found + 1


def _entries_acked(view: StoredCursorView, ledger_id: int) -> int:
    """Entries that the ledger must have, since the last of them is acked."""
    mark_delete, bitmap = view.snapshot.mark_delete, view.snapshot.acked.get(ledger_id)
    passed = mark_delete.entry_id + 1 if mark_delete.ledger_id == ledger_id else 0
    return max(passed, bitmap.max() + 1 if bitmap else 0)


def _answer(
    topic: TopicName, subscription: str, read: _Read, ledgers: MessageLedgers, cells: int
) -> SubscriptionAnswer:
    counts = [(ledger_id, ledgers.entry_count(ledger_id) or 0) for ledger_id in ledgers.ledger_ids]
    snapshot = read.view.snapshot
    return SubscriptionAnswer(
        topic=str(topic),
        subscription=subscription,
        ack_state=_ack_state(read, ledgers),
        picture=ack_picture(counts, snapshot.mark_delete, snapshot.acked, cells),
        stats=None,
        written_ms=read.view.written_ms,
    )


def _ack_state(read: _Read, ledgers: MessageLedgers) -> AckState:
    view, snapshot = read.view, read.view.snapshot
    cursor, dropped = ManagedCursor.from_snapshot(ledgers, snapshot)
    return AckState(
        ranges_live=view.ranges_in_memory,
        ranges_persisted=snapshot.range_count,
        ranges_max=None,
        entries_dropped=view.entries_dropped,
        batch_indexes_dropped=view.batch_indexes_in_memory - len(snapshot.unacked_indexes),
        cursor=cursor.statistics(),
        gate=None,
        store=None,
        recovery=RecoveryReport(
            source=view.source,
            version=snapshot.version,
            mark_delete=snapshot.mark_delete,
            ranges=snapshot.range_count,
            records_applied=view.records_applied,
            cursor_ledger_id=view.cursor_ledger_id,
            torn_records=view.torn_records,
            lost=view.lost,
            dropped=dropped,
            duration_ms=round(read.duration_ms, 3),
        ),
        forecast=None,
    )
