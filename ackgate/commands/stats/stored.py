"""Reads the statistics of a topic's subscriptions from storage, whether a broker runs or not.

Edge. Everything is opened read-only: no lock is taken, nothing is fenced, and a running broker does
not notice. The answer is what a broker that starts now would find; acks that a running one has in
memory only are not in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.cluster import read_partition_count
from ackgate.broker.stats import (
    AckState,
    OverviewAnswer,
    OverviewRow,
    Severity,
    ack_picture,
    counted_severities,
    judged,
    page_of_rows,
    why,
)
from ackgate.broker.wire import InvalidTopicNameError, TopicName
from ackgate.commands.stats.answer import StatsAnswer, SubscriptionAnswer
from ackgate.cursor import ManagedCursor, MessageLedgers
from ackgate.errors import (
    AckGateError,
    CallerError,
    CorruptRecordError,
    MetadataStoreError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StorageError,
)
from ackgate.persistence.cursors.loading import read_cursor
from ackgate.persistence.nodes.paths import (
    EMBEDDED_NAMESPACE,
    HIDDEN_CURSORS,
    MANAGED_LEDGERS,
    cursor_path,
    embedded_topic_path,
    name_of_node,
    topic_path,
)
from ackgate.persistence.nodes.topic_node import decode_topic_node
from ackgate.persistence.offline_storage import opened_ledgers, storage_places
from ackgate.persistence.records.outcome import RecoveryReport

if TYPE_CHECKING:
    from pathlib import Path

    from ackgate.broker.stats import OverviewQuery
    from ackgate.persistence.cursors.loading import StoredCursorView
    from ackgate.persistence.nodes.topic_node import TopicNode
    from ackgate.persistence.offline_storage import StoragePlaces
    from ackgate.persistence.ports import LedgerClient, MetadataStore

_READS_MAX: Final = 5
"""How often a cursor is read while its topic's ledgers change."""

_UNREADABLE: Final = (CorruptRecordError, StorageError)

_TOPIC_DEPTH: Final = 4
"""Path pieces below `MANAGED_LEDGERS`: tenant, namespace, ``persistent``, topic."""


def stored_stats(
    topic: str,
    *,
    data_directory: Path | None = None,
    subscription: str | None = None,
    cells: int = 64,
    config: Path | None = None,
    metadata_url: str | None = None,
    bookies: str | None = None,
    bookkeeper: str | None = None,
) -> StatsAnswer:
    """Read the statistics of a topic's subscriptions, or of one of them.

    A topic of a host that embeds cursors goes by the host's name for it.

    Metadata and ledgers are in the data directory, unless `config` (the broker's broker.conf) names
    other places, or `metadata_url`, `bookies` (directories with commas between) and `bookkeeper`
    (the URI of a BookKeeper cluster) do. `cells`: into how many slices a ledger's picture is cut.
    Subscriptions, partitions and open ledgers that cannot be read are in the answer's `missing`; the
    counts of such a ledger end at its last ack. Raises `CallerError` (no such topic or subscription),
    `ConfigurationError` (nothing there), `StorageError`, `CorruptRecordError` (nothing that was asked
    for can be read).
    """
    places = storage_places(
        data_directory=data_directory,
        config=config,
        metadata_url=metadata_url,
        bookies=bookies,
        bookkeeper=bookkeeper,
    )
    return asyncio.run(_read_stats(topic, places, subscription, cells))


async def _read_stats(
    topic: str, places: StoragePlaces, subscription: str | None, cells: int
) -> StatsAnswer:
    async with opened_ledgers(places) as opened:
        storage = _Storage(opened.metadata, opened.client, places.password)
        found = await storage.topic(topic)
        answers: list[SubscriptionAnswer] = []
        failures: dict[str, AckGateError] = {}
        for part in await storage.parts(found):
            where = "" if part == found else f"{part.name} "
            try:
                read = await storage.subscriptions(part, subscription, cells)
            except _UNREADABLE as error:
                if part == found or isinstance(error, MetadataStoreError):
                    raise
                failures[part.name] = error
            else:
                answers += read.answers
                failures |= {f"{where}{name}": error for name, error in read.failures.items()}
        if subscription is not None and not answers:
            for failure in failures.values():
                raise failure
        knows_messages = not found.is_embedded or await storage.keeps_messages(found)
    return StatsAnswer(
        topic=found.name,
        source=places.source,
        is_live=False,
        taken_ms=time.time_ns() // 1_000_000,
        subscriptions=tuple(answers),
        is_embedded=found.is_embedded,
        knows_messages=knows_messages,
        missing=tuple(f"{name}: {error}" for name, error in failures.items()),
    )


def stored_overview(
    query: OverviewQuery,
    *,
    data_directory: Path | None = None,
    config: Path | None = None,
    metadata_url: str | None = None,
    bookies: str | None = None,
    bookkeeper: str | None = None,
) -> OverviewAnswer:
    """Read all subscriptions in storage, in the form of a broker's overview.

    Places and errors are those of `stored_stats`.
    """
    places = storage_places(
        data_directory=data_directory,
        config=config,
        metadata_url=metadata_url,
        bookies=bookies,
        bookkeeper=bookkeeper,
    )
    return asyncio.run(_read_overview(query, places))


async def _read_overview(query: OverviewQuery, places: StoragePlaces) -> OverviewAnswer:
    now_ms = time.time_ns() // 1_000_000
    async with opened_ledgers(places) as opened:
        storage = _Storage(opened.metadata, opened.client, places.password)
        rows: list[OverviewRow] = []
        missing: list[str] = []
        for topic in await storage.topics():
            try:
                read = await storage.subscriptions(topic, None, 1)
            except NoSuchNodeError:
                continue  # deleted meanwhile
            except AckGateError as error:
                missing.append(f"{topic.name}: {error}")
                continue
            rows += [_stored_row(answer, now_ms) for answer in read.answers]
            missing += [f"{topic.name} {name}: {error}" for name, error in read.failures.items()]
    rows.sort(key=lambda row: (row.topic, row.subscription))
    found = page_of_rows(rows, query)
    return OverviewAnswer(
        source=places.source,
        is_live=False,
        taken_ms=now_ms,
        total=len(rows),
        matching=found.matching,
        severities=counted_severities(rows),
        offset=query.offset,
        rows=tuple(replace(row, why=why(row, None, now_ms)) for row in found.rows),
        missing=tuple(missing),
    )


def _stored_row(answer: SubscriptionAnswer, now_ms: int) -> OverviewRow:
    """An overview row from stored state. Figures that live in memory only are None."""
    state = answer.ack_state
    return judged(
        OverviewRow(
            topic=answer.topic,
            subscription=answer.subscription,
            severity=Severity.FINE,
            type=None,
            is_gate_enabled=None,
            gate_reasons={},
            shut_since_ms=None,
            shuts_in_seconds=None,
            ranges=state.ranges_live,
            ranges_max=None,
            backlog=state.cursor.backlog_entries,
            undelivered=None,
            unacked_messages=None,
            comes_again=state.entries_dropped + state.batch_indexes_dropped,
            is_on_fallback=None,
            failing_since_ms=None,
            last_failure=None,
            read_failure=None,
            delayed=None,
            nacks=None,
            next_due_ms=None,
            consumers=None,
            consumers_with_room=None,
            is_blocked_on_unacked=None,
            last_sent_ms=None,
            last_acked_ms=None,
        ),
        now_ms,
    )


class _Topic(NamedTuple):
    """A topic or partition, and the path of its node."""

    name: str
    path: str
    is_embedded: bool = False
    """Whether it is a topic of a host that embeds cursors."""

    @classmethod
    def of(cls, name: TopicName) -> _Topic:
        return cls(str(name), topic_path(name.tenant, name.namespace, name.local_name))


class _Read(NamedTuple):
    """A stored cursor, and how long it took to read."""

    view: StoredCursorView
    duration_ms: float


class _Found(NamedTuple):
    """The subscriptions of one topic or partition."""

    answers: list[SubscriptionAnswer]
    failures: dict[str, AckGateError]
    """Subscriptions and open message ledgers that cannot be read, and why."""


class _Ledgers(NamedTuple):
    """The message ledgers of one topic or partition, as each of its cursors sees them."""

    of_cursors: list[MessageLedgers]
    failures: dict[str, AckGateError]


class _Storage:
    """Metadata and ledgers, opened for reading."""

    def __init__(self, metadata: MetadataStore, client: LedgerClient, password: bytes) -> None:
        self._metadata = metadata
        self._client = client
        self._password = password

    async def topic(self, text: str) -> _Topic:
        """Find the topic that a user names: a broker's, else one of a host that embeds cursors.

        Raises `InvalidTopicNameError`, `NotAllowedError`.
        """
        namespace = "/".join(EMBEDDED_NAMESPACE)
        hosts_name = text.removeprefix("persistent://").removeprefix(f"{namespace}/")
        path = embedded_topic_path(hosts_name) if hosts_name else ""
        if path and await self._is_hosts(path):
            with contextlib.suppress(InvalidTopicNameError):
                brokers = _Topic.of(TopicName.parse(text))
                if brokers.path != path and await self._metadata.get(brokers.path) is not None:
                    return brokers
            return _Topic(f"persistent://{namespace}/{hosts_name}", path, is_embedded=True)
        return _Topic.of(TopicName.parse(text).require_persistent())

    async def topics(self) -> list[_Topic]:
        """All topics and partitions, including those of embedding hosts."""
        paths = [MANAGED_LEDGERS]
        for _ in range(_TOPIC_DEPTH):
            paths = [
                f"{path}/{node}" for path in paths for node in await self._metadata.children(path)
            ]
        topics = []
        for path in paths:
            tenant, namespace, _, name = map(name_of_node, path.split("/")[-_TOPIC_DEPTH:])
            is_embedded = (tenant, namespace) == EMBEDDED_NAMESPACE
            topics.append(_Topic(f"persistent://{tenant}/{namespace}/{name}", path, is_embedded))
        return topics

    async def _is_hosts(self, path: str) -> bool:
        stored = await self._metadata.get(path)
        return stored is not None

    async def keeps_messages(self, topic: _Topic) -> bool:
        """Whether the topic's messages are stored here, and not with an embedding host."""
        stored = await self._metadata.get(topic.path)
        return stored is not None and bool(stored.value)

    async def parts(self, topic: _Topic) -> list[_Topic]:
        """The partitions of a topic; the topic itself if it has none."""
        if topic.is_embedded:
            return [topic]
        name = TopicName.parse(topic.name)
        count = await read_partition_count(self._metadata, name)
        return [_Topic.of(name.partition(index)) for index in range(count)] or [topic]

    async def subscriptions(self, topic: _Topic, wanted: str | None, cells: int) -> _Found:
        """Read the subscriptions of one topic or partition.

        Raises `CallerError` if one is not there (`NoSuchNodeError`: the topic).
        """
        stored = await self._node(topic)
        present = map(name_of_node, await self._metadata.children(topic.path))
        names = [wanted] if wanted is not None else [s for s in present if s not in HIDDEN_CURSORS]
        reads: dict[str, _Read | None] = dict.fromkeys(names)
        failures: dict[str, AckGateError] = {}
        answers: dict[str, SubscriptionAnswer] = {}
        for _ in range(_READS_MAX):
            for name in names:
                try:
                    reads[name] = await self._read(topic.path, name)
                except NoSuchNodeError:
                    if wanted is not None:  # else it was deleted meanwhile
                        raise CallerError(
                            f"Subscription {wanted} not found for topic {topic.name}"
                        ) from None
                    reads[name] = None
                except _UNREADABLE as error:
                    if isinstance(error, MetadataStoreError):
                        raise
                    reads[name], failures[name] = None, error
            # Read after the cursors, so that it includes every message that they have acked.
            before, stored = stored, await self._node(topic)
            there = {name: read for name, read in reads.items() if read is not None}
            known = await self._ledgers(topic, stored, [read.view for read in there.values()])
            answers = {
                name: _answer(topic.name, name, read, ledgers, cells)
                for (name, read), ledgers in zip(there.items(), known.of_cursors, strict=True)
            }
            # A ledger that was begun or trimmed between two reads makes acks seem impossible.
            names = [] if stored == before else [n for n, a in answers.items() if not _fits(a)]
            if not names:
                break
        return _Found(list(answers.values()), failures | known.failures)

    async def _node(self, topic: _Topic) -> bytes:
        """The topic's node. Raises `NoSuchNodeError`."""
        stored = await self._metadata.get(topic.path)
        if stored is None:
            raise NoSuchNodeError(f"Topic {topic.name} not found")
        return stored.value

    async def _ledgers(
        self, topic: _Topic, stored: bytes, views: list[StoredCursorView]
    ) -> _Ledgers:
        if not stored:  # an embedding host keeps the messages itself
            return _Ledgers(list(map(_ledgers_of_a_host, views)), {})
        node = decode_topic_node(stored, path=topic.path)
        ledgers, failures = await self._message_ledgers(node, views)
        return _Ledgers([ledgers] * len(views), failures)

    async def _read(self, path: str, subscription: str) -> _Read:
        began = time.perf_counter()
        view = await read_cursor(
            cursor_path(path, subscription),
            ledger_client=self._client,
            metadata=self._metadata,
            password=self._password,
        )
        return _Read(view, (time.perf_counter() - began) * 1000)

    async def _message_ledgers(
        self, node: TopicNode, views: list[StoredCursorView]
    ) -> tuple[MessageLedgers, dict[str, AckGateError]]:
        """The topic's ledgers, and why some cannot be read.

        An open one reaches at least to the last entry that a cursor has acked.
        """
        ledgers = MessageLedgers()
        failures: dict[str, AckGateError] = {}
        for record in node.ledgers:
            ledgers.open_ledger(record.ledger_id)
            entries = record.entry_count
            if entries is None:
                try:
                    entries = await self._entries_found(record.ledger_id)
                except MetadataStoreError:
                    raise
                except _UNREADABLE as error:
                    entries = 0
                    failures[f"message ledger {record.ledger_id} after its last ack"] = error
                entries = max([entries, *(_entries_acked(v, record.ledger_id) for v in views)])
            ledgers.close_ledger(record.ledger_id, entries)
        return ledgers, failures

    async def _entries_found(self, ledger_id: int) -> int:
        try:
            reader = await self._client.open_without_recovery(ledger_id, password=self._password)
        except NoSuchLedgerError:
            return 0
        try:
            return await reader.last_entry_found() + 1
        finally:
            await reader.close()


def _entries_acked(view: StoredCursorView, ledger_id: int) -> int:
    """How many entries the ledger must have, judging by the last one that is acked or partly acked."""
    snapshot = view.snapshot
    places = [snapshot.mark_delete, *snapshot.unacked_indexes]
    acked = [place.entry_id for place in places if place.ledger_id == ledger_id]
    if bitmap := snapshot.acked.get(ledger_id):
        acked.append(bitmap.max())
    return max(acked, default=-1) + 1


def _ledgers_of_a_host(view: StoredCursorView) -> MessageLedgers:
    """The message ledgers that a cursor's state mentions, each up to the last entry mentioned."""
    snapshot = view.snapshot
    places = [snapshot.mark_delete, *snapshot.unacked_indexes]
    ids = {*snapshot.acked, *(place.ledger_id for place in places if place.ledger_id >= 0)}
    ledgers = MessageLedgers()
    for ledger_id in sorted(ids):
        ledgers.open_ledger(ledger_id)
        ledgers.close_ledger(ledger_id, _entries_acked(view, ledger_id))
    return ledgers


def _fits(answer: SubscriptionAnswer) -> bool:
    """Whether each stored ack is of an entry that exists."""
    recovery = answer.ack_state.recovery
    return recovery is None or recovery.dropped is None or recovery.dropped.is_clean


def _answer(
    topic: str, subscription: str, read: _Read, ledgers: MessageLedgers, cells: int
) -> SubscriptionAnswer:
    snapshot = read.view.snapshot
    return SubscriptionAnswer(
        topic=topic,
        subscription=subscription,
        ack_state=_ack_state(read, ledgers),
        picture=ack_picture(
            ledgers.entry_counts.items(), snapshot.mark_delete, snapshot.acked, cells
        ),
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
            damaged_records=view.damaged_records,
            versions_lost=view.versions_lost,
        ),
        forecast=None,
    )
