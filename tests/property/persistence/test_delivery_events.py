"""Blocks of the delivery journal: what goes in comes out, and damage is noticed."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from ackgate.errors import CallerError, CorruptRecordError, UnknownFormatError
from ackgate.persistence.deliveries import events as delivery_events
from ackgate.persistence.deliveries.columns import (
    BLOB_COLUMNS,
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    DeliveryEvent,
    EventColumns,
    EventKind,
    columns_of,
)
from ackgate.persistence.deliveries.events import (
    decode_events,
    encode_events,
    pack_numbers,
    unpack_numbers,
)
from ackgate.persistence.records.envelope import Compression, Packing, seal, unseal
from ackgate.persistence.records.values import RecordKind
from ackgate.pipeline.schema.tables import DELIVERY_JOURNAL, Kind

longs = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
packings = st.builds(Packing, st.sampled_from(Compression), st.integers(0, 500))
_VALUES = {
    **dict.fromkeys(NUMBER_COLUMNS, longs),
    **dict.fromkeys(TEXT_COLUMNS, words),
    **dict.fromkeys(BLOB_COLUMNS, st.binary(max_size=5)),
    "is_cumulative": st.booleans(),
}
events = st.builds(
    DeliveryEvent,
    kind=st.sampled_from(EventKind),
    time_us=longs,
    **{name: st.none() | values for name, values in _VALUES.items() if name != "time_us"},
)
rows = st.lists(events, min_size=1, max_size=12)


def block(events: list[DeliveryEvent], first: int = 40) -> EventColumns:
    return columns_of(events, topic="persistent://t/n/häufig", owner_epoch=3, first_sequence=first)


def same(found: EventColumns, expected: EventColumns) -> bool:
    return (found.topic, found.owner_epoch, found.first_sequence, found.rows()) == (
        expected.topic,
        expected.owner_epoch,
        expected.first_sequence,
        expected.rows(),
    )


SMALL = block(
    [
        DeliveryEvent(EventKind.PUBLISHED, 5, producer="p", ledger_id=7, entry_id=0, key="k"),
        DeliveryEvent(EventKind.ACKED, 6, "s", "c#1", None, 7, 0, unacked_indexes=b"\x02"),
        DeliveryEvent(EventKind.PUBLISHED, 9, producer="q", ledger_id=7, entry_id=1, key="l"),
    ]
)


@pytest.mark.slow
@given(rows, packings)
def test_a_block_comes_back_as_it_was(rows: list[DeliveryEvent], packing: Packing) -> None:
    assert block(rows).rows() == rows
    assert same(decode_events(encode_events(block(rows), packing)), block(rows))


@given(rows, st.data())
def test_a_part_holds_its_events_and_no_words_of_others(
    rows: list[DeliveryEvent], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    part = block(rows).part(start, stop)
    assert part.rows() == rows[start:stop]
    assert part.sequences.tolist() == list(range(40 + start, 40 + stop))
    again = decode_events(encode_events(part, Packing()))
    assert same(again, part)
    wanted = {row.detail for row in rows[start:stop]} - {None}
    held = again.texts["detail"].words if "detail" in again.texts else ()
    assert sorted(held) == sorted(filter(lambda word: word is not None, wanted))  # type: ignore[type-var]


@given(st.lists(longs, max_size=30) | st.lists(st.integers(0, 70_000), max_size=30))
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    packed = pack_numbers(np.array(numbers, dtype=np.int64))
    assert unpack_numbers(packed, len(numbers)).tolist() == numbers


@pytest.mark.parametrize(
    ("numbers", "width", "size"),
    [
        ([7, 7, 7, 7], 0, 0),
        (list(range(10**15, 10**15 + 255)), 1, 255),
        (list(range(0, 30_000, 3)), 0, 0),
        ([0, 300, 1, 299], 2, 8),
        ([0, 2**40, 1], 8, 24),
        ([0, 70_000, 0], 4, 12),
    ],
)
def test_numbers_take_no_more_than_they_need(numbers: list[int], width: int, size: int) -> None:
    packed = pack_numbers(np.array(numbers, dtype=np.int64))
    assert (packed["width"], len(packed["values"])) == (width, size)


@pytest.mark.parametrize("compression", Compression)
def test_every_truncation_and_every_flipped_bit_is_noticed(compression: Compression) -> None:
    stored = encode_events(SMALL, Packing(compression))
    for size in range(len(stored)):
        with pytest.raises(CorruptRecordError):
            decode_events(stored[:size])
    for place in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                decode_events(bytes(damaged))


@pytest.mark.slow
def test_a_body_that_is_wrong_under_a_right_checksum_is_noticed_or_is_another_block() -> None:
    """Nothing but our own errors, whatever a wrong writer seals."""
    _, body = unseal(encode_events(SMALL, Packing()))
    refused = 0
    for place in range(len(body)):
        for value in (0, 1, 2, 127, 128, 255):
            damaged = body[:place] + bytes([value]) + body[place + 1 :]
            try:
                found = decode_events(seal(RecordKind.DELIVERY_EVENTS, damaged, Packing()))
            except CorruptRecordError:
                refused += 1
            else:
                assert len(found.rows()) == len(found)
    assert refused > len(body)


def test_a_foreign_record_and_a_later_format_are_named() -> None:
    _, body = unseal(encode_events(SMALL, Packing()))
    with pytest.raises(CorruptRecordError, match="record kind 1 is no block"):
        decode_events(seal(RecordKind.SNAPSHOT, body, Packing()))
    later = seal(RecordKind.DELIVERY_EVENTS, body, Packing(), format_version=9)
    with pytest.raises(UnknownFormatError, match="format 9"):
        decode_events(later)


def test_what_is_no_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CallerError, match="at least one"):
        block([])
    wrong = block([DeliveryEvent(EventKind.ACKED, 1, subscription="\ud800")])
    with pytest.raises(CallerError, match="not valid Unicode"):
        encode_events(wrong, Packing())
    monkeypatch.setattr(delivery_events, "EVENTS_MAX", 2)
    with pytest.raises(CallerError, match="1 to 2 events, not 3"):
        encode_events(SMALL, Packing())


def test_columns_and_events_are_those_of_the_table() -> None:
    """What is stored is what the table tells of."""
    of_the_block = {"topic", "journal_ledger_id", "owner_epoch", "sequence", "event"}
    stored = {*NUMBER_COLUMNS, *TEXT_COLUMNS, *BLOB_COLUMNS}
    assert stored | of_the_block == {column.name for column in DELIVERY_JOURNAL.columns}
    assert stored | {"kind"} == set(DeliveryEvent._fields)
    kinds = {column.name: column.kind for column in DELIVERY_JOURNAL.columns}
    assert all(kinds[name] in {Kind.LONG, Kind.INT, Kind.BOOLEAN} for name in NUMBER_COLUMNS)
    assert all(kinds[name] is Kind.STRING for name in TEXT_COLUMNS)
    assert all(kinds[name] is Kind.BINARY for name in BLOB_COLUMNS)
    told = DELIVERY_JOURNAL.column("event").doc.rstrip(".").replace(" or ", ", ").split(", ")
    assert told == [kind.value for kind in EventKind]
