"""Snapshots of one cursor's buckets of delayed entries: written, read and deleted.

Edge: the ledger client. A snapshot is a ledger, written whole and closed, or not there at all:

    1. create the ledger          crash after it: an orphan, found at the next start
    2. metadata, then segments    the same; a failed append deletes the ledger again
    3. close it
    4. the registry names it      from here on it counts; see `registry`

Each ledger names its cursor in its custom metadata, so that one which the cursor's node does not
name can be recognised and deleted; and nothing is deleted as a snapshot that is none of this cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ackgate.cursor import SnapshotSegment, StoredSnapshot
from ackgate.errors import AckGateError, CallerError, CorruptRecordError, NoSuchLedgerError
from ackgate.persistence.buckets.codec import (
    SnapshotChunk,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
)
from ackgate.persistence.buckets.encoding import SnapshotEncoding
from ackgate.persistence.buckets.registry import snapshot_ids
from ackgate.persistence.cursors.ledger import ledger_options
from ackgate.persistence.cursors.node import decode_cursor_node
from ackgate.persistence.nodes.unnamed_ledgers import find_unnamed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import Position, SegmentMetadata
    from ackgate.persistence.ports import (
        LedgerClient,
        LedgerEntry,
        LedgerOptions,
        LedgerReader,
        LedgerWriter,
        MetadataStore,
    )

log = logging.getLogger(__name__)

T = TypeVar("T")

DELAYED_CURSOR_KEY: Final = "ackgate/delayed-cursor"
"""Custom metadata: the node of the cursor whose delayed entries a snapshot ledger holds."""

DELAYED_TOPIC_KEY: Final = "ackgate/delayed-topic"
"""Custom metadata: the node of that cursor's topic."""

DELAYED_RANGE_KEY: Final = "ackgate/delayed-bucket"
"""Custom metadata: the positions that the bucket may hold."""

TURN_ENTRIES: Final = 20_000
"""Delayed entries that are encoded or decoded before others get their turn on the loop."""

SEGMENT_ENTRIES: Final = 400
"""What a segment costs besides its entries, in entries."""

APPEND_BYTES: Final = 1024 * 1024
"""Target size of one append."""

APPEND_ENTRIES: Final = 1_000

READ_BYTES: Final = 1024 * 1024
"""Target size of one read."""

READ_ENTRIES_MAX: Final = 512

LAYOUTS_MAX: Final = 10_000
"""Snapshots whose layout is remembered; that of another is read again."""


class _Layout(NamedTuple):
    """Where the segments of a snapshot lie."""

    metadata_entries: int
    part_count: int
    segment_count: int
    ledger_entries: tuple[int, ...]
    """Ledger entries of each segment; empty when each takes one."""

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """The ledger entries of segments first..stop-1, the second one excluded."""
        if not self.ledger_entries:
            return self.metadata_entries + first, self.metadata_entries + stop
        start = self.metadata_entries + sum(self.ledger_entries[:first])
        return start, start + sum(self.ledger_entries[first:stop])


class BucketSnapshots:
    """The snapshots of one cursor. All methods may be cancelled, and leave no task running."""

    __slots__ = ("_abandoned", "_client", "_layouts", "_settings", "path")

    def __init__(self, client: LedgerClient, path: str, settings: PersistenceSettings) -> None:
        """`path` is the cursor's node."""
        self.path = path
        self._client = client
        self._settings = settings
        self._layouts: dict[int, _Layout] = {}
        self._abandoned: set[int] = set()
        """Ledgers that were begun and not finished, and are still there."""

    def configure(self, settings: PersistenceSettings) -> None:
        """Use these settings from the next call on."""
        self._settings = settings

    # ------------------------------------------------------------------------ writing

    async def create(
        self,
        first: Position,
        last: Position,
        segments: Sequence[SnapshotSegment],
        summaries: Sequence[SegmentMetadata],
    ) -> StoredSnapshot:
        """Write a snapshot into a new ledger, whole and durable.

        Raises what the ledger client raises, and `CallerError` for content that cannot be. Then
        there is no such ledger, or `sweep` knows of it.
        """
        writer = await self._client.create(snapshot_options(self.path, first, last, self._settings))
        snapshot_id = writer.ledger_id
        try:
            stored = await self._write(writer, first, last, segments, summaries)
            await writer.close()
        except BaseException as error:
            self._abandoned.add(snapshot_id)
            if isinstance(error, AckGateError):
                with contextlib.suppress(AckGateError):
                    await writer.close()
                await self.sweep()
            raise
        return stored

    async def _write(
        self,
        writer: LedgerWriter,
        first: Position,
        last: Position,
        segments: Sequence[SnapshotSegment],
        summaries: Sequence[SegmentMetadata],
    ) -> StoredSnapshot:
        if len(segments) != len(summaries):
            raise CallerError(f"{len(segments)} segments have {len(summaries)} summaries")
        encoding = SnapshotEncoding(writer.ledger_id, first, last, self._settings)
        turn = _Turn()
        for columns, summary in zip(segments, summaries, strict=True):
            encoding.add(columns, summary)
            await turn.spend(columns.keys_ms.size)
        while encoding.describe():
            await turn.end()
        payloads = encoding.payloads
        await append_all(writer, payloads)
        self._remember(
            writer.ledger_id, encoding.head_entries, encoding.segment_entries, encoding.part_count
        )
        return StoredSnapshot(writer.ledger_id, sum(map(len, payloads)))

    # ------------------------------------------------------------------------ reading

    async def metadata(self, snapshot_id: int) -> tuple[SnapshotMetadata, int]:
        """What the snapshot holds, and its bytes. The bitmaps are the caller's.

        Raises `NoSuchLedgerError`, `CorruptRecordError` and `UnknownFormatError` (naming ledger and
        entry), `StorageError`.
        """
        return await self._reading(snapshot_id, self._sized_metadata)

    async def segments(
        self, snapshot_id: int, first: int, stop: int
    ) -> tuple[SnapshotSegment, ...]:
        """Segments first..stop-1; fewer if there are no more. Raises as `metadata`."""
        return await self._reading(snapshot_id, partial(self._segments, first=first, stop=stop))

    async def length_bytes(self, snapshot_id: int) -> int:
        """Bytes that it takes in its ledger. Raises `NoSuchLedgerError`, `StorageError`."""

        async def length_bytes(reader: LedgerReader) -> int:
            return reader.length_bytes

        return await self._reading(snapshot_id, length_bytes)

    async def _reading(self, snapshot_id: int, work: Callable[[LedgerReader], Awaitable[T]]) -> T:
        reader = await self._client.open(snapshot_id, password=self._settings.ledger_password)
        try:
            return await work(reader)
        finally:
            await reader.close()

    async def _segments(
        self, reader: LedgerReader, *, first: int, stop: int
    ) -> tuple[SnapshotSegment, ...]:
        snapshot_id = reader.ledger_id
        if snapshot_id not in self._layouts:
            await self._metadata(reader)
        layout = self._layouts[snapshot_id]
        stop = min(stop, layout.segment_count)
        records = _Records(reader, *layout.span(first, stop))
        found: list[SnapshotSegment] = []
        turn = _Turn()
        for number in range(first, stop):
            decode = partial(decode_segment, snapshot_id=snapshot_id, segment_number=number)
            found.append(await records.next(layout.part_count + number, decode))
            await turn.spend(found[-1].keys_ms.size)
        return tuple(found)

    async def _sized_metadata(self, reader: LedgerReader) -> tuple[SnapshotMetadata, int]:
        return await self._metadata(reader), reader.length_bytes

    async def _metadata(self, reader: LedgerReader) -> SnapshotMetadata:
        records = _Records(reader, 0, 1)
        parts: list[SnapshotMetadata] = []
        turn = _Turn()
        while not parts or len(parts) < parts[0].part_count:
            decode = partial(decode_metadata, snapshot_id=reader.ledger_id, part_number=len(parts))
            parts.append(await records.next(len(parts), decode))
            records.stop = records.at + parts[0].part_count - len(parts)
            await turn.end()
        whole = parts[0]._replace(
            part_count=1,
            segments=tuple(chain.from_iterable(part.segments for part in parts)),
            ledger_entries=tuple(chain.from_iterable(part.ledger_entries for part in parts)),
        )
        self._remember(reader.ledger_id, records.at, whole.ledger_entries, len(parts))
        return whole

    def _remember(
        self, snapshot_id: int, head_entries: int, sizes: tuple[int, ...], parts: int
    ) -> None:
        if len(self._layouts) >= LAYOUTS_MAX:
            self._layouts.pop(next(iter(self._layouts)))
        self._layouts[snapshot_id] = _Layout(
            head_entries, parts, len(sizes), () if sum(sizes) == len(sizes) else sizes
        )

    # ----------------------------------------------------------------------- deleting

    async def delete(self, snapshot_id: int) -> bool:
        """Delete a snapshot; False when there is none (any more).

        Raises `StorageError`, and `CorruptRecordError` for a ledger that is something else: it is
        left alone.
        """
        self._layouts.pop(snapshot_id, None)
        try:
            about = await self._client.metadata(snapshot_id)
            if about.custom_metadata.get(DELAYED_CURSOR_KEY) != self.path.encode():
                raise CorruptRecordError(
                    f"ledger {snapshot_id} holds no snapshot of {self.path}: it is not deleted"
                )
            await self._client.delete(snapshot_id)
        except NoSuchLedgerError:
            self._abandoned.discard(snapshot_id)
            return False
        self._abandoned.discard(snapshot_id)
        return True

    @property
    def has_abandoned(self) -> bool:
        """Whether ledgers are there that were begun and not finished."""
        return bool(self._abandoned)

    async def sweep(self) -> None:
        """Delete what was begun and not finished, as far as that works now."""
        for snapshot_id in sorted(self._abandoned):
            try:
                await self.delete(snapshot_id)
            except AckGateError as error:
                log.warning("snapshot ledger %d could not be deleted yet: %s", snapshot_id, error)


async def find_orphan_snapshots(
    client: LedgerClient, metadata: MetadataStore, candidates: Iterable[int]
) -> list[int]:
    """Those of the candidates that are snapshots which their cursor's node does not name."""
    return await find_unnamed(
        client,
        metadata,
        candidates,
        path_key=DELAYED_CURSOR_KEY,
        names=lambda value, path: snapshot_ids(
            decode_cursor_node(value, path=path).cursor_properties
        ),
    )


# ------------------------------------------------------------------------------ the rest


class _Turn:
    """Yields to the event loop after every `TURN_ENTRIES` entries of work."""

    def __init__(self) -> None:
        self._left = TURN_ENTRIES

    async def spend(self, entries: int) -> None:
        """Count a segment of so many entries, and yield when it is time."""
        self._left -= entries + SEGMENT_ENTRIES
        if self._left <= 0:
            await self.end()

    async def end(self) -> None:
        self._left = TURN_ENTRIES
        await asyncio.sleep(0)


def snapshot_options(
    path: str, first: Position, last: Position, settings: PersistenceSettings
) -> LedgerOptions:
    """How the ledger of a snapshot is made; `path` is the cursor's node."""
    return replace(
        ledger_options(path, settings),
        custom_metadata={
            "application": b"ackgate",
            "component": b"delayed-bucket",
            DELAYED_CURSOR_KEY: path.encode(),
            DELAYED_TOPIC_KEY: path.rpartition("/")[0].encode(),
            DELAYED_RANGE_KEY: f"{first}_{last}".encode(),
        },
    )


async def append_all(writer: LedgerWriter, payloads: Sequence[bytes]) -> None:
    """Append all, and wait until they are durable. The last ticket answers for all before it."""
    start, held = 0, 0
    durable: asyncio.Future[None] | None = None
    for number, payload in enumerate(payloads, start=1):
        held += len(payload)
        if held >= APPEND_BYTES or number - start >= APPEND_ENTRIES or number == len(payloads):
            await writer.wait_for_room()
            durable = writer.append(payloads[start:number]).durable
            start, held = number, 0
    if durable is not None:
        await durable


class _Records:
    """Reads one record after the other; joins chunks."""

    def __init__(self, reader: LedgerReader, at: int, stop: int) -> None:
        """Ledger entries from `at` on, below `stop` as far as is known."""
        self.at = at
        self.stop = stop
        self._reader = reader
        self._ahead: deque[LedgerEntry] = deque()

    async def next(self, record_number: int, decode: Callable[[bytes], T | SnapshotChunk]) -> T:
        """The next record, which must be this one. Raises `CorruptRecordError` naming the place."""
        entry = await self._entry()
        record = self._decoded(entry, entry.payload, decode)
        if not isinstance(record, SnapshotChunk):
            return record
        pieces = []
        for index in range(record.chunk_count):
            chunk = record
            if index:
                self.stop = max(self.stop, self.at + record.chunk_count - index)
                later = await self._entry()
                chunk = self._decoded(later, later.payload, decode)  # type: ignore[assignment]
            wanted = (record_number, index, record.chunk_count)
            if not isinstance(chunk, SnapshotChunk) or chunk[:3] != wanted:
                raise self._misplaced(
                    entry, f"chunk {index} of {wanted[2]} of record {record_number} is missing"
                )
            pieces.append(chunk.piece)
        joined = self._decoded(entry, b"".join(pieces), decode)
        if isinstance(joined, SnapshotChunk):
            raise self._misplaced(entry, "a chunk lies within a chunk")
        return joined

    async def _entry(self) -> LedgerEntry:
        if not self._ahead:
            self._ahead.extend(await self._read())
        self.at += 1
        return self._ahead.popleft()

    async def _read(self) -> list[LedgerEntry]:
        reader, last = self._reader, self._reader.last_add_confirmed
        if self.at > last:
            raise CorruptRecordError(
                f"snapshot ledger {reader.ledger_id} ends with entry {last}: "
                f"entry {self.at} is missing"
            )
        mean_bytes = max(1, reader.length_bytes // (last + 1))
        step = max(1, min(READ_ENTRIES_MAX, READ_BYTES // mean_bytes, self.stop - self.at))
        return await reader.read(self.at, min(self.at + step - 1, last))

    def _decoded(self, entry: LedgerEntry, encoded: bytes, decode: Callable[[bytes], T]) -> T:
        try:
            return decode(encoded)
        except CorruptRecordError as error:
            place = f"snapshot ledger {self._reader.ledger_id}, entry {entry.entry_id}"
            raise type(error)(f"{place}: {error}") from error

    def _misplaced(self, entry: LedgerEntry, why: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"snapshot ledger {self._reader.ledger_id}, entry {entry.entry_id}: {why}"
        )
