"""The table of what a bundle may be."""

from __future__ import annotations

import itertools

import pytest

from ackgate.broker.cluster.bundles import BundleEvent, BundleState, after
from ackgate.errors import IllegalTransitionError

S, E = BundleState, BundleEvent

LEGAL = {
    (S.FREE, E.ACQUIRE): S.ACQUIRING,
    (S.ACQUIRING, E.WON): S.OWNED,
    (S.ACQUIRING, E.BEATEN): S.ELSEWHERE,
    (S.ACQUIRING, E.FAILED): S.FREE,
    (S.ACQUIRING, E.LOST): S.FREE,
    (S.OWNED, E.RELEASE): S.RELEASING,
    (S.OWNED, E.LOST): S.RELEASING,
    (S.RELEASING, E.LOST): S.RELEASING,
    (S.RELEASING, E.RELEASED): S.FREE,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_move_is_known_or_named(state: BundleState, event: BundleEvent) -> None:
    if (state, event) in LEGAL:
        assert after(state, event, "t/n/r") is LEGAL[state, event]
    else:
        with pytest.raises(IllegalTransitionError, match=rf"t/n/r is {state.value}: {event.value}"):
            after(state, event, "t/n/r")
