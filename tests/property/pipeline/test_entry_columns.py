"""Blocks read side by side give what reading them one by one gives, or nothing at all."""

from __future__ import annotations

import itertools
import random

from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from ackgate.persistence.bookies.avro_container import encode_long
from ackgate.persistence.bookies.entry_codec import StoredEntry, decode_entries, encode_stored
from ackgate.pipeline.storage.entry_columns import (
    PADDING,
    columns_of,
    columns_of_payloads,
    decode_side_by_side,
    joined,
)

Blocks = tuple[bytes, list[int], list[int], list[int]]

numbers = st.one_of(st.integers(0, 100), st.integers(0, 2**31), st.integers(0, 2**53))


def entry(ledger_id: int, entry_id: int, confirmed: int, size: int, payload: bytes) -> StoredEntry:
    encoded = b"".join(map(encode_long, (ledger_id, entry_id, confirmed, size)))
    digest = crc32c(encoded + payload).to_bytes(4, "big")
    return StoredEntry(ledger_id, entry_id, confirmed, size, digest, payload, encoded)


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[int, list[list[StoredEntry]]]:
    """A ledger's id, and its blocks."""
    ledger_id = draw(numbers)
    entry_id = draw(st.integers(0, 2**40))
    rng = random.Random(draw(st.integers(0, 2**32)))
    sizes = draw(st.sampled_from([(0, 0), (0, 40), (50, 90), (0, 9000)]))
    blocks = []
    for count in draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)):
        block = []
        for _ in range(count):
            payload = rng.randbytes(rng.randint(*sizes))
            confirmed, written = max(-1, entry_id - rng.randint(1, 300)), rng.getrandbits(50)
            block.append(entry(ledger_id, entry_id, confirmed, written, payload))
            entry_id += rng.choice([1, 1, 1, 3])
        blocks.append(block)
    return ledger_id, blocks


def laid_out(blocks: list[list[StoredEntry]]) -> Blocks:
    """As in a file: something stands between the blocks."""
    data, starts, sizes = b"", [], []
    for block in blocks:
        data += b"\xff" * 18
        encoded = b"".join(map(encode_stored, block))
        starts.append(len(data))
        sizes.append(len(encoded))
        data += encoded
    return data + PADDING, starts, sizes, list(map(len, blocks))


@given(ledgers())
def test_the_same_entries(ledger: tuple[int, list[list[StoredEntry]]]) -> None:
    ledger_id, blocks = ledger
    data, starts, sizes, counts = laid_out(blocks)

    found = decode_side_by_side(data, starts, sizes, counts, ledger_id)

    expected = [each for block in blocks for each in block]
    one_by_one = [
        each
        for start, size, count in zip(starts, sizes, counts, strict=True)
        for each in decode_entries(data[start : start + size], count)[0]
    ]
    assert one_by_one == expected
    assert found is not None
    assert found.entry_ids.tolist() == [each.entry_id for each in expected]
    assert found.payloads == [each.payload for each in expected]
    assert found.size == sum(len(each.payload) for each in expected)


@given(ledgers(), st.randoms(use_true_random=False))
def test_whatever_is_damaged_is_left_to_others(
    ledger: tuple[int, list[list[StoredEntry]]], rng: random.Random
) -> None:
    ledger_id, blocks = ledger
    data, starts, sizes, counts = laid_out(blocks)
    which = rng.randrange(len(blocks))
    damaged = bytearray(data)
    damaged[starts[which] + rng.randrange(sizes[which])] ^= 1 << rng.randrange(8)

    assert decode_side_by_side(bytes(damaged), starts, sizes, counts, ledger_id) is None
    assert decode_side_by_side(data, starts, sizes, counts, ledger_id + 1) is None
    counts[which] += rng.choice([-1, 1, 2**30])
    if counts[which] > 0:
        assert decode_side_by_side(data, starts, sizes, counts, ledger_id) is None


@given(ledgers(), st.integers(0, 30), st.integers(0, 30))
def test_parts_joined_are_the_whole(
    ledger: tuple[int, list[list[StoredEntry]]], one: int, other: int
) -> None:
    ledger_id, blocks = ledger
    whole = decode_side_by_side(*laid_out(blocks), ledger_id)
    assert whole is not None
    count = len(whole.entry_ids)
    cuts = [0, *sorted(min(cut, count) for cut in (one, other)), count]
    parts = [
        whole.part(first, behind) for first, behind in itertools.pairwise(cuts) if first < behind
    ]

    again = joined(parts)

    assert again.entry_ids.tolist() == whole.entry_ids.tolist()
    assert again.payloads == whole.payloads
    entries = [each for block in blocks for each in block]
    assert columns_of(entries).payloads == whole.payloads
    assert columns_of_payloads(whole.entry_ids, whole.payloads).payloads == whole.payloads
    assert again.data.endswith(PADDING)


def test_nothing_joined_is_nothing() -> None:
    assert joined([]).payloads == []
