from __future__ import annotations

import json

import pytest

from ackgate.broker.admin.schemas import schema_json
from ackgate.broker.schemas.registry import version_bytes
from ackgate.broker.wire.requests import Schema, SchemaType, StoredSchema


def told(kind: SchemaType, definition: bytes) -> str:
    schema = Schema("n", kind, definition, {"k": "v"})
    answer = schema_json(StoredSchema(schema, version_bytes(3), 1_700_000_000_000))
    assert answer["version"] == 3
    assert answer["timestamp"] == 1_700_000_000_000
    assert answer["type"] == kind.name
    assert answer["properties"] == {"k": "v"}
    return str(answer["data"])


def test_a_definition_is_told_as_it_is() -> None:
    assert told(SchemaType.AVRO, b'{"type": "int"}') == '{"type": "int"}'
    assert told(SchemaType.STRING, b"") == ""


def test_a_boolean_has_pulsars_name() -> None:
    schema = Schema("n", SchemaType(5), b"")
    assert schema_json(StoredSchema(schema, version_bytes(0)))["type"] == "BOOLEAN"


def test_a_pair_is_told_as_one_text() -> None:
    value = b'{"type":"int"}'
    pair = (0).to_bytes(4, "big") + len(value).to_bytes(4, "big") + value
    assert json.loads(told(SchemaType.KEY_VALUE, pair)) == {"key": "", "value": {"type": "int"}}


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x00", b"\xff" * 9, b"\x00\x00\x00\x05{", len(DEEP).to_bytes(4, "big") + DEEP],
    ids=["empty", "short", "negative", "torn", "deep"],
)
def test_a_damaged_pair_is_no_fault_of_the_asker(damaged: bytes) -> None:
    assert json.loads(told(SchemaType.KEY_VALUE, damaged)) == {"key": "", "value": ""}
