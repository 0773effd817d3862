"""Events handed to a replay in pieces of one size, however they came from Spark. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.pipeline.jobs.what_if.events import joined

if TYPE_CHECKING:
    from ackgate.pipeline.jobs.what_if.events import Events
    from ackgate.pipeline.jobs.what_if.replay import SubscriptionReplay

PIECE_EVENTS: Final = 32_768
"""Replayed at a time: bounds what a tape takes."""


class EvenFeed:
    """Events for a replay, in pieces of one size: so that how they came decides nothing."""

    def __init__(self, replay: SubscriptionReplay, *, events_max: int = PIECE_EVENTS) -> None:
        self._replay = replay
        self._events_max = events_max
        self._waiting: list[Events] = []
        self._count = 0

    def feed(self, events: Events) -> None:
        """The next ones."""
        if self._waiting and self._waiting[0].owner_epoch != events.owner_epoch:
            self._pass_on(0)
        self._waiting.append(events)
        self._count += len(events)
        if self._count >= self._events_max:
            self._pass_on(self._count % self._events_max)

    def finished(self) -> SubscriptionReplay:
        """The replay, with all of them."""
        self._pass_on(0)
        self._replay.finish()
        return self._replay

    def _pass_on(self, kept: int) -> None:
        """All but the last so many."""
        if not self._waiting:
            return
        whole = joined(self._waiting)
        stop = len(whole) - kept
        for start in range(0, stop, self._events_max):
            self._replay.feed(whole.part(start, min(start + self._events_max, stop)))
        self._waiting = [whole.part(stop, len(whole))] if kept else []
        self._count = kept
