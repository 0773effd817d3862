"""What caps keep, what a crash loses, and when the gate would shut."""

from __future__ import annotations

import random

import pytest
from pyroaring import BitMap

from ackgate.cursor import Position
from ackgate.errors import CallerError, ConfigurationError
from ackgate.pulsar import (
    AckForm,
    PersistCaps,
    PersistedAcks,
    PulsarTopic,
    gate_outlook,
    kept_by,
    missing_on_disk,
)
from ackgate.pulsar.admin import acked_of
from ackgate.pulsar.nodes import decoded, encoded


def every_second(ledger_id: int, count: int) -> dict[int, BitMap]:
    return {ledger_id: BitMap(range(1, 2 * count, 2))}


def test_ranges_are_kept_from_the_lowest_on() -> None:
    acked = {7: BitMap([1, 2, 4]), 9: BitMap([0, 3, 4, 9])}
    for cap, left in enumerate(
        [
            {},
            {7: BitMap([1, 2])},
            {7: BitMap([1, 2, 4])},
            {7: BitMap([1, 2, 4]), 9: BitMap([0])},
            {7: BitMap([1, 2, 4]), 9: BitMap([0, 3, 4])},
            acked,
        ]
    ):
        kept = kept_by(acked, PersistCaps(cap, form=AckForm.RANGES_5))
        assert kept.acked == left
        assert kept.ranges_dropped == 5 - cap
        assert kept.entries_dropped == 7 - sum(map(len, left.values()))


def test_before_5_one_range_more_than_the_cap_is_kept() -> None:
    acked = every_second(7, 20)
    assert kept_by(acked, PersistCaps(4)).acked == every_second(7, 5)
    assert kept_by(acked, PersistCaps(4)).entries_dropped == 15


def test_words_are_kept_by_ledgers_and_their_entries_are_counted() -> None:
    acked = {**every_second(1, 6), **every_second(2, 5), **every_second(3, 1)}
    # Up to 4.2 the first is kept whole, whatever it has, and the one that passes the cap.
    assert list(kept_by(acked, PersistCaps(6, form=AckForm.WORDS)).acked) == [1, 2]
    assert list(kept_by(acked, PersistCaps(5, form=AckForm.WORDS)).acked) == [1]
    assert list(kept_by(acked, PersistCaps(11, form=AckForm.WORDS)).acked) == [1, 2, 3]
    # 5.0 counts a ledger before it decides; if none fits it writes ranges.
    assert list(kept_by(acked, PersistCaps(6, form=AckForm.WORDS_5)).acked) == [1]
    assert list(kept_by(acked, PersistCaps(11, form=AckForm.WORDS_5)).acked) == [1, 2]
    assert kept_by(acked, PersistCaps(2, form=AckForm.WORDS_5)).acked == {1: BitMap([1, 3])}


def test_what_a_crash_loses_beside_a_dumb_model() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        counts = {ledger: chance.randrange(1, 30) for ledger in (2, 5, 6)}
        everything = [Position(i, e) for i, n in counts.items() for e in range(n)]
        states = []
        for _ in range(2):
            mark_delete = chance.choice([Position(2, -1), *everything])
            picked = {at for at in everything if at > mark_delete and chance.random() < 0.4}
            acked = {
                i: BitMap([e for ledger, e in picked if ledger == i])
                for i in {ledger for ledger, _ in picked}
            }
            states.append(PersistedAcks(mark_delete, acked, {}))
        disk, memory = (
            {at for at in everything if at <= s.mark_delete or at[1] in s.acked.get(at[0], ())}
            for s in states
        )
        found = missing_on_disk(*states, counts)
        assert {Position(i, e) for i, b in found.items() for e in b} == memory - disk, seed


@pytest.mark.parametrize(
    ("ranges", "earlier", "seconds"),
    [
        (101, None, 0.0),
        (100, (0, 0), 1.0 * 100 / 100),
        (50, (0, 0), 51 * 100 / 50),
        (50, (0, 50), None),
        (50, (0, 60), None),
        (50, (99_000, 0), None),  # not watched for long enough
        (50, None, None),
    ],
)
def test_when_the_gate_would_shut(
    ranges: int, earlier: tuple[int, int] | None, seconds: float | None
) -> None:
    outlook = gate_outlook(ranges, 100, earlier=earlier, now_ms=100_000)
    assert outlook.shuts_in_seconds == seconds
    assert outlook.is_past is (ranges > 100)


def test_caps_below_zero_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="ranges_max=-1"):
        PersistCaps(-1)


def test_names_as_pulsar_encodes_them() -> None:
    for name, node in {
        "orders": "orders",
        "a b/c": "a+b%2Fc",
        "ü*~": "%C3%BC*%7E",
        "x-y_z.1": "x-y_z.1",
    }.items():
        assert encoded(name) == node
        assert decoded(node) == name
    topic = PulsarTopic.parse("orders-partition-3")
    assert str(topic) == "persistent://public/default/orders-partition-3"
    assert topic.partitioned.local_name == "orders"
    assert topic.path == "/managed-ledgers/public/default/persistent/orders-partition-3"
    old = PulsarTopic.parse("persistent://tenant/cluster/space/a b")
    assert old.path == "/managed-ledgers/tenant/cluster/space/persistent/a+b"
    for wrong in ("", "a/b", "non-persistent://a/b/c", "a//c", "a/b/c/d/e"):
        with pytest.raises(CallerError, match="topic"):
            PulsarTopic.parse(wrong)


def test_pulsars_text_of_ranges() -> None:
    assert acked_of("[]") == {}
    text = "[(3:-1..3:4],(5:0..5:2],(5:9..7:1]]"
    assert acked_of(text) == {3: BitMap(range(5)), 5: BitMap([1, 2]), 7: BitMap([0, 1])}
    for wrong in ("", "[(3:-1..3:4)]", "(3:1..3:2]", "[(3:1..3:2]x]"):
        with pytest.raises(ValueError, match="ranges"):
            acked_of(wrong)
