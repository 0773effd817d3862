"""Recovery at every prefix of what a cursor wrote, and with every byte of the tail damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings

from ackgate.cursor import ManagedCursor, Position
from ackgate.persistence import LedgerEntry
from ackgate.persistence.records.chunks import cut
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.persistence.records.limits import PersistLimits
from ackgate.persistence.records.planner import plan_delta, plan_snapshot
from ackgate.persistence.records.recovery import StoredState, TailScan, recover
from tests.property.persistence.states import (
    NackModel,
    changes,
    content,
    keys_of,
    message_ledgers,
    nacked,
)

UNLIMITED = PersistLimits(2**40, 2**40)
CHUNK_BYTES = 200

Step = tuple[list[Callable[[ManagedCursor], object]], dict[Position, int], bool, bool]


class Life(NamedTuple):
    """What a cursor wrote."""

    entries: list[bytes]
    states: list[Any]
    """After entry i: the state that is durable, None before the first."""


def live(steps: list[Step], packing: Packing, *, names_descents: bool) -> Life:
    """Let a cursor live, and write a record after every step, as the store does.

    `names_descents` False: as earlier builds did.
    """
    cursor = ManagedCursor(message_ledgers(), Position(3, -1))
    nacks = NackModel()
    stored: dict[Position, int] = {}
    entries: list[bytes] = []
    states: list[Any] = []
    base = 0
    for made, given_back, wants_snapshot, wants_nacks in steps:
        for change in made:
            change(cursor)
            nacks.forget_acked(cursor)
        nacks.add(given_back, cursor)
        growth = None if wants_snapshot else cursor.take_growth()
        if not states or cursor.grown_since > base:
            base = cursor.version
        image = nacks.image(2**40) if growth is None or wants_nacks else None
        plan = (
            plan_snapshot(
                cursor.take_snapshot(),
                limits=UNLIMITED,
                owner_epoch=1,
                now_ms=0,
                nacks=image,
                base_snapshot_version=base if names_descents and base < cursor.version else None,
            )
            if growth is None
            else plan_delta(
                growth,
                partly_acked_count=cursor.partly_acked_count,
                limits=UNLIMITED,
                owner_epoch=1,
                now_ms=0,
                nacks=image,
                base_snapshot_version=base if names_descents else None,
            )
        )
        assert plan is not None
        # An image is all there is; without one it is what was stored, less what is acked since.
        kept = stored if image is None else nacks.keys
        stored = {p: key for p, key in kept.items() if not cursor.is_acked(p)}
        pieces = cut(encode_record(plan.record, packing), plan.record.stamp, CHUNK_BYTES)
        before = states[-1] if states else None
        entries += pieces
        states += [before] * (len(pieces) - 1) + [(content(cursor.snapshot()), stored)]
    return Life(entries, states)


def recovered(entries: list[bytes]) -> Any:
    state, _ = recovered_with_notes(entries)
    return None if state is None else state_of(state)


def state_of(state: StoredState) -> Any:
    return content(state.record.snapshot), keys_of(state.record.nacks)


def recovered_with_notes(entries: list[bytes]) -> tuple[StoredState | None, tuple[str, ...]]:
    scan = TailScan()
    scan.feed(LedgerEntry(i, entries[i]) for i in reversed(range(len(entries))))
    tail = scan.finish()
    return recover(tail, None).state, tail.notes


steps = st.lists(
    st.tuples(
        st.lists(changes, max_size=4),
        nacked | st.just({}),
        st.integers(0, 5).map(lambda n: n == 0),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
packings = st.builds(Packing, st.sampled_from([Compression.NONE, Compression.ZSTD]), st.just(64))
lives = st.builds(live, steps, packings, names_descents=st.booleans())
old_lives = st.builds(live, steps, packings, names_descents=st.just(False))


@given(lives)
def test_every_prefix_recovers_the_state_that_wrote_it(life: Life) -> None:
    for end in range(1, len(life.entries) + 1):
        assert recovered(life.entries[:end]) == life.states[end - 1]


@settings(max_examples=15)
@given(lives)
def test_a_tail_with_any_byte_cut_or_flipped_recovers_what_was_durable_before(life: Life) -> None:
    *before, tail = life.entries
    expected = life.states[-2] if before else None
    for index in range(len(tail)):
        flipped = bytearray(tail)
        flipped[index] ^= 1 << (index % 8)
        for damaged in (tail[:index], bytes(flipped)):
            state, notes = recovered_with_notes([*before, damaged])
            assert (None if state is None else state_of(state)) == expected
            assert notes, "what is skipped is reported"


@given(old_lives, st.data())
def test_damage_anywhere_in_what_earlier_builds_wrote_recovers_some_state_that_was_durable_once(
    life: Life, data: st.DataObject
) -> None:
    """What names its descent is held to more in `test_damaged_records`."""
    entries = list(life.entries)
    for index in data.draw(st.sets(st.integers(0, len(entries) - 1), max_size=4)):
        entries[index] = data.draw(st.sampled_from([b"", b"junk" * 20, entries[index][:-1]]))
    assert recovered(entries) in [None, *life.states]


@given(lives)
def test_the_recovered_cursor_is_the_cursor(life: Life) -> None:
    """from_snapshot takes every recovered state as it is, and so the circle closes."""
    state, _ = recovered_with_notes(life.entries)
    assert state is not None
    cursor, report = ManagedCursor.from_snapshot(message_ledgers(), state.record.snapshot)
    cursor.check()
    assert report.is_clean
    assert content(cursor.snapshot()) == life.states[-1][0]
