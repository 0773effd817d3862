"""What the metadata of many message entries says, as arrays: all entries' fields are read side by side.

Pure. Step k reads the k-th protobuf field of every entry at once; as a rule it is the same field in
nearly all of them, so a step is a handful of operations on whole arrays::

    entry 0    producer_name | sequence_id | publish_time | partition_key
    entry 1    producer_name | sequence_id | publish_time | properties | properties
    entry 2    producer_name | sequence_id | publish_time |
    step             0             1              2             3            4

Whatever is out of the ordinary in an entry (groups, a field of another wire type, bytes that run out)
sends that entry, and only that, to the protobuf library, which then decides. Texts are not copied:
they are spans of the entries' joined bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from ackgate.errors import CallerError
from ackgate.persistence.messages.frame import (
    HEADER_BYTES,
    MAGIC,
    NO_MAGIC_HEADER_BYTES,
    metadata_span,
    signed64,
)
from ackgate.persistence.proto.message_pb2 import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.uint8]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; groups, which are obsolete, have others."""

_FIELD_MAX: Final = 63
"""Fields above are out of the ordinary: there is none yet, and garbage has many."""

_FAR: Final = 1 << 62

PROPERTIES: Final = "properties"

_FIELDS: Final = MessageMetadata.DESCRIPTOR.fields_by_name
_TEXT_TYPES: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_SINGLE: Final = {name: one for name, one in _FIELDS.items() if not one.is_repeated}
_ENCRYPTION_KEYS: Final = _FIELDS["encryption_keys"].number
"""A field of nested messages that nobody asks for; the library checks that they can be parsed."""

_WIRE_TYPES: Final = {
    one.number: BYTES if one.type in (*_TEXT_TYPES, FieldDescriptor.TYPE_MESSAGE) else VARINT
    for one in _FIELDS.values()
}
PADDING: Final = bytes(16)
"""Padding after the last entry, so that a number cut off there is read, and found too long."""


class Numbers(NamedTuple):
    """A field that is a number: integers, booleans, enumerations."""

    values: Ints
    """The field's default where it is absent. Unsigned 64-bit numbers as Java has them: signed."""
    is_present: Flags


class Spans(NamedTuple):
    """A field of bytes or text: where it lies in the joined bytes."""

    starts: Ints
    stops: Ints
    is_present: Flags


class Properties(NamedTuple):
    """All entries' properties in a row; those of entry i are ``offsets[i]:offsets[i + 1]``.

    In the order of the message; a key that comes twice counts as it comes last.
    """

    offsets: Ints
    keys: Spans
    values: Spans


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The metadata fields of many entries, one array a field."""

    data: bytes
    """What spans are spans of."""
    entry_starts: Ints
    """Where each entry begins in it."""
    entry_bytes: Ints
    payload_starts: Ints
    """Where each payload begins in it; it ends with the entry."""
    numbers: Mapping[str, Numbers]
    texts: Mapping[str, Spans]
    properties: Properties | None
    damaged: Mapping[int, str] = field(default_factory=dict)
    """Entries whose metadata cannot be parsed, and why. Their fields are absent."""

    def text(self, name: str) -> list[bytes | None]:
        """A text field of each entry; None where it is absent."""
        starts, stops, is_present = self.texts[name]
        data = self.data
        return [
            data[start:stop] if present else None
            for start, stop, present in zip(
                starts.tolist(), stops.tolist(), is_present.tolist(), strict=True
            )
        ]


def decode_message_spans(
    data: bytes, starts: Ints, sizes: Ints, names: Collection[str]
) -> MessageColumns:
    """Read these fields (names as in ``message.proto``) of the metadata of all entries.

    The entries are spans of `data`, which ends with `PADDING`. Raises `CallerError` for a name that is
    neither `PROPERTIES` nor a field that is not repeated.
    """
    for name in names:
        if name != PROPERTIES and name not in _SINGLE:
            raise CallerError(f"message metadata has no single field {name!r}")
    reading = _Reading(data, starts, sizes, names)
    reading.walk()
    return reading.columns()


class _Reading:
    """One call's arrays, while they are being filled."""

    def __init__(self, data: bytes, starts: Ints, sizes: Ints, names: Collection[str]) -> None:
        count = len(starts)
        self._sizes = sizes
        self._starts = starts
        self._data = data
        self._array = np.frombuffer(self._data, np.uint8)
        self._names = tuple(names)
        self._values = {n: _defaults(n, count) for n in names if n in _SINGLE and not _is_text(n)}
        self._texts = {n: _no_spans(count) for n in names if n in _SINGLE and _is_text(n)}
        self._is_odd = np.zeros(count, np.bool_)
        self._damaged: dict[int, str] = {}
        self._pairs: list[tuple[Ints, Ints, Ints]] = []
        self._extra: list[bytes] = []
        self._end = len(self._data)
        self._parsed: dict[int, MessageMetadata] = {}

    def walk(self) -> None:
        """Read all fields, then give the odd entries to the library."""
        starts, stops = self._metadata_spans()
        self._payload_starts = stops
        by_number = {_SINGLE[name].number: name for name in self._names if name in _SINGLE}
        properties = _FIELDS[PROPERTIES].number if PROPERTIES in self._names else 0
        everywhere = np.flatnonzero(~self._is_odd)
        for step in _fields_of(self._array, everywhere, starts[everywhere], stops[everywhere]):
            number, rows = step.number, step.rows
            is_odd = number in (0, _ENCRYPTION_KEYS)
            if is_odd or step.wire_type != _WIRE_TYPES.get(number, step.wire_type):
                self._is_odd[rows] = True
            elif number in by_number:
                self._keep(by_number[number], step)
            elif number == _FIELDS[PROPERTIES].number:
                self._pairs.append((rows, step.values, step.stops))
        self._keys, self._pair_values = self._walk_pairs(is_kept=bool(properties))
        for row in np.flatnonzero(self._is_odd).tolist():
            self._ask_library(row)

    def _metadata_spans(self) -> tuple[Ints, Ints]:
        """As `metadata_span`, of all. Entries too short for it, or for their metadata, are odd."""
        sizes, starts, data = self._sizes, self._starts, self._array
        has_magic = (data[starts] == MAGIC[0]) & (data[starts + 1] == MAGIC[1])
        begin = starts + np.where(has_magic, HEADER_BYTES, NO_MAGIC_HEADER_BYTES)
        length = np.zeros(len(starts), np.int64)
        # An entry may end before its header does; the bytes after it are read then, and not used.
        for i in range(4):
            length = length << 8 | data[begin - 4 + i]
        stop = begin + length
        self._is_odd |= stop > starts + sizes
        return begin, stop

    def _keep(self, name: str, step: _Step) -> None:
        rows = step.rows
        if name in self._texts:
            spans = self._texts[name]
            spans.starts[rows], spans.stops[rows] = step.values, step.stops
            spans.is_present[rows] = True
            return
        values = _as_type(step.values, _SINGLE[name].type)
        known = _SINGLE[name].enum_type
        if known is not None:
            self._is_odd[rows[~np.isin(values, [v.number for v in known.values])]] = True
        self._values[name].values[rows] = values
        self._values[name].is_present[rows] = True

    # --------------------------------------------------------------------------------- properties

    def _walk_pairs(self, *, is_kept: bool) -> tuple[Spans, Spans]:
        """Look into all properties; an odd one makes its entry odd."""
        if not self._pairs:
            self._pair_rows = np.zeros(0, np.int64)
            return _no_spans(0), _no_spans(0)
        rows, starts, stops = (np.concatenate(part) for part in zip(*self._pairs, strict=True))
        if is_kept:
            order = np.argsort(rows, kind="stable")
            rows, starts, stops = rows[order], starts[order], stops[order]
        self._pair_rows = rows
        keys, values = _no_spans(len(rows)), _no_spans(len(rows))
        for step in _fields_of(self._array, np.arange(len(rows)), starts, stops):
            if step.number in (1, 2) and step.wire_type == BYTES:
                spans = keys if step.number == 1 else values
                spans.starts[step.rows], spans.stops[step.rows] = step.values, step.stops
            else:
                self._is_odd[rows[step.rows]] = True
        for spans in (keys, values):
            spans.is_present[:] = True
        return keys, values

    def _properties(self) -> Properties:
        rows, keys, values = self._pair_rows, self._keys, self._pair_values
        kept = np.flatnonzero(~self._is_odd[rows])
        rows, keys, values = rows[kept], _taken(keys, kept), _taken(values, kept)
        added = [
            (row, self._add(_as_bytes(pair.key)), self._add(_as_bytes(pair.value)))
            for row, parsed in self._parsed.items()
            for pair in parsed.properties
        ]
        if added:
            rows = np.concatenate([rows, np.array([row for row, _, _ in added], np.int64)])
            keys = _joined(keys, [key for _, key, _ in added])
            values = _joined(values, [value for _, _, value in added])
            order = np.argsort(rows, kind="stable")
            rows, keys, values = rows[order], _taken(keys, order), _taken(values, order)
        last = self._last_of_each_key(rows, keys)
        if last is not None:
            rows, keys, values = rows[last], _taken(keys, last), _taken(values, last)
        counts = np.bincount(rows, minlength=len(self._starts))
        offsets = np.zeros(len(self._starts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        return Properties(offsets, keys, values)

    def _last_of_each_key(self, rows: Ints, keys: Spans) -> Ints | None:
        """Indexes of the pairs to keep: the last of each key in its entry. None: keep all."""
        if len(rows) < 2 or not (rows[1:] == rows[:-1]).any():
            return None
        data = self._data + b"".join(self._extra)
        numbers: dict[bytes, int] = {}
        key_numbers = np.array(
            [
                numbers.setdefault(data[start:stop], len(numbers))
                for start, stop in zip(keys.starts.tolist(), keys.stops.tolist(), strict=True)
            ],
            np.int64,
        )
        pairs = rows * len(numbers) + key_numbers
        _, from_the_end = np.unique(pairs[::-1], return_index=True)
        if len(from_the_end) == len(pairs):
            return None
        return np.sort(len(pairs) - 1 - from_the_end)

    # -------------------------------------------------------------------------------- odd entries

    def _ask_library(self, row: int) -> None:
        begin = int(self._starts[row])
        entry = self._data[begin : begin + int(self._sizes[row])]
        start, stop = metadata_span(entry)
        self._payload_starts[row] = begin + min(stop, len(entry))
        parsed = MessageMetadata()
        if stop > len(entry):
            self._damaged[row] = (
                f"metadata of {stop - start} bytes does not fit into {len(entry)} bytes"
            )
        else:
            try:
                parsed = MessageMetadata.FromString(entry[start:stop])
                self._parsed[row] = parsed
            except DecodeError:
                self._damaged[row] = "metadata cannot be parsed"
                parsed = MessageMetadata()
        for name, (values, is_present) in self._values.items():
            values[row] = signed64(int(getattr(parsed, name)))
            is_present[row] = parsed.HasField(name)
        for name, spans in self._texts.items():
            spans.starts[row], spans.stops[row] = self._add(_as_bytes(getattr(parsed, name)))
            spans.is_present[row] = parsed.HasField(name)

    def _add(self, text: bytes) -> tuple[int, int]:
        """Append text after the entries. Returns its span."""
        start = self._end
        self._extra.append(text)
        self._end += len(text)
        return start, self._end

    def columns(self) -> MessageColumns:
        properties = self._properties() if PROPERTIES in self._names else None
        return MessageColumns(
            data=self._data + b"".join(self._extra) if self._extra else self._data,
            entry_starts=self._starts,
            entry_bytes=self._sizes,
            payload_starts=self._payload_starts,
            numbers=self._values,
            texts=self._texts,
            properties=properties,
            damaged=self._damaged,
        )


def _is_text(name: str) -> bool:
    return _SINGLE[name].type in _TEXT_TYPES


def _defaults(name: str, count: int) -> Numbers:
    return Numbers(
        np.full(count, int(_SINGLE[name].default_value), np.int64), np.zeros(count, np.bool_)
    )


def _no_spans(count: int) -> Spans:
    return Spans(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.bool_))


def _taken(spans: Spans, which: Ints) -> Spans:
    return Spans(spans.starts[which], spans.stops[which], spans.is_present[which])


def _joined(spans: Spans, added: Sequence[tuple[int, int]]) -> Spans:
    more = np.array(added, np.int64).reshape(-1, 2)
    return Spans(
        np.concatenate([spans.starts, more[:, 0]]),
        np.concatenate([spans.stops, more[:, 1]]),
        np.concatenate([spans.is_present, np.ones(len(more), np.bool_)]),
    )


def _as_type(values: Ints, field_type: int) -> Ints:
    """What a varint means as a value of this type."""
    meant = values
    if field_type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM):
        meant = values.astype(np.int32).astype(np.int64)
    elif field_type == FieldDescriptor.TYPE_UINT32:
        meant = values.astype(np.uint32).astype(np.int64)
    elif field_type == FieldDescriptor.TYPE_BOOL:
        meant = (values != 0).astype(np.int64)
    return meant


def _as_bytes(text: str | bytes) -> bytes:
    """Text as bytes: the library returns a text field as bytes when it is no UTF-8."""
    return text.encode() if isinstance(text, str) else text


# ----------------------------------------------------------------------- protobuf fields


class _Step(NamedTuple):
    """The same field, in some of the entries."""

    number: int
    """0: something unusual; the entry is left to the protobuf library."""
    wire_type: int
    rows: Ints
    values: Ints
    """A number's value, or where bytes begin."""
    stops: Ints
    """Where bytes end."""


def _fields_of(data: Bytes, rows: Ints, starts: Ints, stops: Ints) -> Iterator[_Step]:
    """All fields of the messages between `starts` and `stops`: first each one's first, and so on.

    `rows` is what the messages are called in the steps.
    """
    at = starts
    while True:
        left = np.flatnonzero(at < stops)
        if len(left) == 0:
            return
        if len(left) < len(rows):
            rows, at, stops = rows[left], at[left], stops[left]
        tags, at = _varints(data, at)
        tags[(tags < 0) | (tags >> 3 > _FIELD_MAX)] = 0
        for tag in _different(tags):
            which = np.flatnonzero(tags == tag)
            here = at[which]
            values, ends, step_stops = _one_field(data, tag & 7, here)
            number = tag >> 3
            if number == 0:
                ends = np.full(len(which), _FAR)
            is_good = ends <= stops[which]
            if is_good.all():
                yield _Step(number, tag & 7, rows[which], values, step_stops)
            else:
                good, bad = np.flatnonzero(is_good), np.flatnonzero(~is_good)
                yield _Step(0, 0, rows[which[bad]], values[bad], step_stops[bad])
                if len(good):
                    yield _Step(number, tag & 7, rows[which[good]], values[good], step_stops[good])
            # A field that runs past its message ends here.
            at[which] = ends


def _different(tags: Ints) -> list[int]:
    if (tags == tags[0]).all():
        return [int(tags[0])]
    found: list[int] = np.unique(tags).tolist()
    return found


def _one_field(data: Bytes, wire_type: int, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Values (or starts), where the field ends, and where its bytes end."""
    if wire_type == VARINT:
        values, ends = _varints(data, at)
        return values, ends, ends
    if wire_type == BYTES:
        lengths, starts = _varints(data, at)
        ends = np.where((lengths >= 0) & (lengths < _FAR // 2), starts + lengths, _FAR)
        return starts, ends, ends
    if wire_type in (FIXED32, FIXED64):
        ends = at + (4 if wire_type == FIXED32 else 8)
        return at, ends, ends
    ends = np.full(len(at), _FAR)
    return ends, ends, ends


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The number at each place, and where it ends; `_FAR` when it does not end in ten bytes."""
    byte = data[at]
    values = (byte & 127).astype(np.int64)
    ends = at + 1
    going = np.flatnonzero(byte > 127)
    shift = 7
    while len(going):
        if shift > 63:
            ends[going] = _FAR
            break
        byte = data[ends[going]]
        values[going] |= (byte & 127).astype(np.int64) << shift
        ends[going] += 1
        going = going[byte > 127]
        shift += 7
    return values, ends
