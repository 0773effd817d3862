"""What is decoded of Pulsar's nodes and cursor ledgers, beside bytes that a dumb encoder makes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.errors import CorruptRecordError
from ackgate.pulsar import (
    BucketPlace,
    PersistedAcks,
    decode_bucket_head,
    decode_bucket_segment,
    decode_cursor_entry,
    decode_cursor_node,
    decode_managed_ledger,
)
from ackgate.pulsar.formats import pieces_before

# ------------------------------------------------------------------------------------ a dumb encoder


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while True:
        found.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(found)


def whole(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def part(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def position(at: tuple[int, int]) -> bytes:
    return whole(1, at[0]) + whole(2, at[1])


def ranges_of(field: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """Runs of neighbours, as pairs of an excluded and an included end."""
    found = b""
    run: list[tuple[int, int]] = []
    for at in [*sorted(entries), (-1, -1)]:
        if run and at != (run[-1][0], run[-1][1] + 1):
            lower, upper = (run[0][0], run[0][1] - 1), run[-1]
            found += part(field, part(1, position(lower)) + part(2, position(upper)))
            run = []
        run.append(at)
    return found


def words(members: Iterable[int]) -> list[int]:
    members = set(members)
    return [
        sum(1 << bit for bit in range(64) if 64 * word + bit in members)
        for word in range(max(members, default=-1) // 64 + 1)
    ]


def words_of(entries: set[tuple[int, int]], *, is_packed: bool) -> bytes:
    found = b""
    for ledger_id in {ledger_id for ledger_id, _ in entries}:
        values = words(entry for ledger, entry in entries if ledger == ledger_id)
        text = b"".join(map(varint, values))
        listed = part(2, text) if is_packed else b"".join(whole(2, value) for value in values)
        found += part(6, whole(1, ledger_id) + listed)
    return found


def batches_of(field: int, batches: Mapping[tuple[int, int], set[int]]) -> bytes:
    return b"".join(
        part(field, part(1, position(at)) + b"".join(whole(2, w) for w in words(unacked)))
        for at, unacked in batches.items()
    )


COMPRESSIONS = {
    0: lambda body: body,
    1: lambda body: bytes(cramjam.lz4.compress_block(body, store_size=False)),
    2: zlib.compress,
    3: lambda body: bytes(cramjam.zstd.compress(body)),
    4: lambda body: bytes(cramjam.snappy.compress_raw(body)),
}


def packed(body: bytes, compression: int | None) -> bytes:
    if compression is None:
        return body
    head = whole(1, compression) + whole(2, len(body))
    return b"\x47\x78" + len(head).to_bytes(4, "big") + head + COMPRESSIONS[compression](body)


# ------------------------------------------------------------------------------------------ the states

LEDGERS = st.sampled_from([0, 3, 5, 2**31, 2**40])
ENTRIES = st.integers(0, 200)
ACKED = st.sets(st.tuples(LEDGERS, ENTRIES), max_size=60)
BATCHES = st.dictionaries(
    st.tuples(LEDGERS, ENTRIES), st.sets(st.integers(0, 150), min_size=1), max_size=5
)
MARK_DELETES = st.tuples(LEDGERS, st.integers(-1, 100))
FORMS = st.sampled_from([None, *COMPRESSIONS])


def expected(
    mark_delete: tuple[int, int],
    acked: set[tuple[int, int]],
    batches: Mapping[tuple[int, int], set[int]],
) -> dict[str, Any]:
    above = {at for at in acked if at > mark_delete}
    return {
        "acked": above,
        "ranges": sum((ledger_id, entry - 1) not in above for ledger_id, entry in above),
        "batches": {
            at: unacked for at, unacked in batches.items() if at > mark_delete and at not in above
        },
    }


def seen(acks: PersistedAcks) -> dict[str, Any]:
    return {
        "acked": {(i, entry) for i, bitmap in acks.acked.items() for entry in bitmap},
        "ranges": acks.range_count,
        "batches": {
            tuple(at): {i for i in range(mask.bit_length()) if mask >> i & 1}
            for at, mask in acks.unacked_indexes.items()
        },
    }


@given(MARK_DELETES, ACKED, BATCHES, st.sampled_from(["ranges", "words", "packed", "both"]))
def test_an_entry_of_a_cursors_ledger(
    mark_delete: tuple[int, int],
    acked: set[tuple[int, int]],
    batches: dict[tuple[int, int], set[int]],
    form: str,
) -> None:
    payload = position(mark_delete) + batches_of(5, batches)
    payload += part(4, part(1, b"seq") + whole(2, -7))
    if form in {"ranges", "both"}:
        payload += ranges_of(3, acked)
    if form == "both" and acked:
        payload += words_of({(3, 777)}, is_packed=False)  # Pulsar takes the ranges then
    elif form in {"words", "packed"}:
        payload += words_of(acked, is_packed=form == "packed")
    acks = decode_cursor_entry(payload, name="here")
    assert seen(acks) == expected(mark_delete, acked, batches)
    assert acks.mark_delete == Position(*mark_delete)
    assert acks.properties == {"seq": -7}
    assert acks.bytes == len(payload)
    assert sorted((i, e) for i, first, last in acks.ranges() for e in range(first, last + 1)) == (
        sorted(expected(mark_delete, acked, batches)["acked"])
    )


@given(MARK_DELETES, ACKED, BATCHES, FORMS)
def test_a_cursors_node_that_holds_the_state(
    mark_delete: tuple[int, int],
    acked: set[tuple[int, int]],
    batches: dict[tuple[int, int], set[int]],
    compression: int | None,
) -> None:
    body = whole(1, -1) + whole(2, mark_delete[0]) + whole(3, mark_delete[1])
    body += ranges_of(4, acked) + batches_of(7, batches)
    body += part(8, part(1, b"#pulsar.internal.delayed.bucket_3_5") + part(2, b"99"))
    body += part(8, part(1, b"color") + part(2, b"blue"))
    node = decode_cursor_node(packed(body, compression), name="here")
    assert node.cursor_ledger_id is None
    assert node.state is not None
    assert seen(node.state) == expected(mark_delete, acked, batches)
    assert node.buckets == [BucketPlace(3, 5, 99)]
    assert node.properties["color"] == "blue"


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(1, 10**9), st.integers(0, 2**50)),
        max_size=20,
        unique_by=lambda one: one[0],
    ),
    FORMS,
)
def test_a_topics_node(closed: list[tuple[int, int, int]], compression: int | None) -> None:
    body = b"".join(
        part(1, whole(1, ledger_id) + whole(2, entries) + whole(3, size) + whole(4, 1_000))
        for ledger_id, entries, size in closed
    )
    body += part(1, whole(1, 2**41) + whole(4, 0)) + part(3, part(1, b"a") + part(2, b"b"))
    node = decode_managed_ledger(packed(body, compression), name="here")
    found = [(ledger.ledger_id, ledger.entries, ledger.bytes) for ledger in node.ledgers]
    assert found == [*sorted(closed), (2**41, None, None)]
    assert node.entry_counts == {ledger_id: entries for ledger_id, entries, _ in closed}
    assert node.properties == {"a": "b"}
    assert node.terminated_at is None


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_named_as_damaged(value: bytes) -> None:
    for decode in (
        decode_managed_ledger,
        decode_cursor_node,
        decode_cursor_entry,
        decode_bucket_head,
        decode_bucket_segment,
    ):
        for text in (value, b"\x47\x78" + value, b"\x47\x78\0\0\0\4\x08\1\x10\5" + value):
            try:
                decode(text, name="the place")
            except CorruptRecordError as error:
                assert "the place" in str(error)  # noqa: PT017


# --------------------------------------------------------------------------------------- single forms


def test_a_range_over_ledgers_takes_their_lengths() -> None:
    payload = position((2, 4)) + part(3, part(1, position((3, 7))) + part(2, position((9, 2))))
    acks = decode_cursor_entry(payload, name="here", entry_counts={3: 10, 5: 4, 8: 0, 9: 6})
    assert {i: list(b) for i, b in acks.acked.items()} == {3: [8, 9], 5: [0, 1, 2, 3], 9: [0, 1, 2]}
    assert (acks.range_count, acks.ranges_stored, acks.ranges_unread) == (3, 1, 0)
    unknown = decode_cursor_entry(payload, name="here", entry_counts={9: 6})
    assert {i: list(b) for i, b in unknown.acked.items()} == {9: [0, 1, 2]}
    assert unknown.ranges_unread == 1


def test_offload_and_termination() -> None:
    offloaded = part(5, whole(1, 1) + whole(2, 2) + whole(3, 1) + whole(4, 1))
    body = part(1, whole(1, 4) + whole(2, 9) + whole(4, 5) + offloaded)
    body += part(2, position((4, 8)))
    node = decode_managed_ledger(body, name="here")
    [ledger] = node.ledgers
    assert (ledger.is_offloaded, ledger.is_on_bookies, ledger.closed_ms) == (True, False, 5)
    assert node.terminated_at == Position(4, 8)


def test_protobufs_text_of_old_brokers() -> None:
    text = b"cursorsLedgerId: -1 markDeleteLedgerId: 3 markDeleteEntryId: 4"
    node = decode_cursor_node(text, name="here")
    assert node.state is not None
    assert node.state.mark_delete == Position(3, 4)


def test_a_node_that_names_a_ledger_has_the_mark_delete_of_before() -> None:
    node = decode_cursor_node(whole(1, 17) + whole(2, 3) + whole(3, 4), name="here")
    assert node.cursor_ledger_id == 17
    assert node.state is not None
    assert node.state.mark_delete == Position(3, 4)
    assert decode_cursor_node(whole(1, 17), name="here").state is None


def test_the_footer_of_a_state_in_pieces() -> None:
    assert pieces_before(json.dumps({"numParts": 3, "length": 9}).encode(), name="here") == 3
    assert pieces_before(position((3, 4)), name="here") == 0
    for wrong in (b"{", b"{}", b'{"numParts": "x"}', b'{"numParts": 0}'):
        with pytest.raises(CorruptRecordError, match="here"):
            pieces_before(wrong, name="here")


def test_a_bucket() -> None:
    bitmap = BitMap([1, 5, 9])
    inner = whole(1, 7) + part(2, bitmap.serialize())
    head = part(1, part(1, inner) + whole(2, 500) + whole(3, 100))
    [segment] = decode_bucket_head(head, name="here")
    assert (segment.min_due_ms, segment.max_due_ms, segment.entries) == (100, 500, {7: bitmap})
    rows = [(100, 7, 1), (200, 7, 5), (500, 7, 9)]
    body = b"".join(part(1, whole(1, t) + whole(2, i) + whole(3, e)) for t, i, e in rows)
    found = decode_bucket_segment(body, name="here")
    assert list(zip(*(column.tolist() for column in found), strict=True)) == rows
    assert decode_bucket_segment(b"", name="here").due_ms.size == 0


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (whole(1, -1), "no mark-delete"),
        (whole(1, -1) + whole(2, -5) + whole(3, 0), "-5:0 is no position"),
        (b"\x47\x78\0\0\0\4" + whole(1, 1) + whole(2, 50) + b"\xff", "compressed, and damaged"),
        (b"\x47\x78\0\0", "compressed, and damaged"),
        (b"\xff\xff", "no ManagedCursorInfo"),
    ],
)
def test_a_damaged_node_is_named(value: bytes, why: str) -> None:
    with pytest.raises(CorruptRecordError, match=f"the node.*{why}"):
        decode_cursor_node(value, name="the node")
