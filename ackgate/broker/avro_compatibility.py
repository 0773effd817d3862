"""Can data written with one Avro schema be read with another?

Pure. Avro's schema resolution, decided for two schemas instead of for data:

    writer                reader can read it when
    --------------------  ------------------------------------------------------------------
    primitive             it is the same, or a wider number, or bytes <-> string
    array, map            the items (values) can be read
    enum, fixed, record   names agree (or an alias does), and
        enum                  it knows every symbol, or has a default symbol
        fixed                 sizes agree
        record                each of its fields can be read from the writer's field of that
                              name (or alias), or has a default
    union                 every branch can be read
    anything, by a union  one of the reader's branches can read it

Types may refer to themselves: a pair that is being compared counts as compatible below itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from ackgate.broker.errors import IncompatibleSchemaError

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)

_WIDER: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "bytes": {"string"},
    "string": {"bytes"},
}

DEPTH_MAX: Final = 100
"""Levels of a schema. Real ones have ten; the bound keeps recursion in hand."""


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    type: AvroType
    has_default: bool
    aliases: tuple[str, ...]


@dataclass(slots=True, eq=False)
class AvroType:
    """A parsed type. Named ones are filled in after they are made: they may hold themselves."""

    kind: str
    """A primitive's name, or one of array, map, union, enum, fixed, record."""
    name: str = ""
    """Full name of an enum, fixed or record."""
    aliases: tuple[str, ...] = ()
    fields: dict[str, AvroField] = field(default_factory=dict)
    parts: tuple[AvroType, ...] = ()
    """Items of an array, values of a map, branches of a union."""
    symbols: frozenset[str] = frozenset()
    has_default_symbol: bool = False
    size_bytes: int = 0


def parse(text: bytes | str) -> AvroType:
    """Parse a schema's JSON. Raises `IncompatibleSchemaError` saying what is wrong with it."""
    try:
        return _Parser().parse(json.loads(text), "", 0)
    except (ValueError, RecursionError) as error:
        raise IncompatibleSchemaError(f"not a schema: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise IncompatibleSchemaError(f"not an Avro schema: {error!r}") from error


class _Parser:
    """Knows the named types met so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:  # noqa: ANN401 - JSON
        if depth > DEPTH_MAX:
            raise IncompatibleSchemaError(f"not a schema: deeper than {DEPTH_MAX} levels")
        if isinstance(schema, str):
            return self._refer(schema, namespace)
        if isinstance(schema, list):
            branches = tuple(self.parse(branch, namespace, depth + 1) for branch in schema)
            return AvroType("union", parts=branches)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, depth + 1)
        if kind == "array":
            return AvroType("array", parts=(self.parse(schema["items"], namespace, depth + 1),))
        if kind == "map":
            return AvroType("map", parts=(self.parse(schema["values"], namespace, depth + 1),))
        if kind in {"record", "error", "enum", "fixed"}:
            return self._parse_named(schema, namespace, depth)
        return self._refer(kind, namespace)

    def _refer(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise IncompatibleSchemaError(f"not a schema: unknown type {name[:80]!r}")
        return found

    def _parse_named(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        namespace = name.rpartition(".")[0]
        kind = "record" if schema["type"] == "error" else schema["type"]
        made = self._named[name] = AvroType(kind, name)
        made.aliases = tuple(_full_name(alias, namespace) for alias in schema.get("aliases", ()))
        if kind == "enum":
            made.symbols = frozenset(schema["symbols"])
            made.has_default_symbol = schema.get("default") in made.symbols
        elif kind == "fixed":
            made.size_bytes = int(schema["size"])
        else:
            for each in schema["fields"]:
                made.fields[each["name"]] = AvroField(
                    self.parse(each["type"], namespace, depth + 1),
                    "default" in each,
                    tuple(each.get("aliases", ())),
                )
        return made


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def why_not_readable(reader: AvroType, writer: AvroType) -> str | None:
    """What stops `reader` from reading what `writer` wrote; None when nothing does."""
    return _Comparison().why_not(reader, writer, "")


class _Comparison:
    """Remembers the pairs that it has met."""

    def __init__(self) -> None:
        self._met: dict[tuple[int, int], str | None] = {}

    def why_not(self, reader: AvroType, writer: AvroType, where: str) -> str | None:
        pair = (id(reader), id(writer))
        if pair not in self._met:
            self._met[pair] = None
            self._met[pair] = self._compare(reader, writer, where)
        return self._met[pair]

    def _compare(self, reader: AvroType, writer: AvroType, where: str) -> str | None:
        if writer.kind == "union":
            reasons = (self.why_not(reader, branch, where) for branch in writer.parts)
            return next((reason for reason in reasons if reason), None)
        if reader.kind == "union":
            if any(self.why_not(branch, writer, where) is None for branch in reader.parts):
                return None
            return f"{where or 'the schema'}: no branch of the union can read {_describe(writer)}"
        if reader.kind != writer.kind:
            if reader.kind in _WIDER.get(writer.kind, ()):
                return None
            return (
                f"{where or 'the schema'}: {_describe(reader)} cannot be read from"
                f" {_describe(writer)}"
            )
        if reader.kind in {"array", "map"}:
            return self.why_not(reader.parts[0], writer.parts[0], f"{where}[]")
        if reader.kind in PRIMITIVES:
            return None
        return self._compare_named(reader, writer, where)

    def _compare_named(self, reader: AvroType, writer: AvroType, where: str) -> str | None:
        same_name = reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2]
        if not same_name and writer.name not in reader.aliases:
            return f"{where or 'the schema'}: {reader.name} is not {writer.name}"
        if reader.kind == "fixed":
            if reader.size_bytes != writer.size_bytes:
                return f"{reader.name}: {reader.size_bytes} bytes are not {writer.size_bytes}"
            return None
        if reader.kind == "enum":
            unknown = sorted(writer.symbols - reader.symbols)
            if unknown and not reader.has_default_symbol:
                return f"{reader.name}: unknown symbols {', '.join(unknown[:5])}"
            return None
        for name, its in reader.fields.items():
            names = (name, *its.aliases)
            written = next((writer.fields[each] for each in names if each in writer.fields), None)
            path = f"{where}.{name}" if where else name
            if written is None:
                if not its.has_default:
                    return f"{path}: has no default, and the other schema does not have it"
            elif reason := self.why_not(its.type, written.type, path):
                return reason
        return None


def _describe(type_: AvroType) -> str:
    return f"{type_.kind} {type_.name}" if type_.name else type_.kind
