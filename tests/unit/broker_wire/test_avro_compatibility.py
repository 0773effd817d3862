"""Can what was written with one Avro schema be read with another?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackgate.broker.avro_compatibility import DEPTH_MAX, parse, why_not_readable
from ackgate.broker.errors import IncompatibleSchemaError


def record(*fields: Any, name: str = "R", **extra: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **extra}


def of(name: str, type_: Any, **extra: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **extra}


def enum(*symbols: str, **extra: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **extra}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


TREE = record(of("left", ["null", "R"]), of("value", "int"))

READABLE = [
    ("int", "int"),
    ("long", "int"),
    ("double", "int"),
    ("float", "long"),
    ("double", "float"),
    ("string", "bytes"),
    ("bytes", "string"),
    ({"type": "int", "logicalType": "date"}, "int"),
    ({"type": {"type": "string"}}, "string"),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
    (["null", "int"], "int"),
    (["null", "long"], ["int", "null"]),
    ("long", ["int", "long"]),
    (enum("a", "b"), enum("a")),
    (enum("a", default="a"), enum("a", "b")),
    (fixed(4), fixed(4)),
    (record(), record(of("a", "int"))),
    (record(of("a", "int", default=0)), record()),
    (record(of("a", ["null", "int"], default=None)), record()),
    (record(of("b", "int", aliases=["a"])), record(of("a", "int"))),
    (record(of("a", "long")), record(of("a", "int"))),
    (record(name="x.R"), record(name="y.R")),
    (record(name="New", aliases=["R"]), record()),
    (TREE, TREE),
    (record(of("e", enum("a"))), record(of("e", enum("a")), of("again", "E"))),
]

UNREADABLE = [
    ("int", "long"),
    ("int", "string"),
    ("float", "double"),
    ("boolean", "int"),
    ("null", "int"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}),
    ("int", ["null", "int"]),
    (["null", "string"], "int"),
    (enum("a"), enum("a", "b")),
    (fixed(4), fixed(8)),
    (fixed(4), fixed(4, name="G")),
    (record(of("a", "int")), record()),
    (record(of("a", "int")), record(of("a", "string"))),
    (record(name="R"), record(name="S")),
    (TREE, record(of("left", ["null", "R"]), of("value", "string"))),
]


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_can_be_read(reader: Any, writer: Any) -> None:
    assert why_not_readable(parse(json.dumps(reader)), parse(json.dumps(writer))) is None


@pytest.mark.parametrize(("reader", "writer"), UNREADABLE)
def test_cannot_be_read(reader: Any, writer: Any) -> None:
    assert why_not_readable(parse(json.dumps(reader)), parse(json.dumps(writer)))


def test_the_reason_names_the_place() -> None:
    new = record(of("inner", record(of("a", "int"), name="I")))
    old = record(of("inner", record(of("a", "string"), name="I")))
    reason = why_not_readable(parse(json.dumps(new)), parse(json.dumps(old)))
    assert reason == "inner.a: int cannot be read from string"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "{}",
        "null",
        "7",
        '"Unknown"',
        '{"type": "record"}',
        '{"type": "record", "name": "R", "fields": 7}',
        '{"type": "record", "name": "R", "fields": [7]}',
        '{"type": "fixed", "name": "F", "size": "x"}',
        '{"type": "enum", "name": "E", "symbols": [["a"]]}',
        '{"type": ["int"], "name": 7, "items": {}}{',
        "[" * 100_000,
        '{"type":' * (DEPTH_MAX + 2) + '"int"' + "}" * (DEPTH_MAX + 2),
        "\xff\xfe",
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(IncompatibleSchemaError, match="not a"):
        parse(text.encode("latin-1"))
