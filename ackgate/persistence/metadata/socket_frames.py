"""The protocol on the Unix socket of a metadata store: requests, answers and events, framed.

Pure. A frame is its size, four bytes, and one record of Avro::

    store   HELLO(protocol, time-out)  ->            server
            <-  answer(granted time-out)
            GET | PUT | CREATE | DELETE | CHILDREN  ->
            WATCH | UNWATCH | PING | BYE  ->
            <-  answer, in any order: it has the number of its request
            <-  events of watched paths: number 0

An error goes over as the name of its class, which the other side looks up among `ERRORS`. Nothing here
is stored, and both sides are of one release: there is one version, and another one is refused.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fastavro
from fastavro.schema import parse_schema

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    CorruptRecordError,
    InternalError,
    MetadataConflictError,
    MetadataDiskFullError,
    MetadataStoreError,
    NodeExistsError,
    NodeTooLargeError,
    NoSuchNodeError,
)
from ackgate.persistence.ports import NodeValue, WatchEvent, WatchKind

if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL: Final = "ackgate-metadata/1"

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""Names of children are the largest answers: half a million topics of one namespace fit."""

ERROR_CHARACTERS_MAX: Final = 4_096

ERRORS: Final[dict[str, type[AckGateError]]] = {
    kind.__name__: kind
    for kind in (
        CallerError,
        ClosedHandleError,
        ConfigurationError,
        CorruptRecordError,
        InternalError,
        MetadataConflictError,
        MetadataDiskFullError,
        MetadataStoreError,
        NoSuchNodeError,
        NodeExistsError,
        NodeTooLargeError,
    )
}
"""The errors that a store raises, by class name."""

_SIZE: Final = struct.Struct(">I")

_REQUEST: Final = parse_schema(
    {
        "type": "record",
        "name": "SocketRequest",
        "fields": [
            {"name": "number", "type": "long"},
            {
                "name": "call",
                "type": {
                    "type": "enum",
                    "name": "Call",
                    "symbols": [
                        *("HELLO", "GET", "PUT", "CREATE", "DELETE", "CHILDREN"),
                        *("WATCH", "UNWATCH", "PING", "BYE"),
                    ],
                },
            },
            {"name": "path", "type": "string"},
            {"name": "value", "type": "bytes"},
            {"name": "version", "type": ["null", "long"]},
            {"name": "is_ephemeral", "type": "boolean"},
        ],
    }
)

_ANSWER: Final = parse_schema(
    {
        "type": "record",
        "name": "SocketAnswer",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "error", "type": "string"},
            {"name": "text", "type": "string"},
            {"name": "version", "type": "long"},
            {
                "name": "node",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Node",
                        "fields": [
                            {"name": "value", "type": "bytes"},
                            {"name": "version", "type": "long"},
                            {"name": "created_ms", "type": "long"},
                            {"name": "modified_ms", "type": "long"},
                            {"name": "is_ephemeral", "type": "boolean"},
                        ],
                    },
                ],
            },
            {"name": "names", "type": {"type": "array", "items": "string"}},
            {
                "name": "events",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Event",
                        "fields": [
                            {
                                "name": "kind",
                                "type": {
                                    "type": "enum",
                                    "name": "Kind",
                                    "symbols": [kind.value for kind in WatchKind],
                                },
                            },
                            {"name": "path", "type": "string"},
                        ],
                    },
                },
            },
        ],
    }
)


class SocketRequest(NamedTuple):
    """A request. HELLO has the protocol as its path, and the time-out in ms as its version."""

    number: int
    call: str
    path: str = ""
    value: bytes = b""
    version: int | None = None
    is_ephemeral: bool = False

    def encode(self) -> bytes:
        """Encode the request as a frame."""
        return _frame(_REQUEST, self._asdict())

    @classmethod
    def decode(cls, body: bytes) -> SocketRequest:
        """Decode the body of a frame. Raises `CorruptRecordError`."""
        return cls(**_record(_REQUEST, body))


class SocketAnswer(NamedTuple):
    """The server's answer to the request of this number; with number 0, which nodes changed."""

    number: int
    error: str = ""
    """Name of the error's class; empty: there is none."""
    text: str = ""
    version: int = 0
    node: NodeValue | None = None
    names: tuple[str, ...] = ()
    events: tuple[WatchEvent, ...] = ()

    @classmethod
    def failed(cls, number: int, error: AckGateError) -> SocketAnswer:
        """The answer that reports an error."""
        kind = next((k.__name__ for k in type(error).__mro__ if k.__name__ in ERRORS), "")
        return cls(
            number, kind or MetadataStoreError.__name__, _unicode(str(error))[:ERROR_CHARACTERS_MAX]
        )

    def encode(self) -> bytes:
        """Encode the answer as a frame."""
        record = self._asdict()
        record["node"] = self.node._asdict() if self.node is not None else None
        record["events"] = [{"kind": kind.value, "path": path} for kind, path in self.events]
        return _frame(_ANSWER, record)

    @classmethod
    def decode(cls, body: bytes) -> SocketAnswer:
        """Decode the body of a frame. Raises `CorruptRecordError`."""
        record = _record(_ANSWER, body)
        node = record["node"]
        record["node"] = NodeValue(**node) if node is not None else None
        record["names"] = tuple(record["names"])
        record["events"] = tuple(
            WatchEvent(WatchKind(each["kind"]), each["path"]) for each in record["events"]
        )
        return cls(**record)

    def raised(self) -> AckGateError | None:
        """The error that the server raised; None: there was none."""
        if not self.error:
            return None
        return ERRORS.get(self.error, MetadataStoreError)(self.text)


class FrameBuffer:
    """Cuts the bytes from a socket into the bodies of frames."""

    __slots__ = ("_bytes", "_bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes = bytearray()
        self._bytes_max = bytes_max

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that are complete.

        Raises `CorruptRecordError` for one that is too large.
        """
        self._bytes += data
        at = 0
        try:
            while len(self._bytes) - at >= _SIZE.size:
                (size,) = _SIZE.unpack_from(self._bytes, at)
                if size > self._bytes_max:
                    raise CorruptRecordError(
                        f"a frame of {size} bytes, at most {self._bytes_max} are taken"
                    )
                if len(self._bytes) - at < _SIZE.size + size:
                    return
                at += _SIZE.size + size
                yield bytes(self._bytes[at - size : at])
        finally:
            del self._bytes[:at]


def _frame(schema: Any, record: dict[str, Any]) -> bytes:  # noqa: ANN401
    stream = BytesIO()
    stream.write(bytes(_SIZE.size))
    fastavro.schemaless_writer(stream, schema, record)
    frame = bytearray(stream.getbuffer())
    _SIZE.pack_into(frame, 0, len(frame) - _SIZE.size)
    return bytes(frame)


def _record(schema: Any, body: bytes) -> dict[str, Any]:  # noqa: ANN401
    stream = BytesIO(body)
    try:
        record = fastavro.schemaless_reader(stream, schema, None)
    except Exception as error:  # fastavro raises whatever it stumbles over
        raise CorruptRecordError(
            f"a frame of {len(body)} bytes is no {schema['name']}: {error!r}"
        ) from error
    if stream.tell() != len(body):
        raise CorruptRecordError(
            f"a frame of {len(body)} bytes is no {schema['name']}:"
            f" {len(body) - stream.tell()} bytes are left over"
        )
    assert isinstance(record, dict)
    return record


def _unicode(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
