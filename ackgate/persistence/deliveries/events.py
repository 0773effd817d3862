"""Blocks of the delivery journal as bytes: Avro, by columns, in the envelope that all records have.

Pure. Within the columns the events are sorted by kind, stably: entries that were published ascend
by themselves, as do those that were dispatched, and those that were acked; mixed, none would.

    events     published dispatched published acked      kinds, in the order of events
    entry_id   7, 8 | 7 | 7                              first those published, then ...

What is decoded is checked before it is believed: that columns are known, and that there are as many
values and words as announced.

Columns hold whole numbers as the fewest bytes of one width that hold them. Either the numbers
themselves or the steps between them are stored, whichever is narrower, each less the least of them;
little-endian, so that other languages read them as they are.

    numbers  500 501 502 504     less 500:  0 1 2 4       1 byte each
    steps        1   1   2       less 1:    0 0 1         1 byte each
    numbers  7 7 7 7                        -             nothing: the least is all of them

Arithmetic is modulo 2**64, so there is no number that it does not bring back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.errors import CallerError, CorruptRecordError
from ackgate.persistence.deliveries.columns import (
    BLOB_COLUMNS,
    KINDS,
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    EventColumns,
    NumberColumn,
    WordColumn,
)
from ackgate.persistence.records.avro import AvroSchema
from ackgate.persistence.records.envelope import Packing, seal, unseal
from ackgate.persistence.records.values import RecordKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


_WIDTHS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def pack_numbers(numbers: NDArray[np.int64]) -> dict[str, Any]:
    """The fields of an Avro record ``PackedNumbers``."""
    width, least = _width(numbers)
    if width > 1:
        steps = np.diff(numbers)
        step_width, least_step = _width(steps)
        if step_width < width:
            values = _bytes(steps, least_step, step_width)
            return _fields(least_step, step_width, values, first=int(numbers[0]))
    return _fields(least, width, _bytes(numbers, least, width))


def unpack_numbers(fields: Mapping[str, Any], count: int) -> NDArray[np.int64]:
    """Unpack `count` numbers. Raises `CorruptRecordError` when there are not as many."""
    width, first = fields["width"], fields["first"]
    if first is None:
        return _numbers(fields, width, count)
    if count == 0:
        raise CorruptRecordError("numbers begin where none are announced")
    numbers = np.empty(count, dtype=np.int64)
    numbers[0] = first
    numbers[1:] = _numbers(fields, width, count - 1)
    return np.cumsum(numbers, dtype=np.int64)


def _fields(least: int, width: int, values: bytes, first: int | None = None) -> dict[str, Any]:
    return {"least": least, "width": width, "first": first, "values": values}


def _width(numbers: NDArray[np.int64]) -> tuple[int, int]:
    if not numbers.size:
        return 0, 0
    least = int(numbers.min())
    span = int(numbers.max()) - least
    return (span.bit_length() + 7) // 8 if span < 1 << 16 else 4 if span < 1 << 32 else 8, least


def _bytes(numbers: NDArray[np.int64], least: int, width: int) -> bytes:
    if not width:
        return b""
    return (numbers - np.int64(least)).astype(_WIDTHS[width]).tobytes()


def _numbers(fields: Mapping[str, Any], width: int, count: int) -> NDArray[np.int64]:
    least, values = fields["least"], fields["values"]
    if width not in _WIDTHS and width != 0:
        raise CorruptRecordError(f"numbers of {width} bytes each cannot be")
    if len(values) != count * width:
        raise CorruptRecordError(f"{len(values)} bytes are not {count} numbers of {width} bytes")
    if not width:
        return np.full(count, least, dtype=np.int64)
    wide: NDArray[np.uint64] = np.frombuffer(values, dtype=_WIDTHS[width]).astype(np.uint64)
    return wide.view(np.int64) + np.int64(least)


EVENTS_MAX: Final = 1_000_000
"""Most events of one block. A header that promises more is not believed."""

_SCHEMA: Final = AvroSchema("delivery_events")
_SEQUENCE_MAX: Final = 2**63 - 1
_ALL_WORDS: Final = frozenset((*TEXT_COLUMNS, *BLOB_COLUMNS))
_CODES: Final = {kind.value: code for code, kind in enumerate(KINDS)}


def encode_events(columns: EventColumns, packing: Packing) -> bytes:
    """The bytes of a block. Raises `CallerError` for text that is not valid Unicode."""
    if not 0 < len(columns) <= EVENTS_MAX:
        raise CallerError(f"a block holds 1 to {EVENTS_MAX} events, not {len(columns)}")
    order = np.argsort(columns.kinds, kind="stable")
    words = [
        _word_fields(name, column.codes[order], _texts_as_bytes(column.words))
        for name, column in columns.texts.items()
    ] + [
        _word_fields(name, column.codes[order], column.words)
        for name, column in columns.blobs.items()
    ]
    fields = {
        "topic": columns.topic,
        "owner_epoch": columns.owner_epoch,
        "first_sequence": columns.first_sequence,
        "event_count": len(columns),
        "kinds": [kind.value for kind in KINDS],
        "events": pack_numbers(columns.kinds),
        "numbers": [
            {
                "name": name,
                "is_set": _bits(column.is_set[order]),
                "values": pack_numbers(column.values[order][column.is_set[order]]),
            }
            for name, column in columns.numbers.items()
        ],
        "words": words,
    }
    return seal(RecordKind.DELIVERY_EVENTS, _SCHEMA.encode(fields), packing)


def decode_events(payload: bytes) -> EventColumns:
    """Decode a block. Raises `CorruptRecordError`, `UnknownFormatError`."""
    record_kind, body = unseal(payload)
    if record_kind != RecordKind.DELIVERY_EVENTS:
        raise CorruptRecordError(f"record kind {record_kind} is no block of a delivery journal")
    fields = _SCHEMA.decode(body)
    count = fields["event_count"]
    if not 0 < count <= EVENTS_MAX:
        raise CorruptRecordError(f"a block of {count} events cannot be")
    if not 0 <= fields["first_sequence"] <= _SEQUENCE_MAX - count:
        raise CorruptRecordError(f"a block cannot begin with event {fields['first_sequence']}")
    stored_kinds = unpack_numbers(fields["events"], count)
    places = np.empty(count, dtype=np.intp)
    places[np.argsort(stored_kinds, kind="stable")] = np.arange(count)
    words = {each["name"]: each for each in fields["words"]}
    numbers = {each["name"]: each for each in fields["numbers"]}
    if not (words.keys() <= _ALL_WORDS and numbers.keys() <= set(NUMBER_COLUMNS)):
        raise CorruptRecordError(f"columns {sorted((*words, *numbers))} are not all known")
    return EventColumns(
        topic=fields["topic"],
        owner_epoch=fields["owner_epoch"],
        first_sequence=fields["first_sequence"],
        kinds=_kinds(fields["kinds"], stored_kinds),
        numbers={name: _number_column(each, places) for name, each in numbers.items()},
        texts={
            name: _text_column(each, places) for name, each in words.items() if name in TEXT_COLUMNS
        },
        blobs={
            name: _word_column(each, places) for name, each in words.items() if name in BLOB_COLUMNS
        },
    )


# ---------------------------------------------------------------------- to Avro


def _bits(is_set: NDArray[np.bool_]) -> bytes:
    return b"" if is_set.all() else np.packbits(is_set, bitorder="little").tobytes()


def _texts_as_bytes(words: tuple[str, ...]) -> tuple[bytes, ...]:
    try:
        return tuple(word.encode() for word in words)
    except UnicodeEncodeError as error:
        raise CallerError(f"not valid Unicode: {error.object!r}") from None


def _word_fields(name: str, codes: NDArray[np.int64], words: tuple[bytes, ...]) -> dict[str, Any]:
    is_set = codes >= 0
    return {
        "name": name,
        "is_set": _bits(is_set),
        "codes": pack_numbers(codes[is_set]),
        "word_count": len(words),
        "lengths": pack_numbers(np.fromiter(map(len, words), np.int64, len(words))),
        "words": b"".join(words),
    }


# -------------------------------------------------------------------- from Avro


def _kinds(names: Sequence[str], codes: NDArray[np.int64]) -> NDArray[np.int64]:
    unknown = [name for name in names if name not in _CODES]
    if unknown:
        raise CorruptRecordError(f"events {', '.join(unknown)} are not known")
    ours = np.array([_CODES[name] for name in names], dtype=np.int64)
    if codes.min() < 0 or codes.max() >= ours.size:
        raise CorruptRecordError(f"an event of kind {codes.max()} of {ours.size}")
    return ours[codes]


def _is_set(stored: bytes, count: int) -> NDArray[np.bool_]:
    if not stored:
        return np.ones(count, dtype=np.bool_)
    if len(stored) != (count + 7) // 8:
        raise CorruptRecordError(f"{len(stored)} bytes are not the bits of {count} events")
    bits = np.unpackbits(np.frombuffer(stored, np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)


def _number_column(fields: Mapping[str, Any], places: NDArray[np.intp]) -> NumberColumn:
    is_set = _is_set(fields["is_set"], places.size)
    values = np.zeros(places.size, dtype=np.int64)
    values[is_set] = unpack_numbers(fields["values"], int(is_set.sum()))
    return NumberColumn(values[places], is_set[places])


def _word_column(fields: Mapping[str, Any], places: NDArray[np.intp]) -> WordColumn[bytes]:
    is_set = _is_set(fields["is_set"], places.size)
    codes = np.full(places.size, -1, dtype=np.int64)
    codes[is_set] = unpack_numbers(fields["codes"], int(is_set.sum()))
    word_count, words = fields["word_count"], fields["words"]
    if not 0 <= word_count <= places.size:
        raise CorruptRecordError(f"{places.size} events cannot have {word_count} words")
    if codes[is_set].size and not 0 <= codes[is_set].min() <= codes.max() < word_count:
        raise CorruptRecordError(f"word {codes.max()} of {word_count}")
    lengths = unpack_numbers(fields["lengths"], word_count)
    # Each by itself too, so that a sum that overflowed is not taken for right.
    if word_count and not 0 <= lengths.min() <= lengths.max() <= len(words):
        raise CorruptRecordError(f"a word of {lengths.max()} bytes in {len(words)}")
    ends = np.cumsum(lengths).tolist()
    if (ends[-1] if ends else 0) != len(words):
        raise CorruptRecordError(f"{len(words)} bytes are not the words that were announced")
    starts = (0, *ends[:-1])
    cut = tuple(words[start:end] for start, end in zip(starts, ends, strict=False))
    return WordColumn(codes[places], cut)


def _text_column(fields: Mapping[str, Any], places: NDArray[np.intp]) -> WordColumn[str]:
    column = _word_column(fields, places)
    try:
        return WordColumn(column.codes, tuple(word.decode() for word in column.words))
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"a word is no text: {error}") from None
