"""Rows of the table `delivery_journal`: the blocks of one ledger of a topic's journal.

Pure: from the entries, each of them a block by columns, to Arrow without a look at single events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ackgate.errors import CorruptRecordError
from ackgate.persistence.deliveries.columns import KINDS
from ackgate.persistence.deliveries.events import decode_events
from ackgate.pipeline.readers.damaged_records import FAILING
from ackgate.pipeline.schema.tables import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np

    from ackgate.persistence.deliveries.columns import EventColumns, WordColumn
    from ackgate.persistence.ports import LedgerEntry
    from ackgate.pipeline.readers.damaged_records import DamagedRecords
    from ackgate.pipeline.schema.tables import Column

_KIND_NAMES: Final = [kind.value for kind in KINDS]


def event_rows(
    ledger_id: int,
    entries: Iterable[LedgerEntry],
    columns: Sequence[Column],
    damaged: DamagedRecords = FAILING,
) -> Iterator[pa.RecordBatch]:
    """A row for each event, a batch for each block.

    Raises `CorruptRecordError` naming ledger and entry, as `damaged` wants it.
    """
    schema = arrow_schema(columns)
    for entry_id, payload in entries:
        try:
            block = decode_events(payload)
        except CorruptRecordError as error:
            damaged.meet("journal", ledger_id, entry_id, error)
            continue
        arrays = [_array(ledger_id, block, field) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(ledger_id: int, block: EventColumns, field: pa.Field) -> pa.Array:
    name, size = field.name, len(block)
    if name == "journal_ledger_id":
        return pa.repeat(pa.scalar(ledger_id, field.type), size)
    if name == "topic":
        return pa.repeat(pa.scalar(block.topic, field.type), size)
    if name == "owner_epoch":
        return pa.repeat(pa.scalar(block.owner_epoch, field.type), size)
    if name == "sequence":
        return pa.array(block.sequences, type=field.type)
    if name == "event":
        return _words(block.kinds, _KIND_NAMES, field.type)
    if name in block.numbers:
        values, is_set = block.numbers[name].values, block.numbers[name].is_set
        return pa.array(values, mask=~is_set).cast(field.type)
    column: WordColumn[str] | WordColumn[bytes] | None = block.texts.get(name)
    column = block.blobs.get(name) if column is None else column
    if column is None:
        return pa.nulls(size, field.type)
    return _words(column.codes, column.words, field.type)


def _words(
    codes: np.ndarray, words: Sequence[str] | Sequence[bytes], kind: pa.DataType
) -> pa.Array:
    dictionary = pa.array(list(words), type=kind)
    return dictionary.take(pa.array(codes, mask=codes < 0))
