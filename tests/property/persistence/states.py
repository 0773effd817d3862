"""Random cursor states and random lives of a cursor, for the properties of persistence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import hypothesis.strategies as st
from pyroaring import BitMap

from ackgate.cursor import (
    CursorSnapshot,
    ManagedCursor,
    MessageLedgers,
    NackedLedger,
    NackImage,
    PendingNacks,
    Position,
    earliest_nacks,
    run_count,
)

LEDGERS = (3, 5, 8)
ENTRIES = 60
"""Entries of each ledger: small, so that runs meet and the mark-delete moves."""

entry_ids = st.integers(0, ENTRIES - 1)
positions = st.builds(Position, st.sampled_from(LEDGERS), entry_ids)
masks = st.integers(1, 2**9 - 1)
properties = st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), max_size=3)


def bitmaps(ids: st.SearchStrategy[int]) -> st.SearchStrategy[BitMap]:
    scattered = st.sets(ids, min_size=1, max_size=40)
    runs = st.builds(
        lambda start, n: set(range(start, start + n)), st.integers(0, 2**20), st.integers(1, 5000)
    )
    return st.builds(BitMap, st.one_of(scattered, runs))


@st.composite
def snapshots(draw: st.DrawFn) -> CursorSnapshot:
    """Any state that a codec could be given, also of ids that no test topic has."""
    ledger_ids = st.one_of(st.sampled_from(LEDGERS), st.integers(0, 2**63 - 1))
    ids = st.one_of(entry_ids, st.integers(0, 2**32 - 1))
    acked = draw(st.dictionaries(ledger_ids, bitmaps(ids), max_size=4))
    return CursorSnapshot(
        version=draw(st.integers(0, 2**62)),
        mark_delete=Position(draw(ledger_ids), draw(st.integers(-1, 2**32 - 1))),
        acked=acked,
        range_count=sum(map(run_count, acked.values())),
        unacked_indexes=draw(
            st.dictionaries(
                st.builds(Position, ledger_ids, ids), st.integers(1, 2**100), max_size=5
            )
        ),
        properties=draw(properties),
    )


@st.composite
def pending_nacks(draw: st.DrawFn) -> PendingNacks:
    """Any image that a codec could be given."""
    ledger_ids = st.one_of(st.sampled_from(LEDGERS), st.integers(0, 2**63 - 1))
    ids = st.one_of(entry_ids, st.integers(0, 2**32 - 1))
    ledgers = st.dictionaries(ledger_ids, bitmaps(ids), min_size=1, max_size=3)
    buckets = draw(st.dictionaries(st.integers(0, 2**63 - 1), ledgers, max_size=4))
    return PendingNacks(
        {key: dict(sorted(buckets[key].items())) for key in sorted(buckets)},
        draw(st.integers(0, 40)),
    )


class NackModel:
    """Who holds nacks back, by a plain dict; what is acked it forgets at once."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.keys: dict[Position, int] = {}

    def add(self, nacked: Mapping[Position, int], cursor: ManagedCursor) -> None:
        """Some entries are nacked, each to be due at a time."""
        self.version += 1
        self.keys.update(nacked)
        self.forget_acked(cursor)

    def forget_acked(self, cursor: ManagedCursor) -> None:
        """Acks, or whatever, have changed the cursor."""
        self.keys = {p: key for p, key in self.keys.items() if not cursor.is_acked(p)}

    def image(self, bytes_max: int) -> NackImage:
        """All of them, or what fits."""
        parts = [
            NackedLedger(
                key,
                ledger_id,
                BitMap(e for (other, e), k in self.keys.items() if (k, other) == (key, ledger_id)),
            )
            for key, ledger_id in sorted({(k, p.ledger_id) for p, k in self.keys.items()})
        ]
        kept = earliest_nacks(parts, bytes_max, precision_bits=8)
        return NackImage(self.version, kept, len(self.keys))


nacked = st.dictionaries(positions, st.sampled_from([256, 512, 1024]), min_size=1, max_size=5)


def keys_of(nacks: PendingNacks) -> dict[Position, int]:
    """Position -> when it is due."""
    return {
        Position(ledger_id, entry_id): key_ms
        for key_ms, ledger_id, entry_ids in nacks
        for entry_id in entry_ids
    }


def message_ledgers() -> MessageLedgers:
    ledgers = MessageLedgers()
    for ledger_id in LEDGERS:
        ledgers.open_ledger(ledger_id)
        ledgers.add_entries(ledger_id, ENTRIES)
    return ledgers


def _cumulative(cursor: ManagedCursor, position: Position, mask: int | None, values: Any) -> None:
    if position > cursor.mark_delete:
        cursor.ack_cumulative(position, unacked_mask=mask, properties=values)


changes: st.SearchStrategy[Callable[[ManagedCursor], object]] = st.one_of(
    st.builds(lambda p: lambda c: c.ack(p), positions),
    st.builds(lambda p: lambda c: c.ack(p), positions),
    st.builds(lambda ps: lambda c: c.ack_individual(ps), st.lists(positions, max_size=8)),
    st.builds(
        lambda ledger, ids: lambda c: c.ack_many(ledger, list(ids)),
        st.sampled_from(LEDGERS),
        st.sets(entry_ids, max_size=30),
    ),
    st.builds(lambda p, m: lambda c: c.ack_mixed([(p, m)]), positions, masks),
    st.builds(
        lambda p, m, v: lambda c: _cumulative(c, p, m, v),
        positions,
        st.one_of(st.none(), masks),
        st.one_of(st.none(), properties),
    ),
    st.builds(lambda v: lambda c: c.set_properties(v), properties),
    st.builds(lambda n: lambda c: c.skip(n), st.integers(0, 9)),
    st.builds(lambda p: lambda c: c.reset(p), positions),
)


def content(snapshot: CursorSnapshot) -> Any:
    """A snapshot as something to compare."""
    return (
        snapshot.version,
        snapshot.mark_delete,
        {ledger_id: list(bitmap) for ledger_id, bitmap in snapshot.acked.items()},
        snapshot.range_count,
        dict(snapshot.unacked_indexes),
        dict(snapshot.properties),
    )
