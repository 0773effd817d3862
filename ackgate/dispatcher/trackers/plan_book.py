"""What was asked of the broker and not answered yet. Pure.

Every plan has a number of its own and somebody who waits for the outcome. An outcome of a number
that nobody waits for (answered already, or of a plan of before the last start) changes nothing;
whether what it stored is to be deleted is for the caller to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackgate.dispatcher.trackers.bucket_plans import Failed, Missing
from ackgate.dispatcher.trackers.bucket_statistics import OperationCounter, OperationType
from ackgate.dispatcher.trackers.retry_clock import RetryClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.dispatcher.trackers.bucket_plans import Outcome, Plan
    from ackgate.dispatcher.trackers.bucket_settings import BucketSettings


class _Asked(NamedTuple):
    """A plan that was handed out, or will be."""

    operation: OperationType | None
    asked_ms: int
    told: Callable[[Outcome, int], None]


class PlanBook:
    """Numbers plans, keeps who waits, counts how they went."""

    __slots__ = ("_asked", "_last_number", "_plans", "counters", "retries", "settings")

    def __init__(self, settings: BucketSettings, seed: int) -> None:
        self.settings = settings
        self.retries = RetryClock(settings, seed)
        self.counters = {operation: OperationCounter() for operation in OperationType}
        self._plans: list[Plan] = []
        self._asked: dict[int, _Asked] = {}
        self._last_number = 0

    def ask(
        self,
        plan: Callable[[int], Plan],
        told: Callable[[Outcome, int], None],
        now_ms: int,
        operation: OperationType | None = None,
    ) -> None:
        """Ask for this (given its number), and tell me the outcome and the time then."""
        self._last_number += 1
        self._plans.append(plan(self._last_number))
        self._asked[self._last_number] = _Asked(operation, now_ms, told)

    def take(self) -> list[Plan]:
        """Plans since the last call, to be carried out in this order."""
        plans, self._plans = self._plans, []
        return plans

    def answer(self, number: int, outcome: Outcome, now_ms: int) -> bool:
        """Tell who waits. False: nobody does."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return False
        if asked.operation is not None:
            succeeded = not isinstance(outcome, (Failed, Missing))
            latency_ms = max(now_ms - asked.asked_ms, 0)
            self.counters[asked.operation].count(latency_ms, succeeded=succeeded)
        asked.told(outcome, now_ms)
        return True
