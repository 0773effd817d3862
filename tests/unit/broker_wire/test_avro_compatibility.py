"""Can what was written with one Avro schema be read with another?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ackgate.broker.schemas.avro_compatibility import (
    DEPTH_MAX,
    AvroType,
    parse,
    why_not_readable,
)
from ackgate.broker.wire.errors import IncompatibleSchemaError

VERDICTS = Path(__file__).with_name("avro-1.11.4-verdicts.jsonl")


def record(*fields: Any, name: str = "R", **extra: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **extra}


def of(name: str, type_: Any, **extra: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **extra}


def enum(*symbols: str, name: str = "E", **extra: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **extra}


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
    (enum("a"), enum("a", "b")),
    (enum("a", default="a"), enum("a", "b")),
    (enum("a", namespace="x"), enum("a", namespace="y")),
    (["null", enum("a", namespace="x")], ["null", enum("a", namespace="y")]),
    (fixed(4), fixed(4)),
    (record(), record(of("a", "int"))),
    (record(of("a", "int", default=0)), record()),
    (record(of("a", ["null", "int"], default=None)), record()),
    (record(of("b", "int", aliases=["a"])), record(of("a", "int"))),
    (record(of("a", "long")), record(of("a", "int"))),
    (record(name="x.R"), record(name="y.R")),
    (record(name="New", aliases=["R"]), record()),
    (record(name="New"), record(name="Old")),
    (record(of("r", record(name="New"))), record(of("r", record(name="Old")))),
    (["null", record(of("a", "int"), name="New")], ["null", record(of("a", "int"), name="Old")]),
    (enum("a", name="New", aliases=["E"]), enum("a")),
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
    (fixed(4), fixed(8)),
    (fixed(4), fixed(4, name="G")),
    (enum("a"), enum("a", name="F")),
    (["null", "int", enum("a", namespace="x")], ["null", enum("a", namespace="y")]),
    (record(of("a", "int")), record()),
    (record(of("a", "int")), record(of("a", "string"))),
    (record(of("a", "int"), name="New"), record(of("b", "int"), name="Old")),
    (record(of("b", "int", aliases=["a"]), name="New"), record(of("a", "int"), name="Old")),
    # A branch of the writer's own name is taken, though another one would do.
    ([record(of("a", "int")), record(name="S")], record()),
    (TREE, record(of("left", ["null", "R"]), of("value", "string"))),
]


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_can_be_read(reader: Any, writer: Any) -> None:
    assert why_not_readable(parse(json.dumps(reader)), parse(json.dumps(writer))) is None


@pytest.mark.parametrize(("reader", "writer"), UNREADABLE)
def test_cannot_be_read(reader: Any, writer: Any) -> None:
    assert why_not_readable(parse(json.dumps(reader)), parse(json.dumps(writer)))


@pytest.mark.parametrize("is_readable", [True, False])
def test_the_verdicts_are_those_of_avros_java_library(is_readable: bool) -> None:
    """150 random pairs, by Pulsar 4.0.7's AvroSchemaCompatibilityCheck with the strategy BACKWARD."""
    pairs = [json.loads(line) for line in VERDICTS.read_text().splitlines()]
    pairs = [pair for pair in pairs if pair["reads"] is is_readable]
    assert len(pairs) == 75
    differences = []
    for pair in pairs:
        reader, writer = (parse(json.dumps(pair[side])) for side in ("reader", "writer"))
        if (why_not_readable(reader, writer) is None) is not is_readable:
            differences.append(pair)
    assert not differences


@pytest.mark.slow
def test_types_that_name_each_other_in_a_long_row_end_in_a_reason() -> None:
    def row(prefix: str) -> dict[str, Any]:
        first = of(f"{prefix}0", record(name="T0"), default=None)
        rest = [
            of(f"{prefix}{n}", record(of("x", f"T{n - 1}"), name=f"T{n}"), default=None)
            for n in range(1, 3_000)
        ]
        return record(first, *rest, of("last", "T2999"))

    old, new = (parse(json.dumps(row(prefix))) for prefix in ("old", "new"))
    assert why_not_readable(new, old) == "the schemas are too deep to be compared"


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
        '{"type": "fixed", "name": "F", "size": 1e999}',
        '{"type": "fixed", "name": "F", "size": 2.5}',
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


def test_a_union_of_many_records_is_compared_and_what_would_take_minutes_is_refused() -> None:
    def union(prefix: str, *fields: Any) -> AvroType:
        branches = [record(*fields, name=f"{prefix}{number}") for number in range(600)]
        return parse(json.dumps(["null", *branches]).encode())

    reader = union("R", of("a", "int", default=0))
    assert why_not_readable(reader, union("R")) is None
    assert why_not_readable(reader, union("W")) == "the schemas are too large to be compared"
