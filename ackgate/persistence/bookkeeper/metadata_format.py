"""A ledger's metadata and a bookie's address, as BookKeeper keeps them in ZooKeeper.

Pure. Format 3 is binary protobuf behind its size, format 2 protobuf's text; both are read, and a node
keeps the format that it has. New ledgers get format 3 (BookKeeper writes it since 4.9). Source:
BookKeeper's `LedgerMetadataSerDe` and `DataFormats.proto`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from ackgate.errors import CorruptRecordError, StorageError, UnknownFormatError
from ackgate.persistence.bookies.avro_container import encode_varint
from ackgate.persistence.bookkeeper.proto.data_formats_pb2 import (
    BookieServiceInfoFormat,
    LedgerMetadataFormat,
)
from ackgate.persistence.ports import DigestType, Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAGIC: Final = b"BookieMetadataFormatVersion\t"
BINARY: Final = 3
TEXT: Final = 2

_DIGESTS: Final = {
    DigestType.CRC32: LedgerMetadataFormat.DigestType.CRC32,
    DigestType.MAC: LedgerMetadataFormat.DigestType.HMAC,
    DigestType.CRC32C: LedgerMetadataFormat.DigestType.CRC32C,
    DigestType.DUMMY: LedgerMetadataFormat.DigestType.DUMMY,
}
_DIGEST_TYPES: Final = {number: name for name, number in _DIGESTS.items()}
_STATES: Final = {
    LedgerState.OPEN: LedgerMetadataFormat.State.OPEN,
    LedgerState.IN_RECOVERY: LedgerMetadataFormat.State.IN_RECOVERY,
    LedgerState.CLOSED: LedgerMetadataFormat.State.CLOSED,
}
_STATE_NAMES: Final = {number: name for name, number in _STATES.items()}


class StoredMetadata(NamedTuple):
    """The metadata of a ledger, with what only BookKeeper's format has of it."""

    metadata: LedgerMetadata
    password: bytes
    """In clear: BookKeeper keeps it so, and it protects against accidents only."""
    create_token: int | None
    """Random, by its creator: shows after a lost answer whose creation it was (cToken)."""
    format_version: int = BINARY
    has_ctime: bool = False
    """Whether the creation time is in the value. If not, the node's own counts."""
    version: int = 0
    """Version of the node, for compare-and-set."""

    def changed(self, metadata: LedgerMetadata) -> StoredMetadata:
        """The same with other metadata."""
        return self._replace(metadata=metadata)


def encode_metadata(stored: StoredMetadata) -> bytes:
    """Encode a ledger's metadata as the value of its node."""
    metadata = stored.metadata
    is_closed = metadata.state is LedgerState.CLOSED
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum,
        length=metadata.length_bytes if is_closed else 0,
        lastEntryId=metadata.last_entry_id if is_closed else -1,
        state=_STATES[metadata.state],
        digestType=_DIGESTS[metadata.digest_type],
        password=stored.password,
        segment=[
            LedgerMetadataFormat.Segment(
                ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id
            )
            for fragment in metadata.fragments
        ],
        customMetadata=[
            LedgerMetadataFormat.cMetadataMapEntry(key=key, value=value)
            for key, value in metadata.custom_metadata.items()
        ],
    )
    if stored.has_ctime:
        message.ctime = metadata.created_ms
    if stored.create_token is not None:
        message.cToken = stored.create_token
    head = _MAGIC + b"%d\n" % stored.format_version
    if stored.format_version == TEXT:
        return head + text_format.MessageToString(message).encode()
    value = message.SerializeToString()
    return head + encode_varint(len(value)) + value


def decode_metadata(
    ledger_id: int, value: bytes, *, version: int = 0, created_ms: int = 0
) -> StoredMetadata:
    """Decode the value of a ledger's node. `created_ms`: when the node was made.

    Raises `CorruptRecordError`, `UnknownFormatError`.
    """
    name = f"metadata of ledger {ledger_id}"
    first, newline, rest = value.partition(b"\n")
    number = first.removeprefix(_MAGIC)
    if not newline or first == number or not number.isdigit():
        raise CorruptRecordError(f"{name}: they are not BookKeeper's")
    format_version = int(number)
    message = LedgerMetadataFormat()
    try:
        match format_version:
            case 3:
                message.ParseFromString(_delimited(rest))
            case 2:
                text_format.Parse(rest.decode(), message)
            case _:
                raise UnknownFormatError(f"{name}: format {format_version}; 2 and 3 are read")
    except (DecodeError, text_format.ParseError, ValueError) as error:
        raise CorruptRecordError(f"{name}: {error}") from error
    return StoredMetadata(
        _metadata_of(ledger_id, message, created_ms),
        message.password,
        message.cToken if message.HasField("cToken") else None,
        format_version,
        message.HasField("ctime"),
        version,
    )


def _metadata_of(ledger_id: int, message: LedgerMetadataFormat, created_ms: int) -> LedgerMetadata:
    fragments = tuple(
        Fragment(segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment
    )
    if not fragments or any(len(f.ensemble) != message.ensembleSize for f in fragments):
        raise CorruptRecordError(
            f"metadata of ledger {ledger_id}: its ensembles do not have {message.ensembleSize} bookies"
        )
    metadata = LedgerMetadata(
        ledger_id=ledger_id,
        state=_STATE_NAMES[message.state],
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize or message.quorumSize,
        digest_type=_DIGEST_TYPES[message.digestType],
        fragments=fragments,
        last_entry_id=-1,
        length_bytes=0,
        created_ms=message.ctime or created_ms,
        custom_metadata={each.key: each.value for each in message.customMetadata},
    )
    if metadata.state is not LedgerState.CLOSED:
        return metadata
    return replace(metadata, last_entry_id=message.lastEntryId, length_bytes=message.length)


def _delimited(value: bytes) -> bytes:
    size = shift = 0
    for at, byte in enumerate(value[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if len(value) - at - 1 < size:
                raise ValueError(f"{len(value) - at - 1} bytes of {size}")
            return value[at + 1 : at + 1 + size]
    raise ValueError("no size")


class BookieAddress(NamedTuple):
    """Host and port at which a bookie takes entries."""

    host: str
    port: int


class BookieEndpoint(NamedTuple):
    """One of the ports that a bookie has registered."""

    endpoint_id: str
    protocol: str
    """``bookie-rpc`` for entries, ``http`` for its admin interface."""
    host: str
    port: int


class BookieService(NamedTuple):
    """A bookie's registration, from its node (BookieServiceInfo)."""

    endpoints: tuple[BookieEndpoint, ...] = ()
    properties: Mapping[str, str] = MappingProxyType({})


_HOST_AND_PORT: Final = re.compile(r"(?P<host>.+):(?P<port>\d{1,5})", re.ASCII)
_ENTRIES: Final = "bookie-rpc"


def decode_service(bookie_id: str, value: bytes) -> BookieService:
    """Decode a bookie's node below ``available``. Raises `StorageError`.

    Before BookKeeper 4.11 the node was empty.
    """
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise StorageError(f"bookie {bookie_id}: its address cannot be read: {error}") from error
    endpoints = (BookieEndpoint(e.id, e.protocol, e.host, e.port) for e in message.endpoints)
    return BookieService(tuple(endpoints), dict(message.properties))


def address_of(bookie_id: str, service: BookieService) -> BookieAddress:
    """The registered address for entries, else the one in the bookie's id.

    Raises `StorageError`.
    """
    for endpoint in service.endpoints:
        if endpoint.protocol == _ENTRIES:
            return BookieAddress(endpoint.host, endpoint.port)
    match = _HOST_AND_PORT.fullmatch(bookie_id)
    if match is None:
        raise StorageError(f"bookie {bookie_id} is not registered, and its id is no HOST:PORT")
    return BookieAddress(match["host"], int(match["port"]))


def decode_address(bookie_id: str, value: bytes) -> BookieAddress:
    """As `address_of`, from the value of a bookie's node. Raises `StorageError`."""
    return address_of(bookie_id, decode_service(bookie_id, value))
