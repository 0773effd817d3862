"""The managed cursor alone: what an ack costs, one by one and in bulk, and what reading costs.

Figures are nanoseconds an operation unless named otherwise; the best of some runs, from a fixed
seed. The shapes: acks that make new ranges, that close holes, that come in order, in order with
ranges ahead, and in order through alternating acks (each absorbs a range).
"""

from __future__ import annotations

import json
import random
import sys
import time
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ackgate.cursor import ManagedCursor, MessageLedgers, Position

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 20261121


class Sizes(NamedTuple):
    """How much work one run does."""

    ranges: int
    single_acks: int
    bulk_entries: int
    snapshot_ranges: int
    repeats: int


FULL = Sizes(
    ranges=10_000,
    single_acks=100_000,
    bulk_entries=1_000_000,
    snapshot_ranges=10_000_000,
    repeats=5,
)
SMOKE = Sizes(ranges=100, single_acks=1_000, bulk_entries=10_000, snapshot_ranges=10_000, repeats=1)


def run(*, smoke: bool) -> dict[str, Any]:
    """All figures."""
    sizes = SMOKE if smoke else FULL
    return {
        f"one_ack_into_{sizes.ranges}_ranges_ns": _single_acks(sizes),
        "ack_many_ns_per_entry": _bulk_acks(sizes),
        f"reading_at_{sizes.ranges}_ranges_ns": _reads(sizes),
        f"{sizes.snapshot_ranges}_ranges_ms": _large_state(sizes),
    }


def _cursor(entries: int) -> ManagedCursor:
    ledgers = MessageLedgers()
    ledgers.open_ledger(1)
    ledgers.add_entries(1, entries)
    cursor = ManagedCursor(ledgers, Position(1, -1))
    cursor.take_snapshot()  # growth is tracked, as for every durable cursor
    return cursor


def _alternating(ranges: int, *, spare: int) -> ManagedCursor:
    """Entries 1, 3, 5, ... acked, and `spare` further entries behind them."""
    cursor = _cursor(2 * ranges + spare)
    cursor.ack_many(1, np.arange(1, 2 * ranges, 2))
    return cursor


def _single_acks(sizes: Sizes) -> dict[str, float]:
    ranges, acks = sizes.ranges, sizes.single_acks
    shuffled = random.Random(SEED)

    def new_ranges() -> float:
        cursor = _alternating(ranges, spare=2 * ranges + 2)
        entries = list(range(2 * ranges + 1, 4 * ranges, 2))
        shuffled.shuffle(entries)
        return _ack_each(cursor, entries)

    def hole_closing() -> float:
        cursor = _alternating(ranges, spare=2)
        entries = list(range(2, 2 * ranges, 2))
        shuffled.shuffle(entries)
        return _ack_each(cursor, entries)

    def in_order() -> float:
        return _ack_each(_cursor(acks), range(acks))

    def in_order_ranges_ahead() -> float:
        cursor = _cursor(acks + 2 * ranges + 2)
        cursor.ack_many(1, np.arange(acks + 1, acks + 2 * ranges, 2))
        return _ack_each(cursor, range(acks))

    def in_order_absorbing() -> float:
        return _ack_each(_alternating(acks, spare=2), range(0, 2 * acks, 2))

    shapes = (new_ranges, hole_closing, in_order, in_order_ranges_ahead, in_order_absorbing)
    return {shape.__name__: _best(shape, sizes) for shape in shapes}


def _ack_each(cursor: ManagedCursor, entries: range | list[int]) -> float:
    positions = [Position(1, entry_id) for entry_id in entries]
    ack = cursor.ack
    began = time.perf_counter()
    for position in positions:
        ack(position)
    return _ns_each(began, len(positions))


def _bulk_acks(sizes: Sizes) -> dict[str, float]:
    entries = sizes.bulk_entries
    permutation = np.random.default_rng(SEED).permutation(entries)
    pairs = [Position(1, entry_id) for entry_id in permutation[: entries // 10].tolist()]

    def all_shuffled() -> float:
        return _ack_array(_cursor(entries), permutation)

    def half_shuffled() -> float:
        return _ack_array(_cursor(entries), permutation[: entries // 2])

    def half_into_a_third() -> float:
        cursor = _cursor(entries)
        cursor.ack_many(1, np.arange(1, entries, 3))
        return _ack_array(cursor, permutation[: entries // 2])

    def thousand_into_a_third() -> float:
        cursor = _cursor(entries)
        cursor.ack_many(1, np.arange(1, entries, 3))
        return _ack_array(cursor, permutation[:1000])

    def list_of_positions() -> float:
        cursor = _cursor(entries)
        began = time.perf_counter()
        cursor.ack_individual(pairs)
        return _ns_each(began, len(pairs))

    shapes = (
        all_shuffled,
        half_shuffled,
        half_into_a_third,
        thousand_into_a_third,
        list_of_positions,
    )
    return {shape.__name__: _best(shape, sizes) for shape in shapes}


def _ack_array(cursor: ManagedCursor, ids: np.ndarray) -> float:
    began = time.perf_counter()
    cursor.ack_many(1, ids)
    return _ns_each(began, len(ids))


def _reads(sizes: Sizes) -> dict[str, float]:
    cursor = _alternating(sizes.ranges, spare=1000)
    cursor.seek(Position(1, 2 * sizes.ranges + 100))
    limits = cycle((2 * sizes.ranges, 2 * sizes.ranges + 1))  # never the one just asked for
    reads: dict[str, Callable[[], object]] = {
        "range_count": lambda: cursor.range_count,
        "byte_estimate": lambda: cursor.byte_estimate,
        "backlog_entries": lambda: cursor.backlog_entries,
        "unacked_spans_100_entries": lambda: cursor.unacked_spans(Position(1, 0), 100),
        "entry_budget": lambda: cursor.entry_budget(next(limits)),
        "entry_budget_again": lambda: cursor.entry_budget(2 * sizes.ranges),
        "entry_budget_enough": lambda: cursor.entry_budget(2 * sizes.ranges, entries_enough=100),
        "snapshot": cursor.snapshot,
    }
    calls = max(10, sizes.single_acks // 100)

    def timed(read: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            read()
        return _ns_each(began, calls)

    return {name: _best(partial(timed, read), sizes) for name, read in reads.items()}


def _large_state(sizes: Sizes) -> dict[str, float]:
    ranges = sizes.snapshot_ranges
    cursor = _cursor(2 * ranges + 2)
    ids = np.arange(1, 2 * ranges, 2)
    figures: dict[str, float] = {}
    began = time.perf_counter()
    cursor.ack_many(1, ids)
    figures["ack_many"] = _ms_since(began)
    began = time.perf_counter()
    snapshot = cursor.snapshot()
    figures["snapshot"] = _ms_since(began)
    ledgers = MessageLedgers()
    ledgers.open_ledger(1)
    ledgers.add_entries(1, 2 * ranges + 2)
    began = time.perf_counter()
    recovered, _ = ManagedCursor.from_snapshot(ledgers, snapshot)
    figures["from_snapshot"] = _ms_since(began)
    assert recovered.range_count == cursor.range_count == ranges
    return figures


def _best(measure: Callable[[], float], sizes: Sizes) -> float:
    return min(measure() for _ in range(sizes.repeats))


def _ns_each(began: float, operations: int) -> float:
    return round((time.perf_counter() - began) / operations * 1e9, 2)


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 3)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
