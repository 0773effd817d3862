"""The store of runs against a list that is sorted at each question, with thresholds of a few rows."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ackgate.cursor import ENTRY_ID_MAX, LEDGER_ID_MAX
from ackgate.dispatcher.held import TIME_MS_MAX, run_store, runs, sorted_columns
from ackgate.dispatcher.held.run_store import RunStore
from ackgate.dispatcher.held.runs import NarrowArray, PackedRuns, Runs, expanded, ordered

KEYS = st.one_of(st.integers(0, 12), st.sampled_from([64, 4_096, 2**40, TIME_MS_MAX]))
LEDGERS = st.one_of(st.integers(0, 3), st.sampled_from([10**6, LEDGER_ID_MAX]))
ENTRIES = st.one_of(st.integers(0, 30), st.sampled_from([300, 70_000, ENTRY_ID_MAX]))
RUNS = st.lists(st.tuples(KEYS, LEDGERS, ENTRIES, st.sampled_from([1, 1, 2, 5, 300])), max_size=12)

Triple = tuple[int, int, int]


def as_runs(rows: list[tuple[int, int, int, int]]) -> Runs:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Runs(columns[0], columns[1], columns[2], columns[2] + columns[3])


def entries_of(runs: Runs) -> list[Triple]:
    return list(zip(*(column.tolist() for column in expanded(runs)), strict=True))


class RunStoreMachine(RuleBasedStateMachine):
    @initialize(
        block=st.sampled_from([1, 3, 4_096]),
        fresh=st.sampled_from([1, 4, 1_000]),
        bulk=st.sampled_from([2, 6, 1_000]),
        recent=st.sampled_from([0, 6, 30, 1_000]),
        piece=st.sampled_from([1, 4, 1_000]),
        few=st.sampled_from([0, 6]),
    )
    def start(self, block: int, fresh: int, bulk: int, recent: int, piece: int, few: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(runs, "BLOCK_ROWS", block)
        self.patch.setattr(runs, "FEW_ROWS", few)
        self.patch.setattr(run_store, "FRESH_ROWS_MAX", fresh)
        self.patch.setattr(run_store, "BULK_ROWS_MIN", bulk)
        self.patch.setattr(run_store, "RECENT_ROWS_MIN", recent)
        self.patch.setattr(run_store, "PIECE_ROWS_MIN", piece)
        self.patch.setattr(run_store, "PIECE_ROWS_MAX", 2 * piece)
        self.store = RunStore()
        self.model: list[Triple] = []

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(key=KEYS, ledger_id=LEDGERS, entry_id=ENTRIES, count=st.integers(1, 6))
    def add(self, key: int, ledger_id: int, entry_id: int, count: int) -> None:
        for each in range(entry_id, entry_id + count):
            self.store.add(key, ledger_id, each)
            self.model.append((key, ledger_id, each))

    @rule(rows=RUNS)
    def add_runs(self, rows: list[tuple[int, int, int, int]]) -> None:
        runs = as_runs(rows)
        self.store.add_runs(runs)
        self.model += entries_of(runs)

    @rule(cutoff=KEYS, entries_max=st.sampled_from([1, 3, 10, 10_000]))
    def take(self, cutoff: int, entries_max: int) -> None:
        self.model.sort()
        due = [each for each in self.model if each[0] <= cutoff]
        taken = entries_of(self.store.take(cutoff, entries_max))
        assert len(taken) <= entries_max
        assert bool(taken) == bool(due)
        # Rows that overlap may come before others that begin later: only their order is theirs.
        if len(set(self.model)) == len(self.model):
            assert taken == due[: len(taken)]
        for each in taken:
            self.model.remove(each)

    @rule(entries_max=st.integers(1, 10))
    def look(self, entries_max: int) -> None:
        key = self.store.first_key
        if key is not None:
            self.store.put_back(self.store.take(key, entries_max))

    @rule(ledger_id=LEDGERS)
    def rewrite(self, ledger_id: int) -> None:
        self.store.rewrite(lambda runs: runs.rows(runs.ledger_ids != ledger_id))
        self.model = [each for each in self.model if each[1] != ledger_id]

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.model.clear()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "store"):
            self.store.check()
            assert sorted(entries_of(self.store.everything())) == sorted(self.model)
            assert self.store.entry_count == len(self.model)
            assert (self.store.byte_estimate > 0) >= (len(self.model) > 10_000)


TestRunStore = RunStoreMachine.TestCase


@given(st.lists(st.sampled_from([0, 1, 200, 255, 256, 65_535, 65_536, 2**32, 2**62]), max_size=60))
def test_narrow_arrays_give_back_what_they_got(values: list[int]) -> None:
    array = NarrowArray(np.array(values, dtype=np.int64))
    for start in range(len(values) + 1):
        for stop in range(start, len(values) + 1):
            assert array.slice(start, stop).tolist() == values[start:stop]


@given(
    rows=st.lists(st.tuples(KEYS, LEDGERS, ENTRIES), min_size=1, max_size=40),
    few=st.sampled_from([0, 40]),
)
def test_rows_of_columns_are_sorted_like_tuples(rows: list[Triple], few: int) -> None:
    columns = tuple(np.array(rows, dtype=np.int64).T)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FEW_ROWS", few)
        in_order = sorted_columns(columns)
    assert list(zip(*(column.tolist() for column in in_order), strict=True)) == sorted(rows)
    assert np.array_equal(np.stack(columns, axis=1), rows), "the columns given are as they were"


@given(RUNS.filter(bool))
def test_packed_runs_are_the_runs(rows: list[tuple[int, int, int, int]]) -> None:
    runs = ordered(as_runs(rows))
    assert entries_of(PackedRuns(runs).left()) == entries_of(runs)


def test_an_entry_that_closes_the_run_which_starts_a_merge_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_store, "FRESH_ROWS_MAX", 1)
    monkeypatch.setattr(run_store, "RECENT_ROWS_MIN", 0)
    store = RunStore()
    store.add(0, 0, 0)
    store.add(0, 0, 5)
    store.add_runs(as_runs([(1, 1, 1, 1)]))
    assert store.entry_count == 3
    store.check()


def test_a_few_wide_distances_do_not_widen_the_others() -> None:
    values = np.ones(10_000, dtype=np.int64)
    values[5_000] = 2**40
    assert NarrowArray(values).byte_count == 10_000 + 8 + 4
