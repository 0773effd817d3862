"""Values out of payloads, by the schemas of Pulsar's registry.

Pure. A topic's schemas are numbered; each message names the one that it was written with. Numbers are
big-endian, times milliseconds since 1970 unless the schema says more, as Pulsar's Java client writes
them. Not decoded: PROTOBUF (its schema says no field numbers), and schemas outside of Pulsar.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from ackgate.errors import CorruptRecordError
from ackgate.pulsar.proto.stored_pb2 import SchemaEntry, SchemaRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Decode = Callable[[bytes], Any]

_TYPES: Final = dict(
    enumerate(
        (
            *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32"),
            *("INT64", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT"),
            *("LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
        ),
        start=1,
    )
)
"""As schemas are stored: numbers of their own, not those of the wire."""

_EPOCH: Final = dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's schema."""

    version: int
    kind: str
    """Pulsar's name: JSON, AVRO, KEY_VALUE, INT32, ..."""
    definition: bytes = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)
    is_deleted: bool = False


def decode_schema(payload: bytes, version: int, *, name: str) -> TopicSchema:
    """Decode an entry of a schema's ledger. Raises `CorruptRecordError`."""
    try:
        stored = SchemaRecord.FromString(SchemaEntry.FromString(payload).schema_data)
    except DecodeError as error:
        raise CorruptRecordError(f"{name}: it is no schema: {error}") from error
    return TopicSchema(
        version,
        _TYPES.get(stored.type, f"type {stored.type}"),
        stored.schema,
        {pair.key: pair.value for pair in stored.props},
        stored.deleted,
    )


class ValueDecoder:
    """Decodes the payloads of one topic."""

    def __init__(self, schemas: Iterable[TopicSchema]) -> None:
        self._schemas = {schema.version: schema for schema in schemas}
        self._decoders: dict[int, Decode | None] = {}

    def decode(self, payload: bytes, schema_version: bytes, *, key: str = "") -> Any:  # noqa: ANN401
        """Decode a payload.

        `schema_version`: as in the message, empty for none; `key`: its partition key. Raises
        `ValueError` for a payload that does not fit, and without a schema that can be decoded.
        """
        if not schema_version:
            raise ValueError("sent without a schema")
        version = int.from_bytes(schema_version[:8], "big", signed=True)
        if version not in self._decoders:
            self._decoders[version] = self._decoder(version)
        decoder = self._decoders[version]
        if decoder is None:
            raise ValueError(f"schema {version} is not known, or not decoded")
        schema = self._schemas[version]
        if schema.kind == "KEY_VALUE" and schema.properties.get("kv.encoding.type") == "SEPARATED":
            packed = base64.b64decode(key)
            payload = _pair(packed, payload)
        try:
            return decoder(payload)
        except (struct.error, DecodeError, EOFError, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"schema {version}: {error!r}") from error

    def _decoder(self, version: int) -> Decode | None:
        schema = self._schemas.get(version)
        if schema is None or schema.is_deleted:
            return None
        return decoder_of(schema.kind, schema.definition, schema.properties)


def decoder_of(kind: str, definition: bytes, properties: Mapping[str, str]) -> Decode | None:
    """The decoder for payloads of this schema. None: nothing here decodes it, or it is damaged."""
    try:
        match kind:
            case "NONE" | "BYTES":
                return bytes
            case "STRING":
                return bytes.decode
            case "JSON":
                return json.loads
            case "AVRO":
                return _avro(definition)
            case "KEY_VALUE":
                return _key_value(definition, properties)
            case "PROTOBUF_NATIVE":
                return _protobuf(definition)
    except (ValueError, KeyError, TypeError, struct.error, fastavro.schema.SchemaParseException):
        return None
    return _PRIMITIVES.get(kind)


def _avro(definition: bytes) -> Decode:
    schema = fastavro.parse_schema(json.loads(definition))
    return lambda payload: fastavro.schemaless_reader(io.BytesIO(payload), schema, None)


def _protobuf(definition: bytes) -> Decode:
    about = json.loads(definition)
    files = descriptor_pb2.FileDescriptorSet.FromString(
        base64.b64decode(about["fileDescriptorSet"])
    )
    pool = descriptor_pool.DescriptorPool()
    waiting = {each.name: each for each in files.file}

    def add(name: str) -> None:
        found = waiting.pop(name, None)
        if found is not None:
            for other in found.dependency:
                add(other)
            pool.Add(found)

    for name in list(waiting):
        add(name)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(about["rootMessageTypeName"]))
    return lambda payload: json_format.MessageToDict(
        kind.FromString(payload), preserving_proto_field_name=True
    )


def _key_value(definition: bytes, properties: Mapping[str, str]) -> Decode | None:
    parts = _parts(definition)
    decoders = []
    for side, part in zip(("key", "value"), parts, strict=True):
        own = json.loads(properties.get(f"{side}.schema.properties") or "{}")
        decoders.append(decoder_of(properties[f"{side}.schema.type"], part or b"", own))
    of_key, of_value = decoders
    if of_key is None or of_value is None:
        return None

    def decode(payload: bytes) -> Any:  # noqa: ANN401 - any value
        key, value = _parts(payload)
        return {
            "key": None if key is None else of_key(key),
            "value": None if value is None else of_value(value),
        }

    return decode


def _parts(packed: bytes) -> tuple[bytes | None, bytes | None]:
    """Two byte strings, each after its length; -1: null."""
    found: list[bytes | None] = []
    at = 0
    for _ in range(2):
        (size,) = struct.unpack_from(">i", packed, at)
        at += 4
        found.append(None if size < 0 else packed[at : at + size])
        at += max(0, size)
    if at != len(packed):
        raise ValueError(f"{len(packed)} bytes are no pair")
    return found[0], found[1]


def _pair(key: bytes, value: bytes) -> bytes:
    return struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value


def _number(form: str) -> Decode:
    whole = struct.Struct(form)
    return lambda payload: whole.unpack(payload)[0]


def _boolean(payload: bytes) -> bool:
    return bool(_number(">b")(payload))


def _instant(payload: bytes) -> str:
    seconds, nanos = struct.unpack(">qi", payload)
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{nanos:09d}Z"


def _local_date(payload: bytes) -> str:
    (days,) = struct.unpack(">q", payload)
    return (_EPOCH + dt.timedelta(days=days)).isoformat()


def _local_time(payload: bytes) -> str:
    seconds, nanos = divmod(struct.unpack(">q", payload)[0], 1_000_000_000)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{nanos:09d}"


def _local_date_time(payload: bytes) -> str:
    return f"{_local_date(payload[:8])}T{_local_time(payload[8:])}"


_PRIMITIVES: Final[dict[str, Decode]] = {
    "BOOLEAN": _boolean,
    "INT8": _number(">b"),
    "INT16": _number(">h"),
    "INT32": _number(">i"),
    "INT64": _number(">q"),
    "FLOAT": _number(">f"),
    "DOUBLE": _number(">d"),
    "DATE": _number(">q"),
    "TIME": _number(">q"),
    "TIMESTAMP": _number(">q"),
    "INSTANT": _instant,
    "LOCAL_DATE": _local_date,
    "LOCAL_TIME": _local_time,
    "LOCAL_DATE_TIME": _local_date_time,
}
