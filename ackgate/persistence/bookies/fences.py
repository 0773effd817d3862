"""Which ledgers were fenced: the word of a new owner to a writer that may still live.

Edge: a small file per bookie, shared by all processes that use the directory. Blocking; one lane
only, and `poll` from the journal's. Records only ever get appended:

    ledger id (8 bytes, big-endian) | CRC32C of it (4 bytes)

The one who fences appends and syncs *before* it reads what the ledger holds. The writer syncs its
entries, *then* looks whether the file has grown, and only then confirms. Whichever came first:
either the new owner sees the entries, or the writer sees the fence and does not confirm them.

A writer needs to know nothing from before it joined: ledgers that it creates are newer than that.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ackgate.persistence.system.disk import Disk, DiskFile

_RECORD: Final = struct.Struct(">QI")


class Fences:
    """The fences file of one bookie, as one process sees it."""

    __slots__ = ("_file", "_read_to")

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._read_to = file.size()

    @classmethod
    def join(cls, disk: Disk, path: Path, *, is_alone: bool) -> Fences:
        """Open the file as a writer that starts now; `is_alone`: no other writer lives.

        Call it under the bookie's lock. Without other writers, old fences are dropped.
        """
        file = disk.open_append(path)
        if is_alone and file.size():
            file.truncate(0)
        return cls(file)

    def add(self, ledger_ids: Iterable[int]) -> None:
        """Append and sync. Raises `OSError`."""
        self._file.append(
            b"".join(
                _RECORD.pack(ledger_id, crc32c(ledger_id.to_bytes(8))) for ledger_id in ledger_ids
            )
        )
        self._file.sync()

    def poll(self) -> set[int]:
        """Ledgers fenced since the last call, by any process. Costs one fstat as a rule."""
        size = self._file.size()
        if size < self._read_to + _RECORD.size:
            return set()
        data = self._file.read(self._read_to, size - self._read_to)
        fenced: set[int] = set()
        at = 0
        while at + _RECORD.size <= len(data):
            ledger_id, digest = _RECORD.unpack_from(data, at)
            if digest == crc32c(data[at : at + 8]):
                fenced.add(ledger_id)
                at += _RECORD.size
            else:
                # A writer killed in the middle of a record left part of it; look after that.
                at += 1
        self._read_to += at
        return fenced

    def close(self) -> None:
        self._file.close()
