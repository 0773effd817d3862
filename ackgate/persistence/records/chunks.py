"""Records larger than one ledger entry: cut into chunks, put together again from the last one.

Pure.

    entry      7          8          9
    chunk   +--------+ +--------+ +--------+
    of v30  | 0 of 3 | | 1 of 3 | | 2 of 3 |  <- commits: without it, none of them counts
            +--------+ +--------+ +--------+

Chunks of a record lie in consecutive entries. Recovery reads backwards, so it meets the committing
chunk first and then knows exactly which ones must follow.
"""

from __future__ import annotations

from typing import Final

from ackgate.errors import CorruptRecordError
from ackgate.persistence.records.codec import encode_chunk
from ackgate.persistence.records.values import ChunkRecord, Stamp

CHUNK_OVERHEAD_BYTES: Final = 64
"""Room for the envelope and the fields beside the piece: 13 + 2 * 10 + 2 * 5 + 5, rounded up."""


def cut(encoded: bytes, stamp: Stamp, entry_bytes_max: int) -> list[bytes]:
    """The entries to append for one encoded record: itself, or its chunks."""
    if len(encoded) <= entry_bytes_max:
        return [encoded]
    piece_bytes = entry_bytes_max - CHUNK_OVERHEAD_BYTES
    count = -(-len(encoded) // piece_bytes)
    return [
        encode_chunk(
            ChunkRecord(
                stamp, index, count, encoded[index * piece_bytes : (index + 1) * piece_bytes]
            )
        )
        for index in range(count)
    ]


class BackwardJoiner:
    """Collects the chunks of one record at a time, met from the last to the first."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[ChunkRecord] = []

    @property
    def is_begun(self) -> bool:
        """Whether a record is half collected."""
        return bool(self._chunks)

    def expects(self, chunk: ChunkRecord) -> bool:
        """Whether this chunk carries on the record begun, or begins one when none is."""
        if not self._chunks:
            return chunk.chunk_index == chunk.chunk_count - 1
        later = self._chunks[-1]
        return (
            chunk.stamp == later.stamp
            and chunk.chunk_count == later.chunk_count
            and chunk.chunk_index == later.chunk_index - 1
        )

    def add(self, chunk: ChunkRecord) -> bytes | None:
        """Take the next chunk; the whole record's bytes when it was the first one (index 0).

        Raises `CorruptRecordError` for a chunk whose later ones are missing: never committed.
        """
        if not self.expects(chunk):
            raise CorruptRecordError(
                f"chunk {chunk.chunk_index} of {chunk.chunk_count} ({chunk.stamp}) "
                "was not committed"
            )
        self._chunks.append(chunk)
        if chunk.chunk_index > 0:
            return None
        encoded = b"".join(part.piece for part in reversed(self._chunks))
        self._chunks.clear()
        return encoded

    def abandon(self) -> str | None:
        """Give up the record begun, and say which; None when none was."""
        if not self._chunks:
            return None
        last = self._chunks[-1]
        self._chunks.clear()
        return f"chunk {last.chunk_index - 1} of {last.chunk_count} ({last.stamp}) is missing"
