"""Records of several formats in one ledger: older ones are read, later ones are an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyroaring import BitMap

from ackgate import EmbeddedStorage, open_embedded
from ackgate.cursor import NO_NACKS, CursorGrowth, CursorSnapshot, PendingNacks, Position
from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence import LedgerOptions, cursor_path, topic_path
from ackgate.persistence.buckets.registry import bucket_key
from ackgate.persistence.cursors.node import CursorNode, encode_cursor_node
from ackgate.persistence.deliveries.node import (
    DeliveryJournalNode,
    JournalLedgerRecord,
    encode_journal_node,
)
from ackgate.persistence.nodes.paths import delivery_journal_path
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Packing, format_of, seal
from ackgate.persistence.records.values import DeltaRecord, RecordKind, SnapshotRecord
from tests.unit.pipeline.table_reads import put_ledger, read_table

PATH = topic_path("embedded", "default", "orders")
LATER = 9
LATER_RECORD = seal(RecordKind.SNAPSHOT, b"whatever it holds", Packing(), format_version=LATER)


async def _write(storage: EmbeddedStorage, entries: Sequence[bytes]) -> int:
    writer = await storage.ledger_client.create(LedgerOptions())
    for entry in entries:
        await writer.add_entry(entry)
    await writer.close()
    return writer.ledger_id


def store_cursor(root: Path, entries: Sequence[bytes] | None, **node: Any) -> int | None:
    """A subscription whose ledger holds these entries, and whose node says this."""

    async def make() -> int | None:
        async with open_embedded(root) as storage:
            await put_ledger(storage, "orders", [])
            ledger_id = None if entries is None else await _write(storage, entries)
            fields = {"state": None, "cursor_properties": {}, **node}
            content = CursorNode(owner_epoch=1, cursor_ledger_id=ledger_id, **fields)
            value = encode_cursor_node(content, Packing())
            await storage.metadata.put(cursor_path(PATH, "billing"), value, expected_version=None)
            return ledger_id

    return asyncio.run(make())


def snapshot(version: int, acked: range, nacks: PendingNacks = NO_NACKS) -> bytes:
    content = CursorSnapshot(version, Position(7, 9), {7: BitMap(acked)}, 1)
    return encode_record(SnapshotRecord(1, version, content, 1, 0, 0, nacks), Packing())


def delta(base: int, version: int, acked: range, nacks: PendingNacks | None = None) -> bytes:
    content = CursorGrowth(base, version, Position(7, 9), {7: BitMap(acked)}, 2)
    return encode_record(DeltaRecord(1, version, content, nacks), Packing())


NACKS = PendingNacks({1000: {7: BitMap([60, 61])}})


def test_records_of_both_formats_in_one_ledger(tmp_path: Path) -> None:
    records = [
        snapshot(1, range(20, 30)),
        delta(1, 2, range(40, 45), NACKS),
        delta(2, 3, range(50, 52)),
        snapshot(4, range(20, 30), NACKS),
        delta(4, 6, range(45, 50)),
    ]
    assert [format_of(record) for record in records] == [1, 2, 1, 2, 1]
    store_cursor(tmp_path, records)

    rows = read_table(tmp_path, "cursor_records")

    assert [(row["kind"], row["version"], row["held_nacks"]) for row in rows] == [
        ("snapshot", 1, 0),
        ("delta", 2, 2),
        ("delta", 3, None),
        ("snapshot", 4, 2),
        ("delta", 6, None),
    ]
    for version, expected in (
        ("3", [(20, 30), (40, 45), (50, 52)]),
        ("5", [(20, 30)]),
        ("6", [(20, 30), (45, 50)]),
    ):
        state = read_table(tmp_path, "ack_state", version=version)
        ranges = [(r["first_entry_id"], r["end_entry_id"]) for r in state if r["kind"] == "range"]
        assert ranges == expected


@pytest.mark.parametrize("table", ["cursor_records", "ack_state"])
@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_a_later_record_is_named_and_never_skipped(tmp_path: Path, table: str, mode: str) -> None:
    ledger_id = store_cursor(tmp_path, [snapshot(1, range(20, 30)), LATER_RECORD])
    told = rf"cursor ledger {ledger_id}, entry 1: the record has format {LATER}, this build reads"
    with pytest.raises(UnknownFormatError, match=told):
        read_table(tmp_path, table, onCorrupt=mode)


def test_what_cannot_be_decoded_is_told(tmp_path: Path) -> None:
    """Digests of the ledger fit; the records' own do not, or nobody here knows their format."""
    torn = snapshot(2, range(20, 40))[:-1]
    records = [snapshot(1, range(20, 30)), torn, delta(1, 3, range(40, 45)), LATER_RECORD]
    ledger_id = store_cursor(tmp_path, records[:3])
    with pytest.raises(CorruptRecordError, match=f"cursor ledger {ledger_id}, entry 1: "):
        read_table(tmp_path, "cursor_records")
    left = read_table(tmp_path, "cursor_records", onCorrupt="skip")
    assert [row["version"] for row in left] == [1, 3]
    (row,) = read_table(tmp_path, "corrupt")
    assert (row["ledger_id"], row["bookie"], row["entries_lost"]) == (ledger_id, None, 1)
    assert row["why"].startswith("entry 1: ")

    ledger_id = store_cursor(tmp_path, records)
    rows = read_table(tmp_path, "corrupt")
    assert {row["ledger_id"] for row in rows} == {ledger_id}
    assert f"format {LATER}" in rows[-1]["why"]


@pytest.mark.parametrize("table", ["cursor_records", "ack_state"])
def test_a_later_state_in_the_node_is_named(tmp_path: Path, table: str) -> None:
    store_cursor(tmp_path, None, state=LATER_RECORD)
    told = rf"'billing' of persistent://embedded/default/orders: its node: .* format {LATER}"
    with pytest.raises(UnknownFormatError, match=told):
        read_table(tmp_path, table)


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_later_buckets_and_journal_blocks_are_named(tmp_path: Path, mode: str) -> None:
    snapshot_id, journal_id = asyncio.run(_store_later(tmp_path))
    store_cursor(
        tmp_path,
        None,
        cursor_properties={bucket_key(Position(7, 0), Position(7, 9)): str(snapshot_id)},
    )
    with pytest.raises(
        UnknownFormatError, match=f"snapshot ledger {snapshot_id}, entry 0.*{LATER}"
    ):
        read_table(tmp_path, "delayed_index", onCorrupt=mode)
    with pytest.raises(UnknownFormatError, match=f"journal ledger {journal_id}, entry 0.*{LATER}"):
        read_table(tmp_path, "delivery_journal", onCorrupt=mode)


async def _store_later(root: Path) -> tuple[int, int]:
    async with open_embedded(root) as storage:
        snapshot_id = await _write(storage, [LATER_RECORD])
        journal_id = await _write(storage, [LATER_RECORD])
        node = DeliveryJournalNode((JournalLedgerRecord(journal_id, 0, None, 0, None),), 1)
        path = delivery_journal_path("embedded", "default", "orders")
        await storage.metadata.put(path, encode_journal_node(node), expected_version=None)
    return snapshot_id, journal_id


def damage_node(root: Path, subscription: str, value: bytes) -> str:
    """One more cursor, whose node holds this."""
    path = cursor_path(PATH, subscription)

    async def put() -> None:
        async with open_embedded(root) as storage:
            await storage.metadata.put(path, value, expected_version=None)

    asyncio.run(put())
    return path


WHOLE_NODE = encode_cursor_node(CursorNode(1, None, None, {}), Packing())


@pytest.mark.parametrize("table", ["cursor_records", "ack_state", "delayed_index"])
@pytest.mark.parametrize("value", [b"", b"no node", WHOLE_NODE[:-1]])
def test_a_damaged_node_costs_its_own_cursor_only(tmp_path: Path, table: str, value: bytes) -> None:
    store_cursor(tmp_path, [snapshot(1, range(20, 30))])
    whole = read_table(tmp_path, table)
    path = damage_node(tmp_path, "audit", value)

    with pytest.raises(
        CorruptRecordError,
        match=rf"subscription 'audit' of persistent://embedded/default/orders: its node: {path}: ",
    ):
        read_table(tmp_path, table)

    assert read_table(tmp_path, table, onCorrupt="skip") == whole
    (row,) = read_table(tmp_path, "corrupt")
    assert (row["ledger_id"], row["file"]) == (None, f"node {path}")
    assert (row["offset"], row["end_offset"], row["entries_lost"]) == (0, len(value), 0)
    assert row["why"]
    assert read_table(tmp_path, table, subscription="billing") == whole


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_a_node_of_a_later_version_is_named_and_never_skipped(tmp_path: Path, mode: str) -> None:
    store_cursor(tmp_path, [snapshot(1, range(20, 30))])
    later = seal(RecordKind.NODE, b"whatever it holds", Packing(), format_version=LATER)
    path = damage_node(tmp_path, "audit", later)
    with pytest.raises(UnknownFormatError, match=rf"its node: {path}: .* format {LATER}"):
        read_table(tmp_path, "ack_state", onCorrupt=mode)


def test_a_damaged_state_in_a_node_leaves_the_ledger(tmp_path: Path) -> None:
    store_cursor(tmp_path, [snapshot(2, range(20, 30))], state=snapshot(1, range(5))[:-1])
    path = cursor_path(PATH, "billing")
    for table in ("cursor_records", "ack_state"):
        with pytest.raises(CorruptRecordError, match=rf"its node: {path}: "):
            read_table(tmp_path, table)
    [record] = read_table(tmp_path, "cursor_records", onCorrupt="skip")
    assert (record["place"], record["version"]) == ("ledger", 2)
    assert {row["version"] for row in read_table(tmp_path, "ack_state", onCorrupt="skip")} == {2}
    (row,) = read_table(tmp_path, "corrupt")
    assert (row["ledger_id"], row["file"]) == (None, f"node {path}")


def test_a_damaged_name_of_a_bucket_in_a_node(tmp_path: Path) -> None:
    key = bucket_key(Position(7, 0), Position(7, 9))
    store_cursor(tmp_path, None, cursor_properties={key: "no ledger"})
    path = cursor_path(PATH, "billing")
    with pytest.raises(CorruptRecordError, match=rf"its node: {path}: property .*no ledger"):
        read_table(tmp_path, "delayed_index")
    assert read_table(tmp_path, "delayed_index", onCorrupt="skip") == []
    (row,) = read_table(tmp_path, "corrupt")
    assert row["file"] == f"node {path}"
