"""Values by schemas of Pulsar's registry."""

from __future__ import annotations

import base64
import io
import json
import struct

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from ackgate.errors import CorruptRecordError
from ackgate.pulsar import TopicSchema, ValueDecoder, decode_schema
from ackgate.pulsar.proto import stored_pb2 as pb

RECORD = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
ORDER = {"id": 7, "note": "ü"}


def avro(value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(RECORD), value)
    return out.getvalue()


def decoded(
    kind: str, payload: bytes, definition: bytes = b"", key: str = "", **properties: str
) -> object:
    named = {name.replace("__", "."): value for name, value in properties.items()}
    schema = TopicSchema(3, kind, definition, named)
    return ValueDecoder([schema]).decode(payload, (3).to_bytes(8, "big"), key=key)


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("STRING", "hällo".encode(), "hällo"),
        ("JSON", b'{"a": [1, null]}', {"a": [1, None]}),
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\1\0", 256),
        ("INT32", b"\xff\xff\xff\xfe", -2),
        ("INT64", struct.pack(">q", 2**40), 2**40),
        ("FLOAT", struct.pack(">f", 0.5), 0.5),
        ("DOUBLE", struct.pack(">d", 0.1), 0.1),
        ("TIMESTAMP", struct.pack(">q", 1_700_000_000_000), 1_700_000_000_000),
        ("INSTANT", struct.pack(">qi", 86_400, 5), "1970-01-02T00:00:00.000000005Z"),
        ("LOCAL_DATE", struct.pack(">q", 19_000), "2022-01-08"),
        ("LOCAL_TIME", struct.pack(">q", 3_723_000_000_001), "01:02:03.000000001"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 0), "1970-01-02T00:00:00.000000000"),
        ("BYTES", b"\0\1", b"\0\1"),
    ],
)
def test_plain_kinds(kind: str, payload: bytes, value: object) -> None:
    assert decoded(kind, payload) == value


def test_avro() -> None:
    assert decoded("AVRO", avro(ORDER), json.dumps(RECORD).encode()) == ORDER


def test_protobuf_native() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="order_id", number=1, type=3, label=1)
    message.field.add(name="note", number=2, type=9, label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    definition = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": "shop.Order",
        "rootFileDescriptorName": "order.proto",
    }
    payload = b"\x08\x07\x12\x02hi"
    found = decoded("PROTOBUF_NATIVE", payload, json.dumps(definition).encode())
    assert found == {"order_id": "7", "note": "hi"}


def test_key_and_value() -> None:
    definition = struct.pack(">i", 0) + struct.pack(">i", len(json.dumps(RECORD)))
    definition += json.dumps(RECORD).encode()
    names = {"key__schema__type": "INT32", "value__schema__type": "AVRO"}
    key, value = struct.pack(">i", 9), avro(ORDER)
    inline = struct.pack(">i", 4) + key + struct.pack(">i", len(value)) + value
    assert decoded("KEY_VALUE", inline, definition, **names) == {"key": 9, "value": ORDER}
    apart = decoded(
        *("KEY_VALUE", value, definition, base64.b64encode(key).decode()),
        kv__encoding__type="SEPARATED",
        **names,
    )
    assert apart == {"key": 9, "value": ORDER}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("INT32", b"\0"), ("JSON", b"{"), ("STRING", b"\xff"), ("PROTOBUF", b""), ("AVRO", b"")],
)
def test_what_does_not_fit_is_an_error(kind: str, payload: bytes) -> None:
    with pytest.raises(ValueError):
        decoded(kind, payload)


def test_versions() -> None:
    decoder = ValueDecoder([TopicSchema(0, "INT8", b""), TopicSchema(1, "INT16", b"")])
    assert decoder.decode(b"\5", bytes(8)) == 5
    assert decoder.decode(b"\1\5", (1).to_bytes(8, "big")) == 261
    for version in (b"", (2).to_bytes(8, "big")):
        with pytest.raises(ValueError, match="schema"):
            decoder.decode(b"\5", version)


def test_as_stored() -> None:
    record = pb.SchemaRecord(
        schema_id="a/b/c", user="u", type=9, schema=b"", timestamp=1, deleted=False
    )
    record.props.add(key="p", value="q")
    payload = pb.SchemaEntry(schema_data=record.SerializeToString()).SerializeToString()
    schema = decode_schema(payload, 4, name="here")
    assert (schema.kind, schema.version, schema.properties) == ("INT32", 4, {"p": "q"})
    with pytest.raises(CorruptRecordError, match="here"):
        decode_schema(b"\xff", 0, name="here")
