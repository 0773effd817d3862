"""Snapshots of one cursor's buckets of delayed entries: written, read and deleted.

Edge: the ledger client. A snapshot is a ledger, written whole and closed, or not there at all:

    1. create the ledger          crash after it: an orphan, found at the next start
    2. metadata, then segments    the same; a failed append deletes the ledger again
    3. close it
    4. the registry names it      from here on it counts; see `bucket_registry`

Each ledger names its cursor in its custom metadata, so that one which the cursor's node does not
name can be recognised and deleted; and nothing is deleted as a snapshot that is none of this cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ackgate.errors import AckGateError, CallerError, CorruptRecordError, NoSuchLedgerError
from ackgate.persistence.bucket_codec import (
    check_summary,
    cut_snapshot,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    join_snapshot,
)
from ackgate.persistence.bucket_records import (
    SegmentColumns,
    SnapshotChunk,
    SnapshotMetadata,
    StoredSnapshot,
)
from ackgate.persistence.bucket_registry import snapshot_ids
from ackgate.persistence.cursor_ledger import ledger_options, ledger_password
from ackgate.persistence.cursor_node import decode_cursor_node
from ackgate.persistence.limits import packing
from ackgate.persistence.ports import LedgerEntry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor.position import Position
    from ackgate.persistence.bucket_records import SegmentSummary
    from ackgate.persistence.ports import (
        LedgerClient,
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
"""The node of its topic."""

DELAYED_RANGE_KEY: Final = "ackgate/delayed-bucket"
"""The positions that the bucket may hold."""

TURN_ENTRIES: Final = 20_000
"""Delayed entries that are encoded or decoded before others get their turn on the loop."""

APPEND_BYTES: Final = 1024 * 1024
"""Aim of one append."""

APPEND_ENTRIES: Final = 1_000

READ_BYTES: Final = 1024 * 1024
"""Aim of one read."""

READ_ENTRIES_MAX: Final = 512

LAYOUTS_MAX: Final = 10_000
"""Snapshots whose layout is remembered; that of another is read again."""


class _Layout(NamedTuple):
    """Where the segments of a snapshot lie."""

    metadata_entries: int
    segment_count: int
    ledger_entries: tuple[int, ...]
    """Of each segment; empty when each takes one."""

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Ledger entries, both included, of the segments first..stop-1."""
        if not self.ledger_entries:
            return self.metadata_entries + first, self.metadata_entries + stop - 1
        start = self.metadata_entries + sum(self.ledger_entries[:first])
        return start, start + sum(self.ledger_entries[first:stop]) - 1

    def entries_of(self, number: int) -> int:
        """Ledger entries that a segment takes."""
        return self.ledger_entries[number] if self.ledger_entries else 1


class BucketSnapshots:
    """The snapshots of one cursor. All methods may be cancelled; none leaves a task behind."""

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
        """Holds from the next call on."""
        self._settings = settings

    # ------------------------------------------------------------------------ writing

    async def create(
        self,
        first: Position,
        last: Position,
        segments: Sequence[SegmentColumns],
        summaries: Sequence[SegmentSummary],
    ) -> StoredSnapshot:
        """Write a snapshot into a new ledger, whole and durable.

        Raises what the ledger client raises, and `CallerError` for content that cannot be. Then
        there is no such ledger, or `sweep` knows of it.
        """
        writer = await self._client.create(self._options(first, last))
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
        segments: Sequence[SegmentColumns],
        summaries: Sequence[SegmentSummary],
    ) -> StoredSnapshot:
        if len(segments) != len(summaries):
            raise CallerError(f"{len(segments)} segments have {len(summaries)} summaries")
        snapshot_id, packed = writer.ledger_id, packing(self._settings)
        turn = _Turn()
        bodies: list[list[bytes]] = []
        for number, (columns, summary) in enumerate(zip(segments, summaries, strict=True)):
            encoded = encode_segment(
                columns, snapshot_id=snapshot_id, segment_number=number, packing=packed
            )
            check_summary(columns, summary)
            bodies.append(self._cut(encoded, snapshot_id, number + 1))
            await turn.spend(columns.keys_ms.size)
        metadata = SnapshotMetadata(first, last, tuple(summaries), tuple(map(len, bodies)))
        encoded = encode_metadata(metadata, snapshot_id=snapshot_id, packing=packed)
        head = self._cut(encoded, snapshot_id, 0)
        payloads = list(chain(head, *bodies))
        await _append(writer, payloads)
        self._remember(snapshot_id, len(head), metadata)
        return StoredSnapshot(snapshot_id, sum(map(len, payloads)))

    def _cut(self, encoded: bytes, snapshot_id: int, record_number: int) -> list[bytes]:
        return cut_snapshot(
            encoded,
            snapshot_id=snapshot_id,
            record_number=record_number,
            entry_bytes_max=self._settings.cursor_record_chunk_bytes,
        )

    def _options(self, first: Position, last: Position) -> LedgerOptions:
        return replace(
            ledger_options(self.path, self._settings),
            custom_metadata={
                "application": b"ackgate",
                "component": b"delayed-bucket",
                DELAYED_CURSOR_KEY: self.path.encode(),
                DELAYED_TOPIC_KEY: self.path.rpartition("/")[0].encode(),
                DELAYED_RANGE_KEY: f"{first}_{last}".encode(),
            },
        )

    # ------------------------------------------------------------------------ reading

    async def metadata(self, snapshot_id: int) -> tuple[SnapshotMetadata, int]:
        """What the snapshot holds, and its bytes. The bitmaps are the caller's.

        Raises `NoSuchLedgerError`, `CorruptRecordError` and `UnknownFormatError` (naming ledger and
        entry), `StorageError`.
        """
        async with self._opened(snapshot_id) as reader:
            return await self._metadata(reader), reader.length_bytes

    async def segments(self, snapshot_id: int, first: int, stop: int) -> tuple[SegmentColumns, ...]:
        """Segments first..stop-1; fewer if there are no more. Raises as `metadata`."""
        async with self._opened(snapshot_id) as reader:
            if snapshot_id not in self._layouts:
                await self._metadata(reader)
            layout = self._layouts[snapshot_id]
            found: list[SegmentColumns] = []
            turn = _Turn()
            for group in _groups(reader, first, min(stop, layout.segment_count)):
                payloads = await _read(reader, *layout.span(group.start, group.stop))
                start = 0
                for number in group:
                    end = start + layout.entries_of(number)
                    found.append(_segment(reader, payloads[start:end], number))
                    start = end
                    await turn.spend(found[-1].keys_ms.size)
            return tuple(found)

    async def length_bytes(self, snapshot_id: int) -> int:
        """Bytes that it takes in its ledger. Raises `NoSuchLedgerError`, `StorageError`."""
        async with self._opened(snapshot_id) as reader:
            return reader.length_bytes

    @contextlib.asynccontextmanager
    async def _opened(self, snapshot_id: int) -> AsyncIterator[LedgerReader]:
        reader = await self._client.open(snapshot_id, password=ledger_password(self._settings))
        try:
            yield reader
        finally:
            await reader.close()

    async def _metadata(self, reader: LedgerReader) -> SnapshotMetadata:
        decode = partial(decode_metadata, snapshot_id=reader.ledger_id)
        payloads = await _read(reader, 0, 0)
        head = _decoded(reader, payloads[0], decode)
        if isinstance(head, SnapshotChunk):
            payloads = await _read(reader, 0, head.chunk_count - 1)
            head = _joined(reader, payloads, 0, decode)
        self._remember(reader.ledger_id, len(payloads), head)
        return head

    def _remember(self, snapshot_id: int, head_entries: int, metadata: SnapshotMetadata) -> None:
        sizes = metadata.ledger_entries
        if len(self._layouts) >= LAYOUTS_MAX:
            self._layouts.pop(next(iter(self._layouts)))
        self._layouts[snapshot_id] = _Layout(
            head_entries, len(sizes), () if sum(sizes) == len(sizes) else sizes
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
    """Those of the candidates that are snapshots which their cursor's node does not name.

    As `find_orphan_cursor_ledgers`: candidates must be older than whoever may yet name them.
    """
    orphans = []
    for ledger_id in candidates:
        try:
            about = await client.metadata(ledger_id)
        except NoSuchLedgerError:
            continue
        path = about.custom_metadata.get(DELAYED_CURSOR_KEY)
        if path is not None and not await _is_named(metadata, path.decode(), ledger_id):
            orphans.append(ledger_id)
    return orphans


async def _is_named(metadata: MetadataStore, path: str, ledger_id: int) -> bool:
    found = await metadata.get(path)
    if found is None:
        return False
    return ledger_id in snapshot_ids(decode_cursor_node(found.value, path=path).cursor_properties)


# ------------------------------------------------------------------------------ the rest


class _Turn:
    """Lets others have the loop after so much work."""

    def __init__(self) -> None:
        self._left = TURN_ENTRIES

    async def spend(self, entries: int) -> None:
        self._left -= entries
        if self._left <= 0:
            self._left = TURN_ENTRIES
            await asyncio.sleep(0)


async def _append(writer: LedgerWriter, payloads: Sequence[bytes]) -> None:
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


def _groups(reader: LedgerReader, first: int, stop: int) -> Iterator[range]:
    """The segments in groups that are read at once."""
    entry_bytes = max(1, reader.length_bytes // max(1, reader.last_add_confirmed + 1))
    step = max(1, min(READ_ENTRIES_MAX, READ_BYTES // entry_bytes))
    for start in range(first, stop, step):
        yield range(start, min(start + step, stop))


async def _read(reader: LedgerReader, first: int, last: int) -> list[LedgerEntry]:
    if last > reader.last_add_confirmed:
        raise CorruptRecordError(
            f"snapshot ledger {reader.ledger_id} ends with entry {reader.last_add_confirmed}: "
            f"entry {last} is missing"
        )
    return await reader.read(first, last)


def _segment(reader: LedgerReader, payloads: list[LedgerEntry], number: int) -> SegmentColumns:
    decode = partial(decode_segment, snapshot_id=reader.ledger_id, segment_number=number)
    if len(payloads) > 1:
        return _joined(reader, payloads, number + 1, decode)
    columns = _decoded(reader, payloads[0], decode)
    if isinstance(columns, SnapshotChunk):
        raise _misplaced(reader, payloads[0], "a chunk lies where a whole segment must")
    return columns


def _joined(
    reader: LedgerReader,
    payloads: Sequence[LedgerEntry],
    record_number: int,
    decode: Callable[[bytes], T | SnapshotChunk],
) -> T:
    chunks = [_decoded(reader, payload, decode) for payload in payloads]
    try:
        encoded = join_snapshot(chunks, record_number=record_number)
    except CorruptRecordError as error:
        raise _misplaced(reader, payloads[0], str(error)) from error
    record = _decoded(reader, LedgerEntry(payloads[0].entry_id, encoded), decode)
    if isinstance(record, SnapshotChunk):
        raise _misplaced(reader, payloads[0], "a chunk lies within a chunk")
    return record


def _decoded(reader: LedgerReader, entry: LedgerEntry, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(entry.payload)
    except CorruptRecordError as error:
        raise type(error)(
            f"snapshot ledger {reader.ledger_id}, entry {entry.entry_id}: {error}"
        ) from error


def _misplaced(reader: LedgerReader, entry: LedgerEntry, why: str) -> CorruptRecordError:
    return CorruptRecordError(f"snapshot ledger {reader.ledger_id}, entry {entry.entry_id}: {why}")
