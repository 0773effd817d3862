"""Builds many message entries at once, in the format of a producer that sends checksums.

Pure. Entries of one shape (equal field widths in bytes) are the rows of one matrix, and each field
is a block of columns::

    | 0e 01 | crc | size | 0a .. name | 10 seq | 18 time | 32 .. key | ... | payload |
    | 0e 01 | crc | size | 0a .. name | 10 seq | 18 time | 32 .. key | ... | payload |

Only the checksum is computed entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import google_crc32c
import numpy as np

from ackgate.persistence.messages.frame import HEADER_BYTES, MAGIC
from ackgate.pipeline.jobs.generate.plan import MESSAGES_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ackgate.pipeline.jobs.generate.plan import TopicPlan

Numbers: TypeAlias = "NDArray[np.int64]"
Columns: TypeAlias = "NDArray[np.uint8] | bytes"
"""A field: a matrix with one row of bytes per entry, or bytes that all entries share."""

_KEY_DIGITS: Final = 9
_PROPERTY_DIGITS: Final = 6
_CRC_START: Final = len(MAGIC)
_CRC_STOP: Final = _CRC_START + 4

# Field numbers of MessageMetadata and of SingleMessageMetadata, with their wire types.
_PRODUCER_NAME: Final = b"\x0a"
_SEQUENCE_ID: Final = b"\x10"
_PUBLISH_TIME: Final = b"\x18"
_PROPERTIES: Final = b"\x22"
_PARTITION_KEY: Final = b"\x32"
_UNCOMPRESSED_SIZE: Final = b"\x48"
_MESSAGES_IN_BATCH: Final = b"\x58"
_EVENT_TIME: Final = b"\x60"
_DELIVER_AT_TIME: Final = b"\x98\x01"
_SINGLE_PROPERTIES: Final = b"\x0a"
_SINGLE_KEY: Final = b"\x12"
_SINGLE_PAYLOAD_SIZE: Final = b"\x18"
_SINGLE_EVENT_TIME: Final = b"\x28"


class EntryMaker:
    """Makes the entries of one topic, in order.

    The result depends on the seed and on how the calls of `make` divide the entries.
    """

    def __init__(self, topic: TopicPlan) -> None:
        self._topic = topic
        self._random = np.random.default_rng((topic.plan.seed, topic.number))
        self._producer = f"generator-{topic.number}".encode()

    def make(self, first: int, count: int) -> list[bytes]:
        """Return `count` encoded entries, beginning with the topic's entry number `first`."""
        size, messages = self._topic.plan.batch_size, self._topic.messages
        left_over = messages - (first + count - 1) * size
        if size > 1 and left_over < size:
            return [
                *self._make(first, count - 1, size),
                *self._make(first + count - 1, 1, left_over),
            ]
        return self._make(first, count, size)

    def _make(self, first: int, count: int, batch_size: int) -> list[bytes]:
        plan = self._topic.plan
        sequence_ids = np.arange(first, first + count, dtype=np.int64) * plan.batch_size
        publish_ms = plan.start_ms + sequence_ids // MESSAGES_PER_MS
        deliver_at_ms = np.zeros(count, dtype=np.int64)
        if plan.delayed_share:
            delays = self._random.integers(1, plan.delay_seconds_max * 1000 + 1, count)
            is_delayed = self._random.random(count) < plan.delayed_share
            deliver_at_ms[is_delayed] = (publish_ms + delays)[is_delayed]
        keys = self._random.integers(0, plan.keys, count) if plan.keys else None
        event_ms = np.zeros(count, dtype=np.int64)
        if plan.event_seconds_max:
            event_ms = publish_ms - self._random.integers(0, plan.event_seconds_max * 1000, count)
        properties = self._random.integers(0, 10**_PROPERTY_DIGITS, (count, plan.properties))
        entries = np.empty(count, dtype=object)
        for rows in _shapes(sequence_ids, publish_ms, deliver_at_ms, event_ms):
            metadata: list[Columns] = [
                _PRODUCER_NAME,
                _varint(len(self._producer)),
                self._producer,
                _SEQUENCE_ID,
                varint_columns(sequence_ids[rows]),
                _PUBLISH_TIME,
                varint_columns(publish_ms[rows]),
            ]
            own = _Own()
            if keys is not None:
                own.key = [
                    _varint(4 + _KEY_DIGITS),
                    b"key-",
                    digit_columns(keys[rows], _KEY_DIGITS),
                ]
            if plan.event_seconds_max:
                own.event_time = varint_columns(event_ms[rows])
            own.properties = [
                _property(number, values[rows]) for number, values in enumerate(properties.T)
            ]
            if batch_size == 1:
                metadata += own.fields(_PROPERTIES, _PARTITION_KEY, _EVENT_TIME)
            elif own.key:
                metadata += [_PARTITION_KEY, *own.key]
            payload = self._payload(len(rows), batch_size, own)
            if batch_size > 1:
                metadata += [_UNCOMPRESSED_SIZE, _varint(_width(payload))]
                metadata += [_MESSAGES_IN_BATCH, _varint(batch_size)]
            if deliver_at_ms[rows[0]]:
                metadata += [_DELIVER_AT_TIME, varint_columns(deliver_at_ms[rows])]
            entries[rows] = _sealed(len(rows), metadata, payload)
        return list(entries)

    def _payload(self, count: int, batch_size: int, own: _Own) -> list[Columns]:
        """Return random payloads; in a batch, each message follows its own metadata."""
        size = self._topic.plan.payload_bytes
        content = self._random.integers(0, 256, (batch_size, count, size), dtype=np.uint8)
        if batch_size == 1:
            return [content[0]]
        metadata = [
            *own.fields(_SINGLE_PROPERTIES, _SINGLE_KEY, _SINGLE_EVENT_TIME),
            _SINGLE_PAYLOAD_SIZE,
            _varint(size),
        ]
        metadata_bytes = _width(metadata).to_bytes(4, "big")
        return [part for message in content for part in (metadata_bytes, *metadata, message)]


@dataclass(slots=True)
class _Own:
    """Key, event time and properties, for the entry's metadata or for each message of a batch."""

    key: list[Columns] = field(default_factory=list)
    event_time: Columns = b""
    properties: list[list[Columns]] = field(default_factory=list)

    def fields(self, of_property: bytes, of_key: bytes, of_event_time: bytes) -> list[Columns]:
        """Return the present fields with these tags, in the order of Protobuf's own library."""
        found = [part for each in self.properties for part in (of_property, *each)]
        found += [of_key, *self.key] if self.key else []
        return found + ([of_event_time, self.event_time] if _width([self.event_time]) else [])


def _property(number: int, values: Numbers) -> list[Columns]:
    """Return an encoded KeyValue, from its length on; the caller writes the tag."""
    name = f"property-{number}".encode()
    pair: list[Columns] = [b"\x0a", _varint(len(name)), name]
    pair += [b"\x12", _varint(_PROPERTY_DIGITS), digit_columns(values, _PROPERTY_DIGITS)]
    return [_varint(_width(pair)), *pair]


def varint_columns(numbers: Numbers) -> NDArray[np.uint8]:
    """Encode numbers as Protobuf varints, one row each. All must have the same width in bytes."""
    width = int(varint_widths(numbers[:1])[0])
    shifts = np.arange(width, dtype=np.int64) * 7
    columns = (numbers[:, None] >> shifts) & 0x7F
    columns[:, :-1] |= 0x80
    return columns.astype(np.uint8)


def varint_widths(numbers: Numbers) -> Numbers:
    """Return the width in bytes of each number as a varint."""
    borders = np.left_shift(np.int64(1), np.arange(7, 63, 7, dtype=np.int64))
    return np.searchsorted(borders, numbers, side="right") + 1


def digit_columns(numbers: Numbers, width: int) -> NDArray[np.uint8]:
    """Return each number as one row of ASCII decimal digits, padded with zeros to `width`."""
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _shapes(*fields: Numbers) -> list[NDArray[np.intp]]:
    """Group entry indexes by shape: equal varint width in each field; 0 is a width of its own."""
    code = np.zeros(len(fields[0]), dtype=np.int64)
    for numbers in fields:
        code = code * 16 + np.where(numbers == 0, 0, varint_widths(numbers))
    return [np.flatnonzero(code == shape) for shape in np.unique(code)]


def _sealed(count: int, metadata: Sequence[Columns], payload: Sequence[Columns]) -> list[bytes]:
    """Assemble `count` entries from metadata and payload, each with header and checksum."""
    columns = [MAGIC, bytes(4), _width(metadata).to_bytes(4, "big"), *metadata, *payload]
    width = _width(columns)
    matrix = np.empty((count, width), dtype=np.uint8)
    at = 0
    for column in columns:
        if isinstance(column, bytes):
            matrix[:, at : at + len(column)] = np.frombuffer(column, dtype=np.uint8)
            at += len(column)
        else:
            matrix[:, at : at + column.shape[1]] = column
            at += column.shape[1]
    content, checksum = matrix.tobytes(), google_crc32c.value
    stops = range(width, count * width + 1, width)
    checksums = [checksum(content[stop - width + _CRC_STOP : stop]) for stop in stops]
    matrix[:, _CRC_START:_CRC_STOP] = (
        np.array(checksums, dtype=">u4").view(np.uint8).reshape(count, 4)
    )
    content = matrix.tobytes()
    return [content[stop - width : stop] for stop in stops]


def _width(columns: Sequence[Columns]) -> int:
    return sum(len(column) if isinstance(column, bytes) else column.shape[1] for column in columns)


def _varint(number: int) -> bytes:
    return varint_columns(np.array([number], dtype=np.int64)).tobytes()


assert HEADER_BYTES == _CRC_STOP + 4
