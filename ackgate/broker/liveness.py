"""Is the other end of a connection still there?

Pure. The session asks once per interval; the answer says what to do now::

    heard something since the last check  ->  NOTHING
    silent                                ->  PING
    silent although pinged                ->  CLOSE

A peer from which nothing is read (backpressure of ours) cannot be heard: it is neither pinged nor
closed then. One that does not read what it is sent gets no such excuse.
"""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    """What to do with the connection now."""

    NOTHING = "nothing"
    PING = "ping"
    CLOSE = "close"


class Liveness:
    """Tells the silent from the dead. `heard` is set for every chunk that arrives."""

    __slots__ = ("heard", "is_pinged")

    def __init__(self) -> None:
        self.heard = False
        """Whether anything came since the last check."""
        self.is_pinged = False
        """Whether a ping is unanswered."""

    def check(self, *, is_deaf: bool) -> Verdict:
        """The verdict for the interval that ends now. `is_deaf`: we did not listen."""
        if self.heard or is_deaf:
            self.heard = False
            self.is_pinged = False
            return Verdict.NOTHING
        if self.is_pinged:
            return Verdict.CLOSE
        self.is_pinged = True
        return Verdict.PING
