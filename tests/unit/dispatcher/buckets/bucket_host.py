"""A bucket tracker with its storage in its hands: plans are carried out when a test says so."""

from __future__ import annotations

from collections import Counter

from ackgate.cursor import BucketRecord, Position
from ackgate.dispatcher.buckets import BucketSettings, BucketTracker, Failed, Outcome, Plan
from ackgate.dispatcher.delayed import DelaySettings
from tests.property.dispatcher.buckets.bucket_storage import Storage

EXACT = DelaySettings(tick_ms=1, is_strict=True)

SMALL = BucketSettings(
    entries_min=5,
    segment_span_ms=10,
    segment_entries_max=-1,
    buckets_max=50,
    load_entries_min=1,
    load_lead_ms=0,
)
"""As upstream's tests: sealed from five entries on, ten milliseconds a segment."""


def message(i: int) -> Position:
    """As upstream's tests: entry i of ledger i, due at 10 * i."""
    return Position(i, i)


class Host:
    def __init__(
        self,
        settings: BucketSettings = SMALL,
        delays: DelaySettings = EXACT,
        storage: Storage | None = None,
    ) -> None:
        self.settings = settings
        self.delays = delays
        self.storage = storage or Storage()
        self.tracker = BucketTracker(delays, settings, seed=1)
        self.now_ms = 0
        self.held: list[Plan] = []
        self.done: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """How often plans of a type are to fail from now on."""

    def add(self, first: int, last: int) -> None:
        """Messages ``first..last``, carrying out plans after each."""
        for i in range(first, last + 1):
            assert self.tracker.add(message(i), 10 * i, self.now_ms)
            self.pump()

    def pump(self, *, hold: tuple[type[Plan], ...] = ()) -> None:
        """Carry out everything, but keep plans of these types back."""
        while plans := self.tracker.take_plans():
            for plan in plans:
                if isinstance(plan, hold):
                    self.held.append(plan)
                else:
                    self.carry_out(plan)

    def release(self) -> None:
        """Carry out what was kept back, and what comes of it."""
        held, self.held = self.held, []
        for plan in held:
            self.carry_out(plan)
        self.pump()

    def carry_out(self, plan: Plan) -> None:
        self.tracker.answer(plan.plan, self.outcome_of(plan), self.now_ms)

    def outcome_of(self, plan: Plan) -> Outcome:
        name = type(plan).__name__
        self.done[name] += 1
        if self.failures[name]:
            self.failures[name] -= 1
            return Failed("injected")
        return self.storage.carry_out(plan)

    def pop(self, entries_max: int, at_ms: int | None = None) -> list[Position]:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        popped = self.tracker.pop_due(self.now_ms, entries_max)
        self.pump()
        self.tracker.check()
        return popped

    def pop_all(self, until_ms: int) -> list[Position]:
        """Everything up to a time, as it falls due."""
        popped: list[Position] = []
        for _ in range(10_000):
            deadline = self.tracker.next_deadline_ms
            if deadline is None or deadline > until_ms:
                return popped
            popped += self.pop(1_000, max(self.now_ms, deadline))
        raise AssertionError("a deadline stays in the past")

    def restarted(self, at_ms: int = 0) -> Host:
        """Another broker, over the same storage. It has read nothing of it yet."""
        self.storage.sweep()
        other = Host(self.settings, self.delays, self.storage)
        other.now_ms = at_ms
        other.tracker.recover(self.records, at_ms)
        return other

    @property
    def records(self) -> list[BucketRecord]:
        return list(self.storage.registry.values())

    @property
    def sealed_buckets(self) -> int:
        return self.tracker.statistics().buckets - 1
