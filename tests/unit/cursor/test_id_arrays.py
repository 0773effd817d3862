from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ackgate.cursor import entry_ids_below
from ackgate.cursor.position import by_ledger
from ackgate.errors import PositionError


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.array([1.0, np.nan]), "float64"),
        (np.array([1.5], dtype=np.float32), "float32"),
        (np.array([True]), "bool"),
        (np.array(["1"]), "integers"),
        (np.array([2**70], dtype=object), "object"),
        ([[1, 2], [3, 4]], "one-dimensional"),
        (7, "one-dimensional"),
        ([[1], [2, 3]], "no array"),
        ([3, -4, 5], "entry id -4 of ledger 1"),
        ([3, 2**32, 2**40], "entry id 4294967296 is unknown"),
        ([2**64], "integers|no array"),
        (np.array([2**64 - 1], dtype=np.uint64), "entry id 18446744073709551615"),
        ([3, 10, 11], "entry id 10 is unknown: ledger 1 has 10 entries"),
    ],
)
def test_what_is_not_a_list_of_entries_is_refused_by_name(ids: Any, words: str):
    with pytest.raises(PositionError, match=words):
        entry_ids_below(ids, 10, 1)


def test_nothing_is_fine():
    assert entry_ids_below([], 0, 1).size == 0
    assert entry_ids_below(np.empty(0), 0, 1).size == 0
    assert list(by_ledger([], [])) == []


def test_pairs_are_grouped_by_ledger_in_order():
    groups = by_ledger(np.array([5, 1, 5, 1]), np.array([9, 8, 7, 6]))
    assert [(ledger_id, ids.tolist()) for ledger_id, ids in groups] == [(1, [8, 6]), (5, [9, 7])]


def test_pairs_must_pair():
    with pytest.raises(PositionError, match="2 ledger ids do not pair with 1 entry ids"):
        list(by_ledger([1, 2], [1]))
    with pytest.raises(PositionError, match="ledger id -1"):
        list(by_ledger([1, -1], [1, 1]))
    with pytest.raises(PositionError, match="ledger id 9223372036854775808"):
        list(by_ledger(np.array([2**63], dtype=np.uint64), [1]))
