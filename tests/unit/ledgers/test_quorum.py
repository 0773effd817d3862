"""Striping and the confirmed border, against counting entry by entry."""

from __future__ import annotations

import random

import pytest

from ackgate.errors import ConfigurationError
from ackgate.persistence.ledgers.quorum import (
    ConfirmedBorder,
    check_quorum,
    held_count,
    holds,
    write_set,
)

SHAPES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize(("ensemble", "write", "ack"), SHAPES)
def test_the_border_is_what_counting_copies_says(ensemble: int, write: int, ack: int) -> None:
    rng = random.Random(f"{ensemble}{write}{ack}")
    for _ in range(50):
        synced = [rng.randint(-1, 30) for _ in range(ensemble)]
        border = ConfirmedBorder(ensemble, write, ack)
        for place, last in enumerate(synced):
            border.synced(place, last)
        counted = -1
        while True:
            places = write_set(counted + 1, ensemble, write)
            if sum(synced[place] >= counted + 1 for place in places) < ack:
                break
            counted += 1
        assert border.border() == counted


@pytest.mark.parametrize(("ensemble", "write", "ack"), SHAPES)
def test_held_entries_are_counted_right(ensemble: int, write: int, ack: int) -> None:
    for place in range(ensemble):
        for first in range(7):
            for last in range(first, first + 13):
                counted = sum(holds(place, e, ensemble, write) for e in range(first, last + 1))
                assert held_count(place, first, last, ensemble, write) == counted


def test_a_replaced_bookie_begins_behind_what_was_confirmed() -> None:
    border = ConfirmedBorder(3, 3, 2)
    for place in range(3):
        border.synced(place, 10)
    border.replaced(1, 10)
    border.synced(0, 20)
    assert border.border() == 10
    border.synced(1, 15)
    assert border.border() == 15


def test_late_news_do_not_move_the_border_back() -> None:
    border = ConfirmedBorder(1, 1, 1)
    border.synced(0, 5)
    border.synced(0, 3)
    assert border.border() == 5


@pytest.mark.parametrize(
    ("shape", "lost", "is_enough"),
    [
        ((3, 3, 2), {0}, True),
        ((3, 3, 2), {0, 2}, False),
        ((3, 2, 2), {1}, False),
        ((3, 2, 1), {1}, True),
        ((5, 2, 1), {0, 2}, True),
        ((5, 2, 1), {0, 1}, False),
    ],
)
def test_what_is_left_may_still_make_a_quorum(
    shape: tuple[int, int, int], lost: set[int], is_enough: bool
) -> None:
    assert ConfirmedBorder(*shape).reaches_ack_quorum(lost) is is_enough


@pytest.mark.parametrize("shape", [(0, 0, 0), (1, 2, 1), (2, 1, 2), (1, 1, 0), (100, 1, 1)])
def test_impossible_shapes_are_named(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"ensemble size {shape[0]}"):
        check_quorum(*shape)
