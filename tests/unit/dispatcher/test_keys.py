"""Keys to hashes to owners, against what Pulsar 4.0.7 itself answers."""

from __future__ import annotations

import pytest

from ackgate.dispatcher import KeySharedMode, resolve_key
from ackgate.dispatcher.keys import (
    HashRing,
    StickyRanges,
    auto_split_hash,
    key_hasher,
    make_hash,
    sticky_hash,
)
from ackgate.errors import ConsumerAssignError


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # org.apache.pulsar.common.util.Murmur3_32Hash.makeHash
        ("", 0),
        ("73", 2135608049),
        ("d89c", 1488365227),
        ("6f0efb", 1025037143),
        ("92f94d68", 1665894885),
        ("fccc2c35f0", 2021616907),
        ("e5f12c55dd85", 1477430941),
        ("d5d9bef76808f3", 1092485133),
        ("72e5900112b81927", 1130838500),
        ("6452474b9ef3765e24e9a88173", 812069163),
    ],
)
def test_murmur3_is_pulsars(key: str, expected: int) -> None:
    assert make_hash(bytes.fromhex(key)) == expected


@pytest.mark.parametrize(
    ("key", "auto_split", "sticky"),
    [  # StickyKeyConsumerSelector.makeStickyKeyHash of the two selectors
        ("", 1, 1),
        ("a", 42456, 27058),
        ("key-1", 11858, 5536),
        ("key-2", 51461, 21772),
        ("key-100", 27476, 65321),
        ("päivää", 59443, 52042),
    ],
)
def test_the_16_bit_hashes_are_pulsars(key: str, auto_split: int, sticky: int) -> None:
    assert auto_split_hash(key.encode()) == auto_split
    assert sticky_hash(key.encode()) == sticky
    assert key_hasher(KeySharedMode.AUTO_SPLIT)(key.encode()) == auto_split
    assert key_hasher(KeySharedMode.STICKY)(key.encode()) == sticky


def test_the_key_is_ordering_key_then_partition_key_then_the_sequence_id() -> None:
    assert resolve_key(ordering_key=b"o", partition_key="p", sequence_id=1) == b"o"
    assert resolve_key(partition_key="p", producer_name="n", sequence_id=1) == b"p"
    assert resolve_key(partition_key="aGk=", is_partition_key_base64=True) == b"hi"
    assert resolve_key(producer_name="standalone-0-1", sequence_id=7) == b"standalone-0-1-7"
    assert resolve_key(producer_name="n") == b"NONE_KEY"
    assert resolve_key(partition_key="not base64!", is_partition_key_base64=True) == b"NONE_KEY"


def test_the_ring_divides_as_pulsars() -> None:
    ring = HashRing(100)
    for consumer, name in enumerate(["alpha", "beta", "gamma", "beta"]):
        ring.add(consumer, name, ())

    def owners() -> str:
        return "".join(str(ring.owner(key_hash)) for key_hash in range(1, 65_536, 1_311))

    assert owners() == "20331300301312212101012201010213210111201230312032"
    ring.remove(1)
    assert owners() == "20330300303332232200002200000223220030202230322032"
    ranges = ring.ranges()
    assert {consumer: len(share) for consumer, share in ranges.items()} == {0: 57, 2: 68, 3: 69}
    assert ranges[0][:3] == ((426, 1121), (1271, 1584), (5111, 6078))


def test_a_ring_without_consumers_owns_nothing() -> None:
    ring = HashRing(3)
    assert ring.owner(5) is None
    assert ring.ranges() == {}
    ring.add(1, "a", ())
    assert ring.owner(5) == 1
    assert ring.ranges() == {1: ((1, 65_535),)}
    ring.remove(1)
    ring.remove(1)
    assert ring.owner(5) is None


def test_sticky_ranges_are_kept_as_asked_for() -> None:
    ranges = StickyRanges()
    ranges.add(1, "a", ((0, 9), (20, 29)))
    ranges.add(2, "b", ((10, 19),))
    assert [ranges.owner(key_hash) for key_hash in (0, 9, 10, 19, 20, 29, 30)] == [
        1, 1, 2, 2, 1, 1, None,
    ]  # fmt: skip
    assert ranges.ranges() == {1: ((0, 9), (20, 29)), 2: ((10, 19),)}
    ranges.remove(1)
    assert ranges.owner(0) is None
    ranges.check()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((), "Ranges for KeyShared policy must not be empty"),
        (((5, 4),), "start > end"),
        (((0, 65_536),), "not within 0..65535"),
        (((-1, 5),), "not within 0..65535"),
        (((0, 5), (5, 9)), "own ranges conflict"),
        (((90, 100),), "Range conflict with consumer 1"),
        (((0, 65_535),), "Range conflict with consumer 1"),
        (((150, 160),), "Range conflict with consumer 1"),
    ],
)
def test_bad_sticky_ranges_are_refused_and_change_nothing(
    asked: tuple[tuple[int, int], ...], message: str
) -> None:
    ranges = StickyRanges()
    ranges.add(1, "a", ((100, 200),))
    with pytest.raises(ConsumerAssignError, match=message):
        ranges.add(2, "b", asked)
    assert ranges.ranges() == {1: ((100, 200),)}
