"""Bytes that Pulsar's own classes wrote, of 2.8 to 4.0: nodes of topics and cursors, states of cursors.

How they were made: a program filled the classes of ``MLDataFormats`` in the published
``org.apache.pulsar:managed-ledger`` and let ``MetaStoreImpl`` of the same jar compress them. 2.8.1 and 2.10.0
wrote the same bytes, 3.0.0 and 4.0.7 too; what differs is named below.
"""

from __future__ import annotations

from typing import Final

import pytest
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.pulsar import (
    PersistedAcks,
    decode_cursor_entry,
    decode_cursor_node,
    decode_managed_ledger,
)

KINDS: Final = ("LZ4", "ZLIB", "ZSTD", "SNAPPY")

ENTRY: Final = bytes.fromhex(
    "080510091a0c0a040805100e1204080510131a150a0d080710ffffffffffffffffff0112040807100322100a"
    "0373657110f9ffffffffffffffff012a130a040807101f10feffffffffffffffff011005"
)
"""Every version."""

ENTRY_OF_WORDS: Final = bytes.fromhex(
    "0805100922100a0373657110f9ffffffffffffffff012a130a040807101f10feffffffffffffffff01100532"
    "0608051080803e32110807100f10001080808080808080808001"
)
"""4.0.7, with managedLedgerPersistIndividualAckAsLongArray."""

NODE_OF_A_LEDGER: Final = bytes.fromhex("0811100518023080d095ffbc31")
"""Every version."""

NODES: Final = {
    "2.8.1, 2.10.0": bytes.fromhex(
        "08ffffffffffffffffff0110051809220c0a040805100e12040805101322150a0d080710ffffffffffffffff"
        "ff011204080710032a100a0373657110f9ffffffffffffffff013080d095ffbc313a130a040807101f10feff"
        "ffffffffffffff011005"
    ),
    "3.0.0, 4.0.7": bytes.fromhex(
        "08ffffffffffffffffff0110051809220c0a040805100e12040805101322150a0d080710ffffffffffffffff"
        "ff011204080710032a100a0373657110f9ffffffffffffffff013080d095ffbc313a130a040807101f10feff"
        "ffffffffffffff011005420d0a05636f6c6f721204626c7565"
    ),
    "3.0.0, 4.0.7, LZ4": bytes.fromhex(
        "477800000004080110712408ff0100f40b0110051809220c0a040805100e12040805101322150a0d08071022"
        "00f402ff011204080710032a100a0373657110f91900f503013080d095ffbc313a130a040807101f10fe1a00"
        "f0021005420d0a05636f6c6f721204626c7565"
    ),
    "3.0.0, 4.0.7, ZLIB": bytes.fromhex(
        "47780000000408021071789ce2f80f038c02ac129c4a3c5c2c1cac027c4220525849948b97835d00a10428cc"
        "2ec0ac25c0c55c9c5a28f0132e6ed07061eaff3d8656c25c2005f202ff900c75e2e5624dcecfc92f126249ca"
        "294d05000000ffff"
    ),
    "3.0.0, 4.0.7, ZSTD": bytes.fromhex(
        "4778000000040803107128b52ffd2471cd0200640408ff0110051809220c0a040805100e121322150a0d0807"
        "101204080710032a100a0373657110f9013080d095ffbc313a130a1f10fe1005420d0a05636f6c6f72120462"
        "6c756506003d6b10153c9ea41ab5718a5504c00276efbdf6"
    ),
    "3.0.0, 4.0.7, SNAPPY": bytes.fromhex(
        "47780000000408041071710408ff1101340110051809220c0a040805100e1201061c1322150a0d0807101122"
        "40ff011204080710032a100a0373657110f9111928013080d095ffbc313a130a0121081f10fe151a40100542"
        "0d0a05636f6c6f721204626c7565"
    ),
}
"""A cursor whose state is in its node. 3.0.0 added properties of the subscription, and compression."""

TOPICS: Final = {
    "plain": bytes.fromhex(
        "0a420805102818a01f2080d095ffbc312a3208fdffffffffffffffff0110041801200128e8d795ffbc313218"
        "0a066177732d7333120e0a066275636b65741204636f6c640a0e0807103218882720d0df95ffbc310a040808"
        "20001204080810031a060a0161120162"
    ),
    "LZ4": bytes.fromhex(
        "47780000000408011068f3060a420805102818a01f2080d095ffbc312a3208fdff0100a00110041801200128"
        "e8d71a00f01732180a066177732d7333120e0a066275636b65741204636f6c640a0e0807103218882720d0df"
        "2a00f0050a04080820001204080810031a060a0161120162"
    ),
    "ZLIB": bytes.fromhex(
        "47780000000408021068789ce272e26015d0905820afd07061eaff3d865a461c7fff4301a3008b04a302a3c6"
        "8beb201923092eb6c4f262dd6263213e2eb6a4d2e4ecd4122196e4fc9c142e3e0e760123890e75850bf7412a"
        "b958383814188480a400b3141b1763a2106312000000ffff"
    ),
    "ZSTD": bytes.fromhex(
        "4778000000040803106828b52ffd24684103000a420805102818a01f2080d095ffbc312a3208fdffffffffff"
        "ffffff0110041801200128e8d795ffbc3132180a066177732d7333120e0a066275636b65741204636f6c640a"
        "0e0807103218882720d0df95ffbc310a04080820001204080810031a060a01611201627bfc2644"
    ),
    "SNAPPY": bytes.fromhex(
        "4778000000040804106868500a420805102818a01f2080d095ffbc312a3208fdff0d01240110041801200128"
        "e8d7011af03d32180a066177732d7333120e0a066275636b65741204636f6c640a0e0807103218882720d0df"
        "95ffbc310a04080820001204080810031a060a0161120162"
    ),
}
"""Every version."""


def check(acks: PersistedAcks, *, last_word: bool = False) -> None:
    assert acks.mark_delete == Position(5, 9)
    seven = [0, 1, 2, 3, *([191] if last_word else [])]
    assert acks.acked == {5: BitMap(range(15, 20)), 7: BitMap(seven)}
    assert acks.properties == {"seq": -7}
    [(at, unacked)] = acks.unacked_indexes.items()
    assert at == Position(7, 31)
    assert unacked == (2**64 - 2) | 5 << 64


def test_an_entry_of_a_cursors_ledger() -> None:
    acks = decode_cursor_entry(ENTRY, name="here")
    check(acks)
    assert (acks.is_words, acks.ranges_stored, acks.bytes) == (False, 2, len(ENTRY))
    acks = decode_cursor_entry(ENTRY_OF_WORDS, name="here")
    check(acks, last_word=True)
    assert (acks.is_words, acks.range_count) == (True, 3)


def test_a_node_that_names_the_cursors_ledger() -> None:
    node = decode_cursor_node(NODE_OF_A_LEDGER, name="here")
    assert node.cursor_ledger_id == 17
    assert node.state is not None
    assert node.state.mark_delete == Position(5, 2)


@pytest.mark.parametrize("versions", NODES)
def test_a_node_that_holds_the_state(versions: str) -> None:
    value = NODES[versions]
    assert (value[:2] == b"\x47\x78") == versions.endswith(KINDS)
    node = decode_cursor_node(value, name="here")
    assert node.cursor_ledger_id is None
    assert node.properties == ({} if versions.startswith("2") else {"color": "blue"})
    assert node.state is not None
    check(node.state)


@pytest.mark.parametrize("form", TOPICS)
def test_a_topics_node(form: str) -> None:
    node = decode_managed_ledger(TOPICS[form], name="here")
    cold, closed, opened = node.ledgers
    assert (cold.ledger_id, cold.entries, cold.bytes) == (5, 40, 4000)
    assert (cold.is_offloaded, cold.is_on_bookies, cold.offload_driver) == (True, False, "aws-s3")
    assert (closed.entries, closed.closed_ms) == (50, 1_700_000_002_000)
    assert (closed.is_offloaded, closed.is_on_bookies, closed.offload_driver) == (False, True, None)
    assert (opened.ledger_id, opened.entries, opened.closed_ms) == (8, None, None)
    assert node.terminated_at == Position(8, 3)
    assert node.properties == {"a": "b"}
