"""What a bundle is to this broker, and how that may change: one table.

Pure. ::

            ACQUIRE             WON               RELEASE
    FREE ------------> ACQUIRING ----> OWNED ----------------> RELEASING --RELEASED--> FREE
     ^ |                | | |            |                       ^
     | |  FAILED, LOST  | | |            |  LOST (the session, or the owner's node)
     | +<---------------+ | |            +-----------------------+
     |                    | +--BEATEN--> ELSEWHERE
     +---- DESERTED ------|-----------------|
                          |                 ^
                          SEEN (FREE) ------+

`FREE` and `ELSEWHERE` are the metadata store's latest answer; the others are our own doing. In
`RELEASING` topics are being closed, and none is opened. After `LOST` they are let go of without a
word written; the bundle is `FREE` for us when that is done.
"""

from __future__ import annotations

import enum
from typing import Final

from ackgate.errors import IllegalTransitionError


class BundleState(enum.Enum):
    """What a bundle is to this broker."""

    FREE = "free"
    ACQUIRING = "acquiring"
    OWNED = "owned"
    RELEASING = "releasing"
    ELSEWHERE = "elsewhere"


class BundleEvent(enum.Enum):
    """What happens to a bundle."""

    ACQUIRE = "acquire"
    """A client has asked this broker for it."""
    WON = "won"
    """Our node is in place."""
    BEATEN = "beaten"
    """Another broker's node is."""
    FAILED = "failed"
    """The metadata store did not do it."""
    RELEASE = "release"
    """Another broker has to serve it, or none."""
    LOST = "lost"
    """The session, or our node, is gone."""
    RELEASED = "released"
    """Its topics are closed, and the node is gone."""


_FREE, _ACQUIRING, _OWNED, _RELEASING, _ELSEWHERE = BundleState

_MOVES: Final = {
    (_FREE, BundleEvent.ACQUIRE): _ACQUIRING,
    (_ACQUIRING, BundleEvent.WON): _OWNED,
    (_ACQUIRING, BundleEvent.BEATEN): _ELSEWHERE,
    (_ACQUIRING, BundleEvent.FAILED): _FREE,
    (_ACQUIRING, BundleEvent.LOST): _FREE,
    (_OWNED, BundleEvent.RELEASE): _RELEASING,
    (_OWNED, BundleEvent.LOST): _RELEASING,
    (_RELEASING, BundleEvent.LOST): _RELEASING,
    (_RELEASING, BundleEvent.RELEASED): _FREE,
}


def after(state: BundleState, event: BundleEvent, bundle: object) -> BundleState:
    """The next state. Raises `IllegalTransitionError` naming bundle, state and event."""
    try:
        return _MOVES[state, event]
    except KeyError:
        raise IllegalTransitionError(
            f"bundle {bundle} is {state.value}: {event.value} is impossible"
        ) from None
