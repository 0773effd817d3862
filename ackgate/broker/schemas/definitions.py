"""Is a schema's definition valid for its type?

Pure. Of Avro the rules of its Java library (1.11, by which Pulsar accepts definitions), as far as comparing
two schemas does without them. Earlier releases stored definitions that break these rules; such ones are still
compared, and only a new one is checked. Avro's comments in JSON are not taken.

The definition of a PROTOBUF_NATIVE schema is a JSON object of Pulsar's: the files with the message type and
all that it uses, as a ``FileDescriptorSet`` in base64, and which of them is the one. That the files fit
together is not checked.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, Never

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ackgate.broker.schemas.avro_compatibility import PRIMITIVES, full_name, parse
from ackgate.broker.schemas.compatibility import AVRO_DEFINED, key_and_value
from ackgate.broker.wire import IncompatibleSchemaError, Schema, SchemaType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.broker.schemas.avro_compatibility import AvroType

FIXED_BYTES_MAX: Final = 2**31 - 9
"""Java's longest array."""

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_ORDERS: Final = frozenset({"ASCENDING", "DESCENDING", "IGNORE"})
_WITHOUT_DEFINITION: Final = frozenset(
    {
        SchemaType.BOOLEAN,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
        SchemaType.DATE,
        SchemaType.TIME,
        SchemaType.TIMESTAMP,
        SchemaType.INSTANT,
        SchemaType.LOCAL_DATE,
        SchemaType.LOCAL_TIME,
        SchemaType.LOCAL_DATE_TIME,
    }
)


def check_definition(schema: Schema) -> None:
    """Raise `IncompatibleSchemaError` if the definition is not valid for its type, as in Pulsar."""
    if schema.type in AVRO_DEFINED:
        if _check_avro(schema.definition).kind == "union" and schema.type is SchemaType.AVRO:
            raise IncompatibleSchemaError("an AVRO schema is not a union")
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_and_value(schema):
            check_definition(part)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        _check_message_type(schema.definition)
    elif schema.type is SchemaType.STRING:
        if schema.definition not in {b"", b"null"}:  # old Python clients send the latter
            raise IncompatibleSchemaError("a STRING schema has no definition")
    elif schema.type in _WITHOUT_DEFINITION and schema.definition:
        raise IncompatibleSchemaError(f"a schema of type {schema.type.name} has no definition")


def _check_avro(definition: bytes) -> AvroType:
    """Parse a definition that keeps all rules. Raises `IncompatibleSchemaError` naming what is wrong."""
    try:
        text = definition.decode()
        given = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        _refuse(error)
    parsed = parse(text)
    _check_unions(parsed, set())
    try:
        _Definition().check(given, "")
    except (KeyError, TypeError, AttributeError) as error:
        _refuse(repr(error))
    return parsed


def _refuse(why: object) -> Never:
    raise IncompatibleSchemaError(f"not a schema: {why!s:.200}")


def _check_unions(type_: AvroType, met: set[int]) -> None:
    if id(type_) in met:
        return
    met.add(id(type_))
    if type_.kind == "union":
        names = [branch.name or branch.kind for branch in type_.inner]
        if "union" in names:
            _refuse("a union in a union")
        _check_unique(names, "branch")
    for part in (*type_.inner, *(each.type for each in type_.fields.values())):
        _check_unions(part, met)


class _Definition:
    """Checks one definition's JSON, of which `parse` has found that all types are known."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def check(self, schema: Any, namespace: str) -> None:  # noqa: ANN401 - JSON
        if isinstance(schema, list):
            for branch in schema:
                self.check(branch, namespace)
        elif isinstance(schema, dict):
            kind = schema["type"]
            if not isinstance(kind, str):
                _refuse(f"{kind!r} is not the name of a type")
            if kind in {"array", "map"}:
                self.check(schema["items" if kind == "array" else "values"], namespace)
            elif kind in _NAMED:
                self._check_named(kind, schema, namespace)

    def _check_named(self, kind: str, schema: dict[str, Any], namespace: str) -> None:
        name = full_name(schema["name"], schema.get("namespace", namespace))
        namespace, _, simple = name.rpartition(".")
        _check_names([simple])
        if name in PRIMITIVES or name in self._named:
            _refuse(f"type {name} is there already")
        self._named.add(name)
        _check_names(alias.rpartition(".")[2] for alias in _texts(schema, "aliases"))
        if kind == "enum":
            symbols = _texts(schema, "symbols")
            _check_names(symbols)
            _check_unique(symbols, "symbol")
            default = schema.get("default")
            if isinstance(default, str) and default not in symbols:
                _refuse(f"the default {default!r} is no symbol")
        elif kind == "fixed":
            if not 0 <= schema["size"] <= FIXED_BYTES_MAX:
                _refuse(f"{schema['size']} is no size")
        else:
            self._check_fields(schema["fields"], namespace)

    def _check_fields(self, fields: Any, namespace: str) -> None:  # noqa: ANN401 - JSON
        if not isinstance(fields, list):
            _refuse("fields is not a list")
        names = [each["name"] for each in fields]
        _check_names(names)
        _check_unique(names, "field")
        for each in fields:
            _texts(each, "aliases")
            if each.get("order", "ignore").upper() not in _ORDERS:
                _refuse(f"{each['order']!r} is no order")
            self.check(each["type"], namespace)


def _texts(schema: dict[str, Any], key: str) -> list[str]:
    value = schema.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        _refuse(f"{key} is not a list of texts")
    return value


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        first, rest = name[:1], name[1:].replace("_", "")
        if not (first.isalpha() or first == "_") or (rest and not rest.isalnum()):
            _refuse(f"{name!r} is no name")


def _check_unique(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _refuse(f"{what} {name} is there twice")
        seen.add(name)


# ---- PROTOBUF_NATIVE


def _check_message_type(definition: bytes) -> None:
    try:
        given = json.loads(definition)
        files = FileDescriptorSet.FromString(
            base64.b64decode(given["fileDescriptorSet"], validate=True)
        )
        file_name, name = given["rootFileDescriptorName"], given["rootMessageTypeName"]
        is_there = any(
            _has_message_type(each, name) for each in files.file if each.name == file_name
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DecodeError) as error:
        raise IncompatibleSchemaError(f"not a PROTOBUF_NATIVE schema: {error!r:.200}") from None
    if not is_there:
        raise IncompatibleSchemaError(
            f"not a PROTOBUF_NATIVE schema: no message type {name!r:.80} in {file_name!r:.80}"
        )


def _has_message_type(file: FileDescriptorProto, name: str) -> bool:
    inside: FileDescriptorProto | DescriptorProto = file
    for part in name.removeprefix(f"{file.package}." if file.package else "").split("."):
        types = (
            inside.message_type if isinstance(inside, FileDescriptorProto) else inside.nested_type
        )
        found = next((each for each in types if each.name == part), None)
        if found is None:
            return False
        inside = found
    return True
