"""The states of a bundle, as this broker sees it, and their transitions, in one table.

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

`FREE` and `ELSEWHERE` are what the metadata store last said; this broker brings about the others.
In `RELEASING` it closes the topics, and opens none. After `LOST` it drops them without writing
anything; then the bundle is `FREE` to it.
"""

from __future__ import annotations

import enum
from typing import Final

from ackgate.errors import IllegalTransitionError


class BundleState(enum.Enum):
    """The state of a bundle, as this broker sees it."""

    FREE = "free"
    ACQUIRING = "acquiring"
    OWNED = "owned"
    RELEASING = "releasing"
    ELSEWHERE = "elsewhere"


class BundleEvent(enum.Enum):
    """What happens to a bundle."""

    ACQUIRE = "acquire"
    """A client asked this broker for the bundle."""
    WON = "won"
    """Our owner's node is in place."""
    BEATEN = "beaten"
    """Another broker's owner's node is in place."""
    FAILED = "failed"
    """The metadata store failed to make our node."""
    RELEASE = "release"
    """Another broker is to serve the bundle, or none."""
    LOST = "lost"
    """The session, or our node, is gone."""
    RELEASED = "released"
    """The bundle's topics are closed, and our node is deleted."""


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
