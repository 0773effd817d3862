"""Bytes of the wire protocol, of entries and of metadata, against those that BookKeeper's classes made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackgate.errors import CorruptRecordError, DigestMismatchError, StorageError, UnknownFormatError
from ackgate.persistence import DigestType, Fragment, LedgerMetadata, LedgerState
from ackgate.persistence.bookkeeper.cluster import ledger_node, parse_cluster_uri
from ackgate.persistence.bookkeeper.metadata_format import (
    StoredMetadata,
    decode_address,
    decode_metadata,
    encode_metadata,
)
from ackgate.persistence.bookkeeper.protocol import (
    PARTS_PER_ADD,
    EntryCodec,
    decode_reply,
    master_key,
)


def frames_of(codec, first, last_add_confirmed, length_bytes, payloads):
    parts = codec.add_parts(first, last_add_confirmed, length_bytes, payloads)
    return [b"".join(parts[at : at + PARTS_PER_ADD]) for at in range(0, len(parts), PARTS_PER_ADD)]


HEAD = "0000000000000007000000000000000300000000000000020000000000000019"
DIGESTS = {
    DigestType.CRC32: "000000009d0ebd79",
    DigestType.MAC: "0465c58bb06543035459d4a07d48d1ce5511b356",
    DigestType.CRC32C: "d4463405",
    DigestType.DUMMY: "",
}
"""Of ledger 7, entry 3, last add confirmed 2, length 25, payload ``hello``, password ``secret``."""

METADATA = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a67"
    "08031003180020ffffffffffffffffff012801"
    "32350a0f3132372e302e302e313a31333138310a0f3132372e302e302e313a3133313832"
    "0a0f3132372e302e302e313a31333138331000"
    "3803420673656372657448025080d095ffbc315a060a016b1201766005"
)
OF_METADATA = StoredMetadata(
    LedgerMetadata(
        ledger_id=7,
        state=LedgerState.OPEN,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        fragments=(Fragment(0, ("127.0.0.1:13181", "127.0.0.1:13182", "127.0.0.1:13183")),),
        last_entry_id=-1,
        length_bytes=0,
        created_ms=1_700_000_000_000,
        custom_metadata={"k": b"v"},
    ),
    b"secret",
    create_token=5,
    has_ctime=True,
)


@pytest.mark.parametrize("digest_type", DigestType)
def test_an_add_has_the_bytes_of_bookkeepers_own(digest_type):
    [frame] = frames_of(EntryCodec(7, digest_type, b"secret"), 3, 2, 20, [b"hello"])
    entry = HEAD + DIGESTS[digest_type] + b"hello".hex()
    rest = "02010000" + "e793cbc379107648537183605cd361d3bb789a39" + entry
    assert frame.hex() == f"{len(rest) // 2:08x}" + rest


def test_the_empty_password_has_its_key():
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@given(
    st.sampled_from(DigestType),
    st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    st.integers(0, 2**40),
)
def test_entries_come_back_as_they_were_added(digest_type, payloads, first):
    codec = EntryCodec(2**33, digest_type, b"pass")
    length = 0
    for i, frame in enumerate(frames_of(codec, first, first - 1, 0, payloads)):
        length += len(payloads[i])
        entry = codec.decode(frame[4 + 4 + 20 :], first + i)
        assert entry == (first + i, first - 1, length, payloads[i])


def batch_of(stored):
    """Entries as the reply to a batch read has them."""
    return b"".join(len(entry).to_bytes(4, "big") + entry for entry in stored)


@given(
    st.sampled_from([t for t in DigestType if t is not DigestType.DUMMY]),
    st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    st.data(),
)
def test_a_batch_ends_at_the_first_damaged_entry(digest_type, payloads, data):
    codec = EntryCodec(2**33, digest_type, b"pass")
    stored = [frame[4 + 4 + 20 :] for frame in frames_of(codec, 5, 4, 0, payloads)]
    entries = [(5 + i, payload) for i, payload in enumerate(payloads)]
    assert codec.decode_batch(batch_of(stored), 5) == entries
    assert codec.decode_batch(batch_of(stored), 6) == [], "not those that were asked for"
    number = data.draw(st.integers(0, len(stored) - 1))
    damaged = bytearray(stored[number])
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    stored[number] = bytes(damaged)
    assert codec.decode_batch(batch_of(stored), 5) == entries[:number]


@given(st.sampled_from([t for t in DigestType if t is not DigestType.DUMMY]), st.data())
def test_a_flipped_bit_is_noticed(digest_type, data):
    codec = EntryCodec(7, digest_type, b"secret")
    [frame] = frames_of(codec, 3, 2, 20, [b"hello"])
    stored = bytearray(frame[4 + 4 + 20 :])
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestMismatchError):
        codec.decode(bytes(stored), 3)


@given(st.binary(max_size=80))
def test_replies_of_any_bytes_are_taken_apart_or_refused(noise):
    codec = EntryCodec(7, DigestType.CRC32C, b"")
    for decode in (decode_reply, lambda body: codec.decode_batch(body, 0)):
        try:
            decode(noise)
        except ValueError:
            continue


def test_metadata_have_the_bytes_of_bookkeepers_own():
    assert encode_metadata(OF_METADATA) == METADATA
    assert decode_metadata(7, METADATA) == OF_METADATA


def test_metadata_in_text_stay_text():
    text = OF_METADATA._replace(format_version=2)
    value = encode_metadata(text)
    assert b"quorumSize: 3" in value
    assert decode_metadata(7, value) == text


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", CorruptRecordError),
        (b"{}", CorruptRecordError),
        (METADATA[:-1], CorruptRecordError),
        (METADATA.replace(b"\t3", b"\t4"), UnknownFormatError),
        (b"BookieMetadataFormatVersion\t2\nquorumSize: x", CorruptRecordError),
    ],
)
def test_what_are_no_metadata_is_said_with_the_ledger(value, error):
    with pytest.raises(error, match="ledger 7"):
        decode_metadata(7, value)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/00/0000/L0000"),
        (7, "/00/0000/L0007"),
        (1_234_567_890, "/12/3456/L7890"),
        (2**31 - 2, "/21/4748/L3646"),
        (2**31 - 1, "/000/0000/0021/4748/L3647"),
    ],
)
def test_a_ledger_has_its_path(ledger_id, path):
    assert ledger_node(ledger_id) == path


def test_an_address_comes_from_the_node_or_from_the_id():
    node = b"\x32\x22\x0a\x06bookie\x10\xfd\x66\x1a\x09127.0.0.1\x22\x0abookie-rpc"
    assert decode_address("bookie-1", node) == ("127.0.0.1", 13181)
    assert decode_address("host.example:3181", b"") == ("host.example", 3181)
    with pytest.raises(StorageError, match="bookie-1"):
        decode_address("bookie-1", b"")


def test_a_cluster_has_its_uri():
    uri = "zk+hierarchical://a:2181;b:2181/chroot/ledgers"
    assert parse_cluster_uri(uri) == ("a:2181,b:2181", "/chroot/ledgers")
