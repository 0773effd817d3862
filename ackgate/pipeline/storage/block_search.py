"""Finds a block of a fragment file without reading the whole file, by seeking to sync markers.

Edge: a few reads for each search. Ids found here are not verified; a reader that starts there checks
the entries, and reads missing ones elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.errors import CorruptRecordError
from ackgate.persistence.bookies.avro_container import (
    LONG_BYTES_MAX,
    decode_long,
    next_block,
    read_header,
)

if TYPE_CHECKING:
    from ackgate.persistence.bookies.avro_container import ContainerHeader
    from ackgate.persistence.system.disk import DiskFile

_NEAR_BYTES: Final = 256 * 1024
"""Nearer than that a file is read on instead of looked into."""


def split_entry_ids(file: DiskFile, split_bytes: int) -> list[int]:
    """Entries that begin a block, one at about every `split_bytes` of the file, ascending."""
    size = file.size()
    piece_count = size // split_bytes
    try:
        header = read_header(file) if piece_count > 1 else None
    except CorruptRecordError:  # a reader of it reports that
        header = None
    if header is None:
        return []
    found: list[int] = []
    for i in range(1, piece_count):
        offset = next_block(file, header, i * size // piece_count)
        entry_id = None if offset is None else first_entry_at(file, offset)
        if entry_id is not None and entry_id > (found[-1] if found else 0):
            found.append(entry_id)
    return found


def offset_before(
    file: DiskFile, header: ContainerHeader, entry_id: int, *, near_bytes: int = _NEAR_BYTES
) -> int:
    """Beginning of a block that begins with `entry_id` or before, at most `near_bytes` away or so."""
    low, high = header.size, file.size()
    while high - low > near_bytes:
        middle = (low + high) // 2
        offset = next_block(file, header, middle)
        found = None if offset is None else first_entry_at(file, offset)
        if offset is None or found is None or found > entry_id or offset >= high:
            high = middle
        else:
            low = offset
    return low


def first_entry_at(file: DiskFile, offset: int) -> int | None:
    """First entry of the block there; None: there is no block."""
    head = file.read(offset, 4 * LONG_BYTES_MAX)
    try:
        at = 0
        for _ in range(3):  # the block's count and size, the ledger
            _, at = decode_long(head, at)
        return decode_long(head, at)[0]
    except (IndexError, ValueError):
        return None
