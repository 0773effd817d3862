"""A message of an embedded topic: its bytes in the ledger, and the object that a host receives.

Pure. It is stored in Pulsar's format, so `ackgate ledgers read` and the pipeline's tables can read it.
Only five fields of its protobuf metadata are written and read here, without a protobuf library::

    1 producer_name  2 sequence_id  3 publish_time  [6 partition_key]  [19 deliver_at_time]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ackgate.cursor import Position
from ackgate.dispatcher import resolve_key
from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import encode_varint
from ackgate.persistence.messages.entries import EntryForm
from ackgate.persistence.messages.frame import metadata_span, seal_entry

if TYPE_CHECKING:
    from ackgate.dispatcher import MessageChunk
    from ackgate.persistence.ports import LedgerEntry

_PRODUCER: Final = b"\x0a\x08embedded"
_SEQUENCE_ID, _PUBLISH_TIME, _KEY, _DELIVER_AT = 2, 3, 6, 19
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer gets it."""

    position: Position
    payload: bytes
    """Empty where the host keeps its messages itself: then look at `entry`."""
    key: str
    """The message's key; empty: it has none."""
    redelivery_count: int
    """How often it was redelivered before."""
    published_ms: int
    """When it was published, in ms since 1970; 0: unknown."""
    entry: Any
    """What the host's own `read` returned; None for a topic that keeps its messages here."""


class TopicEntry:
    """An entry of an embedded topic's ledgers."""

    __slots__ = ("_fields", "deliver_at_ms", "payload", "position")

    message_count: Final = 1
    chunk: Final[MessageChunk | None] = None

    def __init__(self, position: Position, payload: bytes, message_count: int) -> None:
        assert message_count == 1, "no batches"
        self.position = position
        self.payload = payload
        """All bytes of the entry."""
        self.deliver_at_ms = 0
        self._fields: dict[int, int | bytes] | None = None

    @classmethod
    def stored(cls, ledger_id: int, entry: LedgerEntry) -> TopicEntry:
        """The entry that a ledger returned. Raises `CorruptRecordError`."""
        made = cls(Position(ledger_id, entry.entry_id), entry.payload, 1)
        made.deliver_at_ms = made._number(_DELIVER_AT)
        return made

    @property
    def published_ms(self) -> int:
        """When it was published. Raises `CorruptRecordError`."""
        return self._number(_PUBLISH_TIME)

    @property
    def key_text(self) -> str:
        """The key as it was published; empty: none."""
        found = self._metadata().get(_KEY, b"")
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""

    @property
    def key(self) -> bytes:
        """What Key_Shared hashes: messages without a key are spread."""
        found = self._metadata().get(_KEY)
        return resolve_key(
            partition_key=found if isinstance(found, bytes) else None,
            producer_name="embedded",
            sequence_id=self._number(_SEQUENCE_ID),
        )

    @property
    def content(self) -> bytes:
        """The message that was published."""
        return self.payload[metadata_span(self.payload)[1] :]

    def _number(self, field: int) -> int:
        found = self._metadata().get(field, 0)
        return found if isinstance(found, int) else 0

    def _metadata(self) -> dict[int, int | bytes]:
        if self._fields is None:
            start, stop = metadata_span(self.payload)
            try:
                if stop > len(self.payload):
                    raise IndexError(stop)  # noqa: TRY301 - one place names the position
                self._fields = _fields(self.payload, start, stop)
            except (IndexError, ValueError) as error:
                raise CorruptRecordError(
                    f"entry {self.position}: its metadata cannot be parsed"
                ) from error
        return self._fields


ENTRY_FORM: Final = EntryForm(TopicEntry, TopicEntry.stored)


def encode_message(
    content: bytes, *, sequence_id: int, published_ms: int, key: bytes = b"", deliver_at_ms: int = 0
) -> bytes:
    """Encode one message as an entry."""
    metadata = bytearray(_PRODUCER)
    metadata += encode_varint(_SEQUENCE_ID << 3) + encode_varint(sequence_id)
    metadata += encode_varint(_PUBLISH_TIME << 3) + encode_varint(published_ms)
    if key:
        metadata += encode_varint(_KEY << 3 | _BYTES) + encode_varint(len(key)) + key
    if deliver_at_ms:
        metadata += encode_varint(_DELIVER_AT << 3) + encode_varint(deliver_at_ms)
    return seal_entry(bytes(metadata), content)


def _fields(data: bytes, at: int, stop: int) -> dict[int, int | bytes]:
    """Numbers and bytes by field; of a field that comes twice the last. Raises when bytes run out."""
    fields: dict[int, int | bytes] = {}
    while at < stop:
        tag, at = _read_varint(data, at, stop)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            fields[field], at = _read_varint(data, at, stop)
        elif wire_type == _BYTES:
            size, at = _read_varint(data, at, stop)
            fields[field] = data[at : at + size]
            at += size
        elif wire_type in {_FIXED64, _FIXED32}:
            at += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(wire_type)
    if at > stop:
        raise IndexError(at)
    return fields


def _read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        if at >= stop:
            raise IndexError(at)
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError(number)
