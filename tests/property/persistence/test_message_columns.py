"""Columns of many entries' metadata hold what the protobuf library finds in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from ackgate.errors import CallerError
from ackgate.persistence.messages.columns import PADDING, PROPERTIES, decode_message_spans
from ackgate.persistence.messages.frame import MAGIC, metadata_span
from ackgate.persistence.proto.message_pb2 import MessageMetadata

FIELDS = MessageMetadata.DESCRIPTOR.fields_by_name
NUMBERS = [
    *("sequence_id", "publish_time", "event_time", "num_messages_in_batch", "deliver_at_time"),
    *("chunk_id", "num_chunks_from_msg", "compression", "uncompressed_size", "null_value"),
]
TEXTS = ["producer_name", "partition_key", "ordering_key", "schema_version"]
NAMES = [*NUMBERS, *TEXTS, PROPERTIES]

INT32 = st.integers(-(2**31), 2**31 - 1)
UINT64 = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300))
TEXT = st.text(max_size=5)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def metadata(draw: st.DrawFn) -> bytes:
    """Metadata of which any field may be there."""
    drawn = {
        "producer_name": draw(TEXT),
        "sequence_id": draw(UINT64),
        "publish_time": draw(UINT64),
        "event_time": draw(maybe(UINT64)),
        "num_messages_in_batch": draw(maybe(INT32)),
        "deliver_at_time": draw(maybe(st.integers(-(2**63), 2**63 - 1))),
        "chunk_id": draw(maybe(INT32)),
        "num_chunks_from_msg": draw(maybe(INT32)),
        "compression": draw(maybe(st.integers(0, 4))),
        "uncompressed_size": draw(maybe(st.integers(0, 2**32 - 1))),
        "null_value": draw(maybe(st.booleans())),
        "partition_key": draw(maybe(TEXT)),
        "ordering_key": draw(maybe(st.binary(max_size=200))),
        "schema_version": draw(maybe(st.binary(max_size=3))),
        "replicate_to": draw(st.lists(TEXT, max_size=2)),
        "compacted_batch_indexes": draw(st.lists(INT32, max_size=2)),
    }
    made = MessageMetadata(**{k: v for k, v in drawn.items() if v is not None})
    for key, value in draw(st.lists(st.tuples(st.sampled_from("abc"), TEXT), max_size=4)):
        made.properties.add(key=key, value=value)
    if draw(st.booleans()) and draw(st.booleans()):
        made.encryption_keys.add(key="k", value=b"v")
    return made.SerializeToString()


ODD_FIELDS = st.sampled_from(
    [
        b"\xfa\x3f\x02ab",  # an unknown field of bytes
        b"\xc0\x3e\x05",  # an unknown number
        b"\xa5\x02abcd",  # unknown, four bytes
        b"\xa1\x02abcdefgh",  # unknown, eight bytes
        b"\xa3\x02\xa4\x02",  # an unknown group
        b"\x30\x05",  # partition_key, as a number
        b"\x0d1234",  # producer_name, as four bytes
        b"\x40\x09",  # a compression that does not exist
        b"\x40\x02\x40\x09",  # one that exists, then one that does not
        b"\x32\x01x\x32\x01y",  # partition_key twice
        b"\x32\x01\xff",  # no UTF-8
        b"\x22\x00",  # properties without key and value
        b"\x22\x05\x0a\x01k\x18\x01",  # properties with more in it
        b"\x22\x03\x0a\x05k",  # properties that run out
        b"\x88\x80\x00\x05",  # a tag that is longer than it need be
        b"\x00\x00",
        b"\x10" + b"\xff" * 9 + b"\x01",
        b"\x10" + b"\xff" * 11,
        b"\x58" + b"\xff" * 5 + b"\x7f",
        b"\x12" + b"\xff" * 9 + b"\x01",
    ]
)


@st.composite
def entry(draw: st.DrawFn) -> bytes:
    inside = draw(metadata())
    if draw(st.integers(0, 3)) == 0:
        inside += draw(ODD_FIELDS) + draw(st.sampled_from([b"", inside]))
    if draw(st.integers(0, 5)) == 0:
        inside = draw(st.binary(max_size=20)) + inside
    size = len(inside).to_bytes(4)
    made = inside + draw(st.binary(max_size=10))
    made = MAGIC + b"crcc" + size + made if draw(st.booleans()) else size + made
    if draw(st.integers(0, 5)) == 0:
        made = made[: draw(st.integers(0, len(made)))]
    return made


ENTRIES = st.lists(entry() | st.binary(max_size=30), max_size=12)


def expected(data: bytes) -> dict[str, Any] | None:
    """What the library finds; None: it cannot be parsed."""
    start, stop = metadata_span(data)
    if stop > len(data):
        return None
    try:
        parsed = MessageMetadata.FromString(data[start:stop])
    except DecodeError:
        return None
    found: dict[str, Any] = {"payload": data[stop:]}
    for name in NUMBERS:
        value = int(getattr(parsed, name))
        signed = value - 2**64 if value >= 2**63 else value
        found[name] = (signed, parsed.HasField(name))
    for name in TEXTS:
        text = getattr(parsed, name)
        text = text.encode() if isinstance(text, str) else text
        found[name] = text if parsed.HasField(name) else None
    found[PROPERTIES] = {p.key.encode(): p.value.encode() for p in parsed.properties}
    return found


@settings(max_examples=3 * settings.default.max_examples)
@given(ENTRIES)
def test_columns_hold_what_the_library_finds(entries: list[bytes]) -> None:
    sizes = np.fromiter(map(len, entries), np.int64, len(entries))
    data = b"".join([*entries, PADDING])
    columns = decode_message_spans(data, np.cumsum(sizes) - sizes, sizes, NAMES)
    texts = {name: columns.text(name) for name in TEXTS}
    properties = columns.properties
    assert properties is not None
    for i, data in enumerate(entries):
        found = expected(data)
        assert (i in columns.damaged) == (found is None)
        span = range(properties.offsets[i], properties.offsets[i + 1])
        if found is None:
            assert not span
            assert not any(columns.numbers[name].is_present[i] for name in NUMBERS)
            assert not any(texts[name][i] is not None for name in TEXTS)
            continue
        for name in NUMBERS:
            number = columns.numbers[name]
            assert (number.values[i], number.is_present[i]) == found[name], name
        assert {name: texts[name][i] for name in TEXTS} == {name: found[name] for name in TEXTS}
        keys, values = (
            [columns.data[spans.starts[j] : spans.stops[j]] for j in span]
            for spans in (properties.keys, properties.values)
        )
        assert len(set(keys)) == len(keys)
        assert dict(zip(keys, values, strict=True)) == found[PROPERTIES]
        end = columns.entry_starts[i] + columns.entry_bytes[i]
        assert columns.data[columns.payload_starts[i] : end] == found["payload"]


def test_only_fields_that_exist_once_can_be_asked_for() -> None:
    nothing = np.empty(0, np.int64)
    with pytest.raises(CallerError, match="replicate_to"):
        decode_message_spans(PADDING, nothing, nothing, ["replicate_to"])
