"""Planned tasks, read: their entries by way of `storage`, and Arrow of them by the table's reader.

Edge: runs on the executors.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, starmap
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.ports import LedgerEntry
from ackgate.pipeline.readers.ack_state import StateAt, state_of, state_rows
from ackgate.pipeline.readers.cursor_records import record_rows
from ackgate.pipeline.readers.damaged_records import DamagedRecords
from ackgate.pipeline.readers.delayed_index import segment_rows, stored_segments
from ackgate.pipeline.readers.delivery_journal import event_rows
from ackgate.pipeline.readers.ledgers import ledger_rows
from ackgate.pipeline.readers.messages import PublishTimes, read_messages
from ackgate.pipeline.readers.stored_records import StoredRecord, stored_records
from ackgate.pipeline.readers.unpacked_messages import unpacked_rows
from ackgate.pipeline.schema.tables import arrow_schema, table_named
from ackgate.pipeline.storage.bookie_files import OpenBookies
from ackgate.pipeline.storage.cluster_entries import OpenCluster
from ackgate.pipeline.storage.reading import open_places, read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ackgate.persistence.records.recovery import StoredState
    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.schema.tables import Column
    from ackgate.pipeline.source.planning import ReadTask
    from ackgate.pipeline.storage.damage import Damage
    from ackgate.pipeline.storage.ranges import EntryRange
    from ackgate.pipeline.storage.reading import LedgerPlaces, OpenPlaces

    Bookies = LedgerPlaces | OpenPlaces


ROWS_MIN: Final = 2048
"""A batch with fewer is joined to the next. Those of one entry with many rows (`ack_state`) are as large
as they are made: nothing is cut here."""

BYTES_MAX: Final = 4 * 1024 * 1024
"""With payloads or bitmaps few rows can be large: so much is let go, however few they are."""


def put_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order; all batches have one schema."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_MIN or size >= BYTES_MAX:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches() or batches[:1]
    return joined


def damage_rows(damages: Sequence[Damage], columns: Sequence[Column]) -> pa.RecordBatch:
    """These places, as rows of the table. A record that no place is to blame for has no bookie."""
    names = [column.name for column in columns]
    rows = [{name: getattr(damage, name) for name in names} for damage in damages]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(columns))


def read_tasks(
    places: LedgerPlaces, tasks: Iterable[ReadTask], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of these tasks, one after the other, in batches that are worth sending to Spark.

    Raises `AckGateError`.
    """
    with open_places(places) as bookies:
        batches = (read_task(bookies, task, options) for task in tasks)
        yield from put_together(chain.from_iterable(batches))


def read_task(bookies: Bookies, task: ReadTask, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task, with the columns of the options. Raises `AckGateError`."""
    damaged = DamagedRecords("skip" if options.skips_corrupt else "fail")
    return _READERS[options.table.name](bookies, task, options, damaged)


def _entries(
    bookies: Bookies, ranges: Sequence[EntryRange], damaged: DamagedRecords
) -> Iterator[LedgerEntry]:
    for entry_range in ranges:
        for batch in read_range(
            bookies, entry_range, on_corrupt=damaged.on_corrupt, damages=damaged.damages
        ):
            yield from starmap(
                LedgerEntry, zip(batch.entry_ids.tolist(), batch.payloads, strict=True)
            )


def _records(bookies: Bookies, task: ReadTask, damaged: DamagedRecords) -> Iterator[StoredRecord]:
    ledger_id = task.node.cursor_ledger_id if task.node is not None else None
    return stored_records(
        -1 if ledger_id is None else ledger_id,
        _entries(bookies, task.ranges, damaged),
        damaged,
    )


def _record_of_node(task: ReadTask, damaged: DamagedRecords) -> Iterator[StoredRecord]:
    stored = _state_of_node(task, damaged)
    if stored is not None:
        assert task.node is not None
        yield StoredRecord(-1, stored.record, len(task.node.state or b""), 1)


def _state_of_node(task: ReadTask, damaged: DamagedRecords) -> StoredState | None:
    assert task.node is not None
    assert task.subscription is not None
    try:
        return task.node.stored_state()
    except CorruptRecordError as error:
        size = len(task.node.state or b"")
        damaged.meet_node(task.topic, task.subscription, task.node_path, size, error)
        return None


def _read_messages(
    bookies: Bookies, task: ReadTask, options: SourceOptions, damaged: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    times = PublishTimes(options.min_publish_time_ms, options.max_publish_time_ms)
    return chain.from_iterable(
        read_messages(
            bookies,
            task.topic,
            part,
            options.chosen_columns,
            publish_times=times,
            on_corrupt=damaged.on_corrupt,
            damages=damaged.damages,
        )
        for part in task.ranges
    )


def _read_unpacked(
    bookies: Bookies, task: ReadTask, options: SourceOptions, damaged: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    times = PublishTimes(options.min_publish_time_ms, options.max_publish_time_ms)
    return chain.from_iterable(
        unpacked_rows(
            task.topic,
            part.ledger_id,
            _entries(bookies, (part,), damaged),
            options.chosen_columns,
            publish_times=times,
            damaged=damaged,
        )
        for part in task.ranges
    )


def _read_cursor_records(
    bookies: Bookies, task: ReadTask, options: SourceOptions, damaged: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    assert task.node is not None
    assert task.subscription is not None
    for ledger_id, records in (
        (task.node.cursor_ledger_id, _records(bookies, task, damaged)),
        (None, _record_of_node(task, damaged)),
    ):
        yield from record_rows(
            records,
            options.chosen_columns,
            topic=task.topic,
            subscription=task.subscription,
            cursor_ledger_id=ledger_id,
        )


def _read_ack_state(
    bookies: Bookies, task: ReadTask, options: SourceOptions, damaged: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    assert task.node is not None
    assert task.subscription is not None
    at = StateAt(options.version, options.at_ms)
    records = (stored.record for stored in _records(bookies, task, damaged))
    state = state_of(records, _state_of_node(task, damaged), at)
    if state is not None:
        yield from state_rows(
            state, options.chosen_columns, topic=task.topic, subscription=task.subscription
        )
    elif at.version is not None:
        raise CallerError(
            f"subscription {task.subscription!r} of {task.topic}: nothing is stored any more of "
            f"version {at.version} or before"
        )


def _read_delayed_index(
    bookies: Bookies, task: ReadTask, options: SourceOptions, damaged: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    snapshot_id = task.ranges[0].ledger_id
    segments = stored_segments(
        snapshot_id,
        _entries(bookies, task.ranges, damaged),
        damaged,
    )
    return segment_rows(
        segments,
        options.chosen_columns,
        topic=task.topic,
        subscription=task.subscription,
        snapshot_id=snapshot_id,
    )


def _read_delivery_journal(
    bookies: Bookies, task: ReadTask, options: SourceOptions, damaged: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    return chain.from_iterable(
        event_rows(
            part.ledger_id,
            _entries(bookies, (part,), damaged),
            options.chosen_columns,
            damaged,
        )
        for part in task.ranges
    )


def _read_ledgers(
    bookies: Bookies, task: ReadTask, options: SourceOptions, _: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    assert isinstance(bookies, OpenBookies | OpenCluster)
    return ledger_rows(bookies, task.ledgers, options.chosen_columns)


def _read_corrupt(
    bookies: Bookies, task: ReadTask, options: SourceOptions, _: DamagedRecords
) -> Iterator[pa.RecordBatch]:
    """What reading the task for its own table meets; the rows themselves are let go."""
    if task.damages:
        yield damage_rows(task.damages, options.chosen_columns)
        return
    damaged = DamagedRecords("report")
    own = replace(options, table=table_named(task.table), columns=())
    for _rows in _READERS[task.table](bookies, task, own, damaged):
        pass
    if damaged.damages:
        yield damage_rows(damaged.damages, options.chosen_columns)


_READERS: Final[
    dict[
        str,
        Callable[[Bookies, ReadTask, SourceOptions, DamagedRecords], Iterator[pa.RecordBatch]],
    ]
] = {
    "messages": _read_messages,
    "unpacked_messages": _read_unpacked,
    "cursor_records": _read_cursor_records,
    "ack_state": _read_ack_state,
    "delayed_index": _read_delayed_index,
    "delivery_journal": _read_delivery_journal,
    "ledgers": _read_ledgers,
    "corrupt": _read_corrupt,
}
