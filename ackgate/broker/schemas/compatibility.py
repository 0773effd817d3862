"""Decides whether a schema may join those that a topic has.

Pure. Pulsar's strategies: BACKWARD (consumers with the new schema read old data), FORWARD
(consumers with the old one read new data), FULL (both), each against the latest version or,
TRANSITIVE, against all; ALWAYS_COMPATIBLE and ALWAYS_INCOMPATIBLE say what they do. A schema of
another type is rejected under every strategy but ALWAYS_COMPATIBLE.

AVRO, JSON and PROTOBUF schemas are Avro definitions, and compared as such; a KEY_VALUE schema is
two schemas of the types that its properties name. The definitions of all other types (primitives,
PROTOBUF_NATIVE, EXTERNAL) are not compared: the same type is compatible.
"""

from __future__ import annotations

import contextlib
import json
import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.schemas.avro_compatibility import parse, why_not_readable
from ackgate.broker.wire import IncompatibleSchemaError, Schema, SchemaType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.config.broker import CompatibilityName

AVRO_DEFINED: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})

_LENGTH: Final = struct.Struct(">i")


def check_compatible(new: Schema, existing: Sequence[Schema], strategy: CompatibilityName) -> None:
    """Raise `IncompatibleSchemaError` if `new` may not be the next version after `existing`."""
    if strategy == "ALWAYS_COMPATIBLE" or not existing:
        return
    if strategy == "ALWAYS_INCOMPATIBLE":
        raise IncompatibleSchemaError("the topic's strategy allows no other schema")
    latest = existing[-1]
    if latest.type is not new.type:
        raise IncompatibleSchemaError(
            f"Incompatible schema: exists schema type {latest.type.name},"
            f" new schema type {new.type.name}"
        )
    direction = strategy.removesuffix("_TRANSITIVE")
    others = existing if strategy.endswith("_TRANSITIVE") else existing[-1:]
    for other in others:
        if direction in {"BACKWARD", "FULL"}:
            _check_reads(reader=new, writer=other)
        if direction in {"FORWARD", "FULL"}:
            _check_reads(reader=other, writer=new)


def check_reader(reader: Schema, existing: Sequence[Schema], strategy: CompatibilityName) -> None:
    """Raise `IncompatibleSchemaError` if a consumer may not read the topic with this schema.

    As Pulsar: it must read the latest version; under BACKWARD_TRANSITIVE and FULL_TRANSITIVE every
    version that is not the same is compared, in the strategy's own directions.
    """
    if strategy in {"BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL"}:
        check_compatible(reader, existing, "BACKWARD")
    else:
        others = [schema for schema in existing if not is_same(schema, reader)]
        check_compatible(reader, others, strategy)


def _check_reads(*, reader: Schema, writer: Schema) -> None:
    if reader.type in AVRO_DEFINED and reader.type is writer.type:
        reason = why_not_readable(parse(reader.definition), parse(writer.definition))
        if reason is not None:
            raise IncompatibleSchemaError(f"Incompatible schema: {reason}")
    elif reader.type is not writer.type:
        raise IncompatibleSchemaError(
            f"Incompatible schema: {writer.type.name} cannot be read as {reader.type.name}"
        )
    elif reader.type is SchemaType.KEY_VALUE:
        pairs = zip(key_and_value(reader), key_and_value(writer), strict=True)
        for reader_part, writer_part in pairs:
            _check_reads(reader=reader_part, writer=writer_part)


def is_same(one: Schema, other: Schema) -> bool:
    """Whether two schemas are the same version: same type, same definition.

    Of definitions in Avro neither white space nor the order of keys nor descriptions matter, and
    ``{"type": "int"}`` is ``"int"``.
    """
    return fingerprint(one) == fingerprint(other)


def fingerprint(schema: Schema) -> bytes:
    """A digest of 32 bytes that schemas share exactly if they are the same version (`is_same`)."""
    definition = schema.definition
    if schema.type in AVRO_DEFINED:
        with contextlib.suppress(ValueError, RecursionError):  # what is no JSON stands for itself
            definition = json.dumps(_meant(json.loads(definition)), sort_keys=True).encode()
    return sha256(b"%d:%b" % (schema.type, definition)).digest()


def _meant(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A definition without what does not tell two schemas apart."""
    if isinstance(value, list):
        return [_meant(each) for each in value]
    if not isinstance(value, dict):
        return value
    meant = {
        key: member if key == "default" else _meant(member)
        for key, member in value.items()
        if key != "doc"
    }
    return meant["type"] if meant.keys() == {"type"} else meant


def key_and_value(schema: Schema) -> tuple[Schema, Schema]:
    """The two schemas in a KEY_VALUE schema: (length, key definition, length, value definition)."""
    definition = schema.definition
    try:
        (key_bytes,) = _LENGTH.unpack_from(definition, 0)
        key_end = 4 + max(key_bytes, 0)
        (value_bytes,) = _LENGTH.unpack_from(definition, key_end)
    except struct.error:
        raise IncompatibleSchemaError("a KEY_VALUE schema does not hold two schemas") from None
    value_start = key_end + 4
    if value_start + max(value_bytes, 0) > len(definition):
        raise IncompatibleSchemaError("a KEY_VALUE schema does not hold two schemas")
    return (
        _part(schema, "key", definition[4:key_end]),
        _part(schema, "value", definition[value_start : value_start + max(value_bytes, 0)]),
    )


def _part(schema: Schema, which: str, definition: bytes) -> Schema:
    type_name = schema.properties.get(f"{which}.schema.type", "NONE")
    # Pulsar's names, which write LocalDate as LOCAL_DATE, and bytes as BYTES.
    part_type = SchemaType.__members__.get(type_name, SchemaType.NONE)
    return Schema(schema.properties.get(f"{which}.schema.name", which), part_type, definition)
