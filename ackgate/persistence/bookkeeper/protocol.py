r"""BookKeeper's wire protocol v2: the bytes of requests, of replies, and of an entry with its digest.

Pure. A frame is ``int32 size`` and so many bytes; all integers are big-endian. An entry is what a
bookie stores and returns unchanged::

    ledger id | entry id | last add confirmed | length | digest        | payload
    int64       int64      int64                int64    0 to 20 bytes
    \--------------------- head --------------------/     over head and payload

`length` is the sum of all payloads up to and with this entry. Source: BookKeeper 4.17,
`BookieProtoEncoding` and `DigestManager`.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from ackgate.errors import DigestMismatchError
from ackgate.persistence.ports import DigestType, LedgerEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FRAME_BYTES_MAX: Final = 5 * 1024 * 1024
"""A bookie's default (nettyMaxFrameSizeBytes), the size field included. A longer frame breaks the
connection without an answer."""

PARTS_PER_ADD: Final = 4
"""Pieces of a frame that adds an entry: all before the entry, its head, its digest, its payload."""

LAST_ENTRY: Final = -1
"""Read as an entry id: the entry with the highest id that the bookie has."""

HEAD_BYTES: Final = 32
KEY_BYTES: Final = 20
_HEAD: Final = struct.Struct(">qqqq")
_BATCH_ENTRY: Final = struct.Struct(">iqq")
"""Size, ledger, entry: how each entry of a batch begins."""
_SIZE_AND_HEADER: Final = struct.Struct(">iI")
_CRC32C: Final = struct.Struct(">I")
_CRC32: Final = struct.Struct(">Q")
_COPY_FREE_BYTES: Final = 4096
"""Above this a digest runs over head and payload in two steps instead of over a copy of both."""


class Opcode(enum.IntEnum):
    """The operation that a request asks for."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class Flag(enum.IntFlag):
    """Options of a request: bits, numbered as on the wire."""

    NONE = 0
    DO_FENCING = 1
    RECOVERY_ADD = 2
    HIGH_PRIORITY = 4


class Code(enum.IntEnum):
    """Result code of a reply."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


NOT_HERE: Final = frozenset({Code.NO_LEDGER, Code.NO_ENTRY})
"""Codes that prove that the bookie does not have the entry."""


def code_name(code: int) -> str:
    """The name of a code, for messages."""
    return Code(code).name if code in Code._value2member_map_ else f"code {code}"


def master_key(password: bytes) -> bytes:
    """What a bookie compares before it takes an add or a fence; 20 bytes."""
    return hashlib.sha1(b"ledger" + password).digest()  # noqa: S324  as BookKeeper has it


def _header(opcode: Opcode, flags: Flag = Flag.NONE) -> int:
    return 2 << 24 | opcode << 16 | flags


class VerifiedEntry(NamedTuple):
    """An entry as a bookie returned it, its digest verified."""

    entry_id: int
    last_add_confirmed: int
    length_bytes: int
    """Payload bytes of the ledger up to and with this entry."""
    payload: bytes


class EntryCodec:
    """Entries of one ledger to frames that add them, and back."""

    __slots__ = ("_digest", "_digest_bytes", "key", "ledger_id")

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes) -> None:
        self.ledger_id = ledger_id
        self.key = master_key(password)
        self._digest, self._digest_bytes = _digest(digest_type, password)

    def add_parts(
        self,
        first_entry_id: int,
        last_add_confirmed: int,
        length_bytes: int,
        payloads: Sequence[bytes],
        flags: Flag = Flag.NONE,
    ) -> list[bytes]:
        """The frames that add these payloads, each in `PARTS_PER_ADD` pieces to be joined.

        `length_bytes`: payload bytes of all entries before the first one.
        """
        header, fixed = _header(Opcode.ADD, flags), 4 + KEY_BYTES + HEAD_BYTES + self._digest_bytes
        digest, ledger_id, pack_head = self._digest, self.ledger_id, _HEAD.pack
        parts: list[bytes] = []
        size, start = -1, b""
        for entry_id, payload in enumerate(payloads, first_entry_id):
            if len(payload) != size:  # as a rule the next one is of the same size
                size = len(payload)
                start = _SIZE_AND_HEADER.pack(fixed + size, header) + self.key
            length_bytes += size
            head = pack_head(ledger_id, entry_id, last_add_confirmed, length_bytes)
            parts += (start, head, digest(head, payload), payload)
        return parts

    def decode(self, stored: bytes, entry_id: int) -> VerifiedEntry:
        """Take a stored entry apart; `LAST_ENTRY` fits any id. Raises `DigestMismatchError`."""
        at = HEAD_BYTES + self._digest_bytes
        if len(stored) >= at:
            head, payload = stored[:HEAD_BYTES], stored[at:]
            ledger_id, found, last_add_confirmed, length_bytes = _HEAD.unpack(head)
            if (
                ledger_id == self.ledger_id
                and entry_id in (found, LAST_ENTRY)
                and hmac.compare_digest(stored[HEAD_BYTES:at], self._digest(head, payload))
            ):
                return VerifiedEntry(found, last_add_confirmed, length_bytes, payload)
        raise DigestMismatchError(f"entry {self.ledger_id}:{entry_id}: a copy is damaged")

    def decode_batch(self, body: bytes, first_entry_id: int) -> list[LedgerEntry]:
        """The entries of a batch read's reply, up to the first one that is damaged.

        Raises `ValueError` if a size does not fit.
        """
        ledger_id, digest = self.ledger_id, self._digest
        unpack, is_same = _BATCH_ENTRY.unpack_from, hmac.compare_digest
        digest_at, payload_at = 4 + HEAD_BYTES, 4 + HEAD_BYTES + self._digest_bytes
        entries: list[LedgerEntry] = []
        at, end, entry_id = 0, len(body), first_entry_id
        while at < end:
            if end - at < payload_at:
                raise ValueError(f"{end - at} bytes at the end of a batch")
            size, found_ledger_id, found = unpack(body, at)
            after = at + 4 + size
            if not at + payload_at <= after <= end:
                raise ValueError(f"an entry of {size} bytes in a batch of {end}")
            payload = body[at + payload_at : after]
            made = digest(body[at + 4 : at + digest_at], payload)
            if (
                found != entry_id
                or found_ledger_id != ledger_id
                or not is_same(made, body[at + digest_at : at + payload_at])
            ):
                break
            entries.append(LedgerEntry(entry_id, payload))
            at, entry_id = after, entry_id + 1
        return entries


def _digest(
    digest_type: DigestType, password: bytes
) -> tuple[Callable[[bytes, bytes], bytes], int]:
    """The function over head and payload, and how many bytes it gives."""
    match digest_type:
        case DigestType.CRC32C:
            return _crc32c, _CRC32C.size
        case DigestType.CRC32:
            return _crc32, _CRC32.size
        case DigestType.MAC:
            key = hashlib.sha1(b"mac" + password).digest()  # noqa: S324  as BookKeeper has it
            return lambda head, payload: hmac.digest(key, head + payload, "sha1"), 20
        case DigestType.DUMMY:
            return lambda _head, _payload: b"", 0


def _crc32c(head: bytes, payload: bytes) -> bytes:
    if len(payload) < _COPY_FREE_BYTES:
        return _CRC32C.pack(crc32c(head + payload))
    return _CRC32C.pack(crc32c_extend(crc32c(head), payload))


def _crc32(head: bytes, payload: bytes) -> bytes:
    return _CRC32.pack(zlib.crc32(payload, zlib.crc32(head)))


_READ: Final = struct.Struct(">iIqq")
_BATCH_READ: Final = struct.Struct(">iIqqqiq")


def read_frame(
    ledger_id: int, entry_id: int, *, key: bytes = b"", flags: Flag = Flag.NONE
) -> bytes:
    """The frame that asks for one entry. `Flag.DO_FENCING` needs the ledger's key, too."""
    header = _header(Opcode.READ, flags)
    return _READ.pack(_READ.size - 4 + len(key), header, ledger_id, entry_id) + key


def batch_read_frame(
    ledger_id: int,
    first_entry_id: int,
    request_id: int,
    count_max: int,
    bytes_max: int,
    *,
    key: bytes = b"",
    flags: Flag = Flag.NONE,
) -> bytes:
    """The frame that asks for entries in a row (bookies of 4.17 and later).

    The first one comes whatever its size.
    """
    header, size = _header(Opcode.BATCH_READ, flags), _BATCH_READ.size - 4 + len(key)
    start = (size, header, ledger_id, first_entry_id, request_id)
    return _BATCH_READ.pack(*start, count_max, bytes_max) + key


class BookieReply(NamedTuple):
    """A decoded reply."""

    opcode: int
    code: int
    ledger_id: int
    entry_id: int
    """Entry id of the request: `LAST_ENTRY` where that was asked for."""
    request_id: int
    """Request id of a batch read; else 0."""
    body: bytes
    """The entry of a read. For a batch read: the entries, each preceded by its int32 size."""


ADD_REPLY: Final = struct.Struct(">iIiqq")
"""A reply to an add: size, header, code, ledger, entry."""
ADD_REPLY_ROW: Final = np.dtype(
    [("size", ">i4"), ("header", ">u4"), ("code", ">i4"), ("ledger", ">i8"), ("entry", ">i8")]
)
"""The same layout as an array type, for many replies at once."""
ADD_REPLY_SIZE: Final = ADD_REPLY.size - 4
ADD_HEADER: Final = _header(Opcode.ADD)
_REPLY: Final = struct.Struct(">Iiqq")
_REQUEST_ID: Final = struct.Struct(">q")


def decode_reply(frame: bytes) -> BookieReply:
    """Decode a reply without its size. Raises `ValueError` for bytes that are no reply."""
    if len(frame) < _REPLY.size:
        raise ValueError(f"a reply of {len(frame)} bytes")
    header, code, ledger_id, entry_id = _REPLY.unpack_from(frame)
    opcode, at, request_id = header >> 16 & 0xFF, _REPLY.size, 0
    if opcode == Opcode.BATCH_READ:
        if len(frame) < at + _REQUEST_ID.size:
            raise ValueError(f"a reply to a batch read of {len(frame)} bytes")
        (request_id,) = _REQUEST_ID.unpack_from(frame, at)
        at += _REQUEST_ID.size
    return BookieReply(opcode, code, ledger_id, entry_id, request_id, frame[at:])
