"""Can data written with one Avro schema be read with another?

Pure. Avro's schema resolution as its Java library does it (1.11, by which Pulsar decides), decided for
two schemas instead of for data:

    writer                reader can read it when
    --------------------  ------------------------------------------------------------------
    primitive             it is the same, or a wider number, or bytes <-> string
    array, map            the items (values) can be read
    enum, fixed           short names agree, and of a fixed the sizes
    record                each of its fields can be read from the writer's field of that name,
                          or has a default; the records' own names do not matter
    union                 every branch can be read, or the two unions are the same but for namespaces
    anything, by a union  the branch that Avro chooses can read it (`_Comparison._branch`)

The reader's aliases rename what the writer has before the two are compared: of a named type its full
name, and of a record the fields, if the record has (or was given) the full name of the reader's.

An enum that lacks some of the writer's symbols passes. Avro reports those while it reads the data, not
before, and Pulsar accepts the schema; a new symbol would otherwise be incompatible under FULL, the
default strategy.

Types may refer to themselves: a pair that is being compared counts as compatible below itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.wire import IncompatibleSchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

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

COMPARED_MAX: Final = 200_000
"""Types, and branches and fields of unions, that are looked at to compare two schemas: some 0.3 s. Real
ones take hundreds."""


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    type: AvroType
    has_default: bool
    aliases: tuple[str, ...]


@dataclass(slots=True, eq=False)
class AvroType:
    """A parsed type.

    Named types are filled in after they are made, since they may contain themselves.
    """

    kind: str
    """A primitive's name, or one of array, map, union, enum, fixed, record."""
    name: str = ""
    """Full name of an enum, fixed or record."""
    aliases: tuple[str, ...] = ()
    fields: dict[str, AvroField] = field(default_factory=dict)
    inner: tuple[AvroType, ...] = ()
    """Items of an array, values of a map, branches of a union."""
    symbols: tuple[str, ...] = ()
    size_bytes: int = 0


def parse(text: bytes | str) -> AvroType:
    """Parse a schema's JSON. Raises `IncompatibleSchemaError` that says what is wrong with it."""
    try:
        return _Parser().parse(json.loads(text), "", 0)
    except (ValueError, RecursionError) as error:
        raise IncompatibleSchemaError(f"not a schema: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise IncompatibleSchemaError(f"not an Avro schema: {error!r}") from error


class _Parser:
    """Parses one schema, and knows the named types it has met so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:  # noqa: ANN401 - JSON
        if depth > DEPTH_MAX:
            raise IncompatibleSchemaError(f"not a schema: deeper than {DEPTH_MAX} levels")
        if isinstance(schema, str):
            return self._refer(schema, namespace)
        if isinstance(schema, list):
            branches = tuple(self.parse(branch, namespace, depth + 1) for branch in schema)
            return AvroType("union", inner=branches)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, depth + 1)
        if kind == "array":
            return AvroType("array", inner=(self.parse(schema["items"], namespace, depth + 1),))
        if kind == "map":
            return AvroType("map", inner=(self.parse(schema["values"], namespace, depth + 1),))
        if kind in {"record", "error", "enum", "fixed"}:
            return self._parse_named(schema, namespace, depth)
        return self._refer(kind, namespace)

    def _refer(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise IncompatibleSchemaError(f"not a schema: unknown type {name[:80]!r}")
        return found

    def _parse_named(self, schema: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name = full_name(schema["name"], schema.get("namespace", namespace))
        namespace = name.rpartition(".")[0]
        kind = "record" if schema["type"] == "error" else schema["type"]
        made = self._named[name] = AvroType(kind, name)
        made.aliases = tuple(full_name(alias, namespace) for alias in schema.get("aliases", ()))
        if kind == "enum":
            made.symbols = tuple(_symbol(symbol) for symbol in schema["symbols"])
        elif kind == "fixed":
            made.size_bytes = _size(schema["size"])
        else:
            for each in schema["fields"]:
                made.fields[each["name"]] = AvroField(
                    self.parse(each["type"], namespace, depth + 1),
                    "default" in each,
                    tuple(each.get("aliases", ())),
                )
        return made


def _symbol(symbol: object) -> str:
    if not isinstance(symbol, str):
        raise TypeError(f"{symbol!r} is no symbol")
    return symbol


def _size(size: object) -> int:
    if type(size) is not int:
        raise TypeError(f"{size!r:.80} is no size")
    return size


def full_name(name: str, namespace: str) -> str:
    """A type's name with its namespace, which a name with a dot has already."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def why_not_readable(reader: AvroType, writer: AvroType) -> str | None:
    """Why `reader` cannot read what `writer` wrote, or None if it can."""
    try:
        if _Comparison(named=str).is_alike(reader, writer):
            return None  # aliases do not make a type differ from itself
        comparison = _Comparison(named=_short)
        comparison.learn_aliases(reader, set())
        return comparison.why_not(reader, writer, "")
    except RecursionError:  # thousands of types that name each other
        return "the schemas are too deep to be compared"
    except _TooLargeError:
        return "the schemas are too large to be compared"


class _TooLargeError(Exception):
    """Comparing took `COMPARED_MAX` steps."""


class _Comparison:
    """Compares a reader with a writer, and remembers the pairs of types that it has met."""

    def __init__(self, named: Callable[[str], str]) -> None:
        self._named = named
        """Reduces a full name to the part that is compared."""
        self._compared = 0
        self._met: dict[tuple[int, int], str | None] = {}
        self._branches: dict[int, dict[tuple[str, str], AvroType]] = {}
        """Of a reader's union the branches by kind and full name; the first of each kind also by no name."""
        self._alike: dict[tuple[int, int], bool] = {}
        self._names: dict[str, str] = {}
        """By alias, the full name of the reader's type."""
        self._fields: dict[str, dict[str, str]] = {}
        """By full name of a reader's record: for each alias of a field, the field's name."""

    def learn_aliases(self, reader: AvroType, met: set[int]) -> None:
        if id(reader) in met:
            return
        met.add(id(reader))
        self._names.update(dict.fromkeys(reader.aliases, reader.name))
        for name, field_ in reader.fields.items():
            for alias in field_.aliases:
                self._fields.setdefault(reader.name, {})[alias] = name
            self.learn_aliases(field_.type, met)
        for part in reader.inner:
            self.learn_aliases(part, met)

    def _count(self, steps: int) -> None:
        self._compared += steps
        if self._compared > COMPARED_MAX:
            raise _TooLargeError

    def why_not(self, reader: AvroType, writer: AvroType, where: str) -> str | None:
        pair = (id(reader), id(writer))
        if pair not in self._met:
            self._count(1)
            self._met[pair] = None
            self._met[pair] = self._compare(reader, writer, where)
        return self._met[pair]

    def _compare(self, reader: AvroType, writer: AvroType, where: str) -> str | None:
        if writer.kind == "union":
            if self.is_alike(reader, writer):
                return None
            reasons = (self.why_not(reader, branch, where) for branch in writer.inner)
            return next((reason for reason in reasons if reason), None)
        if reader.kind == "union":
            branch = self._branch(reader, writer)
            if branch is None:
                return (
                    f"{where or 'the schema'}: no branch of the union can read {_describe(writer)}"
                )
            return self.why_not(branch, writer, where)
        if reason := self._why_no_match(reader, writer, where):
            return reason
        if reader.kind in {"array", "map"}:
            return self.why_not(reader.inner[0], writer.inner[0], f"{where}[]")
        if reader.kind != "record":
            return None
        for name, type_ in self._written_fields(writer).items():
            if name in reader.fields:
                path = f"{where}.{name}" if where else name
                if reason := self.why_not(reader.fields[name].type, type_, path):
                    return reason
        return None

    def _why_no_match(self, reader: AvroType, writer: AvroType, where: str) -> str | None:
        """Why two types do not match by themselves, without regard to the types inside them."""
        place = where or "the schema"
        if reader.kind != writer.kind:
            if reader.kind in _WIDER.get(writer.kind, ()):
                return None
            return f"{place}: {_describe(reader)} cannot be read from {_describe(writer)}"
        if reader.kind in {"enum", "fixed"}:
            if _short(reader.name) != _short(self._written_name(writer)):
                return f"{place}: {reader.name} is not {writer.name}"
            if reader.size_bytes != writer.size_bytes:
                return f"{reader.name}: {reader.size_bytes} bytes are not {writer.size_bytes}"
        if reader.kind == "record":
            written = self._written_fields(writer)
            for name, its in reader.fields.items():
                if name not in written and not its.has_default:
                    path = f"{where}.{name}" if where else name
                    return f"{path}: has no default, and the other schema does not have it"
        return None

    def _branch(self, reader: AvroType, writer: AvroType) -> AvroType | None:
        """The branch of the reader's union that reads a type which is no union;

        None if there is none.

        It is the branch of the same kind and, for named types, the same full name. For a record,
        else the first branch whose fields match; one with the same short name is preferred. Else
        the first wider type.
        """
        name = self._written_name(writer)
        if (same := self._branches_of(reader).get((writer.kind, name))) is not None:
            return same
        self._count(len(reader.inner))
        matching: AvroType | None = None
        for branch in reader.inner:
            if branch.kind != writer.kind:
                continue
            is_better = matching is None or _short(branch.name) == _short(name)
            if branch.kind == "record" and is_better and self._has_matching_fields(branch, writer):
                matching = branch
        if matching is not None:
            return matching
        wider = _WIDER.get(writer.kind, ())
        return next((branch for branch in reader.inner if branch.kind in wider), None)

    def _branches_of(self, reader: AvroType) -> dict[tuple[str, str], AvroType]:
        found = self._branches.get(id(reader))
        if found is None:
            found = self._branches[id(reader)] = {}
            for branch in reader.inner:
                found.setdefault((branch.kind, branch.name), branch)
                found.setdefault((branch.kind, ""), branch)
        return found

    def _has_matching_fields(self, reader: AvroType, writer: AvroType) -> bool:
        """Whether the two records and their fields match, without looking deeper."""
        self._count(len(reader.fields) + len(writer.fields))
        if self._why_no_match(reader, writer, "") is not None:
            return False
        for name, type_ in self._written_fields(writer).items():
            its = reader.fields.get(name)
            if its is None or type_.kind == "union":
                continue
            if its.type.kind == "union":
                if self._branch(its.type, type_) is None:
                    return False
            elif self._why_no_match(its.type, type_, "") is not None:
                return False
        return True

    def is_alike(self, reader: AvroType, writer: AvroType) -> bool:
        """Whether two types are equal, except for defaults."""
        pair = (id(reader), id(writer))
        if pair not in self._alike:
            self._count(1)
            self._alike[pair] = True
            self._alike[pair] = self._are_alike_inside(reader, writer)
        return self._alike[pair]

    def _are_alike_inside(self, reader: AvroType, writer: AvroType) -> bool:
        written = self._written_fields(writer)
        return (
            reader.kind == writer.kind
            and self._named(reader.name) == self._named(self._written_name(writer))
            and reader.size_bytes == writer.size_bytes
            and reader.symbols == writer.symbols
            and list(reader.fields) == list(written)
            and len(reader.inner) == len(writer.inner)
            and all(self.is_alike(its.type, written[name]) for name, its in reader.fields.items())
            and all(map(self.is_alike, reader.inner, writer.inner))
        )

    def _written_name(self, writer: AvroType) -> str:
        return self._names.get(writer.name, writer.name)

    def _written_fields(self, writer: AvroType) -> dict[str, AvroType]:
        """A record's fields, renamed by the reader's aliases."""
        renamed = self._fields.get(self._written_name(writer), {})
        return {renamed.get(name, name): its.type for name, its in writer.fields.items()}


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _describe(type_: AvroType) -> str:
    return f"{type_.kind} {type_.name}" if type_.name else type_.kind
