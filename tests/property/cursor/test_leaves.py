"""The leaves below the cursor, each against the plainest thing that says the same."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given
from pyroaring import BitMap

from ackgate.cursor import (
    EARLIEST,
    ENTRY_ID_MAX,
    LATEST,
    MessageLedgers,
    Position,
    bitmap_of,
    members,
    run_bounds,
    run_count,
    stored_form,
)
from ackgate.cursor.bitmaps import lowest_runs, nth_absent, run_count_change, run_stop
from tests.property.cursor.cursor_model import TopicModel, runs

# Small ids, ids round the border of a Roaring container, and the very last ids.
IDS = st.one_of(
    st.integers(0, 40), st.integers(65_520, 65_560), st.integers(ENTRY_ID_MAX - 20, ENTRY_ID_MAX)
)
ID_SETS = st.sets(IDS, max_size=60)


def plain_runs(ids: set[int]) -> list[tuple[int, int]]:
    return [(start, stop) for _, start, stop in runs(Position(0, entry_id) for entry_id in ids)]


@given(ID_SETS)
def test_runs_are_those_of_a_walk(ids: set[int]) -> None:
    bitmap = BitMap(ids)
    starts, stops = run_bounds(bitmap)
    assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == plain_runs(ids)
    assert run_count(bitmap) == len(plain_runs(ids))
    assert members(bitmap).tolist() == sorted(ids)


@given(ID_SETS, ID_SETS)
def test_change_of_the_run_count_is_the_difference_of_two_counts(
    ids: set[int], more: set[int]
) -> None:
    added = more - ids
    change = run_count_change(BitMap(ids), BitMap(added))
    assert run_count(BitMap(ids)) + change == run_count(BitMap(ids | added))


@given(
    st.lists(
        st.tuples(st.sampled_from(["one", "run", "without", "compact"]), IDS, st.integers(0, 6))
    )
)
@example([("run", 11, 3)])
@example([("one", 11, 0), ("one", 12, 0), ("one", 13, 0)])
@example([("run", 11, 3), ("run", 65_530, 40)])
def test_the_length_of_the_stored_form_is_that_of_its_members(
    history: list[tuple[str, int, int]],
) -> None:
    bitmap = BitMap()
    for step, start, length in history:
        stop = min(start + length, ENTRY_ID_MAX + 1)
        match step:
            case "one":
                bitmap.add(start)
            case "run":
                bitmap.add_range(start, stop)
            case "without":
                bitmap.remove_range(start, stop)
            case _:
                bitmap.run_optimize()
    stored = stored_form(bitmap)
    assert len(stored) == len(stored_form(BitMap(sorted(bitmap))))
    assert BitMap.deserialize(stored) == bitmap


@given(ID_SETS, st.integers(0, 60))
def test_lowest_runs_are_the_first_of_all(ids: set[int], runs_max: int) -> None:
    lowest = lowest_runs(BitMap(ids), runs_max)
    assert plain_runs(set(lowest)) == plain_runs(ids)[:runs_max]


@given(ID_SETS, IDS, IDS)
def test_run_stop_is_the_first_absent_id(ids: set[int], start: int, stop_max: int) -> None:
    expected = start
    while expected in ids and expected < stop_max:
        expected += 1
    assert run_stop(BitMap(ids), start, stop_max) == expected


@given(st.integers(0, 300_000), st.integers(1, 300_000), st.integers(0, 300_000))
def test_run_stop_gallops_over_long_runs(start: int, length: int, skipped: int) -> None:
    bitmap = BitMap(range(start, start + length))
    inside = min(start + skipped, start + length - 1)
    assert run_stop(bitmap, inside, ENTRY_ID_MAX + 1) == start + length


@given(ID_SETS, st.integers(0, 70_000), st.integers(1, 100))
def test_nth_absent_is_found_by_counting(ids: set[int], start: int, n: int) -> None:
    absent = (entry_id for entry_id in range(start, start + n + len(ids)) if entry_id not in ids)
    expected = [next(absent) for _ in range(n)][-1]
    assert nth_absent(BitMap(ids), start, n) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([1, 2, 5, 4096, 4097, 40_000, 65_536])),
        max_size=4,
    ),
    st.integers(0, 2**32 - 6 * 65_536),
    st.sampled_from([np.int64, np.uint32, np.uint64]),
    st.integers(0, 2**32 - 1),
)
@example([], 0, np.int64, 0)
@example([(0, 65_536), (1, 65_536)], 2**32 - 2 * 65_536, np.uint32, 1)
def test_packed_ids_are_the_ids(
    blocks: list[tuple[int, int]], base: int, dtype: type, seed: int
) -> None:
    """Dense, sparse and full containers, side by side and at any place, in any order, repeated."""
    random = np.random.default_rng(seed)
    chunks = [
        base + block * 65_536 + random.choice(65_536, size=count, replace=False)
        for block, count in blocks
    ]
    ids: np.ndarray = np.concatenate([np.empty(0, np.int64), *chunks]).astype(dtype)
    random.shuffle(ids)
    bitmap = bitmap_of(np.concatenate([ids, ids[:10]]))
    expected = np.unique(ids).tolist()
    assert members(bitmap).tolist() == expected
    assert bitmap == BitMap(expected)
    assert BitMap.deserialize(bitmap.serialize()) == bitmap


PLACES = st.builds(Position, st.integers(0, 8), st.integers(-1, 6)) | st.sampled_from(
    [EARLIEST, LATEST]
)


@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    gaps=st.lists(st.integers(1, 2), min_size=6, max_size=6),
    trims=st.lists(st.integers(0, 8), max_size=3),
    place=PLACES,
    other=PLACES,
    n=st.integers(0, 12),
)
def test_ledger_arithmetic_is_counting_entries(
    counts: list[int], gaps: list[int], trims: list[int], place: Position, other: Position, n: int
) -> None:
    topic = TopicModel()
    ledgers = MessageLedgers()
    ledger_id = 0
    for gap, count in zip(gaps, counts, strict=False):
        ledger_id += gap
        ledgers.open_ledger(ledger_id)
        ledgers.close_ledger(ledger_id, count)
        topic.ledgers[ledger_id] = count
    for trimmed in trims:
        if trimmed in topic.ledgers and len(topic.ledgers) > 1:
            topic.trim(trimmed)
            ledgers.trim_ledger(trimmed)
    ledgers.check()
    entries = topic.entries()
    assert ledgers.total_entries == len(entries)
    assert ledgers.first_position == Position(min(topic.ledgers), -1)
    assert ledgers.exists(place) == (place in entries)
    assert ledgers.next_valid(place) == topic.after(place)
    assert ledgers.at_or_after(place) == topic.at_or_after(place)
    assert ledgers.previous(place) == topic.before(place)
    assert ledgers.count_after(place) == sum(entry > place for entry in entries)
    assert ledgers.count_between(place, other) == sum(place < entry <= other for entry in entries)
    later = [entry for entry in entries if entry > place]
    if n == 0:
        assert ledgers.position_after(place, n) == place
    elif n <= len(later):
        assert ledgers.position_after(place, n) == later[n - 1]
    else:
        assert ledgers.position_after(place, n) == max(place, ledgers.last_confirmed)
