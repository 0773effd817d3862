"""Rows of the table `unpacked_messages`: single messages, with payloads as applications sent them.

Pure: from stored entries to Arrow, message by message.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from ackgate.cursor import Position
from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.frame import signed64
from ackgate.persistence.messages.unpack import unpacked, without_broker_metadata
from ackgate.pipeline.schema.tables import COMPRESSIONS, arrow_schema, record_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ackgate.persistence.messages.unpack import BrokerEntry, UnpackedMessage
    from ackgate.persistence.ports import LedgerEntry
    from ackgate.persistence.proto.message_pb2 import MessageMetadata, SingleMessageMetadata
    from ackgate.pipeline.readers.damaged_records import DamagedRecords
    from ackgate.pipeline.readers.messages import PublishTimes
    from ackgate.pipeline.schema.tables import Column

    Decode = Callable[[UnpackedMessage], Any]
    """The value of a message by its topic's schema; raises `ValueError` for one that does not fit."""

    Field = Callable[["_Row"], Any]

BATCH_ROWS: Final = 4096


def unpacked_rows(
    topic: str,
    ledger_id: int,
    entries: Iterable[LedgerEntry],
    columns: Sequence[Column],
    *,
    publish_times: PublishTimes,
    damaged: DamagedRecords,
    decode: Decode | None = None,
) -> Iterator[pa.RecordBatch]:
    """A row for each message. Raises `CorruptRecordError`, as `damaged` wants it."""
    schema = arrow_schema(columns)
    fields = _fields(topic, ledger_id, decode)
    rows: list[_Row] = []
    for entry_id, payload in entries:
        position = Position(ledger_id, entry_id)
        try:
            stored = without_broker_metadata(payload, position)
            messages = list(unpacked(stored.entry, position))
        except CorruptRecordError as error:
            damaged.meet("message", ledger_id, entry_id, error)
            continue
        if messages and publish_times.takes(messages[0].metadata.publish_time):
            rows += [
                _Row(entry_id, stored, each, each.single or each.metadata) for each in messages
            ]
        if len(rows) >= BATCH_ROWS:
            yield _batch(rows, schema, fields)
            rows = []
    if rows:
        yield _batch(rows, schema, fields)


class _Row(NamedTuple):
    """A message on its way to Arrow."""

    entry_id: int
    stored: BrokerEntry
    message: UnpackedMessage
    own: MessageMetadata | SingleMessageMetadata
    """The metadata that have its key, its properties and its time."""


def _batch(rows: list[_Row], schema: pa.Schema, fields: Mapping[str, Field]) -> pa.RecordBatch:
    arrays = [pa.array(list(map(fields[field.name], rows)), type=field.type) for field in schema]
    return record_batch(arrays, schema, rows=len(rows))


def _fields(topic: str, ledger_id: int, decode: Decode | None) -> dict[str, Field]:
    """What makes each column of a row."""
    return {
        "topic": lambda _: topic,
        "ledger_id": lambda _: ledger_id,
        "entry_id": lambda row: row.entry_id,
        "batch_index": lambda row: row.message.batch_index,
        "producer": lambda row: row.message.metadata.producer_name,
        "sequence_id": _sequence_id,
        "publish_time_ms": lambda row: row.message.metadata.publish_time,
        "broker_time_ms": lambda row: row.stored.broker_time_ms,
        "event_time_ms": lambda row: row.own.event_time or None,
        "key": lambda row: row.own.partition_key if _has_key(row.own) else None,
        "ordering_key": lambda row: (
            row.own.ordering_key if row.own.HasField("ordering_key") else None
        ),
        "properties": lambda row: [(each.key, each.value) for each in row.own.properties],
        "deliver_at_ms": lambda row: max(0, row.message.metadata.deliver_at_time) or None,
        "chunk_id": lambda row: row.message.metadata.chunk_id if _is_chunk(row) else None,
        "chunk_count": lambda row: (
            row.message.metadata.num_chunks_from_msg if _is_chunk(row) else None
        ),
        "compression": lambda row: COMPRESSIONS[row.message.metadata.compression],
        "is_encrypted": lambda row: bool(row.message.metadata.encryption_keys),
        "schema_version": lambda row: schema_version_of(row.message),
        "payload_bytes": lambda row: (
            None if row.message.payload is None else len(row.message.payload)
        ),
        "payload": lambda row: row.message.payload,
        "value": lambda row: _value(row.message, decode),
    }


def _has_key(own: MessageMetadata | SingleMessageMetadata) -> bool:
    return own.HasField("partition_key") and not own.null_partition_key


def _is_chunk(row: _Row) -> bool:
    return row.message.metadata.num_chunks_from_msg > 1


def _sequence_id(row: _Row) -> int:
    own = row.own
    if own.HasField("sequence_id"):
        return signed64(own.sequence_id)
    return signed64(row.message.metadata.sequence_id + (row.message.batch_index or 0))


def _value(message: UnpackedMessage, decode: Decode | None) -> str | None:
    is_whole = not message.metadata.encryption_keys and message.metadata.num_chunks_from_msg <= 1
    if decode is None or message.payload is None or not is_whole:
        return None
    try:
        return json.dumps(decode(message), ensure_ascii=False, default=_text_of)
    except (ValueError, TypeError, EOFError, IndexError, KeyError):
        return None  # its producer had another schema


def _text_of(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def schema_version_of(message: UnpackedMessage) -> int | None:
    """The number of its schema; None: it was sent without."""
    version = message.metadata.schema_version
    return int.from_bytes(version[:8], "big", signed=True) if version else None
