"""Records as bytes: what comes out is what went in, and only what could have gone in."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
from pyroaring import BitMap

from ackgate.cursor import EARLIEST, CursorGrowth, CursorSnapshot, PendingNacks, Position
from ackgate.errors import CorruptRecordError
from ackgate.persistence.records import codec
from ackgate.persistence.records.codec import decode_record, encode_chunk, encode_record
from ackgate.persistence.records.envelope import Compression, Packing, format_of, seal
from ackgate.persistence.records.values import ChunkRecord, DeltaRecord, SnapshotRecord, Stamp

PACKING = Packing(Compression.ZSTD, 256)


def snapshot(**changes: Any) -> SnapshotRecord:
    fields: dict[str, Any] = {
        "version": 12,
        "mark_delete": Position(3, 7),
        "acked": {3: BitMap([9, 10]), 2**40: BitMap([0, 2**32 - 1])},
        "range_count": 3,
        "unacked_indexes": {Position(3, 20): 0b1011, Position(4, 0): 1 << 200},
        "properties": {"ä": -5, "big": 2**62},
    }
    fields.update(changes)
    return SnapshotRecord(
        owner_epoch=4,
        written_ms=1_700_000_000_000,
        snapshot=CursorSnapshot(**fields),
        ranges_in_memory=9,
        entries_dropped=17,
        batch_indexes_in_memory=5,
    )


def delta() -> DeltaRecord:
    return DeltaRecord(
        owner_epoch=4,
        written_ms=1,
        growth=CursorGrowth(
            base_version=12,
            version=15,
            mark_delete=Position(3, -1),
            acked={3: BitMap([100])},
            range_count=4,
            unacked_indexes={Position(3, 21): 1},
            properties=None,
        ),
    )


def test_a_format_is_as_old_as_its_content_allows() -> None:
    """What needs nothing of a newer format can be read by builds before it."""
    image = PendingNacks({768: {3: BitMap([20])}}, 8)
    for record, expected in (
        (snapshot(), 1),
        (snapshot()._replace(nacks=image), 2),
        (snapshot()._replace(base_snapshot_version=3), 3),
        (delta(), 1),
        (delta()._replace(nacks=image), 2),
        (delta()._replace(base_snapshot_version=12), 3),
    ):
        encoded = encode_record(record, PACKING)
        assert format_of(encoded) == expected
        assert decode_record(encoded) == record


def test_no_record_descends_from_a_later_one() -> None:
    for record in (
        snapshot()._replace(base_snapshot_version=snapshot().snapshot.version + 1),
        delta()._replace(base_snapshot_version=13),
    ):
        with pytest.raises(CorruptRecordError, match="cannot descend from version"):
            decode_record(encode_record(record, PACKING))


def test_a_snapshot_comes_back() -> None:
    assert decode_record(encode_record(snapshot(), PACKING)) == snapshot()


def test_an_empty_snapshot_of_a_cursor_before_everything_comes_back() -> None:
    empty = snapshot(
        mark_delete=EARLIEST, acked={}, range_count=0, unacked_indexes={}, properties={}
    )
    assert decode_record(encode_record(empty, PACKING)) == empty


def test_a_delta_comes_back() -> None:
    assert decode_record(encode_record(delta(), PACKING)) == delta()


def test_a_chunk_comes_back() -> None:
    chunk = ChunkRecord(Stamp(1, 2), 3, 4, b"\0piece")
    assert decode_record(encode_chunk(chunk)) == chunk


def test_bitmaps_are_run_optimised_and_portable() -> None:
    runs = snapshot(acked={3: BitMap(range(8, 60_000))}, range_count=1)
    encoded = encode_record(runs, Packing())
    assert len(encoded) < 300
    assert BitMap(range(8, 60_000)).run_optimize()


def test_ledgers_and_batches_are_stored_in_ascending_order() -> None:
    mixed = snapshot(acked={9: BitMap([1]), 3: BitMap([9])}, range_count=2)
    decoded = decode_record(encode_record(mixed, PACKING))
    assert isinstance(decoded, SnapshotRecord)
    assert list(decoded.snapshot.acked) == [3, 9]


BITMAP = BitMap([1, 2, 3]).serialize()


@pytest.mark.parametrize(
    "changes",
    [
        {"mark_delete_ledger_id": -2},
        {"mark_delete_entry_id": -2},
        {"mark_delete_entry_id": 2**32},
        {"acked": [{"message_ledger_id": -1, "entry_ids": BITMAP}]},
        {"acked": [{"message_ledger_id": 1, "entry_ids": b""}]},
        {"acked": [{"message_ledger_id": 1, "entry_ids": BitMap().serialize()}]},
        {"acked": [{"message_ledger_id": 1, "entry_ids": BITMAP[:-1]}]},
        {"acked": [{"message_ledger_id": 1, "entry_ids": b"\xff" * 40}]},
        {"acked": [{"message_ledger_id": 1, "entry_ids": BITMAP}] * 2},
        {"partly_acked": [{"message_ledger_id": 1, "entry_id": 1, "unacked_indexes": b""}]},
        {"partly_acked": [{"message_ledger_id": 1, "entry_id": 1, "unacked_indexes": b"\0"}]},
        {"partly_acked": [{"message_ledger_id": 1, "entry_id": -1, "unacked_indexes": b"\1"}]},
        {"partly_acked": [{"message_ledger_id": 1, "entry_id": 2**33, "unacked_indexes": b"\1"}]},
    ],
)
def test_what_no_cursor_could_have_written_is_refused(changes: dict[str, Any]) -> None:
    fields = {**codec._snapshot_fields(snapshot()), **changes}
    sealed = seal(1, codec._SNAPSHOTS[1].encode(fields), Packing())
    with pytest.raises(CorruptRecordError):
        decode_record(sealed)


def test_an_impossible_chunk_is_refused() -> None:
    for index, count in ((0, 0), (3, 3), (-1, 2)):
        with pytest.raises(CorruptRecordError, match="chunk"):
            decode_record(encode_chunk(ChunkRecord(Stamp(1, 1), index, count, b"")))


def test_a_body_with_bytes_missing_or_left_over_is_refused() -> None:
    body = codec._SNAPSHOTS[1].encode(codec._snapshot_fields(snapshot()))
    for wrong in (*(body[:cut] for cut in range(len(body))), body + b"\0"):
        with pytest.raises(CorruptRecordError):
            decode_record(seal(1, wrong, Packing()))


def test_a_kind_that_does_not_belong_here_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="kind 4"):
        decode_record(seal(4, b"", Packing()))


def every_field(schema: Any, where: str) -> list[tuple[str, str | None]]:
    """(path, doc) of every record and field of a schema."""
    found: list[tuple[str, str | None]] = []
    if isinstance(schema, list):
        for branch in schema:
            found += every_field(branch, where)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            where = f"{where}/{schema['name']}"
            found.append((where, schema.get("doc")))
            for field in schema["fields"]:
                found.append((f"{where}.{field['name']}", field.get("doc")))
                found += every_field(field["type"], f"{where}.{field['name']}")
        else:
            found += every_field(schema.get("items"), where)
            found += every_field(schema.get("type"), where)
    return found


@pytest.mark.parametrize("name", ["cursor_snapshot", "cursor_delta", "cursor_chunk", "cursor_node"])
def test_every_field_of_every_schema_has_a_doc(name: str) -> None:
    text = files("ackgate.persistence.records").joinpath("schemas", f"{name}.avsc").read_text()
    documented = every_field(json.loads(text), name)
    assert len(documented) > 4
    assert [where for where, doc in documented if not doc or not doc.endswith(".")] == []
