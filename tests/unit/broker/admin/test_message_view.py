"""Payloads for people, Avro that cannot explode, and histograms of due times."""

from __future__ import annotations

import io
import json
import random
import struct
from typing import Any

import fastavro
import pytest

from ackgate.broker.admin.page.messages import (
    PAYLOAD_BYTES_MAX,
    SLOTS,
    histogram,
    is_tame,
    shown_payload,
)
from ackgate.broker.wire import Schema, SchemaType, StoredSchema

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def schema(kind: SchemaType, definition: object = None) -> StoredSchema:
    text = b"" if definition is None else json.dumps(definition).encode()
    return StoredSchema(Schema("t", kind, text, {}), b"\0" * 8)


def avro(value: Any, declared: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(declared), value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("payload", "by", "shown"),
    [
        (b"hello", None, {"bytes": 5, "text": "hello", "isCut": False}),
        (b"", None, {"bytes": 0, "text": "", "isCut": False}),
        ("größe\n".encode(), None, {"bytes": 8, "text": "größe\n", "isCut": False}),
        (b"\x1b[2J", None, {"bytes": 4, "hex": "1b 5b 32 4a", "isCut": False}),
        (b"\xff\x00", None, {"bytes": 2, "hex": "ff 00", "isCut": False}),
        (struct.pack(">i", -7), schema(SchemaType.INT32), {"bytes": 4, "value": "-7"}),
        (b"\x01\x02", schema(SchemaType.INT32), {"bytes": 2, "hex": "01 02", "isCut": False}),
        (b'{"a":1}', schema(SchemaType.JSON), {"bytes": 7, "value": '{\n  "a": 1\n}'}),
        (b"{", schema(SchemaType.JSON), {"bytes": 1, "text": "{", "isCut": False}),
        (b"[" * 5000, schema(SchemaType.JSON), {"bytes": 5000, "text": "[" * 5000, "isCut": False}),
    ],
)
def test_a_payload_is_shown(payload: bytes, by: StoredSchema | None, shown: dict[str, Any]) -> None:
    assert shown_payload(payload, by) == shown


def test_a_large_payload_is_cut() -> None:
    shown = shown_payload("ä".encode() * PAYLOAD_BYTES_MAX, None)
    assert shown["isCut"]
    assert len(shown["text"].encode()) <= PAYLOAD_BYTES_MAX
    assert shown_payload(b"\x00" * 100_000, None)["isCut"]


def test_avro_is_decoded_by_the_topics_schema() -> None:
    value = {"id": 16, "note": None, "tags": ["a", "b"]}
    shown = shown_payload(avro(value, ORDER), schema(SchemaType.AVRO, ORDER))
    assert json.loads(shown["value"]) == value
    assert "value" not in shown_payload(b"\x80", schema(SchemaType.AVRO, ORDER))


@pytest.mark.parametrize(
    "declared",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "map", "values": {"type": "null"}},
        {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
        {"type": "array", "items": {"type": "record", "name": "N",
                                    "fields": [{"name": "n", "type": "null"}]}},
        ["null", {"type": "array", "items": {"type": "array", "items": "null"}}],
        {"type": "record", "name": "R"},
        "Elsewhere",
        7,
        None,
    ],
)  # fmt: skip
def test_a_schema_by_which_few_bytes_become_much_is_not_used(declared: Any) -> None:
    assert not is_tame(declared)
    bomb = b"\xfe\xff\xff\xff\x0f\x00"  # 2^31 items
    assert "value" not in shown_payload(bomb, schema(SchemaType.AVRO, declared))


def test_ordinary_schemas_are_used() -> None:
    assert is_tame(ORDER)
    assert is_tame({"type": "array", "items": ORDER})
    assert is_tame({"type": "string", "avro.java.string": "String"})
    assert is_tame({"type": "map", "values": ["null", "long"]})


def test_a_histogram_has_every_time_in_its_slot() -> None:
    chance = random.Random(7)
    for count in (0, 1, 2, 50, 200):
        due = [1_000_000 + chance.randrange(10 ** chance.randrange(1, 9)) for _ in range(count)]
        told = histogram(due)
        assert sum(told["counts"]) == count
        assert len(told["counts"]) <= SLOTS
        for slot, number in enumerate(told["counts"]):
            first = told["firstMs"] + slot * told["slotMs"]
            assert sum(first <= at < first + told["slotMs"] for at in due) == number
