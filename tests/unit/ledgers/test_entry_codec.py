"""The encoder writes what fastavro writes; the decoder reads what fastavro reads."""

from __future__ import annotations

import io

import fastavro
import pytest

from ackgate.persistence.bookies.avro_container import decode_long, encode_long, entry_schema
from ackgate.persistence.bookies.entry_codec import (
    CrcDigest,
    EntryEncoder,
    MacDigest,
    batch_of,
    batches_in,
    decode_entries,
    encode_stored,
    runs,
)
from ackgate.persistence.ledgers.quorum import holds, parts_of_place

SCHEMA = fastavro.parse_schema(entry_schema())

BOUNDARIES = [0, 62, 64, 8190, 8191, 8192, 16383, 2**20 - 2, 2**27, 2**31 - 2, 2**32, 2**62]


def encoded(first: int, payloads: list[bytes], *, ledger_id: int = 300) -> bytes:
    encoder = EntryEncoder(ledger_id, CrcDigest())
    parts = encoder.encode(first, first - 1, first * 100, payloads, [len(p) for p in payloads])
    return b"".join(parts)


@pytest.mark.parametrize("first", BOUNDARIES)
@pytest.mark.parametrize("digest", [CrcDigest(), MacDigest(b"key")], ids=["crc", "mac"])
def test_bytes_are_those_of_fastavro(first: int, digest: CrcDigest | MacDigest) -> None:
    payloads = [bytes(n) for n in (0, 1, 63, 64, 100, 4095, 4096, 5000, 8191, 8192, 70_000)]
    encoder = EntryEncoder(2**40 + first, digest)
    ours = b"".join(encoder.encode(first, first - 3, 12345, payloads, [len(p) for p in payloads]))
    entries, is_clean = decode_entries(ours, len(payloads))
    assert is_clean
    theirs = io.BytesIO()
    for i, entry in enumerate(entries):
        assert (entry.entry_id, entry.payload) == (first + i, payloads[i])
        assert (entry.last_add_confirmed, entry.confirmed_bytes) == (first - 3, 12345)
        assert digest.matches(entry)
        fastavro.schemaless_writer(theirs, SCHEMA, entry._asdict())
    assert ours == theirs.getvalue()
    assert b"".join(map(encode_stored, entries)) == ours


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 1, 63, 64, 2**31, 2**63 - 1])
def test_numbers_come_back(number: int) -> None:
    assert decode_long(encode_long(number), 0) == (number, len(encode_long(number)))


def test_a_number_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no Avro long"):
        decode_long(b"\xff" * 1000, 0)


def test_every_cut_gives_the_records_before_it() -> None:
    payloads = [b"a", b"", b"ccc" * 60]
    data = encoded(8191, payloads)
    ends = [len(encoded(8191, payloads[:n])) for n in range(4)]
    for size in range(len(data)):
        entries, is_clean = decode_entries(data[:size], 3)
        assert not is_clean
        assert len(entries) == max(n for n in range(4) if ends[n] <= size)


def test_bytes_left_over_are_damage() -> None:
    data = encoded(0, [b"a", b"b"])
    assert decode_entries(data, 1)[1] is False
    assert decode_entries(data + b"\0", 2)[1] is False
    assert decode_entries(b"", 0) == ([], True)


def test_a_flipped_bit_is_seen_wherever_it_is() -> None:
    data = encoded(20_000, [b"payload"])
    good = decode_entries(data, 1)[0][0]
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            entries, _ = decode_entries(bytes(damaged), 1)
            for entry in entries:
                assert not CrcDigest().matches(entry) or entry == good


def test_a_mac_needs_the_key() -> None:
    parts = EntryEncoder(1, MacDigest(b"key")).encode(0, -1, 0, [b"x"], [1])
    (entry,), _ = decode_entries(b"".join(parts), 1)
    assert MacDigest(b"key").matches(entry)
    assert not MacDigest(b"other").matches(entry)
    assert not CrcDigest().matches(entry)
    assert len(entry.digest) == 24


def test_records_of_several_ledgers_may_follow_each_other() -> None:
    data = b"".join(encoded(100 * i, [b"x", b"y"], ledger_id=i) for i in (1, 2, 1, 70_000))
    entries, is_clean = decode_entries(data, 8)
    assert is_clean
    assert [(e.ledger_id, e.entry_id) for e in entries] == [
        (1, 100), (1, 101), (2, 200), (2, 201), (1, 100), (1, 101), (70_000, 7_000_000),
        (70_000, 7_000_001),
    ]  # fmt: skip
    assert all(map(CrcDigest().matches, entries))


@pytest.mark.parametrize("digest", [CrcDigest(), MacDigest(b"key")], ids=["crc", "mac"])
def test_records_are_cut_as_if_they_were_encoded_again(digest: CrcDigest | MacDigest) -> None:
    def of(ledger_id: int, first: int, payloads: list[bytes]) -> bytes:
        encoder = EntryEncoder(ledger_id, digest)
        return b"".join(encoder.encode(first, -1, 0, payloads, [len(p) for p in payloads]))

    payloads = [bytes(n) for n in (0, 1, 63, 64, 8191, 8192, 70_000, 5)]
    start = of(300, 8190, payloads)
    # Another ledger, the first one again, entries of it that were written before, and large ids.
    data = start + of(2, 8, [b"x"]) + of(300, 9000, [b"y"]) + start + of(2**40, 2**31, [b"z"])
    count = 2 * len(payloads) + 3
    entries, is_clean = decode_entries(data, count)
    assert is_clean
    expected = [batch_of(run, run[0].entry_id) for run in runs(entries)]
    assert batches_in(data, count, len(data)) == expected
    small = batches_in(data, count, 100)
    assert b"".join(batch.encoded for batch in small) == data
    assert [batch.entry_count for batch in small[:2]] == [3, 2]
    assert sum(batch.entry_count for batch in small) == count
    assert all(batch.entry_count == 1 for batch in batches_in(data, count, 1))
    assert all(b.first_entry_id == b.fragment_id for b in small)


def test_damaged_records_are_not_cut() -> None:
    data = encoded(20_000, [b"payload", b"other"])
    assert batches_in(data, 2, 1000)
    for at in range(len(data)):
        assert not batches_in(data[:at], 2, 1000)
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            assert not batches_in(bytes(damaged), 2, 1000), (at, bit)
    assert not batches_in(data, 1, 1000)
    assert not batches_in(data + b"\0", 2, 1000)
    assert not batches_in(b"", 0, 1000)


def test_striping_takes_every_entry_to_its_places() -> None:
    payloads = [b"%d" % i for i in range(17)]
    for size in (2, 3, 5):
        for quorum in range(1, size):
            parts = EntryEncoder(1, CrcDigest()).encode(
                4, 3, 0, payloads, [len(p) for p in payloads]
            )
            for place in range(size):
                expected = [e for e in range(4, 21) if holds(place, e, size, quorum)]
                data = parts_of_place(parts, 4, place, size, quorum)
                entries, is_clean = decode_entries(data, len(expected))
                assert is_clean
                assert [e.entry_id for e in entries] == expected
