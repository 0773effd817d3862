"""The tables of a real Pulsar cluster: planned on the driver, read on the executors, both read-only.

Edge: `ackgate.pulsar` opens ZooKeeper and bookies. A task names entries of a ledger, or cursors, or ledgers;
large ledgers are cut, small tasks put together. How it differs from our own tables:

- a state of a cursor has no version and no time. Its ledger's id stands for the owner's epoch, its entry
  (from 1) for the version. Times are spread evenly from when the ledger was begun to now;
- `cursor_records` has at most `STATES_MAX` states of a cursor, spread over its ledger;
- there is no delivery journal: that table is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ackgate.config.load import load_settings
from ackgate.cursor import Position, SnapshotSegment
from ackgate.errors import CallerError, CorruptRecordError, NoSuchLedgerError
from ackgate.persistence.buckets.codec import NumberedSegment
from ackgate.persistence.messages.unpack import without_broker_metadata
from ackgate.persistence.records.recovery import StoredState
from ackgate.persistence.records.values import SnapshotRecord
from ackgate.pipeline.readers.ack_state import state_rows
from ackgate.pipeline.readers.cursor_records import record_rows
from ackgate.pipeline.readers.damaged_records import DamagedRecords
from ackgate.pipeline.readers.delayed_index import segment_rows
from ackgate.pipeline.readers.ledgers import owned_fragment_rows, rows_batch
from ackgate.pipeline.readers.messages import PublishTimes, message_rows
from ackgate.pipeline.readers.stored_records import StoredRecord
from ackgate.pipeline.readers.unpacked_messages import unpacked_rows
from ackgate.pipeline.schema.options import near_matches
from ackgate.pipeline.schema.tables import arrow_schema
from ackgate.pipeline.source.planning import grouped, merged
from ackgate.pipeline.source.stream_offsets import LedgerEnd
from ackgate.pipeline.storage.entry_columns import columns_of_payloads
from ackgate.pulsar import PulsarCluster, PulsarTopic, ValueDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from ackgate.persistence.ports import LedgerEntry
    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.schema.tables import Column
    from ackgate.pulsar import CursorView, LedgerView, PersistedAcks, StoredLedger, TopicView

ENTRIES_PER_TASK: Final = 20_000
"""Entries of one ledger that a task reads. An entry may be a batch of a thousand messages."""

TASKS_TOGETHER: Final = 64
"""Small ledgers, or cursors, that one task of Spark reads."""

ENTRIES_TOGETHER: Final = 20_000
STATES_MAX: Final = 256
"""States of one cursor's ledger in `cursor_records`: each is the whole state, up to 5 MB."""

BATCH_ENTRIES: Final = 1000
_OF_CURSORS: Final = frozenset({"ack_state", "cursor_records", "cursors", "delayed_index"})
_ROWS: Final = 5_000


@dataclass(frozen=True, slots=True)
class PulsarTask:
    """What one task reads. Picklable."""

    topic: PulsarTopic
    subscription: str | None = None
    ledger_id: int = -1
    first_entry_id: int = 0
    last_entry_id: int = -1
    """-1: no entries, or all."""

    @property
    def entries(self) -> int:
        return max(1, self.last_entry_id - self.first_entry_id + 1)


# ------------------------------------------------------------------------------------------- the driver


def plan_pulsar(options: SourceOptions) -> list[tuple[PulsarTask, ...]]:
    """Tasks in groups, each for one task of Spark. Reads no messages.

    Raises `ConfigurationError`, `CallerError`, `StorageError`, `CorruptRecordError`.
    """
    with asyncio.Runner() as runner:
        return runner.run(_plan(options))


def check_pulsar(options: SourceOptions) -> None:
    """Look for the cluster, and the topics and the subscription that the options name. Raises likewise."""

    async def check() -> None:
        async with await _connected(options) as cluster:
            for topic in await _topics(cluster, options, is_check=True):
                wanted = options.subscription
                names = await cluster.subscriptions(topic) if wanted is not None else []
                if wanted is not None and wanted not in names:
                    near = near_matches(wanted, names)
                    raise CallerError(f"{topic} has no subscription {wanted!r}{near}")

    with asyncio.Runner() as runner:
        runner.run(check())


async def _connected(options: SourceOptions) -> PulsarCluster:
    config = Path(options.config) if options.config else None
    settings = load_settings(config, is_serving=False).settings.persistence
    assert options.pulsar is not None
    return await PulsarCluster.connect_with(settings, options.pulsar, bookkeeper=options.bookkeeper)


async def _topics(
    cluster: PulsarCluster, options: SourceOptions, *, is_check: bool = False
) -> list[PulsarTopic]:
    if not options.topics:
        return [] if is_check else [topic async for topic in cluster.topics()]
    return [part for name in options.topics for part in await cluster.partitions(name)]


async def _plan(options: SourceOptions) -> list[tuple[PulsarTask, ...]]:
    async with await _connected(options) as cluster:
        match options.table.name:
            case "messages" | "unpacked_messages":
                tasks = [
                    task
                    for topic in await _topics(cluster, options)
                    for task in await _of_messages(cluster, topic, options)
                ]
            case "ledgers":
                tasks = [PulsarTask(topic) for topic in await _topics(cluster, options)]
                return [tuple(tasks)] if options.topics else [()]
            case "delivery_journal":
                return []
            case _:
                wanted = options.subscription
                tasks = [
                    PulsarTask(topic, name)
                    for topic in await _topics(cluster, options)
                    for name in await cluster.subscriptions(topic)
                    if wanted in (None, name)
                ]
    if options.subscription is not None and not tasks and options.table.name in _OF_CURSORS:
        raise CallerError(f"there is no subscription {options.subscription!r} in {options.pulsar}")
    return together_tasks(tasks)


async def _of_messages(
    cluster: PulsarCluster, topic: PulsarTopic, options: SourceOptions
) -> list[PulsarTask]:
    return [
        task
        for ledger_id, entries in _on_bookies(await cluster.topic(topic), options).items()
        for task in entry_tasks(topic, ledger_id, 0, entries - 1, options)
    ]


def _on_bookies(view: TopicView, options: SourceOptions) -> dict[int, int]:
    """Entries of each ledger that can be read. Raises `CallerError` for another, if it is wanted."""
    counts = dict(view.entry_counts)
    for ledger in view.node.ledgers:
        if ledger.is_on_bookies:
            continue
        if options.wants_ledger(ledger.ledger_id) and not options.skips_offloaded:
            raise CallerError(
                f"{view.topic}: ledger {ledger.ledger_id} lies in tiered storage only, which is not "
                "read; option onOffloaded=skip leaves it out, ledgerIds chooses others"
            )
        del counts[ledger.ledger_id]
    return counts


def entry_tasks(
    topic: PulsarTopic, ledger_id: int, first: int, last: int, options: SourceOptions
) -> list[PulsarTask]:
    """Entries first..last of a ledger, as far as the options want them."""
    if not options.wants_ledger(ledger_id):
        return []
    return [
        PulsarTask(topic, None, ledger_id, at, min(last, wanted.last, at + ENTRIES_PER_TASK - 1))
        for wanted in merged(options.entry_ids)
        for at in range(max(first, wanted.first), min(last, wanted.last) + 1, ENTRIES_PER_TASK)
    ]


def confirmed_ends(options: SourceOptions) -> dict[str, list[LedgerEnd]]:
    """The ledgers of each topic, in order, and up to where each is confirmed. Raises likewise."""

    async def ends() -> dict[str, list[LedgerEnd]]:
        async with await _connected(options) as cluster:
            views = [
                await cluster.topic(topic, only_confirmed=True)
                for topic in await _topics(cluster, options)
            ]
        return {
            str(view.topic): [
                LedgerEnd(i, entries - 1) for i, entries in _on_bookies(view, options).items()
            ]
            for view in views
        }

    with asyncio.Runner() as runner:
        return runner.run(ends())


def together_tasks(tasks: Iterable[PulsarTask]) -> list[tuple[PulsarTask, ...]]:
    """Put small neighbours into one task of Spark."""
    size = attrgetter("entries")
    return list(grouped(tasks, size, size_max=ENTRIES_TOGETHER, count_max=TASKS_TOGETHER))


# ---------------------------------------------------------------------------------------- the executors


def read_pulsar(tasks: Sequence[PulsarTask], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of these tasks. Raises `AckGateError`."""
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        cluster = runner.run(_connected(options))
        stack.callback(lambda: runner.run(cluster.close()))
        batches = _read(cluster, tasks, options)
        while True:
            batch = runner.run(_next(batches))
            if batch is None:
                return
            yield batch


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _read(
    cluster: PulsarCluster, tasks: Sequence[PulsarTask], options: SourceOptions
) -> AsyncIterator[pa.RecordBatch]:
    columns = options.chosen_columns
    name = options.table.name
    if name == "ledgers":
        async for batch in _ledgers(cluster, {str(t.topic) for t in tasks}, options, columns):
            yield batch
        return
    damaged = DamagedRecords("skip" if options.skips_corrupt else "fail")
    for task in tasks:
        match name:
            case "messages":
                batches = _messages(cluster, task, options, columns, damaged)
            case "unpacked_messages":
                batches = _unpacked(cluster, task, options, columns, damaged)
            case "delayed_index":
                batches = _delayed(cluster, task, columns)
            case _:
                batches = _of_cursor(cluster, task, name, columns, damaged)
        async for batch in batches:
            yield batch


async def _entries(cluster: PulsarCluster, task: PulsarTask) -> AsyncIterator[list[LedgerEntry]]:
    group: list[LedgerEntry] = []
    try:
        async for entry in cluster.entries(
            task.ledger_id, first=task.first_entry_id, last=task.last_entry_id
        ):
            group.append(entry)
            if len(group) == BATCH_ENTRIES:
                yield group
                group = []
    except NoSuchLedgerError as error:
        raise NoSuchLedgerError(
            f"{task.topic}: ledger {task.ledger_id} was deleted since this read was planned: its broker "
            "has trimmed it, or it is lost"
        ) from error
    if group:
        yield group


async def _messages(
    cluster: PulsarCluster,
    task: PulsarTask,
    options: SourceOptions,
    columns: Sequence[Column],
    damaged: DamagedRecords,
) -> AsyncIterator[pa.RecordBatch]:
    times = PublishTimes(options.min_publish_time_ms, options.max_publish_time_ms)
    async for group in _entries(cluster, task):
        payloads = [
            without_broker_metadata(e.payload, Position(task.ledger_id, e.entry_id)).entry
            for e in group
        ]
        entry_ids = np.array([e.entry_id for e in group], dtype=np.int64)
        entries = columns_of_payloads(entry_ids, payloads)
        batch, unparsed = message_rows(
            str(task.topic), task.ledger_id, entries, columns, publish_times=times
        )
        for row, why in sorted(unparsed.items()):
            damaged.meet("message", task.ledger_id, group[row].entry_id, CorruptRecordError(why))
        if batch.num_rows:
            yield batch


async def _unpacked(
    cluster: PulsarCluster,
    task: PulsarTask,
    options: SourceOptions,
    columns: Sequence[Column],
    damaged: DamagedRecords,
) -> AsyncIterator[pa.RecordBatch]:
    times = PublishTimes(options.min_publish_time_ms, options.max_publish_time_ms)
    decoder = None
    if any(column.name == "value" for column in columns):
        decoder = ValueDecoder(await cluster.schemas(task.topic))
    async for group in _entries(cluster, task):
        for batch in unpacked_rows(
            str(task.topic),
            task.ledger_id,
            group,
            columns,
            publish_times=times,
            damaged=damaged,
            decode=None if decoder is None else partial(_decoded, decoder),
        ):
            yield batch


def _decoded(decoder: ValueDecoder, message: Any) -> Any:  # noqa: ANN401 - any value of a schema
    own = message.metadata if message.single is None else message.single
    version = message.metadata.schema_version
    return decoder.decode(message.payload, version, key=own.partition_key)


async def _delayed(
    cluster: PulsarCluster, task: PulsarTask, columns: Sequence[Column]
) -> AsyncIterator[pa.RecordBatch]:
    assert task.subscription is not None
    [cursor] = await cluster.cursors(task.topic, [task.subscription])
    for place in cursor.buckets:
        async for number, rows in cluster.delayed_rows(place):
            if rows.due_ms.size:
                for batch in segment_rows(
                    [NumberedSegment(number, SnapshotSegment(*rows))],
                    columns,
                    topic=str(task.topic),
                    subscription=task.subscription,
                    snapshot_id=place.snapshot_ledger_id,
                ):
                    yield batch


# --------------------------------------------------------------------------------------------- cursors


async def _of_cursor(
    cluster: PulsarCluster,
    task: PulsarTask,
    table: str,
    columns: Sequence[Column],
    damaged: DamagedRecords,
) -> AsyncIterator[pa.RecordBatch]:
    assert task.subscription is not None
    try:
        [cursor] = await cluster.cursors(task.topic, [task.subscription])
    except CorruptRecordError as error:
        damaged.meet("cursor", -1, -1, error)
        return
    topic, subscription = str(task.topic), task.subscription
    now_ms = time.time_ns() // 1_000_000
    record = partial(_record, cursor, now_ms=now_ms)
    if table == "cursors":
        row = _cursor_row(cursor)
        yield pa.RecordBatch.from_pylist(
            [{column.name: row[column.name] for column in columns}], schema=arrow_schema(columns)
        )
    elif table == "ack_state":
        newest = record(cursor.written_entries - 1, cursor.acks)
        state = StoredState(newest, records_applied=1)
        for batch in state_rows(state, columns, topic=topic, subscription=subscription):
            yield batch
    else:
        is_in_ledger = cursor.source == "ledger"
        states = [each async for each in cluster.history(cursor, states_max=STATES_MAX)]
        for entry_id, acks in states if is_in_ledger else [(-1, cursor.acks)]:
            stored = StoredRecord(entry_id, record(entry_id, acks), acks.bytes, 1)
            for batch in record_rows(
                [stored],
                columns,
                topic=topic,
                subscription=subscription,
                cursor_ledger_id=cursor.cursor_ledger_id if is_in_ledger else None,
            ):
                yield batch


def _record(
    cursor: CursorView, entry_id: int, acks: PersistedAcks, *, now_ms: int
) -> SnapshotRecord:
    """The state as one of ours: see the top of the file for what stands for its version and time."""
    written_ms = cursor.changed_ms
    if cursor.begun_ms is not None and cursor.written_entries:
        passed = now_ms - cursor.begun_ms
        written_ms = cursor.begun_ms + passed * (entry_id + 1) // cursor.written_entries
    snapshot = acks.snapshot(version=entry_id + 1)
    epoch = cursor.cursor_ledger_id or 0
    partly = len(acks.unacked_indexes)
    return SnapshotRecord(epoch, written_ms, snapshot, snapshot.range_count, 0, partly)


def _cursor_row(cursor: CursorView) -> dict[str, Any]:
    figures, acks = cursor.statistics, cursor.acks
    return {
        "topic": str(cursor.topic),
        "subscription": cursor.subscription,
        "source": cursor.source,
        "mark_delete_ledger_id": acks.mark_delete.ledger_id,
        "mark_delete_entry_id": acks.mark_delete.entry_id,
        "range_count": acks.range_count,
        "hole_count": figures.hole_count,
        "acked_entries": acks.acked_count,
        "partly_acked_count": len(acks.unacked_indexes),
        "backlog_entries": figures.backlog_entries,
        "cursor_ledger_id": cursor.cursor_ledger_id,
        "written_entries": cursor.written_entries,
        "begun_ms": cursor.begun_ms,
        "changed_ms": cursor.changed_ms,
        "record_bytes": acks.bytes,
        "buckets": len(cursor.buckets),
        "properties": list(cursor.properties.items()),
        "trouble": cursor.trouble,
    }


# --------------------------------------------------------------------------------------------- ledgers


async def _ledgers(
    cluster: PulsarCluster,
    topics: set[str],
    options: SourceOptions,
    columns: Sequence[Column],
) -> AsyncIterator[pa.RecordBatch]:
    schema = arrow_schema(columns)
    names = {PulsarTopic.parse(topic).managed_ledger for topic in topics}
    rows: list[dict[str, Any]] = []
    async for view in cluster.ledgers():
        owner = view.owner
        if not options.wants_ledger(view.metadata.ledger_id):
            continue
        if (names and owner.managed_ledger not in names) or options.subscription not in (
            None,
            owner.cursor,
        ):
            continue
        rows += _fragments(view)
        if len(rows) >= _ROWS:
            yield rows_batch(rows, schema)
            rows = []
    if options.subscription is None:
        async for topic, ledger in _offloaded(cluster, topics):
            if options.wants_ledger(ledger.ledger_id):
                rows.append(_offloaded_row(topic, ledger))
    if rows:
        yield rows_batch(rows, schema)


async def _offloaded(
    cluster: PulsarCluster, names: set[str]
) -> AsyncIterator[tuple[PulsarTopic, StoredLedger]]:
    """Ledgers of messages that BookKeeper does not have any more, of these topics or of all."""

    async def named() -> AsyncIterator[PulsarTopic]:
        for name in sorted(names):
            yield PulsarTopic.parse(name)

    async for topic in named() if names else cluster.topics():
        with contextlib.suppress(CallerError):  # deleted meanwhile
            for ledger in (await cluster.node(topic)).ledgers:
                if not ledger.is_on_bookies:
                    yield topic, ledger


def _offloaded_row(topic: PulsarTopic, ledger: StoredLedger) -> dict[str, Any]:
    entries = ledger.entries or 0
    return {
        "ledger_id": ledger.ledger_id,
        "role": "messages",
        "topic": str(topic),
        "subscription": None,
        "state": "OFFLOADED",
        "created_ms": None,
        "last_entry_id": entries - 1,
        "length_bytes": ledger.bytes,
        "digest_type": None,
        "write_quorum": None,
        "ack_quorum": None,
        "fragment": 0,
        "first_entry_id": 0,
        "end_entry_id": entries,
        "ensemble": [],
        "files": [],
    }


def _fragments(view: LedgerView) -> Iterator[dict[str, Any]]:
    owner = view.owner
    return owned_fragment_rows(
        view.metadata,
        role=owner.kind,
        topic=None if owner.topic is None else str(owner.topic),
        subscription=owner.cursor or None,
    )
