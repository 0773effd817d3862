"""Snapshots of buckets: whole or not at all, and what is damaged says where and how."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import fastavro
import numpy as np
import pytest
from pyroaring import BitMap

from ackgate.cursor import ENTRY_ID_MAX, Position, SegmentMetadata, SnapshotSegment
from ackgate.errors import (
    AckGateError,
    CallerError,
    CorruptRecordError,
    LedgerWriteError,
    NoSuchLedgerError,
    StorageError,
    UnknownFormatError,
)
from ackgate.persistence import (
    BucketSnapshots,
    LedgerState,
    MemoryMetadataStore,
    PersistenceSettings,
    find_orphan_snapshots,
)
from ackgate.persistence.buckets import codec as bucket_codec
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.records.envelope import HEADER_BYTES, Compression, Packing, seal, unseal
from ackgate.persistence.records.values import RecordKind
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.unit.persistence.bucket_content import (
    BASE_MS,
    KEY,
    bucket,
    rows_of,
    segment,
    summary_of,
)

TOPIC = "/managed-ledgers/public/default/persistent/topic"
PATH = f"{TOPIC}/sub"


class World:
    def __init__(self, *rules: Rule, **settings: Any) -> None:
        self.storage = MemoryLedgers()
        self.plan = FaultPlan(rules)
        self.client = FaultyLedgerClient(MemoryLedgerClient(self.storage), self.plan)
        self.settings = PersistenceSettings(**settings)
        self.snapshots = BucketSnapshots(self.client, PATH, self.settings)

    async def stored(self, *args: Any, **kwargs: Any) -> tuple[int, list[SnapshotSegment]]:
        first, last, segments = bucket(*args, **kwargs)
        snapshot = await self.create(first, last, segments)
        return snapshot, segments

    async def create(self, first: Position, last: Position, segments: list[SnapshotSegment]) -> int:
        summaries = [summary_of(columns) for columns in segments]
        return (await self.snapshots.create(first, last, segments, summaries)).snapshot_id

    def payload(self, snapshot_id: int, entry_id: int) -> bytes:
        return self.storage.ledgers[snapshot_id].entries[entry_id][0]

    def damage(self, snapshot_id: int, entry_id: int, payload: bytes) -> None:
        entries = self.storage.ledgers[snapshot_id].entries
        entries[entry_id] = (payload, entries[entry_id][1])

    def truncate(self, snapshot_id: int, entries: int) -> None:
        ledger = self.storage.ledgers[snapshot_id]
        del ledger.entries[entries:]
        ledger.metadata = replace(ledger.metadata, last_entry_id=entries - 1)

    def again(self) -> BucketSnapshots:
        """As a broker that starts has it: nothing is remembered."""
        return BucketSnapshots(self.client, PATH, self.settings)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
async def test_what_is_written_is_read_back(seed: int | None, compression: str) -> None:
    world = World(managed_cursor_info_compression_type=compression)
    first, last, segments = bucket(2_500, seed=seed)
    summaries = [summary_of(columns) for columns in segments]
    stored = await world.snapshots.create(first, last, segments, summaries)

    for snapshots in (world.snapshots, world.again()):
        found, bytes_stored = await snapshots.metadata(stored.snapshot_id)
        assert (found.first, found.last) == (first, last)
        assert list(found.segments) == summaries
        assert bytes_stored == stored.bytes_stored
        assert await snapshots.length_bytes(stored.snapshot_id) == stored.bytes_stored
    for snapshots in (world.snapshots, world.again()):
        loaded = await snapshots.segments(stored.snapshot_id, 0, len(segments))
        assert [rows_of(columns) for columns in loaded] == [rows_of(each) for each in segments]


async def test_the_ledger_is_closed_and_says_whose_it_is() -> None:
    world = World()
    snapshot_id, segments = await world.stored(120)
    ledger = world.storage.ledgers[snapshot_id]
    assert ledger.metadata.state is LedgerState.CLOSED
    assert len(ledger.entries) == 1 + len(segments)
    assert ledger.metadata.custom_metadata == {
        "application": b"ackgate",
        "component": b"delayed-bucket",
        "ackgate/delayed-cursor": PATH.encode(),
        "ackgate/delayed-topic": TOPIC.encode(),
        "ackgate/delayed-bucket": b"7:0_7:119",
    }


async def test_some_segments_of_many() -> None:
    world = World()
    snapshot_id, segments = await world.stored(500)
    loaded = await world.again().segments(snapshot_id, 3, 5)
    assert [rows_of(columns) for columns in loaded] == [rows_of(each) for each in segments[3:5]]
    # No more than there are.
    assert len(await world.snapshots.segments(snapshot_id, 8, 99)) == 2
    assert await world.snapshots.segments(snapshot_id, 10, 12) == ()


async def test_a_bucket_without_segments() -> None:
    world = World()
    stored = await world.snapshots.create(Position(1, 0), Position(2, 0), [], [])
    found, _ = await world.again().metadata(stored.snapshot_id)
    assert found == (0, 1, Position(1, 0), Position(2, 0), (), ())
    assert await world.snapshots.segments(stored.snapshot_id, 0, 1) == ()


async def test_what_is_larger_than_an_entry_is_cut_and_joined() -> None:
    world = World(cursor_record_chunk_bytes=4 * 1024, managed_cursor_info_compression_type="NONE")
    first, _, segments = bucket(30_000, segment_entries=10_000, seed=2)
    segments += [segment((2**62, 36, 999)), segment((2**62, 37, 0))]
    snapshot_id = await world.create(first, Position(37, 0), segments)
    entries = world.storage.ledgers[snapshot_id].entries
    assert len(entries) > 20
    assert max(len(payload) for payload, _ in entries) <= 4 * 1024
    for snapshots in (world.snapshots, world.again()):
        loaded = await snapshots.segments(snapshot_id, 1, 5)
        assert [rows_of(columns) for columns in loaded] == [rows_of(s) for s in segments[1:]]
    found, _ = await world.again().metadata(snapshot_id)
    assert list(found.segments) == [summary_of(columns) for columns in segments]


@pytest.mark.slow
async def test_metadata_of_very_many_segments_comes_in_parts() -> None:
    world = World()
    first, last, segments = bucket(2_600, segment_entries=2, seed=4)
    snapshot_id = await world.create(first, last, segments)
    assert len(world.storage.ledgers[snapshot_id].entries) == 3 + 1_300
    found, _ = await world.again().metadata(snapshot_id)
    assert list(found.segments) == [summary_of(columns) for columns in segments]
    loaded = await world.again().segments(snapshot_id, 1_299, 1_300)
    assert [rows_of(columns) for columns in loaded] == [rows_of(segments[-1])]
    for damaged, payload in (
        (1, world.payload(snapshot_id, 0)),
        (2, world.payload(snapshot_id, 3)),
    ):
        was = world.payload(snapshot_id, damaged)
        world.damage(snapshot_id, damaged, payload)
        assert place(snapshot_id, damaged) in (await complaints(world, snapshot_id))[0]
        world.damage(snapshot_id, damaged, was)


async def test_the_largest_times_and_positions() -> None:
    columns = segment(
        (0, 0, 0),
        (5, 2**63 - 1, ENTRY_ID_MAX),
        (2**63 - 1, 0, 7),
        (2**63 - 1, 2**40, ENTRY_ID_MAX),
    )
    world = World()
    snapshot_id = await world.create(Position(0, 0), Position(2**63 - 1, ENTRY_ID_MAX), [columns])
    (loaded,) = await world.again().segments(snapshot_id, 0, 1)
    assert rows_of(loaded) == rows_of(columns)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "empty"),
        ([(-512, 7, 0)], "ascend from 0"),
        ([(512, -1, 0)], "out of bounds"),
        ([(512, 7, -1)], "out of bounds"),
        ([(512, 7, 2**32)], "out of bounds"),
        ([(512, 7, 1), (1024, 7, 1)], "twice"),
    ],
)
async def test_columns_that_cannot_be_are_refused_and_leave_nothing(
    rows: list[tuple[int, int, int]], told: str
) -> None:
    world = World()
    summary = SegmentMetadata(0, 0, 0, {})
    with pytest.raises(CallerError, match=told):
        await world.snapshots.create(Position(7, 0), Position(7, 9), [segment(*rows)], [summary])
    assert world.storage.ledgers == {}


async def test_unsorted_columns_and_a_summary_of_others_are_refused() -> None:
    world = World()
    good = segment((512, 7, 0), (1024, 7, 1))
    unsorted = SnapshotSegment(good.keys_ms[::-1], good.ledger_ids, good.entry_ids)
    cases: list[tuple[list[SnapshotSegment], list[SegmentMetadata]]] = [
        ([unsorted], [summary_of(good)]),
        ([SnapshotSegment(good.keys_ms, good.ledger_ids, good.entry_ids[:1])], [summary_of(good)]),
        ([good], [summary_of(good)._replace(entry_count=3)]),
        ([good], [summary_of(good)._replace(last_key_ms=2048)]),
        ([good], [summary_of(good)._replace(positions={7: BitMap([0])})]),
        ([good], []),
    ]
    for segments, summaries in cases:
        with pytest.raises(CallerError):
            await world.snapshots.create(Position(7, 0), Position(7, 9), segments, summaries)
    assert world.storage.ledgers == {}


# ------------------------------------------------------------------------- all or nothing


@pytest.mark.parametrize("operation", ["ledger.append", "ledger.close"])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.DROP_ANSWER])
async def test_a_write_that_fails_leaves_no_ledger(operation: str, fault: Fault) -> None:
    world = World(Rule(fault, operation))
    with pytest.raises(StorageError):
        await world.stored(500)
    assert world.storage.ledgers == {}
    assert not world.snapshots.has_abandoned


async def test_a_ledger_that_could_not_be_deleted_is_deleted_later() -> None:
    world = World(Rule(Fault.FAIL, "ledger.append"), Rule(Fault.FAIL, "ledger.delete"))
    with pytest.raises(LedgerWriteError):
        await world.stored(500)
    assert len(world.storage.ledgers) == 1
    assert world.snapshots.has_abandoned
    await world.snapshots.sweep()
    assert world.storage.ledgers == {}
    assert not world.snapshots.has_abandoned


async def test_a_cancelled_write_is_deleted_by_the_next_sweep() -> None:
    world = World(Rule(Fault.LATE_ANSWER, "ledger.append", seconds=60.0))
    creating = asyncio.ensure_future(world.stored(500))
    while not any(ledger.entries for ledger in world.storage.ledgers.values()):
        await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert world.snapshots.has_abandoned
    await world.snapshots.sweep()
    assert world.storage.ledgers == {}


@pytest.mark.slow
async def test_a_large_snapshot_waits_for_room_and_lets_others_run() -> None:
    world = World()
    world.client = FaultyLedgerClient(MemoryLedgerClient(world.storage, in_flight_adds_max=5))
    world.snapshots = world.again()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    snapshot_id, segments = await world.stored(100_000, segment_entries=20)
    counting.cancel()
    assert turns > 5
    assert len(await world.again().segments(snapshot_id, 0, 5_000)) == len(segments)


# -------------------------------------------------------------------------------- deleting


async def test_deleted_once_and_gone_already() -> None:
    world = World()
    snapshot_id, _ = await world.stored(100)
    assert await world.snapshots.delete(snapshot_id)
    assert not await world.snapshots.delete(snapshot_id)
    for call in (
        world.snapshots.metadata(snapshot_id),
        world.snapshots.segments(snapshot_id, 0, 1),
        world.snapshots.length_bytes(snapshot_id),
    ):
        with pytest.raises(NoSuchLedgerError):
            await call


async def test_another_ledger_is_never_deleted_as_a_snapshot() -> None:
    world = World()
    snapshot_id, _ = await world.stored(100)
    others = BucketSnapshots(world.client, f"{TOPIC}/other", world.settings)
    with pytest.raises(CorruptRecordError, match=f"{snapshot_id} holds no snapshot of .*other"):
        await others.delete(snapshot_id)
    assert snapshot_id in world.storage.ledgers


async def test_orphans_are_those_that_the_cursors_node_does_not_name() -> None:
    world = World()
    named, _ = await world.stored(100)
    unnamed, _ = await world.stored(100)
    gone = BucketSnapshots(world.client, f"{TOPIC}/gone", world.settings)
    first, last, segments = bucket(50)
    of_gone = await gone.create(first, last, segments, [summary_of(s) for s in segments])
    foreign = (await world.client.create(_plain_options())).ledger_id
    metadata = MemoryMetadataStore(MemoryTree())
    node = CursorNode(1, None, None, {"#pulsar.internal.delayed.bucket_7:0_7:99": str(named)})
    await metadata.put(PATH, encode_cursor_node(node, Packing()), expected_version=None)
    candidates = [named, unnamed, of_gone.snapshot_id, foreign, 999]
    orphans = await find_orphan_snapshots(world.client, metadata, candidates)
    assert orphans == [unnamed, of_gone.snapshot_id]


def _plain_options() -> Any:
    from ackgate.persistence import LedgerOptions

    return LedgerOptions()


# ---------------------------------------------------------------------------------- damage


def place(snapshot_id: int, entry_id: int) -> str:
    return f"snapshot ledger {snapshot_id}, entry {entry_id}: "


async def complaints(world: World, snapshot_id: int) -> tuple[str, str]:
    """What reading the metadata and the second segment says."""
    told = []
    for call in (
        world.again().metadata(snapshot_id),
        world.snapshots.segments(snapshot_id, 1, 2),
    ):
        try:
            await call
        except CorruptRecordError as error:
            told.append(f"{type(error).__name__} {error}")
        else:
            told.append("")
    return told[0], told[1]


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_ledger_that_ends_too_soon(kept: int) -> None:
    world = World()
    snapshot_id, _ = await world.stored(150)
    world.truncate(snapshot_id, kept)
    metadata, second = await complaints(world, snapshot_id)
    assert ("entry 0 is missing" in metadata) == (kept == 0)
    assert f"snapshot ledger {snapshot_id} ends with entry {kept - 1}: entry 2 is missing" in second


async def test_every_flipped_bit_is_noticed() -> None:
    world = World()
    snapshot_id, _ = await world.stored(100)
    for entry_id, of in ((0, 0), (2, 1)):
        payload = world.payload(snapshot_id, entry_id)
        for at in range(len(payload)):
            for bit in (0, 7):
                flipped = bytearray(payload)
                flipped[at] ^= 1 << bit
                world.damage(snapshot_id, entry_id, bytes(flipped))
                told = (await complaints(world, snapshot_id))[of]
                assert place(snapshot_id, entry_id) in told
        for length in (0, 5, HEADER_BYTES, len(payload) - 1):
            world.damage(snapshot_id, entry_id, payload[:length])
            told = (await complaints(world, snapshot_id))[of]
            assert place(snapshot_id, entry_id) in told
        world.damage(snapshot_id, entry_id, payload)


async def test_a_later_format_is_no_damage() -> None:
    world = World()
    snapshot_id, _ = await world.stored(100)
    for entry_id, of in ((0, 0), (2, 1)):
        was = world.payload(snapshot_id, entry_id)
        kind, body = unseal(was)
        later = _of_format(seal(kind, body, Packing()), 2)
        world.damage(snapshot_id, entry_id, later)
        told = (await complaints(world, snapshot_id))[of]
        assert told == (
            f"UnknownFormatError {place(snapshot_id, entry_id)}"
            "the record has format 2, this build reads 1"
        )
        world.damage(snapshot_id, entry_id, was)
    assert issubclass(UnknownFormatError, CorruptRecordError)


def _of_format(envelope: bytes, version: int) -> bytes:
    import google_crc32c

    head = bytearray(envelope[: HEADER_BYTES - 4])
    head[2] = version
    payload = envelope[HEADER_BYTES:]
    crc = google_crc32c.extend(google_crc32c.value(bytes(head)), payload)
    return bytes(head) + crc.to_bytes(4, "big") + payload


async def test_foreign_entries_and_entries_in_the_wrong_place() -> None:
    world = World()
    snapshot_id, _ = await world.stored(150)
    other_id, _ = await world.stored(150)
    right = [world.payload(snapshot_id, entry_id) for entry_id in range(4)]
    cases = [
        (0, world.payload(other_id, 0), f"written for snapshot {other_id}"),
        (0, right[1], "record kind 6 does not belong here"),
        (0, seal(RecordKind.SNAPSHOT, b"", Packing()), "record kind 1 does not belong here"),
        (0, seal(RecordKind.DELAYED_METADATA, b"\x01", Packing()), "not a delayed_metadata"),
        (0, b"hello, I am a message", "not a record"),
        (2, world.payload(other_id, 2), f"written for snapshot {other_id}"),
        (2, right[1], "segment 0 lies where segment 1 must"),
        (2, right[0], "record kind 5 does not belong here"),
        (2, seal(RecordKind.DELAYED_SEGMENT, b"", Packing()), "not a delayed_segment"),
    ]
    for entry_id, payload, why in cases:
        world.damage(snapshot_id, entry_id, payload)
        told = (await complaints(world, snapshot_id))[entry_id // 2]
        assert place(snapshot_id, entry_id) in told
        assert why in told
        world.damage(snapshot_id, entry_id, right[entry_id])


async def test_chunks_that_are_missing_or_mixed_up() -> None:
    world = World(cursor_record_chunk_bytes=4 * 1024, managed_cursor_info_compression_type="NONE")
    snapshot_id, _ = await world.stored(20_000, segment_entries=10_000, seed=3)
    found, _ = await world.again().metadata(snapshot_id)
    count = len(world.storage.ledgers[snapshot_id].entries)
    head = count - sum(found.ledger_entries)
    start = head + found.ledger_entries[0]
    right = [world.payload(snapshot_id, entry_id) for entry_id in range(count)]
    for entry_id, payload in (
        (start, right[start + 1]),
        (start + 1, right[start]),
        (start + 1, right[head + 1]),
        (count - 1, right[start]),
    ):
        world.damage(snapshot_id, entry_id, payload)
        told = (await complaints(world, snapshot_id))[1]
        assert f"snapshot ledger {snapshot_id}, entry {start}: chunk " in told
        assert "is missing" in told
        world.damage(snapshot_id, entry_id, right[entry_id])
    assert (await complaints(world, snapshot_id)) == ("", "")


def metadata_fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "snapshot_id": 5,
        "part_number": 0,
        "part_count": 1,
        "first_ledger_id": 7,
        "first_entry_id": 0,
        "last_ledger_id": 8,
        "last_entry_id": 9,
        "segments": [segment_metadata(), segment_metadata(first_key_ms=1024, last_key_ms=1024)],
    }
    return {**fields, **changes}


def segment_metadata(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "first_key_ms": 512,
        "last_key_ms": 1024,
        "entry_count": 3,
        "ledger_entries": 1,
        "positions": [of_ledger(7, 0, 1), of_ledger(8, 9)],
    }
    return {**fields, **changes}


def of_ledger(ledger_id: int, *entry_ids: int) -> dict[str, Any]:
    return {"message_ledger_id": ledger_id, "entry_ids": BitMap(entry_ids).serialize()}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (metadata_fields(first_ledger_id=-1), "ledger id -1 is not in"),
        (metadata_fields(part_number=1, part_count=2), "part 1 of 2 .* lies where part 0 must"),
        (metadata_fields(part_count=0), "part 0 of 0"),
        (metadata_fields(last_entry_id=2**32), "is not in"),
        (metadata_fields(last_entry_id=8), "7:0..8:9 is not within 7:0..8:8"),
        (metadata_fields(first_entry_id=1), "7:0..8:9 is not within 7:1..8:9"),
        (metadata_fields(segments=[segment_metadata(entry_count=2)]), "of 2 entries names 3"),
        (
            metadata_fields(segments=[segment_metadata(entry_count=0, positions=[])]),
            "of 0 entries names 0",
        ),
        (metadata_fields(segments=[segment_metadata(ledger_entries=0)]), "takes no ledger entry"),
        (metadata_fields(segments=[segment_metadata(first_key_ms=-1)]), "spans -1..1024"),
        (metadata_fields(segments=[segment_metadata(first_key_ms=1536)]), "spans 1536..1024"),
        (metadata_fields(segments=[segment_metadata()] * 2), "the one before ends at 1024"),
        (
            metadata_fields(
                segments=[segment_metadata(positions=[of_ledger(7, 0), of_ledger(7, 1)])]
            ),
            "7 after 7",
        ),
        (
            metadata_fields(segments=[segment_metadata(positions=[of_ledger(7)])]),
            "without an entry",
        ),
        (
            metadata_fields(
                segments=[
                    segment_metadata(positions=[{"message_ledger_id": 7, "entry_ids": b"\x00"}])
                ]
            ),
            "is wrong",
        ),
    ],
)
def test_metadata_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    body = bucket_codec._METADATA.encode(fields)
    with pytest.raises(CorruptRecordError, match=why):
        bucket_codec.decode_metadata(
            seal(RecordKind.DELAYED_METADATA, body, Packing()), snapshot_id=5, part_number=0
        )


def segment_fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "snapshot_id": 5,
        "segment_number": 0,
        "first_key_ms": 512,
        "last_key_ms": 1536,
        "key_unit_ms": 512,
        "positions": [of_ledger(7, 0, 1), of_ledger(8, 9)],
        "key_deltas": [2, -2, 1],
    }
    return {**fields, **changes}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key_deltas": [2, -2]}, "3 positions have 2 times"),
        ({"positions": [], "key_deltas": []}, "0 positions have 0 times"),
        ({"key_deltas": [2, -3, 2]}, "beyond 512"),
        ({"key_deltas": [2, -2, 3]}, "1536 was announced"),
        ({"key_deltas": [1, 0, 1]}, "beyond 512"),
        ({"key_unit_ms": 0}, "units of 0"),
        ({"key_unit_ms": -512}, "units of -512"),
        ({"first_key_ms": -512}, "-512..1536"),
        ({"last_key_ms": 0}, "512..0"),
        ({"key_deltas": [2**62, 2**62, 2**62]}, "beyond 512"),
        ({"positions": [of_ledger(8, 9), of_ledger(7, 0, 1)]}, "7 after 8"),
        ({"positions": [of_ledger(-2, 9)]}, "-2 after -1"),
        ({"positions": [{"message_ledger_id": 7, "entry_ids": b"junk"}]}, "is wrong"),
    ],
)
def test_segments_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    body = bucket_codec._SEGMENT.encode(segment_fields(**changes))
    envelope = seal(RecordKind.DELAYED_SEGMENT, body, Packing())
    with pytest.raises(CorruptRecordError, match=why):
        bucket_codec.decode_segment(envelope, snapshot_id=5, segment_number=0)


def test_a_chunk_that_cannot_be() -> None:
    fields = {
        "snapshot_id": 5,
        "record_number": 0,
        "chunk_index": 2,
        "chunk_count": 2,
        "piece": b"",
    }
    envelope = seal(RecordKind.DELAYED_CHUNK, bucket_codec._CHUNK.encode(fields), Packing())
    with pytest.raises(CorruptRecordError, match="chunk 2 of 2"):
        bucket_codec.decode_metadata(envelope, snapshot_id=5, part_number=0)


# ------------------------------------------------------------------------------- the format


def test_a_segment_is_read_by_any_reader_of_avro_as_its_schema_says() -> None:
    rows = [(BASE_MS + KEY, 7, 3), (BASE_MS, 8, 0), (BASE_MS + 4 * KEY, 7, 1)]
    envelope = bucket_codec.encode_segment(
        segment(*rows), snapshot_id=5, segment_number=2, packing=Packing(Compression.ZSTD, 0)
    )
    schema = json.loads(
        files("ackgate.persistence.records")
        .joinpath("schemas/delayed_segment.avsc")
        .read_text("utf-8")
    )
    from io import BytesIO

    fields = fastavro.schemaless_reader(BytesIO(unseal(envelope).body), schema, None)
    assert isinstance(fields, dict)
    found = []
    key = fields["first_key_ms"]
    deltas = iter(fields["key_deltas"])
    for ledger in fields["positions"]:
        for entry_id in BitMap.deserialize(ledger["entry_ids"]):
            key += next(deltas) * fields["key_unit_ms"]
            found.append((key, ledger["message_ledger_id"], entry_id))
    assert sorted(found) == sorted(rows)
    assert (fields["snapshot_id"], fields["segment_number"]) == (5, 2)


@pytest.mark.parametrize("name", ["delayed_metadata", "delayed_segment", "delayed_chunk"])
def test_every_field_has_a_doc(name: str) -> None:
    schema = json.loads(
        files("ackgate.persistence.records").joinpath(f"schemas/{name}.avsc").read_text("utf-8")
    )
    records = [schema]
    while records:
        record = records.pop()
        assert record["doc"]
        for field in record["fields"]:
            assert field["doc"], field["name"]
            items = field["type"].get("items") if isinstance(field["type"], dict) else None
            if isinstance(items, dict):
                records.append(items)


@pytest.mark.parametrize(("seed", "bytes_max"), [(None, 0.1), (1, 4.0)])
async def test_bytes_an_entry(seed: int | None, bytes_max: float) -> None:
    """5,000 entries a segment, 20 of them a tick when they come in order."""
    world = World()
    first, last, segments = bucket(100_000, segment_entries=5_000, ledger_entries=50_000, seed=seed)
    stored = await world.snapshots.create(first, last, segments, [summary_of(s) for s in segments])
    head = len(world.payload(stored.snapshot_id, 0))
    assert (stored.bytes_stored - head) / 100_000 < bytes_max
    assert np.sum([s.keys_ms.size for s in segments]) == 100_000


def test_a_damaged_snapshot_is_an_error_of_ours() -> None:
    assert issubclass(CorruptRecordError, AckGateError)
